"""The third rung: GPUs are idle, but running jobs hold the CPUs or the memory that go with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurmsched.model import Code, Job, JobId, Reason
from slurmsched.model.wording import gpu_time
from slurmsched.policies.draft import Draft, Unanswered
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.placing import Level, Placement
from slurmsched.policies.pools import Claim

__all__ = ["BesideRestartedJobs"]


@dataclass(frozen=True, slots=True)
class _Rich:
    """A running job with more than its least: where it would lie with that, and what it would give back."""

    job: JobId
    leaner: Placement
    excess: Claim


@dataclass(slots=True)
class BesideRestartedJobs:
    """Restart the fewest running jobs on the least they accept, no slower than at their share, where that pays.

    It pays when the newcomer has more GPU time to go than the restarts lose (Synergy-Tune, section 4.2, step 2a,
    between jobs that run).
    """

    draft: Draft
    _full: Unanswered = field(default_factory=Unanswered)
    _rich: tuple[_Rich, ...] = ()
    _excess: Ledger | None = None
    _as_of: int = -1

    def settles(self, job: Job) -> bool:
        draft, wish = self.draft, self.draft.wishes.of(job)
        if self._full.known(wish, draft.given_back):
            return False
        if int(draft.tight.gpus.max(initial=0)) < wish.gang.gpus:  # a restart frees no GPU
            self._full.remember(wish)
            return False
        room = self._room()
        placement = draft.find(wish, Level.LEAST, room) if self._rich else None
        if placement is None:
            self._full.remember(wish)
            return False
        chosen = _fewest(draft.tight.copy(), self._rich, placement.claim(draft.pools))
        if len(chosen) > draft.moves:
            draft.note(job, Reason(Code.MOVES_SPENT, {"limit": draft.situation.moves}))
            return False
        saving = job.gpus * draft.situation.knowledge.remaining(job)
        cost = sum(draft.jobs[other.job].gpus for other in chosen) * draft.situation.restart_cost
        if saving <= cost:
            return False
        for other in chosen:
            said = {"saving": f"{gpu_time(saving)} of waiting", "cost": gpu_time(cost)}
            draft.restart(other.job, other.leaner, job, Reason(Code.PAYS_FOR_RESTART, said))
        draft.seat(job, placement)
        return True

    def _room(self) -> Ledger:
        """What would be free if all rich jobs were restarted; those that have left count no more."""
        draft = self.draft
        if self._excess is None or self._as_of != draft.given_back:
            rich = _rich_jobs(draft) if self._excess is None else self._rich
            self._rich = tuple(other for other in rich if other.job in draft.leases)
            self._as_of = draft.given_back
            self._excess = Ledger.nothing(draft.pools)
            for other in self._rich:
                self._excess.refund(other.excess)
        return draft.tight.plus(self._excess)


def _rich_jobs(draft: Draft) -> tuple[_Rich, ...]:
    """Running jobs that may be restarted and would do with less on the same GPUs, the richest in CPUs first; of equal
    ones the last in order."""
    found = [
        rich
        for job_id, lease in draft.leases.items()
        if draft.may_leave(job_id) and (rich := _leaner(draft, draft.jobs[job_id], lease)) is not None
    ]
    return tuple(
        sorted(found, key=lambda rich: (-max(rich.excess.cpus), -max(rich.excess.memory), -draft.position[rich.job]))
    )


def _leaner(draft: Draft, job: Job, lease: Claim) -> _Rich | None:
    wish = draft.wishes.of(job)
    gang, kinds = wish.gang, {int(draft.pools.kind_of[pool]) for pool in lease.pools}
    if gang.profile is None or len(kinds) != 1 or any(gpus % gang.gpus for gpus in lease.gpus):
        return None
    kind = kinds.pop()
    parts = tuple(gpus // gang.gpus for gpus in lease.gpus)
    leaner = Placement(gang, lease.pools, parts, wish.terms[kind].least, kind)
    least = leaner.claim(draft.pools)
    cpus = tuple(has - needs for has, needs in zip(lease.cpus, least.cpus, strict=True))
    memory = tuple(has - needs for has, needs in zip(lease.memory, least.memory, strict=True))
    if min(cpus + memory) < 0 or not any(cpus + memory):
        return None
    return _Rich(job.id, leaner, Claim(lease.pools, (0,) * len(lease.pools), cpus, memory))


def _fewest(room: Ledger, rich: Sequence[_Rich], needed: Claim) -> list[_Rich]:
    """Enough of them, richest first, for the claim to be held; those found unnecessary in the end are left alone."""
    by_node = defaultdict[int, list[_Rich]](list)
    for other in rich:
        for pool in other.excess.pools:
            by_node[int(room.pools.node_of[pool])].append(other)
    taken = dict[JobId, _Rich]()
    for pool in needed.pools:
        for other in by_node[int(room.pools.node_of[pool])]:
            if other.job not in taken and not room.holds(needed):
                room.refund(other.excess)
                taken[other.job] = other
    for other in [*taken.values()][-2::-1]:
        room.claim(other.excess)
        if room.holds(needed):
            del taken[other.job]
        else:
            room.refund(other.excess)
    return [*taken.values()]
