"""One round's transaction: allocations, evictions and reasons so far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from slurmsched.model import Job, JobId, JobState, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel, ResourceDemand
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.free import FreeResources
from slurmsched.policies.cluster.pools import Allocation
from slurmsched.policies.place.placement import NodeScore, Placement, find_placement
from slurmsched.policies.sizes import Sizing
from slurmsched.policies.stages import Order, Situation


class FailedRequestCache:
    """Questions that had no answer. Room only shrinks until a running job leaves, so none has one before that."""

    def __init__(self) -> None:
        self._requests: set[Hashable] = set()
        self._epoch = 0

    def contains(self, request: Hashable, epoch: int) -> bool:
        """Whether it was asked since the last job left; `as_of` counts those."""
        if epoch != self._epoch:
            self._requests.clear()
            self._epoch = epoch
        return request in self._requests

    def add(self, request: Hashable) -> None:
        self._requests.add(request)


class Session:
    """Who has which place so far.

    Two ledgers tell what is free: in `wide` every job placed this round has what it was placed with, in `tight` the
    least it accepts. What lies between is given back freely, for these jobs have not started: so no step shrinks a
    peer, and what is spare in the end is handed out once (`growing`). No two jobs of those that are `apart` for the
    same reason, by name, are put on one node.
    """

    def __init__(
        self,
        situation: Situation,
        order: Order,
        sizing: Sizing,
        node_score: NodeScore,
        *,
        mixed_types: Mapping[JobId, frozenset[str]] | None = None,
        anti_affinity: Mapping[JobId, JobId] | None = None,
    ) -> None:
        self.situation = situation
        self.ranking = ranking = order.rank(situation)
        self.may_preempt = order.preemption_rule(situation)
        self.rank_of = {ranked.job: at for at, ranked in enumerate(ranking)}
        self.rank_reason = {ranked.job: ranked.key for ranked in ranking}
        self.jobs = {job.id: job for job in situation.jobs}
        self.sizing = sizing
        self.free_at_minimum = FreeResources.of_snapshot(situation.snapshot)
        self.free_as_planned = self.free_at_minimum.copy()
        self.pools = self.free_at_minimum.pools
        eligibility = Eligibility(self.pools, situation.snapshot, situation.open_nodes)
        self.mixed_types = mixed_types or {}
        self._anti_affinity = anti_affinity or {}
        self._nodes_of_group: dict[JobId, dict[JobId, tuple[int, ...]]] = {
            whose: {} for whose in self._anti_affinity.values()
        }
        """By those names the nodes of each job that has or had a place in this round, by position."""
        self.demands = DemandCache(
            self.pools,
            eligibility,
            situation.knowledge,
            sizing,
            mixed_types=self.mixed_types,
            excluded_nodes=self._nodes_of_peers,
        )
        self.running: dict[JobId, Allocation] = {
            job.id: self.pools.allocation(job.allocations, exclusive=job.original_request.exclusive)
            for job in situation.jobs
            if job.allocations and job.state in (JobState.RUNNING, JobState.SUSPENDED)
        }
        for job_id, allocation in self.running.items():
            self._record_group_nodes(job_id, allocation)
        self.shrunk: dict[JobId, Allocation] = {}
        """What running jobs will have that start again on less."""
        self.placements: dict[JobId, Placement] = {}
        self.victims: dict[JobId, JobId] = {}
        self.reasons: dict[JobId, Reason] = {}
        """Why a job waits, or why a running one starts anew, where more is known than its place in the order."""
        self.moves_left = situation.max_moves
        self.eviction_epoch = 0
        """How often something that ran was given back."""
        self._node_score = node_score

    def find_placement(self, demand: ResourceDemand, level: DemandLevel, free: FreeResources) -> Placement | None:
        """A place in this ledger, nothing claimed."""
        return find_placement(demand, level, free, self._node_score)

    def needs_placement(self, job: Job) -> bool:
        """Whether it neither runs on, nor was given a place already, nor is still ending."""
        if job.state is JobState.COMPLETING:
            detail = {"jobs": "its own last run", "nodes": ", ".join(job.nodes)}
            self.reasons[job.id] = Reason(ReasonCode.FREED_SOON, detail)
            return False
        return job.id not in self.running and job.id not in self.placements

    def allocation_of(self, job: JobId) -> Allocation:
        """What a running job has, or will have once restarted."""
        return self.running.get(job) or self.shrunk[job]

    def set_waiting_reason(self, job: Job, why: Reason) -> None:
        """Why a newcomer waits; that it was displaced says more."""
        if job.id not in self.victims:
            self.reasons[job.id] = why

    def is_preemptible(self, job: JobId) -> bool:
        """Whether a job with a lease may be displaced or restarted."""
        return job not in self.situation.non_preemptible and self.jobs[job].state is JobState.RUNNING

    def at_minimum(self, demand: ResourceDemand, placement: Placement) -> Placement:
        """The same place with the least the job accepts there."""
        return replace(placement, per_task=demand.ranges[placement.kind].minimum)

    def allocate(self, job: Job, placement: Placement) -> None:
        """Give a job this place: for good on its least terms, meanwhile on those it was found with."""
        least = self.at_minimum(self.demands.of(job), placement)
        self.placements[job.id] = least
        self._record_group_nodes(job.id, least.allocation(self.pools))
        self.free_at_minimum.allocate(least.allocation(self.pools))
        self.free_as_planned.allocate(placement.allocation(self.pools))
        if job.id not in self.victims:
            self.reasons.pop(job.id, None)

    def reserve(self, placement: Placement) -> None:
        """Keep a place free, even of what is not free yet."""
        allocation = placement.allocation(self.pools)
        self.free_at_minimum.allocate(allocation)
        self.free_as_planned.allocate(allocation)

    def evict(self, victim: JobId, newcomer: Job) -> None:
        """Take from the victim all it has, or was to have again; it is a newcomer when its turn comes."""
        self._release(victim, newcomer)
        against = f"{self.rank_reason[newcomer.id]} against {self.rank_reason[victim]}"
        self.reasons[victim] = Reason(ReasonCode.NEWCOMER_FIRST, {"newcomer": newcomer.id, "why": against})

    def shrink(self, victim: JobId, smaller: Placement, newcomer: Job, why: Reason) -> None:
        """Have a running job start again at once on less."""
        self._release(victim, newcomer)
        self.allocate(self.jobs[victim], smaller)
        self.shrunk[victim] = smaller.allocation(self.pools)
        self.reasons[victim] = why

    def resize(self, job: Job, placement: Placement, why: Reason) -> None:
        """Have a running job start again at once on more, which must be free, on the GPUs it has."""
        self._release(job.id, job)
        self.placements[job.id] = placement
        self._record_group_nodes(job.id, placement.allocation(self.pools))
        for free in (self.free_at_minimum, self.free_as_planned):
            free.allocate(placement.allocation(self.pools))
        self.reasons[job.id] = why

    def cancel_noop_evictions(self) -> None:
        """Let victims that ended up with just what they had keep it: there is nothing to restart for."""
        for victim in [job for job in self.victims if job in self.placements]:
            had = self.pools.allocation(
                self.jobs[victim].allocations, exclusive=self.jobs[victim].original_request.exclusive
            )
            if self.placements[victim].allocation(self.pools).by_pool() == had.by_pool():
                self.running[victim] = had
                del self.placements[victim], self.victims[victim], self.reasons[victim]

    def _record_group_nodes(self, job: JobId, allocation: Allocation) -> None:
        """Keep those away that it is to be apart from: also from where it is displaced, for it may have to stay."""
        if job in self._anti_affinity:
            nodes = tuple(int(self.pools.node_of[pool]) for pool in allocation.pools)
            nodes_of = self._nodes_of_group[self._anti_affinity[job]]
            nodes_of[job] = (*nodes_of.get(job, ()), *nodes)

    def _nodes_of_peers(self, job: Job) -> frozenset[str]:
        """The nodes of those that it is to be apart from."""
        nodes_of = self._nodes_of_group.get(self._anti_affinity.get(job.id, ""), {})
        return frozenset(
            self.pools.nodes[at].name for other, nodes in nodes_of.items() if other != job.id for at in nodes
        )

    def _release(self, victim: JobId, newcomer: Job) -> None:
        self.moves_left -= victim not in self.victims
        held = self.allocation_of(victim)
        self.free_at_minimum.release(held)
        self.free_as_planned.release(held)
        for books in (self.running, self.shrunk, self.placements):
            books.pop(victim, None)
        self.victims[victim] = newcomer.id
        self.eviction_epoch += 1
