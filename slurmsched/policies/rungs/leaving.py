"""Running jobs in the order they would have to leave, as vectors over all that they hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slurmsched.model import JobId
from slurmsched.policies.draft import Draft
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.pools import Ints

__all__ = ["Leaving"]


@dataclass(frozen=True, slots=True)
class Leaving:
    """`jobs`, the first to leave first. What the first k of them hold are the first `ends[k]` entries of the vectors,
    one entry for each pool a job lies in."""

    jobs: tuple[JobId, ...]
    ends: Ints
    pools: Ints
    gpus: Ints
    cpus: Ints
    memory: Ints
    alone: Ints

    @classmethod
    def of(cls, draft: Draft, jobs: Iterable[JobId]) -> Leaving:
        """Of these running jobs, the last in the order first."""
        last_first = tuple(sorted(jobs, key=lambda job: -draft.position[job]))
        claims = [draft.held(job) for job in last_first]
        ends = np.cumsum([0, *(len(claim.pools) for claim in claims)])
        entries = [
            entry
            for claim in claims
            for entry in zip(
                claim.pools, claim.gpus, claim.cpus, claim.memory, (claim.alone,) * len(claim.pools), strict=True
            )
        ]
        columns = np.array(entries, dtype=np.int64).reshape(-1, 5).T
        return cls(last_first, ends, *columns)

    def gone(self, count: int, ledger: Ledger) -> Ledger:
        """The ledger as it would be without the first `count` of them."""
        end, pools = int(self.ends[count]), ledger.pools
        nodes = pools.node_of[self.pools[:end]]
        refunded = Ledger(
            pools,
            _summed(self.pools[:end], self.gpus[:end], len(pools)),
            _summed(nodes, self.cpus[:end], len(pools.nodes)),
            _summed(nodes, self.memory[:end], len(pools.nodes)),
            -_summed(nodes, self.alone[:end], len(pools.nodes)),
        )
        return ledger.plus(refunded)


def _summed(places: Ints, amounts: Ints, length: int) -> Ints:
    return np.bincount(places, weights=amounts, minlength=length).astype(np.int64)
