"""The session of one round: the allocations, evictions and reasons it has decided so far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from typing import Any, Protocol

from slurmsched.arrays import Mask
from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.intersections import Intersections
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.limits import LimitAccount
from slurmsched.policies.place.placement import FIRST_FIT, NodeScore, Placement, find_placement, of_best_types
from slurmsched.policies.sizes import PerTaskResources, Sizing, expressible_size, proportional_size, requested_size
from slurmsched.policies.stages import NO_ENTITLEMENT, Entitlement, Order, RoundResources, Situation
from slurmsched.policies.tiers import Tiers


def completing_reason(job: Job) -> Reason:
    """Return why the job cannot be placed yet: its previous run is completing."""
    return Reason(ReasonCode.FREED_SOON, {"jobs": "its previous run", "nodes": ", ".join(job.nodes)})


@dataclass(frozen=True, slots=True)
class PromisedStart:
    """The start that is promised to the first job of the order that does not fit; what starts later may not delay it.

    `start`, in unix seconds, is when the jobs in `ended` will have left, at the latest; infinite where no end is known.
    `waits_for` are those of them that are in the way. `beside` is what is free beside the job then: on the nodes of its
    `placement` what `ended` leave, on the others all there is, since nothing is kept there. Unless `binding`, the
    promise is only remembered. `certain`: time limits say so, not estimates.
    """

    job: JobId
    placement: Placement
    start: float
    waits_for: tuple[JobId, ...]
    ended: frozenset[JobId]
    beside: FreeResources
    binding: bool = True
    certain: bool = True

    def is_on_node_of(self, allocation: Allocation) -> bool:
        """Whether the allocation is on one of the nodes that are promised."""
        node_of = self.beside.pools.node_of
        return not {int(node_of[pool]) for pool in self.placement.pools}.isdisjoint(
            int(node_of[pool]) for pool in allocation.pools
        )


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
    promise: PromisedStart | None
    limits: LimitAccount
    unused_moves: int


class Session:
    """The state of one round: allocations, evictions and reasons so far.

    Free resources are counted twice. In `free_as_planned` every job placed this round has the resources it was placed
    with, in `free_at_minimum` the least it accepts. Later jobs may take the difference, since these jobs have not
    started; what is left of it in the end `distribute_spare` hands out. No two jobs with the same value in
    the entitlement's `anti_affinity` are placed on one node.
    """

    def __init__(  # noqa: PLR0915 a statement for each part of a round's state
        self,
        situation: Situation,
        order: Order,
        sizing: Sizing,
        node_score: NodeScore,
        entitlement: Entitlement = NO_ENTITLEMENT,
    ) -> None:
        self.situation = situation
        self.entitlement = entitlement
        self.tiers = Tiers.of(situation)
        self.ranking = ranking = self.tiers.ranked(order.rank(situation))
        self.rank_of = {ranked.job: rank for rank, ranked in enumerate(ranking)}
        self.may_preempt = self.tiers.limited(order.preemption_rule(situation), self.rank_of)
        self.rank_reason = {ranked.job: ranked.key for ranked in ranking}
        self.jobs = {job.id: job for job in situation.jobs}
        self.sizing = sizing
        resources = entitlement.resources or RoundResources.of(situation, sizing)
        self.free_at_start = resources.free
        """Not to be changed."""
        self.free_at_minimum, self.free_as_planned = resources.free.copy(), resources.free.copy()
        self.pools = resources.free.pools
        groups = entitlement.anti_affinity.values()
        self._nodes_of_group: dict[JobId, dict[JobId, tuple[int, ...]]] = {group: {} for group in groups}
        """By value of `anti_affinity`: the nodes, as indices, of each job that has or had an allocation this round."""
        self.demands = resources.demands
        self.limits = resources.limits.copy()
        if entitlement.gpu_types or entitlement.anti_affinity or resources.sizing != sizing:
            self.demands = DemandCache(
                self.pools,
                resources.eligibility,
                situation.knowledge,
                sizing,
                gpu_types=entitlement.gpu_types,
                excluded_nodes=self._nodes_of_peers if entitlement.anti_affinity else None,
                cap=self.limits.cap,
                classes=resources.demands.classes,
            )
        self.running: dict[JobId, Allocation] = dict(resources.running)
        for job_id in filter(self.running.__contains__, entitlement.anti_affinity):
            self._record_group_nodes(job_id, self.running[job_id])
        self.shrunk: dict[JobId, Allocation] = {}  # what running jobs will have that are restarted with less
        self.placements: dict[JobId, Placement] = {}
        self.victims: dict[JobId, JobId] = {}
        self.reasons: dict[JobId, Reason] = {}
        """Why a job waits or is restarted, where more is known than its rank."""
        self.moves_left = 0 if situation.starts_only else situation.max_moves
        self.may_evict = not situation.starts_only
        """Whether running jobs may be evicted or restarted at all; if not, that is no reason for a job to wait."""
        self.steps: dict[JobId, int] = {}
        """Steps that a copy of a forked job does until the next round."""
        self.remarks: dict[JobId, Reason] = {}
        """What more there is to say of a target."""
        self.beside: dict[JobId, tuple[JobId, ...]] = {}
        """The jobs that should share a job's GPUs."""
        self.starts_after: dict[JobId, tuple[JobId, ...]] = {}
        """The jobs of this round that must run before a job is released, so that Slurm chooses its device last."""
        self.starts_once_left: dict[JobId, tuple[JobId, ...]] = {}
        """The jobs that must have left before it is."""
        self.shared_speed: dict[JobId, float] = {}
        """The speed of a job that shares its GPUs."""
        self.eviction_epoch = 0
        """Number of times that a running job's resources were released."""
        self.promise: PromisedStart | None = None
        """The start that is promised; None as long as every job before fits."""
        self._leaves_by, self._intersections = dict[JobId, float](), Intersections()
        """By newcomer what `leaves_by` returned, and what is free beside the promise too."""
        self.takes_back, self.preempts = False, True
        """Whether the policy restarts jobs with less where others need what they were given; whether it preempts."""
        self.first: set[JobId] = set()
        """The jobs whose turn came before the order, as they are due a promised start."""
        self.saved_moves, self.unused_moves = 0, 0
        """Moves that earlier rounds left for the job that is promised a start, and those that this one leaves."""
        self.awaited_pools: Sequence[int] = ()
        """Pools where a gang waits for the ends of jobs: none that cannot be preempted fills them."""
        self._score, self._off_promise = node_score.prepared(situation, self.pools), dict[tuple[int, ...], NodeScore]()
        self.node_score = of_best_types(self._score, entitlement.preferred_types, self.pools)

    def find_placement(
        self,
        job: Job,
        level: DemandLevel,
        free: FreeResources,
        among: Mask | None = None,
        demand: ResourceDemand | None = None,
        *,
        beside: FreeResources | None = None,
        node_score: NodeScore | None = None,
    ) -> Placement | None:
        """Return a placement on these free resources, in these pools, or None. Allocates nothing. `node_score` is by
        default the policy's.

        A job that might outlast the promised start is placed only where it does not delay it: on what is free `beside`
        that, by default what the promise says. Any other leaves the promised nodes alone where it fits elsewhere: since
        jobs end before their limits, the start comes sooner. `demand` is what it gets, if not what it asked for.
        """
        promise, score = self.promise, node_score or self.node_score
        if promise is not None and self.outlasts_promise(job):
            free = self._intersections.of(free, beside or promise.beside)
        elif promise is not None and promise.binding and promise.job != job.id and node_score is None:
            score = self._score_off(promise.placement.pools)
        return find_placement(demand or self.demands.of(job), level, free, score, among)

    def _score_off(self, kept: tuple[int, ...]) -> NodeScore:
        """Return the policy's score for a job that leaves these pools alone where its GPU type has others."""
        if kept not in self._off_promise:
            types = self.entitlement.preferred_types
            self._off_promise[kept] = of_best_types(self._score, types, self.pools, kept)
        return self._off_promise[kept]

    def has_room(self, job: Job, free: FreeResources, among: Mask | None = None) -> bool:
        """Return whether `find_placement` has a placement with the least that the job accepts."""
        return self.find_placement(job, DemandLevel.MINIMUM, free, among, node_score=FIRST_FIT) is not None

    def attempt(self, job: Job) -> Hashable:
        """Return what decides whether a newcomer can be placed: its demand, and whether it may delay the promise."""
        return self.demands.of(job), self.outlasts_promise(job)

    def expected_end(self, job: Job) -> float:
        """Return the latest end, in unix seconds, of a job that has an allocation or begins now: by its time limit,
        else by what is known of its duration; infinite where neither is known."""
        now = self.situation.snapshot.time
        if job.state is JobState.COMPLETING:
            return now
        if not job.allocations or job.id in self.victims:
            return self._end_if_started(job)
        if job.end_time is not None:
            return max(now, job.end_time)
        if job.time_limit is not None:
            return max(now, (now - job.run_time if job.start_time is None else job.start_time) + job.time_limit)
        return now + self.situation.knowledge.latest_remaining_seconds(job)

    def outlasts_promise(self, job: Job) -> bool:
        """Whether the job, started now, may still run when another is promised its start."""
        promise = self.promise
        if promise is None or not promise.binding or job.id == promise.job:
            return False
        end = self.leaves_by(job)
        return end > promise.start or isinf(end)

    def leaves_by(self, job: Job) -> float:
        """Return the latest end of a newcomer that begins now: of its slice, if it takes turns."""
        if (known := self._leaves_by.get(job.id)) is not None:
            return known
        end, situation = self._end_if_started(job), self.situation
        if job.id in self.entitlement.slices and situation.max_moves and job.id not in situation.unmovable:
            end = min(end, situation.snapshot.time + self.entitlement.slices[job.id])
        self._leaves_by[job.id] = end
        return end

    def _end_if_started(self, job: Job) -> float:
        if job.time_limit is not None:
            return self.situation.snapshot.time + job.time_limit
        return self.situation.snapshot.time + self.situation.knowledge.latest_remaining_seconds(job)

    def delays_promise(self, job: Job, allocation: Allocation) -> bool:
        """Whether the job, started now with this allocation, takes what another is promised."""
        promise = self.promise
        if promise is None or not self.outlasts_promise(job):
            return False
        return promise.is_on_node_of(allocation) and not promise.beside.fits(allocation)

    def needs_placement(self, job: Job) -> bool:
        """Whether the job has no allocation and may have one: what else keeps it is recorded as its reason to wait."""
        if job.state is JobState.COMPLETING:
            self.reasons[job.id] = completing_reason(job)
            return False
        if job.id in self.entitlement.postponed:
            self.reasons[job.id] = self.entitlement.postponed[job.id]
            return False
        if job.id in self.running or job.id in self.placements:
            return False
        if why := self.limits.reached(job):
            self.set_waiting_reason(job, why)
            return False
        return True

    def allocation_of(self, job: JobId) -> Allocation:
        """Return what a running job has, or will have once it is restarted with less."""
        return self.running.get(job) or self.shrunk[job]

    def set_waiting_reason(self, job: Job, why: Reason) -> None:
        """Record why a newcomer waits, unless it was evicted this round: that reason says more."""
        if job.id not in self.victims:
            self.reasons[job.id] = why

    def is_preemptible(self, job: JobId) -> bool:
        """Whether a job with an allocation may be evicted or restarted."""
        return not self.situation.starts_only and self.may_leave(job)

    def may_leave(self, job: JobId) -> bool:
        """Whether a full round may evict or restart it."""
        stays = job in self.situation.non_preemptible or job in self.entitlement.protected
        return not stays and self.jobs[job].state is JobState.RUNNING

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
        own, has = self._own_share(least), least.per_task
        if own and not self.lends_to(job.id) and not self._leaves_share_of_idle(least.allocation(self.pools)):
            own = PerTaskResources(min(own.cpus, has.cpus), min(own.memory, has.memory))
            least = placement = replace(least, per_task=expressible_size(least.gang, own, own.memory))
        self._take(job, least, None if placement is least else placement.allocation(self.pools))
        if job.id not in self.victims:
            self.reasons.pop(job.id, None)
            if why is not None:
                self.reasons[job.id] = why

    def _take(self, job: Job, placement: Placement, planned: Allocation | None = None) -> None:
        """Record the placement and count its resources as used; `planned` are those counted in `free_as_planned`, if
        they are others."""
        allocation = placement.allocation(self.pools)
        self.placements[job.id] = placement
        self.limits.charge(job, allocation, self.pools)
        self._record_group_nodes(job.id, allocation)
        self.free_at_minimum.allocate(allocation)
        self.free_as_planned.allocate(planned or allocation)
        self._count_beside_promise(job, allocation)

    def reserve(self, placement: Placement) -> None:
        """Reserve a placement; its resources need not be free yet."""
        allocation = placement.allocation(self.pools)
        self.free_at_minimum.allocate(allocation)
        self.free_as_planned.allocate(allocation)

    def evict(self, victim: JobId, newcomer: Job) -> None:
        """Evict a running job for a newcomer. The victim is a newcomer itself when its turn comes."""
        self._release(victim, newcomer)
        against = f"{self.rank_reason[newcomer.id]} against {self.rank_reason[victim]}"
        why = Reason(ReasonCode.NEWCOMER_FIRST, {"newcomer": newcomer.id, "why": against})
        if self.entitlement.why_end:
            why = self.entitlement.why_end(self.jobs[victim], newcomer)
        idle = self.situation.idle_last.get(victim)
        self.reasons[victim] = idle.why_end(newcomer.id) if idle else why

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
        self._take(job, placement.with_devices(self.free_at_minimum))
        self.reasons[job.id] = why

    def enlarge(self, job: JobId, larger: Placement, extra: Allocation) -> bool:
        """Give a job placed this round a larger placement, which takes `extra` more; False where that is not free."""
        if not self.free_at_minimum.fits(extra) or self.delays_promise(self.jobs[job], extra):
            return False
        if self._own_share(larger) and not self.lends_to(job) and not self._leaves_share_of_idle(extra):
            return False
        self.free_at_minimum.allocate(extra)
        self._count_beside_promise(self.jobs[job], extra)
        self.placements[job] = larger
        self.limits.charge(self.jobs[job], larger.allocation(self.pools), self.pools)
        return True

    def place_again(self, job: Job, placement: Placement) -> None:
        """Replace the placement of a job that was placed in this round, by one without spare resources."""
        self._give_up(job, self.placements[job.id].allocation(self.pools))
        self._take(job, placement)

    def lends_to(self, job: JobId) -> bool:
        """Whether the job may have CPUs and memory of idle GPUs until these are needed: the policy takes them back, and
        the job may be restarted. One that was just restarted with less may not."""
        return self.takes_back and job not in self.situation.unmovable and job not in self.shrunk

    def share_of_idle(self, pool: int, gpus: int = 0) -> tuple[int, int]:
        """Return the CPUs and MiB that are the share of the idle GPUs of the pool's node, without `gpus` of them."""
        node = int(self.pools.node_of[pool])
        idle = int(self.free_at_minimum.gpus[self.pools.node_of == node].clip(min=0).sum())
        share = self.pools.nodes[node].proportional_share(max(0, idle - gpus))
        return share.cpus, share.memory

    def _leaves_share_of_idle(self, taken: Allocation) -> bool:
        """Whether the GPUs that stay idle keep their share of CPUs and memory once this is taken."""
        for pool, gpus, cpus, memory in zip(taken.pools, taken.gpus, taken.cpus, taken.memory, strict=True):
            node, share = self.pools.node_of[pool], self.share_of_idle(pool, gpus)
            free = self.free_at_minimum
            if free.cpus[node] - cpus < share[0] or free.memory[node] - memory < share[1]:
                return False
        return True

    def _own_share(self, placement: Placement) -> PerTaskResources | None:
        """Return what each part may have whatever others need, its share or its request; None if it has no more."""
        gang, kind, has = placement.gang, self.pools.kinds[placement.kind], placement.per_task
        if not gang.gpus_per_part or gang.request.exclusive:
            return None
        share, asked = proportional_size(gang, kind), requested_size(gang, kind)
        own = PerTaskResources(max(share.cpus, asked.cpus), max(share.memory, asked.memory))
        return own if has.cpus > own.cpus or has.memory > own.memory else None

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
        """Record that a job has its GPUs beside these jobs, and its speed there. Why it is restarted is told first."""
        self.beside[job], self.shared_speed[job] = partners, speed
        (self.remarks if job in self.victims else self.reasons)[job] = why

    def allocations(self) -> dict[JobId, Allocation]:
        """Return what every job has or was given so far."""
        return self.running | {job: placed.allocation(self.pools) for job, placed in self.placements.items()}

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
            self.promise and replace(self.promise, beside=self.promise.beside.copy()),
            self.limits.copy(),
            self.unused_moves,
        )

    def rollback(self, to: SessionCheckpoint) -> None:
        """Take back all that was decided since the checkpoint, which can be used again."""
        self.free_at_minimum, self.free_as_planned = to.free_at_minimum.copy(), to.free_as_planned.copy()
        for book, before in zip(self._books(), to.books, strict=True):
            book.clear()
            book.update(before)
        self._nodes_of_group = {group: dict(nodes) for group, nodes in to.nodes_of_group.items()}
        self.moves_left, self.may_evict, self.eviction_epoch = to.moves_left, to.may_evict, to.eviction_epoch
        self.promise = to.promise and replace(to.promise, beside=to.promise.beside.copy())
        self.limits, self.unused_moves = to.limits.copy(), to.unused_moves
        self.demands.restrict_all()

    def _books(self) -> tuple[dict[JobId, Any], ...]:
        return (
            self.running, self.shrunk, self.placements, self.victims, self.reasons, self.steps, self.remarks,
            self.beside, self.starts_after, self.starts_once_left, self.shared_speed,
        )  # fmt: skip

    def cancel_noop_evictions(self) -> None:
        """Cancel evictions of jobs that were placed again with exactly what they had: they keep running."""
        for victim in [job for job in self.victims if job in self.placements]:
            had = self.pools.held_by(self.jobs[victim])
            has = self.placements[victim].allocation(self.pools)
            same_part = not had.part or (has.devices == had.devices and has.part == had.part)
            if has.by_pool() == had.by_pool() and same_part:
                self.running[victim] = had
                del self.placements[victim], self.victims[victim], self.reasons[victim]
                self._keep_in_place(victim)

    def _keep_in_place(self, job: JobId) -> None:
        """Let nobody start after a job that keeps running; how it shares its GPUs is all that there is to say of it."""
        after = ((other, before) for other, before in self.starts_after.items() if other != job)
        rest = {other: tuple(first for first in before if first != job) for other, before in after}
        self.starts_after = {other: before for other, before in rest.items() if before}
        if job in self.beside:
            self.reasons[job] = self.remarks.pop(job)

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

    def _count_beside_promise(self, job: Job, allocation: Allocation) -> None:
        if self.promise is not None and self.outlasts_promise(job):
            self.promise.beside.allocate(allocation)

    def _release(self, victim: JobId, newcomer: Job) -> None:
        self.moves_left -= victim not in self.victims
        self.limits.release(victim)
        held = self.allocation_of(victim)
        self._give_up(self.jobs[victim], held)
        for jobs in (self.running, self.shrunk, self.placements):
            jobs.pop(victim, None)
        self.victims[victim] = newcomer.id
        self.eviction_epoch += 1

    def _give_up(self, job: Job, held: Allocation) -> None:
        """Count what a job has as free."""
        counted = job.id in self.running or self.outlasts_promise(job)
        if self.promise is not None and job.id not in self.promise.ended and counted:
            self.promise.beside.release(held)
        self.free_at_minimum.release(held)
        self.free_as_planned.release(held)


class FinishStep(Protocol):
    """A step that runs once every job had its turn: distributes spare resources, restarts jobs, renames nodes."""

    def __call__(self, session: Session, /) -> None: ...
