"""Which GPUs Slurm chose, against those that were foreseen: a decision names devices, but Slurm takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmsched.model import Job, JobId, JobState, Share, Snapshot, Target
from slurmsched.policies.tesserae.pairing import apart

__all__ = ["Surprise", "surprises"]


@dataclass(frozen=True, slots=True)
class Surprise:
    """A job that runs on other devices of a node than was foreseen. `apart` are those it was to share them with and
    does not."""

    job: JobId
    node: str
    foreseen: tuple[int, ...]
    taken: tuple[int, ...]
    apart: tuple[JobId, ...] = ()

    @property
    def sentence(self) -> str:
        said = f"runs on GPU {_listed(self.taken)} of {self.node}; GPU {_listed(self.foreseen)} was foreseen"
        return f"{said}, beside job {', '.join(self.apart)}" if self.apart else said


def _compared(targets: Iterable[Target], before: Snapshot, after: Snapshot) -> Iterator[tuple[Target, Share, Share]]:
    """Each job that started since `before`, with a share that was foreseen and the one it has on that node."""
    for target in targets:
        was, now = before.job.get(target.job), after.job.get(target.job)
        if now is None or now.state is not JobState.RUNNING or (was is not None and was.state is JobState.RUNNING):
            continue
        has = {share.node: share for share in now.shares}
        for share in target.shares:
            taken = has.get(share.node)
            if share.indices and taken is not None and taken.indices:
                yield target, share, taken


def surprises(targets: Iterable[Target], before: Snapshot, after: Snapshot) -> tuple[Surprise, ...]:
    """Those of them that are not as foreseen; where two that were to share a GPU have not the same one, both are."""
    running = {job.id: job for job in after.jobs if job.state is JobState.RUNNING}
    found = []
    for target, share, taken in _compared(targets, before, after):
        lost = _lost(target, running)
        if lost or share.indices != taken.indices:
            found.append(Surprise(target.job, share.node, share.indices, taken.indices, lost))
    return tuple(found)


def _lost(target: Target, running: dict[JobId, Job]) -> tuple[JobId, ...]:
    return tuple(pair.guest for pair in apart(((target.job, other) for other in target.beside), running))


def _listed(indices: tuple[int, ...]) -> str:
    return ",".join(str(index) for index in indices)
