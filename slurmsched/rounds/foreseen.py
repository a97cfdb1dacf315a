"""Which GPUs Slurm chose, against those that were foreseen: a decision names devices, but Slurm takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmsched.model import Job, JobId, JobState, Share, Snapshot, Target

__all__ = ["Surprise", "surprises"]


@dataclass(frozen=True, slots=True)
class Surprise:
    """A job that runs on other devices of a node than was foreseen."""

    job: JobId
    node: str
    foreseen: tuple[int, ...]
    taken: tuple[int, ...]

    @property
    def sentence(self) -> str:
        return f"runs on GPU {_listed(self.taken)} of {self.node}; GPU {_listed(self.foreseen)} was foreseen"


def _compared(targets: Iterable[Target], before: Snapshot, after: Snapshot) -> Iterator[tuple[Job, Share, Share]]:
    """Each job that started since `before`, with a share that was foreseen and the one it has on that node."""
    for target in targets:
        was, now = before.job.get(target.job), after.job.get(target.job)
        if now is None or now.state is not JobState.RUNNING or (was is not None and was.state is JobState.RUNNING):
            continue
        has = {share.node: share for share in now.shares}
        for share in target.shares:
            taken = has.get(share.node)
            if share.indices and taken is not None and taken.indices:
                yield now, share, taken


def surprises(targets: Iterable[Target], before: Snapshot, after: Snapshot) -> tuple[Surprise, ...]:
    """Those of them that are not as foreseen."""
    return tuple(
        Surprise(job.id, share.node, share.indices, taken.indices)
        for job, share, taken in _compared(targets, before, after)
        if share.indices != taken.indices
    )


def _listed(indices: tuple[int, ...]) -> str:
    return ",".join(str(index) for index in indices)
