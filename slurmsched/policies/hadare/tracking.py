"""The Job Tracker's books of one job: every step counts exactly once (sections V-A and V-B).

A round's leases divide no more than the steps that are left. A copy reports, as often as it likes, how many steps of
its lease it has done and saved; reports that come twice, out of order, of an older round or of more than was leased
change nothing. When the round is closed the reports are summed up and what was not done goes back to be leased again:
also what a copy had under way that died.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurmsched.policies.hadare.errors import TrackingError

__all__ = ["JobTracker", "Lease"]


@dataclass(frozen=True, slots=True)
class Lease:
    """What one copy shall do in a round, and has done of it."""

    steps: int
    done: int = 0
    ended: bool = False
    """It is through, or dead: nothing more is counted."""


@dataclass(frozen=True, slots=True)
class JobTracker:
    """`aggregated` of `total` steps are done and consolidated. `leases` are those of round `number`, by copy."""

    total: int
    aggregated: int = 0
    number: int = 0
    leases: Mapping[int, Lease] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """Steps to be leased, as of the last closed round."""
        return self.total - self.aggregated

    @property
    def finished(self) -> bool:
        """All copies can be discarded."""
        return self.remaining == 0

    def begin(self, portions: Mapping[int, int]) -> JobTracker:
        """The next round, with so many steps for each copy. Raises TrackingError for more than are left, and while the
        last round is not closed."""
        if self.leases:
            raise TrackingError(f"round {self.number} is not closed: its steps would be done twice")
        if any(steps < 0 for steps in portions.values()) or sum(portions.values()) > self.remaining:
            raise TrackingError(f"cannot lease {sum(portions.values())} steps: {self.remaining} are left")
        leases = {copy: Lease(steps) for copy, steps in portions.items() if steps}
        return replace(self, number=self.number + 1, leases=leases)

    def report(self, copy: int, number: int, done: int) -> JobTracker:
        """A copy has done so many steps of its lease of that round, all told."""
        lease = self.leases.get(copy) if number == self.number else None
        if lease is None or lease.ended or done <= lease.done:
            return self
        return self._with(copy, replace(lease, done=min(done, lease.steps)))

    def end(self, copy: int, number: int) -> JobTracker:
        """A copy is through or dead: what it has reported counts, whatever it says later does not."""
        lease = self.leases.get(copy) if number == self.number else None
        return self if lease is None else self._with(copy, replace(lease, ended=True))

    def close(self) -> JobTracker:
        """The round is over: aggregate."""
        return replace(self, aggregated=self.aggregated + sum(lease.done for lease in self.leases.values()), leases={})

    def _with(self, copy: int, lease: Lease) -> JobTracker:
        return replace(self, leases={**self.leases, copy: lease})
