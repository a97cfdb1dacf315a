"""Restarts running jobs with less, where free GPUs lack CPUs or memory.

Source: Mohan et al. (Synergy, OSDI 2022), section 4.2, step 2a of Synergy-Tune.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurmsched.model import Job, JobId, Reason, ReasonCode
from slurmsched.model.reasons import format_gpu_hours
from slurmsched.policies.admit.allocate import FailedRequestCache
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.eligibility import may_begin_again
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import PerTaskResources, expressible_size, proportional_size


@dataclass(frozen=True, slots=True)
class _Shrinkable:
    """A running job with more than its least: its placement with the least, and the resources that frees."""

    job: JobId
    smaller: Placement
    excess: Allocation


@dataclass(slots=True)
class ShrinkRunning:
    """Restarts the fewest running jobs with the least they accept, with which they are no slower than at their share.

    It does so only if the newcomer's remaining GPU-seconds exceed what the restarts lose.
    """

    session: Session
    _failed: FailedRequestCache = field(default_factory=FailedRequestCache)
    _shrinkable: tuple[_Shrinkable, ...] = ()
    _excess: FreeResources | None = None
    _epoch: int = -1

    def try_admit(self, job: Job) -> bool:
        session = self.session
        attempt = session.attempt(job) if session.may_evict else None
        if attempt is None or self._failed.contains(attempt, session.eviction_epoch):
            return False
        gpus = session.demands.of(job).gang.gpus_per_part
        if int(session.free_at_minimum.gpus.max(initial=0)) < gpus:  # no restart frees a GPU
            self._failed.add(attempt)
            return False
        free = self._free_if_all_shrunk()
        placement = session.find_placement(job, DemandLevel.MINIMUM, free) if self._shrinkable else None
        if placement is None:
            self._failed.add(attempt)
            return False
        chosen = _fewest_that_suffice(
            session.free_at_minimum.copy(), self._shrinkable, placement.allocation(session.pools)
        )
        if len(chosen) > session.moves_left:
            session.set_waiting_reason(job, Reason(ReasonCode.MOVES_SPENT, {"limit": session.situation.max_moves}))
            return False
        saving = job.gpus * session.situation.knowledge.remaining_seconds(job)
        cost_of = session.situation.cost_of_restart
        cost = sum(session.jobs[other.job].gpus * cost_of(other.job) for other in chosen)
        if saving <= cost:
            return False
        for other in chosen:
            detail = {"saving": f"{format_gpu_hours(saving)} of waiting", "cost": format_gpu_hours(cost)}
            session.shrink(other.job, other.smaller, job, Reason(ReasonCode.PAYS_FOR_RESTART, detail))
        session.allocate(job, placement)
        return True

    def _free_if_all_shrunk(self) -> FreeResources:
        """Return what is free if all shrinkable jobs that still run are restarted with their least."""
        session = self.session
        if self._excess is None or self._epoch != session.eviction_epoch:
            shrinkable = _shrinkable_jobs(session) if self._excess is None else self._shrinkable
            self._shrinkable = tuple(
                other
                for other in shrinkable
                if other.job in session.running
                and not session.delays_promise(session.jobs[other.job], other.smaller.allocation(session.pools))
            )
            self._epoch = session.eviction_epoch
            self._excess = FreeResources.none(session.pools)
            for other in self._shrinkable:
                self._excess.release(other.excess)
        return session.free_at_minimum.plus(self._excess)


def _shrinkable_jobs(session: Session) -> tuple[_Shrinkable, ...]:
    """Return the running jobs that may be restarted with less on the same GPUs, by excess CPUs, then excess memory,
    the largest first; of equals the last in order."""
    shrinkable, kind_of = list[_Shrinkable](), session.pools.kind_of.tolist()
    at_least = set[tuple[object, ...]]()
    for job_id, current in session.running.items():
        job = session.jobs[job_id]
        kinds = {kind_of[pool] for pool in current.pools}
        alike = (session.demands.of(job), *kinds, current.gpus, current.cpus, current.memory)
        if alike in at_least or not session.is_preemptible(job_id):
            continue
        smaller = _shrink_to_minimum(session, job, current)
        if smaller is None:
            at_least.add(alike)
        elif may_begin_again(job, session.situation.snapshot):
            shrinkable.append(smaller)
    return tuple(
        sorted(shrinkable, key=lambda s: (-max(s.excess.cpus), -max(s.excess.memory), -session.rank_of[s.job]))
    )


def _shrink_to_minimum(session: Session, job: Job, current: Allocation) -> _Shrinkable | None:
    demand = session.demands.of(job)
    gang, kinds = demand.gang, {int(session.pools.kind_of[pool]) for pool in current.pools}
    if (
        gang.profile is None
        or not gang.gpus_per_part
        or len(kinds) != 1
        or any(gpus % gang.gpus_per_part for gpus in current.gpus)
    ):
        return None
    kind = kinds.pop()
    parts = tuple(gpus // gang.gpus_per_part for gpus in current.gpus)
    smaller = Placement(gang, current.pools, parts, _least_while_running(session, demand, kind), kind)
    minimum = smaller.allocation(session.pools)
    cpus = tuple(has - needs for has, needs in zip(current.cpus, minimum.cpus, strict=True))
    memory = tuple(has - needs for has, needs in zip(current.memory, minimum.memory, strict=True))
    if min(cpus + memory) < 0 or not any(cpus + memory):
        return None
    return _Shrinkable(job.id, smaller, Allocation(current.pools, (0,) * len(current.pools), cpus, memory))


def _least_while_running(session: Session, demand: ResourceDemand, kind: int) -> PerTaskResources:
    """Return the least that a running job accepts: of a job known by what earlier runs used, which may start with what
    it asked for where there is no more, at least its share, or what it needs where that is less."""
    gang, demanded = demand.gang, demand.ranges[kind]
    if gang.profile is None or gang.profile.spares is None:
        return demanded.minimum
    share = proportional_size(gang, session.pools.kinds[kind])
    own = replace(demanded.minimum, cpus=max(demanded.minimum.cpus, min(share.cpus, demanded.best.cpus)))
    return expressible_size(gang, own, max(share.memory, demanded.minimum.memory))


def _fewest_that_suffice(
    free: FreeResources, shrinkable: Sequence[_Shrinkable], needed: Allocation
) -> list[_Shrinkable]:
    """Return enough jobs, in the given order, to free the allocation, without those that prove unnecessary."""
    by_node = defaultdict[int, list[_Shrinkable]](list)
    for other in shrinkable:
        for pool in other.excess.pools:
            by_node[int(free.pools.node_of[pool])].append(other)
    taken = dict[JobId, _Shrinkable]()
    for pool in needed.pools:
        for other in by_node[int(free.pools.node_of[pool])]:
            if other.job not in taken and not free.fits(needed):
                free.release(other.excess)
                taken[other.job] = other
    for other in [*taken.values()][-2::-1]:
        free.allocate(other.excess)
        if free.fits(needed):
            del taken[other.job]
        else:
            free.release(other.excess)
    return [*taken.values()]
