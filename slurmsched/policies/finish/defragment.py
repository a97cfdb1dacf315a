"""Defragmentation: moves the fewest running jobs to other nodes where that lets a waiting job start.

Source: ours; Weng et al. ("Beware of Fragmentation", ATC 2023) place jobs so that less of it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from heapq import nlargest
from itertools import combinations, islice
from typing import Final

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.model import MILLI_PER_GPU, Job, JobId, Reason, ReasonCode
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.placement import Placement, fitting_pools
from slurmsched.policies.session import Session

_MAX_SETS: Final = 5000
"""Most sets of jobs of one size considered on a node."""
_MAX_ATTEMPTS: Final = 200
"""Most sets of one size for which other nodes are searched."""
_MAX_POOLS: Final = 64
"""Pools that are looked at for a job, those where the fewest GPUs are in use."""
_MAX_NODES_TRIED: Final = 8
"""Most other nodes tried for a job, best first."""


@dataclass(frozen=True, slots=True)
class _Movable:
    """A running job on one node that may be moved. `cost` is what its restart costs, in GPU-seconds: without a
    checkpoint also what it has done so far."""

    job: JobId
    node: int
    allocation: Allocation
    cost: float


@dataclass(frozen=True, slots=True)
class _MovableJobs:
    """The jobs that may be moved, by node, and what would be free without all of them."""

    by_node: Mapping[int, Sequence[_Movable]]
    free: FreeResources


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The placement of a waiting job, and the new one of each job that moves for it. `cost` is in GPU-seconds."""

    placement: Placement
    moved: dict[JobId, Placement]
    cost: float


def defragment(session: Session) -> None:
    """Finish step: moves running jobs for the jobs that wait, in order, as many as may still move this round."""
    make_room(session, [session.jobs[ranked.job] for ranked in session.ranking])


def make_room(session: Session, waiting: Iterable[Job]) -> None:
    """Moves running jobs for these jobs, in order, as many as may still move this round: none whose restarts cost more
    GPU time than the job that starts will use."""
    movable = cache(partial(_movable_jobs, session))
    for job in waiting if session.may_evict else ():
        if session.moves_left <= 0:
            return
        if job.id in session.victims or not session.needs_placement(job) or _is_promised(session, job):
            continue
        promise = session.promise
        if promise is not None and promise.job == job.id:
            session.promise = None  # jobs may move to where it would have started
        exchange = _fewest_moves(session, job, movable)
        if exchange is None or exchange.cost > session.situation.knowledge.remaining_seconds(job) * job.gpus:
            session.promise = promise
            continue
        cost: dict[str, str | int | float] = {"jobs": ", ".join(sorted(exchange.moved)), "cost": round(exchange.cost)}
        reasons = {job.id: Reason(ReasonCode.ROOM_IS_MADE, cost)}
        for moved, elsewhere in exchange.moved.items():
            nodes = ", ".join(session.pools.node(pool).name for pool in elsewhere.pools)
            reasons[moved] = Reason(ReasonCode.MAKES_ROOM, {"job": job.id, "nodes": nodes})
        session.exchange(job, exchange.placement, exchange.moved, reasons)
        movable = cache(partial(_movable_jobs, session))


def _is_promised(session: Session, job: Job) -> bool:
    """Whether resources of completing jobs are reserved for the job."""
    why = session.reasons.get(job.id)
    return why is not None and why.code is ReasonCode.FREED_SOON


def _movable_jobs(session: Session) -> _MovableJobs:
    by_node, free = dict[int, list[_Movable]](), session.free_at_minimum.copy()
    for movable in _each_movable(session):
        by_node.setdefault(movable.node, []).append(movable)
    free.release_all([movable.allocation for on_node in by_node.values() for movable in on_node])
    return _MovableJobs(by_node, free)


def _each_movable(session: Session) -> Iterator[_Movable]:
    for job, allocation in session.running.items():
        if len(allocation.pools) != 1 or allocation.exclusive or not session.is_preemptible(job):
            continue
        if not allocation.part or allocation.devices:  # the device that a part gives back must be known
            gpus = allocation.gpus[0] + allocation.part / MILLI_PER_GPU
            running = session.jobs[job]
            lost = 0.0 if running.hints.checkpoint_signal else running.run_time
            cost = (session.situation.restart_cost + lost) * max(gpus, 1 / MILLI_PER_GPU)
            yield _Movable(job, int(session.pools.node_of[allocation.pools[0]]), allocation, cost)


def _fewest_moves(session: Session, job: Job, find_movable: Callable[[], _MovableJobs]) -> _Exchange | None:
    """Return the exchange with the fewest moves that lets the job start on one node, and of equally few the cheapest;
    None if the moves that are left do not suffice, or no move is needed: then it waits for something else."""
    demand = session.demands.of(job)
    if demand.gang.min_nodes > 1 or demand.gang.request.exclusive or len(demand.required_nodes) > 1:
        return None
    if session.has_room(job, session.free_at_minimum):
        return None
    movable = find_movable()
    candidates = _freeable_pools(session, demand, movable)
    on_node = {pool: movable.by_node[int(session.pools.node_of[pool])] for pool in candidates}
    for size in range(1, min(session.moves_left, max(map(len, on_node.values()), default=0)) + 1):
        sets = [
            (sum(leaving.cost for leaving in chosen), pool, chosen)
            for pool in candidates
            for chosen in _freeing_sets(session, demand, pool, on_node[pool], size)
        ]
        sets.sort(key=lambda entry: (entry[0], entry[1], [leaving.job for leaving in entry[2]]))
        for cost, pool, chosen in sets[:_MAX_ATTEMPTS]:
            exchange = _try_exchange(session, job, pool, chosen, cost)
            if exchange is not None:
                return exchange
    return None


def _freeable_pools(session: Session, demand: ResourceDemand, movable: _MovableJobs) -> list[int]:
    """Return the pools that hold the job if all movable jobs of the node leave, at most `_MAX_POOLS`."""
    fits = {int(pool) for pools in fitting_pools(demand, DemandLevel.MINIMUM, movable.free) for pool in pools}
    required, nodes = demand.required_nodes, {pool: int(session.pools.node_of[pool]) for pool in fits}
    usable = (pool for pool in fits if nodes[pool] in movable.by_node and (not required or nodes[pool] in required))
    idle = session.free_at_minimum.gpus
    return sorted(nlargest(_MAX_POOLS, usable, key=lambda pool: (int(idle[pool]), -pool)))


def _freeing_sets(
    session: Session, demand: ResourceDemand, pool: int, on_node: Sequence[_Movable], size: int
) -> Iterator[tuple[_Movable, ...]]:
    """Yield sets of `size` jobs on the node without which the job has enough GPUs, CPUs and memory in the pool."""
    free, gang, node = session.free_at_minimum, demand.gang, int(session.pools.node_of[pool])
    kind = int(session.pools.kind_of[pool])
    need = Placement(gang, (pool,), (gang.parts,), demand.ranges[kind].minimum, kind).allocation(session.pools)
    held: Ints = np.array([_held(other, pool) for other in on_node], dtype=np.int64)
    missing = np.array([need.cpus[0] - free.cpus[node], need.memory[0] - free.memory[node]])
    parts = np.array([_held_devices(other, pool, free.milli.shape[1]) for other in on_node], dtype=np.int64)
    for combination in islice(combinations(range(len(on_node)), size), _MAX_SETS):
        indices = list(combination)
        cpus, memory, gpus = held[indices].sum(axis=0).tolist()
        devices = free.milli[pool] + parts[indices].sum(axis=0)
        whole = MILLI_PER_GPU - session.pools.rounding[pool]
        emptied = int((devices > whole).sum() - (free.milli[pool] == MILLI_PER_GPU).sum())
        enough = cpus >= missing[0] and memory >= missing[1] and free.gpus[pool] + gpus + emptied >= need.gpus[0]
        if not enough or (need.part and devices.max() < need.part):
            continue
        yield tuple(on_node[index] for index in indices)


def _held(other: _Movable, pool: int) -> tuple[int, int, int]:
    """Return CPUs and MiB, and the GPUs in this pool whose devices are not known."""
    allocation = other.allocation
    unknown = allocation.pools[0] == pool and not allocation.devices
    return allocation.cpus[0], allocation.memory[0], allocation.gpus[0] if unknown else 0


def _held_devices(other: _Movable, pool: int, width: int) -> list[int]:
    """Return the milli-GPU held of each device of the pool; [devices]."""
    held = [0] * width
    if other.allocation.pools[0] == pool and other.allocation.devices:
        for device in other.allocation.devices[0]:
            held[device] = other.allocation.part or MILLI_PER_GPU
    return held


def _try_exchange(session: Session, job: Job, pool: int, leaving: Sequence[_Movable], cost: float) -> _Exchange | None:
    """Return placements of the job in the pool and of the leaving jobs elsewhere; None if one fits nowhere else."""
    free = session.free_at_minimum.copy()
    for other in leaving:
        free.release(other.allocation)
    there = np.arange(len(session.pools)) == pool
    placement = session.find_placement(job, DemandLevel.MINIMUM, free, there)
    if placement is None:
        return None
    free.allocate(placement.with_devices(free).allocation(session.pools))
    largest_first = sorted(leaving, key=lambda other: -other.cost)
    moved = _place_elsewhere(session, free, largest_first, session.pools.node_of != session.pools.node_of[pool])
    return None if moved is None else _Exchange(placement, moved, cost)


def _place_elsewhere(
    session: Session, free: FreeResources, leaving: Sequence[_Movable], elsewhere: Mask
) -> dict[JobId, Placement] | None:
    """Return a placement of each job in these pools, the best that leaves one for the others; None if there is none."""
    if not leaving:
        return {}
    job, left = session.jobs[leaving[0].job], elsewhere.copy()
    for _ in range(_MAX_NODES_TRIED):
        placement = session.find_placement(job, DemandLevel.MINIMUM, free, left)
        if placement is None:
            return None
        tried = free.copy()
        tried.allocate(placement.with_devices(tried).allocation(session.pools))
        rest = _place_elsewhere(session, tried, leaving[1:], elsewhere)
        if rest is not None:
            return {leaving[0].job: placement, **rest}
        left[list(placement.pools)] = False
    return None
