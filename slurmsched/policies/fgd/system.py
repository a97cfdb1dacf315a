"""A round of fragmentation gradient descent (Weng et al., ATC 2023, algorithm 1).

In order, each waiting job goes where it leaves the least of what is idle unusable for the usual jobs, those of the last
days. Jobs without GPUs are placed alike, which keeps them off nodes whose idle GPUs they would strand. Nobody is
displaced, unless defragmenting is asked for: then running jobs move to other nodes where that lets a waiting one start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmsched.model import Code, Decision, JobId, Ranked, Reason, Target
from slurmsched.policies.fgd.clearing import cleared, tenants
from slurmsched.policies.fgd.cluster import FragmentedCluster
from slurmsched.policies.fgd.leases import ending, has_a_lease
from slurmsched.policies.fgd.seating import Seats
from slurmsched.policies.fgd.wanting import wanting
from slurmsched.policies.protocol import Ordering, Situation

__all__ = ["FragmentationDescent"]


@dataclass(frozen=True, slots=True)
class FragmentationDescent:
    """The whole system. Where a job does not fit, those behind it are still tried."""

    ordering: Ordering
    defragments: bool = False
    name: str = "fgd"

    def decide(self, situation: Situation) -> Decision:
        order = self.ordering.rank(situation)
        jobs = {job.id: job for job in situation.jobs}
        seats = Seats.of(situation)
        empty: FragmentedCluster | None = None
        targets, waiting = dict[JobId, Target](), dict[JobId, Reason]()
        for ranked in order:
            job = jobs[ranked.job]
            if has_a_lease(job):
                targets[job.id] = Target(job.id, job.shares, (Reason(Code.KEEPS_LEASE),))
            elif why := ending(job):
                waiting[job.id] = why
            elif shares := seats.place(job):
                first = Reason(Code.FIRST_IN_ORDER, {"order": self.ordering.name})
                turn = Reason(Code.FILLS_IN) if waiting else first
                targets[job.id] = Target(job.id, shares, (turn, Reason(Code.FEWEST_FRAGMENTS)))
            else:
                empty = empty or seats.cluster.emptied()
                waiting[job.id] = wanting(job, empty)
        victims = self._defragmented(situation, order, seats, targets, waiting) if self.defragments else {}
        return Decision(self.name, order, targets, waiting, victims, dict(situation.state))

    def _defragmented(
        self,
        situation: Situation,
        order: Sequence[Ranked],
        seats: Seats,
        targets: dict[JobId, Target],
        waiting: dict[JobId, Reason],
    ) -> dict[JobId, JobId]:
        """Which job moved for whom. Everything in the books is changed accordingly."""
        movable, left, victims = tenants(seats, situation), situation.moves, dict[JobId, JobId]()
        jobs = {job.id: job for job in situation.jobs}
        for ranked in order:
            wants = waiting.get(ranked.job)
            if wants is None or wants.code not in (Code.NO_ROOM, Code.NO_SHARDS) or not left:
                continue
            found = cleared(seats, jobs[ranked.job], movable, left)
            if found is None:
                continue
            gone = {tenant.job.id: shares for tenant, shares in found.moved}
            said: dict[str, str | int | float] = {"jobs": ", ".join(sorted(gone)), "cost": round(found.cost)}
            del waiting[ranked.job]
            targets[ranked.job] = Target(ranked.job, found.shares, (Reason(Code.ROOM_IS_MADE, said),))
            for job, shares in gone.items():
                why = Reason(Code.MAKES_ROOM, {"job": ranked.job, "nodes": ", ".join(s.node for s in shares)})
                targets[job] = Target(job, shares, (why,))
                victims[job] = ranked.job
            movable = [tenant for tenant in movable if tenant.job.id not in gone]
            left -= len(gone)
        return victims
