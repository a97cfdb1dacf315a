"""What a pending job waits for: the jobs ahead of it, how many GPUs it could get now, and when running jobs free
enough."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest

from slurmsched.model import (
    Decision,
    Job,
    JobId,
    JobState,
    Node,
    NodeAllocation,
    Promise,
    RankedJob,
    Request,
    Resources,
    Snapshot,
    Target,
)
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.gang import Gang, gang_of
from slurmsched.policies.cluster.resources import pools_of
from slurmsched.rounds.scope import EligibleNodeCache


@dataclass(frozen=True)
class WaitForecast:
    """The cluster after this round's starts, whose allocations are `starting`; `usable` are nodes by partition.

    What the `promise` keeps for one job is taken for all others: they have it once that job has ended. Results are
    cached by request and eligible nodes, since many jobs ask for the same.
    """

    snapshot: Snapshot
    usable: Mapping[str, frozenset[str]]
    starting: tuple[NodeAllocation, ...] = ()
    promise: Promise | None = None

    def max_gpus_now(self, job: Job) -> int:
        """Most GPUs that are free for the job on a single node, with their proportional CPUs and memory; 0 if none.

        A single-node job of that size would start now if no job were ahead of it.
        """
        key = self._key(job)
        if key not in self._max_gpus_cache:
            self._max_gpus_cache[key] = max(
                (self._max_gpus_on(self.snapshot.nodes_by_name[name], job) for name in key.nodes), default=0
            )
        return self._max_gpus_cache[key]

    def last_needed_end(self, job: Job) -> tuple[JobId, float] | None:
        """The running job whose end is the last one needed to free enough GPUs, and its latest end (unix seconds).

        None if enough are free now, or if time limits do not free enough. Counts GPUs only, not CPUs or memory; for the
        job that is promised a start it is what the promise says.
        """
        if self.promise is not None and self.promise.job == job.id:
            last = self.promise.waits_for[-1:]
            return None if self.promise.start is None or not last else (last[0], self.promise.start)
        key = self._key(job)
        if key not in self._last_needed_cache:
            self._last_needed_cache[key] = self._last_needed(job, key.nodes)
        return self._last_needed_cache[key]

    def _last_needed(self, job: Job, nodes: frozenset[str]) -> tuple[JobId, float] | None:
        # below zero where a promised job takes GPUs that are still to be freed
        idle = Counter({name: self._available(self.snapshot.nodes_by_name[name], job).gpus for name in nodes})
        gang = self._gang(job)
        if _suffices(idle, gang):
            return None
        for end, other in self._expected_ends:
            freed = {
                s.node: s.resources.gpus for s in other.allocations if s.node in idle and _type_matches(s.gpu_type, job)
            }
            idle.update(freed)
            # for a single-node job only the nodes that changed need checking
            grown = {name: idle[name] for name in freed} if gang.max_nodes == 1 else idle
            if freed and _suffices(grown, gang):
                return other.id, end
        return None

    def _gang(self, job: Job) -> Gang:
        """The job as rounds divide it: over as many nodes as it needs where it leaves their number to Slurm."""
        node_gpus = self._eligibility.node_gpus(job)
        return gang_of(job.original_request, None, memory_tunable=False, node_gpus=node_gpus)

    def _key(self, job: Job) -> _ForecastKey:
        request, nodes = job.original_request, self._eligible_nodes.of(job)
        key = self._keys_by_address.get((id(request), id(nodes)))
        if key is None:
            key = self._keys.setdefault((request, nodes), _ForecastKey(nodes))
            self._keys_by_address[id(request), id(nodes)] = key
        return key

    @cached_property
    def _keys(self) -> dict[tuple[Request, frozenset[str]], _ForecastKey]:
        return {}

    @cached_property
    def _keys_by_address(self) -> dict[tuple[int, int], _ForecastKey]:
        """As most jobs that ask alike share the request: to compare all of it takes longer than the forecast."""
        return {}

    def _available(self, node: Node, job: Job) -> Resources:
        """What is free on the node for this job after the planned starts, counting only GPUs of a type it can use."""
        free, idle = self._free[node.name]
        gpus = sum(count for gpu_type, count in idle.items() if _type_matches(gpu_type, job))
        left, taken = Resources(gpus, free.cpus, free.memory), self._starting_by_node.get(node.name)
        return left if taken is None else left - taken

    def _max_gpus_on(self, node: Node, job: Job) -> int:
        left = self._available(node, job)
        return next((n for n in range(max(0, left.gpus), 0, -1) if node.proportional_share(n).fits_in(left)), 0)

    @cached_property
    def _eligible_nodes(self) -> EligibleNodeCache:
        return EligibleNodeCache(self.snapshot, self.usable)

    @cached_property
    def _eligibility(self) -> Eligibility:
        return Eligibility(pools_of(self.snapshot), self.snapshot, self.usable)

    @cached_property
    def _free(self) -> dict[str, tuple[Resources, Counter[str]]]:
        """Per node the free resources, and its idle GPUs by type."""
        return {node.name: (node.free, Counter(g.type for g in node.gpus if g.idle)) for node in self.snapshot.nodes}

    @cached_property
    def _starting_by_node(self) -> dict[str, Resources]:
        taken: dict[str, Resources] = {}
        promised = self.promise.allocations if self.promise is not None else ()
        for allocation in (*self.starting, *promised):
            taken[allocation.node] = taken.get(allocation.node, Resources()) + allocation.resources
        return taken

    @cached_property
    def _expected_ends(self) -> Sequence[tuple[float, Job]]:
        """Running jobs with the latest time at which they end (unix seconds), soonest first, and the promised job."""
        running = ((_latest_end(job, self.snapshot), job) for job in self.snapshot.jobs_in_state(JobState.RUNNING))
        ends = [(end, job) for end, job in running if end is not None]
        promised = self.promise and self.snapshot.jobs_by_id.get(self.promise.job)
        if self.promise and promised and self.promise.start is not None and promised.time_limit is not None:
            ends.append(
                (self.promise.start + promised.time_limit, replace(promised, allocations=self.promise.allocations))
            )
        return sorted(ends, key=lambda entry: entry[0])

    @cached_property
    def _max_gpus_cache(self) -> dict[_ForecastKey, int]:
        return {}

    @cached_property
    def _last_needed_cache(self) -> dict[_ForecastKey, tuple[JobId, float] | None]:
        return {}


@dataclass(frozen=True, eq=False, slots=True)
class _ForecastKey:
    """Two jobs with the same key have the same forecast; `nodes` are those on which they may start."""

    nodes: frozenset[str]


def _type_matches(gpu_type: str, job: Job) -> bool:
    return job.original_request.gpu_type in (None, gpu_type) or not gpu_type


def _suffices(idle: Mapping[str, int], gang: Gang) -> bool:
    """Whether the idle GPUs per node hold the gang's parts on as many nodes as it may use."""
    if not gang.gpus_per_part:
        return True
    parts = [max(0, count) // gang.gpus_per_part for count in idle.values()]
    if gang.parts_per_node:
        return sum(count >= gang.parts_per_node for count in parts) >= gang.min_nodes
    return sum(map(bool, parts)) >= gang.min_nodes and sum(nlargest(gang.max_nodes, parts)) >= gang.parts


def _latest_end(job: Job, snapshot: Snapshot) -> float | None:
    if job.time_limit is not None:
        return snapshot.time + max(0.0, job.time_limit - job.run_time)
    return job.end_time


class QueueAhead:
    """Finds the jobs ahead of a waiting one that have, or get, what it could use; `usable` are nodes by partition.

    With thousands of waiting jobs a walk along the order for each of them takes the square of their number. Jobs that
    may use the same nodes and GPU types have the same holders before them, so these are listed once, by rank.
    """

    def __init__(self, snapshot: Snapshot, decision: Decision, usable: Mapping[str, frozenset[str]]) -> None:
        self._decision = decision
        self._eligible_nodes = EligibleNodeCache(snapshot, usable)
        self._holders: dict[tuple[frozenset[str], str | None], Sequence[int]] = {}

    def nearest(self, job: Job, index: int, most: int) -> Iterator[RankedJob]:
        """The last `most` jobs before `index` in the order that have something which the job could use, nearest
        first."""
        holders = self._holders_on(self._eligible_nodes.of(job), job.original_request.gpu_type)
        for place in range(bisect_left(holders, index) - 1, -1, -1)[:most]:
            yield self._decision.order[holders[place]]

    def _holders_on(self, nodes: frozenset[str], wanted: str | None) -> Sequence[int]:
        key = nodes, wanted
        if key not in self._holders:
            self._holders[key] = [index for index, target in self._targets if _holds(target, nodes, wanted)]
        return self._holders[key]

    @cached_property
    def _targets(self) -> Sequence[tuple[int, Target]]:
        """The targets by index in the order."""
        targets = self._decision.targets
        return [(i, targets[ranked.job]) for i, ranked in enumerate(self._decision.order) if ranked.job in targets]


def _holds(target: Target, nodes: frozenset[str], wanted: str | None) -> bool:
    """Whether a job with this target has something on these nodes that a job which asks for this GPU type could use."""
    return any(
        allocation.node in nodes and (not wanted or allocation.gpu_type in ("", wanted))
        for allocation in target.allocations
    )
