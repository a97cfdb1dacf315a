"""The jobs as real ones: sleepers that take as long as their work does at the speed their CPUs give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Hints, Job, JobId, Node, Request, Resources, Share
from slurmsched.rendering import render
from slurmsched.traces import TraceJob

__all__ = ["LEAD", "Sleeper", "hint"]

LEAD: Final = 2
"""Seconds a sleeper is given to write its checkpoint."""

Submit = Callable[[Sequence[str], str], JobId]
"""sbatch: its options and the script, the job's number."""


def hint(job: TraceJob) -> str:
    """The comment that says what the job is, and how it is told to checkpoint."""
    return f"synsched:model={job.model},ckpt=usr1@{LEAD}"


@dataclass(frozen=True, slots=True)
class Sleeper:
    """Submits jobs of a trace as batch scripts. `folder` is on every node; checkpoints and output go there."""

    knowledge: Knowledge
    nodes: Mapping[str, Node]
    folder: Path
    submit: Submit

    def start(self, job: TraceJob) -> JobId:
        """Queue it. Raises BackendError."""
        home = next(node for node in self.nodes.values() if job.gpu_type in node.gpu_types)
        options = (
            f"--job-name=fidelity-{job.id}",
            f"--comment={hint(job)}",
            f"--gres=gpu:{job.gpu_type}:{job.gpus}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={job.cpus}",
            f"--mem={job.memory}M",
            "--requeue",
            f"--chdir={self.folder}",
            "--output=/dev/null",
        )
        script = render("sleeper.sh", seconds=job.duration, folder=self.folder, speeds=self._speeds(job, home))
        return self.submit(options, script)

    def _speeds(self, job: TraceJob, home: Node) -> list[int]:
        """Thousandths of the speed at the proportional share, for 0, 1, 2 ... CPUs."""
        asked = Request(gpus=job.gpus, gpu_type=job.gpu_type, cpus=job.cpus or 1, memory=job.memory or 0)
        known = Job(job.id, job.user, asked, asked, hints=Hints(given=True, model=job.model))
        each = (
            Share(home.name, Resources(job.gpus, cpus, asked.memory), job.gpu_type)
            for cpus in range(1, home.total.cpus + 1)
        )
        speeds = (self.knowledge.relative_speed(known, (share,), self.nodes) for share in each)
        return [1000, *(max(1, round(1000 * speed)) for speed in speeds)]
