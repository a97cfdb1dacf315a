"""Short jobs on a real Slurm: drawn, submitted as sleepers, and scheduled by rounds of our own until all ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Final

import numpy as np

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.keepalive import Keepalive, SystemdNotifier
from slurmsched.daemon.lock import exclusive_lock
from slurmsched.daemon.scheduler import SchedulerContext, schedule_round
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Hints,
    Job,
    JobId,
    JobState,
    Node,
    NodeAllocation,
    Request,
    Resources,
    Snapshot,
    SynschedError,
)
from slurmsched.store.store import Store
from slurmsched.template_files import render
from slurmsched.traces import Trace, TraceJob

CHECKPOINT_LEAD: Final = 2
"""Seconds a sleeper is given to write its checkpoint."""

Submit = Callable[[Sequence[str], str], JobId]
"""sbatch: its options and the script, the job's number."""


def hint_comment(job: TraceJob) -> str:
    """The comment that says what the job is, and how it is told to checkpoint."""
    return f"synsched:model={job.model},ckpt=usr1@{CHECKPOINT_LEAD}"


@dataclass(frozen=True, slots=True)
class SleeperJobs:
    """Submits jobs of a trace as batch scripts. `folder` is on every node; checkpoints and output go there."""

    knowledge: Knowledge
    nodes: Mapping[str, Node]
    folder: Path
    submit: Submit

    def submit_job(self, job: TraceJob) -> JobId:
        """Queue it. Raises BackendError."""
        node = next(node for node in self.nodes.values() if job.gpu_type in node.gpu_types)
        options = (
            f"--job-name=fidelity-{job.id}",
            f"--comment={hint_comment(job)}",
            f"--gres=gpu:{job.gpu_type}:{job.gpus}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={job.cpus}",
            f"--mem={job.memory}M",
            "--requeue",
            f"--chdir={self.folder}",
            "--output=/dev/null",
        )
        script = render("sleeper.sh", seconds=job.duration, folder=self.folder, speeds=self._speeds(job, node))
        return self.submit(options, script)

    def _speeds(self, job: TraceJob, node: Node) -> list[int]:
        """Thousandths of the speed at the proportional share, for 0, 1, 2 ... CPUs."""
        asked = Request(gpus=job.gpus, gpu_type=job.gpu_type, cpus=job.cpus or 1, memory=job.memory or 0)
        known = Job(job.id, job.user, asked, asked, hints=Hints(given=True, model=job.model))
        each = (
            NodeAllocation(node.name, Resources(job.gpus, cpus, asked.memory), job.gpu_type)
            for cpus in range(1, node.total.cpus + 1)
        )
        speeds = (self.knowledge.relative_speed(known, (share,), self.nodes) for share in each)
        return [1000, *(max(1, round(1000 * speed)) for speed in speeds)]


_BEAT_INTERVAL: Final = 1.0


@dataclass(frozen=True, slots=True)
class LiveJobResult:
    """What became of one job. `submitted` is in seconds after the first round began, `ended` likewise."""

    submitted: float
    ended: float
    restarts: int


@dataclass(slots=True)
class _Submitter:
    """Submits each job when it is due, beside the rounds."""

    trace: Trace
    sleeper: SleeperJobs
    clock: Clock
    queued: dict[JobId, tuple[str, float]] = field(default_factory=dict)
    """Job number to the trace's id and the time of submission, which Slurm renews when it requeues a job."""
    error: SynschedError | None = None
    stopped: Event = field(default_factory=Event)

    def run(self) -> None:
        start = self.clock.monotonic()
        for job in self.trace.jobs:
            if self.stopped.wait(max(0.0, start + job.arrival - self.clock.monotonic())):
                return
            try:
                at = self.clock.now()
                self.queued[self.sleeper.submit_job(job)] = job.id, at
            except SynschedError as error:  # told by the thread that waits for us
                self.error = error
                return


def run_live(
    trace: Trace,
    site: SchedulerContext,
    sleeper: SleeperJobs,
    clock: Clock,
    say: Callable[[str], None],
    *,
    time_limit: float = 3600.0,
) -> Mapping[str, LiveJobResult]:
    """Run the trace; what became of each job, by its id in the trace. Jobs that have not ended after `patience` seconds
    are missing.

    Raises BackendError, StoreError, AlreadyRunningError: rounds of somebody else would mix with ours.
    """
    path = Path(site.settings.storage.path)
    submitter = _Submitter(trace, sleeper, clock)
    ended: dict[JobId, Job] = {}
    deadline = clock.monotonic() + time_limit
    with exclusive_lock(path), closing(Store.open(path, clock.now())) as store:
        pulse = Keepalive(site.settings, store.switches, clock, SystemdNotifier({}), say)
        pulse.renew()  # or job_submit lets Slurm start the jobs
        began = clock.now()
        submitting = Thread(target=submitter.run, name="submissions")
        submitting.start()
        try:
            while len(ended) < len(trace.jobs) and clock.monotonic() < deadline and submitter.error is None:
                due = clock.monotonic() + site.settings.rounds.period
                _collect_ended(schedule_round(site, store, clock, tick=pulse.tick).snapshot, submitter.queued, ended)
                while (left := due - clock.monotonic()) > 0:
                    clock.sleep(min(left, _BEAT_INTERVAL))
                    pulse.tick()
                _collect_ended(site.backend.observe(), submitter.queued, ended)
        finally:
            submitter.stopped.set()
            submitting.join()
            pulse.stop()
    if submitter.error is not None:
        raise submitter.error
    return {
        submitter.queued[job.id][0]: LiveJobResult(
            submitter.queued[job.id][1] - began, job.end_time - began, job.restarts
        )
        for job in ended.values()
        if job.end_time is not None
    }


def _collect_ended(snapshot: Snapshot, ours: Mapping[JobId, object], ended: dict[JobId, Job]) -> None:
    ended.update({job.id: job for job in snapshot.jobs_in_state(JobState.FINISHED) if job.id in ours})


MODELS: Final = ("resnet18", "shufflenet", "resnet50", "gnmt", "transformer", "deepspeech")
SHORTEST: Final = 20.0
LONGEST: Final = 160.0
"""Seconds of work, between which durations are spread evenly in the logarithm."""

_WIDTHS: Final = (1, 1, 1, 2, 2, 4, 8)


def generate_workload(nodes: Sequence[Node], jobs: int, random: np.random.Generator, load: float = 1.3) -> Trace:
    """That many jobs on the GPU types of these nodes, none wider than a node. `load` is the work that arrives, as a
    multiple of what all GPUs do at the proportional share, until all have arrived."""
    equipped = [node for node in nodes if node.gpus]
    job_nodes = [equipped[int(place)] for place in random.integers(len(equipped), size=jobs)]
    widths = [
        min(int(width), len(home.gpus)) for width, home in zip(random.choice(_WIDTHS, jobs), job_nodes, strict=True)
    ]
    seconds = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), jobs)).round(1)
    models = random.choice(MODELS, jobs)
    rate = load * sum(len(node.gpus) for node in equipped) / float(np.mean(np.multiply(widths, seconds)))
    arrivals = np.cumsum(random.exponential(1 / rate, jobs)).round(1)
    return Trace(
        name="fidelity",
        source="generated: short jobs",
        jobs=tuple(
            TraceJob(
                id=str(number),
                arrival=float(arrival),
                gpus=width,
                duration=float(work),
                model=str(model),
                user="fidelity",
                gpu_type=home.gpus[0].type,
                gpus_per_node=width,
                cpus=(share := home.proportional_share(width)).cpus,
                memory=share.memory,
            )
            for number, (arrival, width, work, model, home) in enumerate(
                zip(arrivals, widths, seconds, models, job_nodes, strict=True), start=1
            )
        ),
    )
