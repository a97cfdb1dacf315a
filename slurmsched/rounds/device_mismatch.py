"""Which GPUs Slurm chose, against those that were foreseen: a decision names devices, but Slurm takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmsched.model import Job, JobId, JobState, NodeAllocation, Snapshot, Target
from slurmsched.policies.tesserae.packing import separated_pairs


@dataclass(frozen=True, slots=True)
class DeviceMismatch:
    """A job that runs on other devices of a node than was foreseen. `apart` are those it was to share them with and
    does not."""

    job: JobId
    node: str
    planned: tuple[int, ...]
    actual: tuple[int, ...]
    separated: tuple[JobId, ...] = ()

    @property
    def sentence(self) -> str:
        text = f"runs on GPU {_listed(self.actual)} of {self.node}; GPU {_listed(self.planned)} was foreseen"
        return f"{text}, beside job {', '.join(self.separated)}" if self.separated else text


def _started_allocations(
    targets: Iterable[Target], before: Snapshot, after: Snapshot
) -> Iterator[tuple[Target, NodeAllocation, NodeAllocation]]:
    """Each job that started since `before`, with a share that was foreseen and the one it has on that node."""
    for target in targets:
        was, now = before.jobs_by_id.get(target.job), after.jobs_by_id.get(target.job)
        if now is None or now.state is not JobState.RUNNING or (was is not None and was.state is JobState.RUNNING):
            continue
        has = {share.node: share for share in now.allocations}
        for share in target.allocations:
            taken = has.get(share.node)
            if share.indices and taken is not None and taken.indices:
                yield target, share, taken


def device_mismatches(targets: Iterable[Target], before: Snapshot, after: Snapshot) -> tuple[DeviceMismatch, ...]:
    """Those of them that are not as foreseen; where two that were to share a GPU have not the same one, both are."""
    running = {job.id: job for job in after.jobs if job.state is JobState.RUNNING}
    mismatches = []
    for target, share, taken in _started_allocations(targets, before, after):
        separated = _separated(target, running)
        if separated or share.indices != taken.indices:
            mismatches.append(DeviceMismatch(target.job, share.node, share.indices, taken.indices, separated))
    return tuple(mismatches)


def _separated(target: Target, running: dict[JobId, Job]) -> tuple[JobId, ...]:
    return tuple(pair.guest for pair in separated_pairs(((target.job, other) for other in target.beside), running))


def _listed(indices: tuple[int, ...]) -> str:
    return ",".join(str(index) for index in indices)
