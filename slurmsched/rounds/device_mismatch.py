"""Compares the GPUs that Slurm chose with those that were planned: a decision names devices, but Slurm assigns them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmsched.model import Job, JobId, JobState, NodeAllocation, Snapshot, Target


@dataclass(frozen=True, slots=True)
class DeviceMismatch:
    """A job that runs on other GPUs of a node than planned.

    `planned` and `actual` are GPU indices; `separated` are the jobs that it was to share a GPU with and does not.
    """

    job: JobId
    node: str
    planned: tuple[int, ...]
    actual: tuple[int, ...]
    separated: tuple[JobId, ...] = ()

    @property
    def sentence(self) -> str:
        text = f"runs on GPU {_listed(self.actual)} of {self.node}; GPU {_listed(self.planned)} was planned"
        return f"{text}, beside job {', '.join(self.separated)}" if self.separated else text


def _started_allocations(
    targets: Iterable[Target], before: Snapshot, after: Snapshot
) -> Iterator[tuple[Target, NodeAllocation, NodeAllocation]]:
    """Yield each target that started since `before`, with its planned and actual allocation on each node."""
    for target in targets:
        was, now = before.jobs_by_id.get(target.job), after.jobs_by_id.get(target.job)
        if now is None or now.state is not JobState.RUNNING or (was is not None and was.state is JobState.RUNNING):
            continue
        actual = {allocation.node: allocation for allocation in now.allocations}
        for planned in target.allocations:
            taken = actual.get(planned.node)
            if planned.indices and taken is not None and taken.indices:
                yield target, planned, taken


def device_mismatches(targets: Iterable[Target], before: Snapshot, after: Snapshot) -> tuple[DeviceMismatch, ...]:
    """Return the started jobs that run on other GPUs than planned, or apart from a job that was to share their GPU."""
    running = {job.id: job for job in after.jobs if job.state is JobState.RUNNING}
    mismatches = []
    for target, planned, actual in _started_allocations(targets, before, after):
        separated = _separated(target, running)
        if separated or (planned.indices != actual.indices and not _any_would_do(target, planned, after)):
            mismatches.append(DeviceMismatch(target.job, planned.node, planned.indices, actual.indices, separated))
    return tuple(mismatches)


def _any_would_do(target: Target, planned: NodeAllocation, after: Snapshot) -> bool:
    """Return whether it was open which GPU it gets: it has all shards of one, or waited for jobs to leave several."""
    node = after.nodes_by_name.get(planned.node)
    whole = {gpu.shards for gpu in node.gpus if gpu.index in planned.indices} if node else set()
    return bool(target.once_left) or (planned.shards > 0 and whole == {planned.shards})


def _separated(target: Target, running: dict[JobId, Job]) -> tuple[JobId, ...]:
    """Return the jobs that were to share its GPUs and run on others."""
    devices = {job: frozenset(running[job].devices) for job in (target.job, *target.beside) if job in running}
    has = devices.get(target.job)
    return tuple(job for job in target.beside if has is not None and devices.get(job, has) != has)


def _listed(indices: tuple[int, ...]) -> str:
    return ",".join(str(index) for index in indices)
