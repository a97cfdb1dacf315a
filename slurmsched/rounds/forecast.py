"""Forecast for a pending job: how many GPUs it could get now, or when running jobs free enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest

from slurmsched.model import Job, JobId, JobState, Node, NodeAllocation, Request, Resources, Snapshot
from slurmsched.rounds.scope import eligible_nodes


@dataclass(frozen=True)
class WaitForecast:
    """The cluster after this round's starts, whose allocations are `starting`; `usable` are nodes by partition.

    Results are cached by request and eligible nodes, since many jobs ask for the same.
    """

    snapshot: Snapshot
    usable: Mapping[str, frozenset[str]]
    starting: tuple[NodeAllocation, ...] = ()

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

        None if enough are free now, or if time limits do not free enough. Counts GPUs only, not CPUs or memory.
        """
        key = self._key(job)
        if key not in self._last_needed_cache:
            self._last_needed_cache[key] = self._last_needed(job, key.nodes)
        return self._last_needed_cache[key]

    def _last_needed(self, job: Job, nodes: frozenset[str]) -> tuple[JobId, float] | None:
        idle = Counter({name: max(0, self._available(self.snapshot.nodes_by_name[name], job).gpus) for name in nodes})
        if _suffices(idle, job.original_request):
            return None
        for end, other in self._expected_ends:
            freed = {
                s.node: s.resources.gpus for s in other.allocations if s.node in idle and _type_matches(s.gpu_type, job)
            }
            idle.update(freed)
            # for a single-node job only the nodes that changed need checking
            grown = {name: idle[name] for name in freed} if _max_nodes(job.original_request) == 1 else idle
            if freed and _suffices(grown, job.original_request):
                return other.id, end
        return None

    def _key(self, job: Job) -> _ForecastKey:
        return _ForecastKey(
            job.original_request, eligible_nodes(job, self.snapshot, self.usable) - job.original_request.excluded
        )

    def _available(self, node: Node, job: Job) -> Resources:
        """What is free on the node for this job after the planned starts, counting only GPUs of a type it can use."""
        free, idle = self._free[node.name]
        gpus = sum(count for gpu_type, count in idle.items() if _type_matches(gpu_type, job))
        return Resources(gpus, free.cpus, free.memory) - self._starting_by_node.get(node.name, Resources())

    def _max_gpus_on(self, node: Node, job: Job) -> int:
        left = self._available(node, job)
        return next((n for n in range(max(0, left.gpus), 0, -1) if node.proportional_share(n).fits_in(left)), 0)

    @cached_property
    def _free(self) -> dict[str, tuple[Resources, Counter[str]]]:
        """Per node the free resources, and its idle GPUs by type."""
        return {node.name: (node.free, Counter(g.type for g in node.gpus if g.idle)) for node in self.snapshot.nodes}

    @cached_property
    def _starting_by_node(self) -> dict[str, Resources]:
        taken: dict[str, Resources] = {}
        for allocation in self.starting:
            taken[allocation.node] = taken.get(allocation.node, Resources()) + allocation.resources
        return taken

    @cached_property
    def _expected_ends(self) -> Sequence[tuple[float, Job]]:
        """Running jobs with the latest time at which they end (unix seconds), soonest first."""
        running = ((_latest_end(job, self.snapshot), job) for job in self.snapshot.jobs_in_state(JobState.RUNNING))
        return sorted(((end, job) for end, job in running if end is not None), key=lambda entry: entry[0])

    @cached_property
    def _max_gpus_cache(self) -> dict[_ForecastKey, int]:
        return {}

    @cached_property
    def _last_needed_cache(self) -> dict[_ForecastKey, tuple[JobId, float] | None]:
        return {}


@dataclass(frozen=True, slots=True)
class _ForecastKey:
    """Two jobs with the same key have the same forecast."""

    request: Request
    nodes: frozenset[str]


def _type_matches(gpu_type: str, job: Job) -> bool:
    return job.original_request.gpu_type in (None, gpu_type) or not gpu_type


def _suffices(idle: Mapping[str, int], request: Request) -> bool:
    """Whether the idle GPUs per node suffice for the request on as many nodes as it may use."""
    if request.gpus_per_node:
        return sum(count >= request.gpus_per_node for count in idle.values()) >= _max_nodes(request)
    return sum(nlargest(_max_nodes(request), idle.values())) >= request.gpus


def _max_nodes(request: Request) -> int:
    if request.gpus_per_node:
        return request.gpus // request.gpus_per_node
    return max(request.nodes, request.max_nodes or 1)


def _latest_end(job: Job, snapshot: Snapshot) -> float | None:
    if job.time_limit is not None:
        return snapshot.time + max(0.0, job.time_limit - job.run_time)
    return job.end_time
