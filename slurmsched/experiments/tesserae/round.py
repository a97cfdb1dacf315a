"""One round of Tesserae on nodes of one GPU type: order, place, pack, rename (section 3.2, algorithm 1).

Both allocators keep a gang consolidated: on one node if it fits, else on whole nodes and one part of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.policies.tesserae.migration import NO_JOB, PlacementPlan, find_renaming, merge_rows, migrated_jobs
from slurmsched.policies.tesserae.packing import EdgeWeights, PackingJob, pack

NodeGpus = tuple[int, int]
"""A node's index and a number of its GPUs."""


class Allocator(Protocol):
    """Returns the allocations by job. `order` are the jobs in order, `gpus` is by job and `node_gpus` by node;
    `previous` are the allocations of running jobs."""

    def __call__(
        self, order: Sequence[int], gpus: Ints, node_gpus: Ints, previous: Mapping[int, Sequence[NodeGpus]], /
    ) -> dict[int, list[NodeGpus]]: ...


def allocate_in_order(
    order: Sequence[int], gpus: Ints, node_gpus: Ints, _previous: Mapping[int, Sequence[NodeGpus]]
) -> dict[int, list[NodeGpus]]:
    """The paper's allocator: places each job in order on the fullest nodes that fit, starting from an empty cluster.

    A job that does not fit consolidated stays pending, and later jobs are still tried.
    """
    return _allocate_free(_FreeGpus(node_gpus), order, gpus)


def allocate_keeping_nodes(
    order: Sequence[int], gpus: Ints, node_gpus: Ints, previous: Mapping[int, Sequence[NodeGpus]]
) -> dict[int, list[NodeGpus]]:
    """Our allocator: selects the first jobs for which there are GPUs, then places them, the widest first, so that
    narrow jobs do not fragment nodes.

    A running job keeps its nodes if they are free; any other job goes where it displaces the fewest GPUs of running
    jobs that are not yet placed. The remaining GPUs are offered to all jobs in order.
    """
    chosen = _first_fitting(order, gpus, int(node_gpus.sum()))
    free, allocated = _FreeGpus(node_gpus), dict[int, list[NodeGpus]]()
    for job in chosen:
        free.expect(previous.get(job, ()), 1)
    by_width = sorted(chosen, key=lambda job: (-int(gpus[job]), job not in previous))
    for job in by_width:
        width, current = int(gpus[job]), previous.get(job, ())
        free.expect(current, -1)
        allocations = list(current) if current and free.fits(current) else free.on_least_expected(width)
        if allocations:
            free.allocate(allocations)
            allocated[job] = allocations
    rest = [job for job in order if job not in allocated] if free.total_free else ()
    return allocated | _allocate_free(free, rest, gpus)


def _allocate_free(free: _FreeGpus, order: Sequence[int], gpus: Ints) -> dict[int, list[NodeGpus]]:
    """Allocates the free GPUs to the jobs in order."""
    allocated, too_wide = dict[int, list[NodeGpus]](), int(free.node_gpus.sum()) + 1
    for job in order:
        if not free.total_free:
            break
        width = int(gpus[job])
        if width >= too_wide:  # GPUs are never released here, so a job as wide as one that failed fails too
            continue
        allocations = free.on_fullest(width)
        if allocations:
            free.allocate(allocations)
            allocated[job] = allocations
        else:
            too_wide = width
    return allocated


def _first_fitting(order: Sequence[int], gpus: Ints, left: int) -> list[int]:
    """Returns the first jobs whose GPUs fit into `left` GPUs, regardless of nodes."""
    chosen = list[int]()
    for job in order:
        if not left:
            break
        if gpus[job] <= left:
            left -= int(gpus[job])
            chosen.append(job)
    return chosen


@dataclass(slots=True)
class _FreeGpus:
    """Free GPUs by node, and the GPUs that running jobs which are not yet placed have there."""

    node_gpus: Ints
    free: Ints = field(init=False)
    expected: Ints = field(init=False)
    total_free: int = field(init=False)

    def __post_init__(self) -> None:
        self.free = self.node_gpus.copy()
        self.expected = np.zeros_like(self.node_gpus)
        self.total_free = int(self.node_gpus.sum())

    def expect(self, allocations: Sequence[NodeGpus], times: int) -> None:
        for node, gpus in allocations:
            self.expected[node] += gpus * times

    def fits(self, allocations: Sequence[NodeGpus]) -> bool:
        return all(self.free[node] >= gpus for node, gpus in allocations)

    def allocate(self, allocations: Sequence[NodeGpus]) -> None:
        for node, gpus in allocations:
            self.free[node] -= gpus
            self.total_free -= gpus

    def on_fullest(self, width: int) -> list[NodeGpus]:
        """Returns GPUs on the fullest nodes; none if the job does not fit consolidated."""
        return self._consolidated(width, self.free)

    def on_least_expected(self, width: int) -> list[NodeGpus]:
        """Returns GPUs that displace the fewest expected GPUs, among these on the fullest nodes."""
        displaced = np.maximum(self.expected - self.free + min(width, int(self.node_gpus.max())), 0)
        return self._consolidated(width, displaced * (int(self.node_gpus.max()) + 1) + self.free)

    def _consolidated(self, width: int, cost: Ints) -> list[NodeGpus]:
        whole = int(self.node_gpus.max(initial=1))
        full, rest = divmod(width, whole)
        chosen = list[int]()
        if full:
            empty = np.flatnonzero((self.free == whole) & (self.node_gpus == whole))
            if len(empty) < full:
                return []
            chosen = empty[np.argsort(cost[empty], kind="stable")[:full]].tolist()
        allocations = [(node, whole) for node in chosen]
        if rest:
            fits = self.free >= rest
            fits[chosen] = False
            if not fits.any():
                return []
            allocations.append((int(np.argmin(np.where(fits, cost, np.iinfo(np.int64).max))), rest))
        return allocations


@dataclass(frozen=True, slots=True)
class TesseraeProblem:
    """GPUs, job type and permission to share by job. `order` are the active jobs in order, `node_gpus` the GPUs of each
    node, `previous` the last round's placement."""

    order: Sequence[int]
    gpus: Ints
    job_type: Ints
    may_share: Mask
    node_gpus: Ints
    previous: PlacementPlan


@dataclass(frozen=True, slots=True)
class TesseraeVariant:
    """The parts of Tesserae that are used. Jobs of at most `max_packed_width` GPUs are packed, none if it is 0. With
    `keep_pairs` a pair stays together while one of its jobs is placed and the other pending."""

    allocator: Allocator = allocate_keeping_nodes
    max_packed_width: float = inf
    keep_pairs: bool = True
    rename_nodes: bool = True


@dataclass(frozen=True, slots=True)
class TesseraePlan:
    """`pairs` are a placed job and the job that shares its GPUs; `migrated` jobs run on other GPUs than before."""

    placement: PlacementPlan
    pairs: tuple[tuple[int, int], ...]
    migrated: frozenset[int]


def plan_round(
    problem: TesseraeProblem,
    weights: EdgeWeights,
    variant: TesseraeVariant,
    on_stage: Callable[[str], None] = lambda _stage: None,
) -> TesseraePlan:
    """Plans the coming round. Calls `on_stage` with the name of each completed stage."""
    allocations = variant.allocator(problem.order, problem.gpus, problem.node_gpus, _previous_nodes(problem.previous))
    on_stage("place")
    pairs = _pack_pairs(problem, allocations, weights, variant)
    on_stage("pack")
    placement = _placement_plan(allocations, dict(pairs))
    if variant.rename_nodes:
        renaming = find_renaming(problem.previous, placement, problem.node_gpus)
        placement, changed = placement.with_renamed_nodes(renaming.node_map), renaming.migrated
    else:
        changed = migrated_jobs(problem.previous, placement)
    on_stage("rename")
    return TesseraePlan(placement, pairs, changed)


def _previous_nodes(previous: PlacementPlan) -> Mapping[int, list[NodeGpus]]:
    nodes_by_job: dict[int, dict[int, int]] = {}
    jobs, gpus, row = previous.entries()
    for job, count, node in zip(jobs.tolist(), gpus.tolist(), previous.node[row].tolist(), strict=True):
        nodes = nodes_by_job.setdefault(job, {})
        nodes[node] = nodes.get(node, 0) + count
    return {job: list(nodes.items()) for job, nodes in nodes_by_job.items()}


def _pack_pairs(
    problem: TesseraeProblem,
    allocations: Mapping[int, Sequence[NodeGpus]],
    weights: EdgeWeights,
    variant: TesseraeVariant,
) -> tuple[tuple[int, int], ...]:
    if not variant.max_packed_width:
        return ()
    able = problem.may_share & (problem.gpus <= variant.max_packed_width)
    placed = [job for job in allocations if able[job]]
    pending = [job for job in problem.order if job not in allocations and able[job]]
    kept = _surviving_pairs(problem, set(placed), set(pending), weights) if variant.keep_pairs else {}
    guests = set(kept.values())
    placed, pending = [job for job in placed if job not in kept], [job for job in pending if job not in guests]
    pairs = pack(_packing_jobs(problem, placed), _packing_jobs(problem, pending), weights)
    return (*kept.items(), *((placed[host], pending[guest]) for host, guest in pairs))


def _packing_jobs(problem: TesseraeProblem, jobs: Sequence[int]) -> list[PackingJob]:
    return [PackingJob(int(problem.gpus[job]), int(problem.job_type[job])) for job in jobs]


def _surviving_pairs(
    problem: TesseraeProblem, placed: set[int], pending: set[int], weights: EdgeWeights
) -> dict[int, int]:
    """Returns the pairs of the last round of which one job is placed and the other pending now."""
    last = problem.previous.jobs[problem.previous.jobs[:, 1] != NO_JOB].tolist()
    both = [(a, b) if a in placed else (b, a) for a, b in last]
    return {
        host: guest
        for host, guest in both
        if host in placed and guest in pending and weights[problem.job_type[host], problem.job_type[guest]] > 0
    }


def _placement_plan(allocations: Mapping[int, Sequence[NodeGpus]], guest_of: Mapping[int, int]) -> PlacementPlan:
    rows = [(node, gpus, job, guest_of.get(job, NO_JOB)) for job, nodes in allocations.items() for node, gpus in nodes]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    jobs = table[:, 2:]
    ascending = np.where((jobs[:, 1:] != NO_JOB) & (jobs[:, :1] > jobs[:, 1:]), jobs[:, ::-1], jobs)
    return merge_rows(table[:, 0], table[:, 1], ascending)
