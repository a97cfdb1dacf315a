"""Who uses a GPU together with whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.model import JobId, Share

__all__ = ["Sharing"]


@dataclass(slots=True)
class Sharing:
    """The jobs on each device that is cut into shards; nobody else has company."""

    _on: defaultdict[tuple[str, int], dict[JobId, SimulatedJob]] = field(default_factory=lambda: defaultdict(dict))

    def enter(self, job: SimulatedJob, shares: Sequence[Share]) -> Sequence[SimulatedJob]:
        """The job starts on these; whom it joins."""
        company = self.company(job, shares)
        for device in _devices(shares):
            self._on[device][job.id] = job
        return company

    def leave(self, job: SimulatedJob) -> Sequence[SimulatedJob]:
        """The job gives its shares back; whom it leaves."""
        company = self.company(job, job.shares)
        for device in _devices(job.shares):
            del self._on[device][job.id]
        return company

    def company(self, job: SimulatedJob, shares: Sequence[Share]) -> Sequence[SimulatedJob]:
        """The other jobs on these devices, each once."""
        others = {
            other.id: other for device in _devices(shares) for other in self._on[device].values() if other is not job
        }
        return tuple(others.values())


def _devices(shares: Sequence[Share]) -> Iterable[tuple[str, int]]:
    return ((share.node, index) for share in shares if share.shards for index in share.indices)
