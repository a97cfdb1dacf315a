"""The session of one round: the allocations, evictions and reasons it has decided so far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.placement import NodeScore, PartDemand, Placement, find_placement
from slurmsched.policies.sizes import Sizing
from slurmsched.policies.stages import NO_ENTITLEMENT, Entitlement, Order, RoundResources, Situation


@dataclass(frozen=True, slots=True)
class _PreferredTypes(NodeScore):
    """Of the pools that fit those of the best type, and among them what `node_score` prefers."""

    ranks: Ints
    """By pool; 0 for the best type."""
    node_score: NodeScore

    @property
    def name(self) -> str:
        return f"best GPU type, then {self.node_score.name}"

    def select(self, free: FreeResources, demand: PartDemand, candidates: Ints, count: int) -> Ints:
        ranks, taken = self.ranks[candidates], list[int]()
        for rank in np.unique(ranks):
            of_type = candidates[ranks == rank]
            taken += self.node_score.select(free, demand, of_type, min(count - len(taken), len(of_type))).tolist()
            if len(taken) == count:
                break
        return np.array(taken, dtype=np.int64)


class FailedRequestCache:
    """Requests that could not be placed since the last eviction.

    Free resources only shrink until a running job is evicted, so these requests need no second attempt before that.
    """

    def __init__(self) -> None:
        self._requests: set[Hashable] = set()
        self._epoch = 0

    def contains(self, request: Hashable, epoch: int) -> bool:
        """Whether the request failed in this epoch. A new `epoch` (`Session.eviction_epoch`) empties the cache."""
        if epoch != self._epoch:
            self._requests.clear()
            self._epoch = epoch
        return request in self._requests

    def add(self, request: Hashable) -> None:
        self._requests.add(request)


def completing_reason(job: Job) -> Reason | None:
    """Return why the job cannot be placed yet if its previous run is completing, else None."""
    if job.state is not JobState.COMPLETING:
        return None
    return Reason(ReasonCode.FREED_SOON, {"jobs": "its previous run", "nodes": ", ".join(job.nodes)})


@dataclass(frozen=True, slots=True)
class SessionCheckpoint:
    """A session's decisions at one moment."""

    free_at_minimum: FreeResources
    free_as_planned: FreeResources
    books: tuple[dict[JobId, Any], ...]
    nodes_of_group: dict[JobId, dict[JobId, tuple[int, ...]]]
    moves_left: int
    may_evict: bool
    eviction_epoch: int


class Session:
    """The state of one round: allocations, evictions and reasons so far.

    Free resources are counted twice. In `free_as_planned` every job placed this round has the resources it was placed
    with, in `free_at_minimum` the least it accepts. Later jobs may take the difference, since these jobs have not
    started; what is left of it in the end `distribute_spare` hands out. No two jobs with the same value in
    the entitlement's `anti_affinity` are placed on one node.
    """

    def __init__(
        self,
        situation: Situation,
        order: Order,
        sizing: Sizing,
        node_score: NodeScore,
        entitlement: Entitlement = NO_ENTITLEMENT,
    ) -> None:
        self.situation = situation
        self.entitlement = entitlement
        self.ranking = ranking = order.rank(situation)
        self.may_preempt = order.preemption_rule(situation)
        self.rank_of = {ranked.job: rank for rank, ranked in enumerate(ranking)}
        self.rank_reason = {ranked.job: ranked.key for ranked in ranking}
        self.jobs = {job.id: job for job in situation.jobs}
        self.sizing = sizing
        resources = entitlement.resources or RoundResources.of(situation, sizing)
        self.free_at_start = resources.free
        """Not to be changed."""
        self.free_at_minimum, self.free_as_planned = resources.free.copy(), resources.free.copy()
        self.pools = resources.free.pools
        self._nodes_of_group: dict[JobId, dict[JobId, tuple[int, ...]]] = {
            group: {} for group in entitlement.anti_affinity.values()
        }
        """By value of `anti_affinity`: the nodes, as indices, of each job that has or had an allocation this round."""
        self.demands = resources.demands
        if entitlement.gpu_types or entitlement.anti_affinity or resources.sizing != sizing:
            self.demands = DemandCache(
                self.pools,
                resources.eligibility,
                situation.knowledge,
                sizing,
                gpu_types=entitlement.gpu_types,
                excluded_nodes=self._nodes_of_peers,
            )
        self.running: dict[JobId, Allocation] = dict(resources.running)
        for job_id, allocation in self.running.items():
            self._record_group_nodes(job_id, allocation)
        self.shrunk: dict[JobId, Allocation] = {}
        """What running jobs will have that are restarted with less."""
        self.placements: dict[JobId, Placement] = {}
        self.victims: dict[JobId, JobId] = {}
        self.reasons: dict[JobId, Reason] = {}
        """Why a job waits or is restarted, where more is known than its rank."""
        self.moves_left = situation.max_moves
        self.may_evict = True
        """Whether running jobs may be evicted or restarted at all; if not, that is no reason for a job to wait."""
        self.steps: dict[JobId, int] = {}
        """Steps that a copy of a forked job does until the next round."""
        self.remarks: dict[JobId, Reason] = {}
        """What more there is to say of a target."""
        self.beside: dict[JobId, tuple[JobId, ...]] = {}
        """The jobs that should share a job's GPUs."""
        self.shared_speed: dict[JobId, float] = {}
        """The speed of a job that shares its GPUs."""
        self.eviction_epoch = 0
        """Number of times that a running job's resources were released."""
        self.node_score = node_score.prepared(situation, self.pools)
        if entitlement.preferred_types:
            place = {gpu_type: rank for rank, gpu_type in enumerate(entitlement.preferred_types)}
            ranks = [place.get(gpu_type, len(place)) for gpu_type in self.pools.gpu_types]
            self.node_score = _PreferredTypes(np.array(ranks, dtype=np.int64), self.node_score)

    def find_placement(
        self, demand: ResourceDemand, level: DemandLevel, free: FreeResources, among: Mask | None = None
    ) -> Placement | None:
        """Return a placement on these free resources, in these pools, or None. Allocates nothing."""
        return find_placement(demand, level, free, self.node_score, among)

    def needs_placement(self, job: Job) -> bool:
        """Whether the job has no allocation and is not completing; completing is recorded as its reason to wait."""
        if why := completing_reason(job):
            self.reasons[job.id] = why
            return False
        if job.id in self.entitlement.postponed:
            self.reasons[job.id] = self.entitlement.postponed[job.id]
            return False
        return job.id not in self.running and job.id not in self.placements

    def allocation_of(self, job: JobId) -> Allocation:
        """Return what a running job has, or will have once it is restarted with less."""
        return self.running.get(job) or self.shrunk[job]

    def set_waiting_reason(self, job: Job, why: Reason) -> None:
        """Record why a newcomer waits, unless it was evicted this round: that reason says more."""
        if job.id not in self.victims:
            self.reasons[job.id] = why

    def is_preemptible(self, job: JobId) -> bool:
        """Whether a job with an allocation may be evicted or restarted."""
        protected = job in self.situation.non_preemptible or job in self.entitlement.protected
        return not protected and self.jobs[job].state is JobState.RUNNING

    def at_minimum(self, demand: ResourceDemand, placement: Placement) -> Placement:
        """Return the same placement with the least that the job accepts there."""
        least = demand.ranges[placement.kind].minimum
        return placement if placement.per_task == least else replace(placement, per_task=least)

    def allocate(self, job: Job, placement: Placement, why: Reason | None = None) -> None:
        """Allocate this placement: in `free_as_planned` as it is, otherwise with the least the job accepts there.

        `why` is the reason for people; None says where the job is in the order.
        """
        placement = placement.with_devices(self.free_at_minimum)
        least = self.at_minimum(self.demands.of(job), placement)
        allocation = least.allocation(self.pools)
        self.placements[job.id] = least
        self._record_group_nodes(job.id, allocation)
        self.free_at_minimum.allocate(allocation)
        self.free_as_planned.allocate(allocation if placement is least else placement.allocation(self.pools))
        if job.id not in self.victims:
            self.reasons.pop(job.id, None)
            if why is not None:
                self.reasons[job.id] = why

    def reserve(self, placement: Placement) -> None:
        """Reserve a placement; its resources need not be free yet."""
        allocation = placement.allocation(self.pools)
        self.free_at_minimum.allocate(allocation)
        self.free_as_planned.allocate(allocation)

    def evict(self, victim: JobId, newcomer: Job) -> None:
        """Evict a running job for a newcomer. The victim is a newcomer itself when its turn comes."""
        self._release(victim, newcomer)
        if self.entitlement.why_end:
            self.reasons[victim] = self.entitlement.why_end(self.jobs[victim], newcomer)
            return
        against = f"{self.rank_reason[newcomer.id]} against {self.rank_reason[victim]}"
        self.reasons[victim] = Reason(ReasonCode.NEWCOMER_FIRST, {"newcomer": newcomer.id, "why": against})

    def shrink(self, victim: JobId, smaller: Placement, newcomer: Job, why: Reason) -> None:
        """Restart a running job with less, for a newcomer."""
        self._release(victim, newcomer)
        self.allocate(self.jobs[victim], smaller)
        self.shrunk[victim] = self.placements[victim].allocation(self.pools)
        self.reasons[victim] = why

    def restart_with(self, job: Job, placement: Placement, why: Reason) -> None:
        """Restart a running job with this placement, on the same GPUs or on others.

        What the placement takes beyond the job's current allocation must be free.
        """
        self._release(job.id, job)
        placement = placement.with_devices(self.free_at_minimum)
        self.placements[job.id] = placement
        self._record_group_nodes(job.id, placement.allocation(self.pools))
        for free in (self.free_at_minimum, self.free_as_planned):
            free.allocate(placement.allocation(self.pools))
        self.reasons[job.id] = why

    def exchange(
        self, newcomer: Job, placement: Placement, moved: Mapping[JobId, Placement], reasons: Mapping[JobId, Reason]
    ) -> None:
        """Move running jobs to other nodes for a newcomer. `reasons` has one for each of these jobs."""
        for job in moved:
            self._release(job, newcomer)
        self.allocate(newcomer, placement)
        for job, elsewhere in moved.items():
            self.allocate(self.jobs[job], elsewhere)
        self.reasons.update(reasons)

    def share(self, job: JobId, partners: tuple[JobId, ...], speed: float, why: Reason) -> None:
        """Record that a job has its GPUs beside these jobs, and its speed there."""
        self.beside[job], self.shared_speed[job], self.reasons[job] = partners, speed, why

    def allocations(self) -> dict[JobId, Allocation]:
        """Return what every job has or was given so far."""
        placed = {job: placement.allocation(self.pools) for job, placement in self.placements.items()}
        return {**self.running, **placed}

    def checkpoint(self) -> SessionCheckpoint:
        """Return all that has been decided so far, for `rollback`."""
        return SessionCheckpoint(
            self.free_at_minimum.copy(),
            self.free_as_planned.copy(),
            tuple(dict(book) for book in self._books()),
            {group: dict(nodes) for group, nodes in self._nodes_of_group.items()},
            self.moves_left,
            self.may_evict,
            self.eviction_epoch,
        )

    def rollback(self, to: SessionCheckpoint) -> None:
        """Take back all that was decided since the checkpoint, which can be used again."""
        self.free_at_minimum, self.free_as_planned = to.free_at_minimum.copy(), to.free_as_planned.copy()
        for book, before in zip(self._books(), to.books, strict=True):
            book.clear()
            book.update(before)
        self._nodes_of_group = {group: dict(nodes) for group, nodes in to.nodes_of_group.items()}
        self.moves_left, self.may_evict, self.eviction_epoch = to.moves_left, to.may_evict, to.eviction_epoch
        self.demands.restrict_all()

    def _books(self) -> tuple[dict[JobId, Any], ...]:
        return (
            self.running, self.shrunk, self.placements, self.victims, self.reasons, self.steps, self.remarks,
            self.beside, self.shared_speed,
        )  # fmt: skip

    def cancel_noop_evictions(self) -> None:
        """Cancel evictions of jobs that were placed again with exactly what they had: they keep running."""
        for victim in [job for job in self.victims if job in self.placements]:
            had = self.pools.allocation(
                self.jobs[victim].allocations, exclusive=self.jobs[victim].original_request.exclusive
            )
            has = self.placements[victim].allocation(self.pools)
            if has.by_pool() == had.by_pool() and (not had.part or has.devices == had.devices):
                self.running[victim] = had
                del self.placements[victim], self.victims[victim], self.reasons[victim]

    def _record_group_nodes(self, job: JobId, allocation: Allocation) -> None:
        """Record the nodes of a job with anti-affinity. They stay when it is evicted: that may be cancelled."""
        if group := self.entitlement.anti_affinity.get(job):
            nodes = tuple(int(self.pools.node_of[pool]) for pool in allocation.pools)
            nodes_of = self._nodes_of_group[group]
            nodes_of[job] = (*nodes_of.get(job, ()), *nodes)

    def _nodes_of_peers(self, job: Job) -> frozenset[str]:
        """Return the names of the nodes that the job's anti-affinity excludes."""
        nodes_of = self._nodes_of_group.get(self.entitlement.anti_affinity.get(job.id, ""), {})
        return frozenset(
            self.pools.nodes[node].name for other, nodes in nodes_of.items() if other != job.id for node in nodes
        )

    def _release(self, victim: JobId, newcomer: Job) -> None:
        self.moves_left -= victim not in self.victims
        held = self.allocation_of(victim)
        self.free_at_minimum.release(held)
        self.free_as_planned.release(held)
        for jobs in (self.running, self.shrunk, self.placements):
            jobs.pop(victim, None)
        self.victims[victim] = newcomer.id
        self.eviction_epoch += 1


class FinishStep(Protocol):
    """A step that runs once every job had its turn: distributes spare resources, restarts jobs, renames nodes."""

    def __call__(self, session: Session, /) -> None: ...
