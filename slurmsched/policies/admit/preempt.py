"""Preempts the fewest running jobs that the newcomer may preempt, the last in order first (as kueue does)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.model import MILLI_PER_GPU, Job, JobId, Reason, ReasonCode
from slurmsched.policies.admit.allocate import FailedRequestCache
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.placement import FIRST_FIT, NodeScore, Placement
from slurmsched.policies.session import Session


@dataclass(frozen=True, slots=True)
class VictimQueue:
    """Running jobs in the order to evict them, and their allocations as vectors with one entry per pool of a job.

    The first `ends[k]` entries are the allocations of the first k jobs, and the first `device_ends[k]` rows of
    `devices` (pool, position, milli-GPU) their known devices. `gpus` are those whose devices are not known.
    """

    jobs: tuple[JobId, ...]
    ends: Ints
    pools: Ints
    gpus: Ints
    cpus: Ints
    memory: Ints
    exclusive: Ints
    device_ends: Ints
    devices: Ints
    allocations: tuple[Allocation, ...]

    @classmethod
    def of(cls, session: Session, jobs: Iterable[JobId]) -> VictimQueue:
        """Return the queue of these running jobs, the last in order first."""
        last_first = tuple(sorted(jobs, key=lambda job: -session.rank_of[job]))
        allocations = [session.allocation_of(job) for job in last_first]
        counts = [len(allocation.pools) for allocation in allocations]
        exclusive = np.repeat(np.array([allocation.exclusive for allocation in allocations], dtype=np.int64), counts)
        devices = [_held_devices(allocation) if allocation.devices else () for allocation in allocations]
        return cls(
            last_first,
            np.cumsum([0, *counts]),
            _flat(allocation.pools for allocation in allocations),
            _flat(map(_with_unknown_devices, allocations)),
            _flat(allocation.cpus for allocation in allocations),
            _flat(allocation.memory for allocation in allocations),
            exclusive,
            np.cumsum([0, *map(len, devices)]),
            np.array([row for held in devices for row in held], dtype=np.int64).reshape(-1, 3),
            tuple(allocations),
        )

    def those(self, numbers: Ints) -> VictimQueue:
        """Return the queue of these jobs, by index, in this order."""
        entries, device_rows = _rows(self.ends, numbers), _rows(self.device_ends, numbers)
        pools, gpus, cpus, memory, exclusive = (
            of[entries] for of in (self.pools, self.gpus, self.cpus, self.memory, self.exclusive)
        )
        lengths, held = (np.diff(ends)[numbers] for ends in (self.ends, self.device_ends))
        chosen = numbers.tolist()
        return VictimQueue(
            tuple(map(self.jobs.__getitem__, chosen)),
            np.concatenate(([0], np.cumsum(lengths))),
            pools,
            gpus,
            cpus,
            memory,
            exclusive,
            np.concatenate(([0], np.cumsum(held))),
            self.devices[device_rows],
            tuple(map(self.allocations.__getitem__, chosen)),
        )

    def with_others(self, others: VictimQueue, session: Session) -> VictimQueue:
        """Return the queue of the jobs of both."""
        pools, gpus, cpus, memory, exclusive, devices = (
            np.concatenate((own, more))
            for own, more in (
                (self.pools, others.pools),
                (self.gpus, others.gpus),
                (self.cpus, others.cpus),
                (self.memory, others.memory),
                (self.exclusive, others.exclusive),
                (self.devices, others.devices),
            )
        )
        both = VictimQueue(
            self.jobs + others.jobs,
            np.concatenate((self.ends, others.ends[1:] + self.ends[-1])),
            pools,
            gpus,
            cpus,
            memory,
            exclusive,
            np.concatenate((self.device_ends, others.device_ends[1:] + self.device_ends[-1])),
            devices,
            self.allocations + others.allocations,
        )
        ranks = np.array([session.rank_of[job] for job in both.jobs], dtype=np.int64)
        return both.those(np.argsort(-ranks, kind="stable"))

    def are_not_in(self, jobs: Collection[JobId]) -> Mask:
        """Return whether each job is not one of these; [jobs]."""
        return ~np.fromiter(map(jobs.__contains__, self.jobs), np.bool_, len(self.jobs))

    def free_without(self, count: int, free: FreeResources, leaving: Mask | None = None) -> FreeResources:
        """Return the free resources after the eviction of the first `count` jobs, or of those of them that are
        `leaving`; [jobs]."""
        end, device_end, pools = int(self.ends[count]), int(self.device_ends[count]), free.pools
        gpus, cpus, memory, exclusive = (of[:end] for of in (self.gpus, self.cpus, self.memory, self.exclusive))
        nodes, devices = pools.node_of[self.pools[:end]], self.devices[:device_end]
        if leaving is not None:
            counted = leaving[:count]
            of_entry = np.repeat(counted, np.diff(self.ends[: count + 1]))
            gpus, cpus, memory, exclusive = (of * of_entry for of in (gpus, cpus, memory, exclusive))
            devices = devices[np.repeat(counted, np.diff(self.device_ends[: count + 1]))]
        return free.with_released(
            _summed(self.pools[:end], gpus, len(pools)),
            _summed(nodes, cpus, len(pools.nodes)),
            _summed(nodes, memory, len(pools.nodes)),
            _summed(nodes, exclusive, len(pools.nodes)),
            devices,
        )


def _with_unknown_devices(allocation: Allocation) -> tuple[int, ...]:
    """Return the GPUs of each pool, 0 where the devices are known."""
    if not allocation.devices:
        return allocation.gpus
    return tuple(0 if held else gpus for gpus, held in zip(allocation.gpus, allocation.devices, strict=True))


def _held_devices(allocation: Allocation) -> Sequence[tuple[int, int, int]]:
    """Return the pool, the position and the milli-GPU of each known device."""
    return [
        (pool, position, allocation.part or MILLI_PER_GPU)
        for pool, positions in zip(allocation.pools, allocation.devices, strict=False)
        for position in positions
    ]


def _flat(rows: Iterable[tuple[int, ...]]) -> Ints:
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64)


def _rows(ends: Ints, numbers: Ints) -> Ints:
    """Return the rows from `ends[k]` to `ends[k + 1]` for each of these numbers k."""
    lengths = np.diff(ends)[numbers]
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(ends[numbers] - before, lengths), dtype=np.int64)


def _summed(indices: Ints, amounts: Ints, length: int) -> Ints:
    return np.bincount(indices, weights=amounts, minlength=length).astype(np.int64)


@dataclass(slots=True)
class _Enough:
    """How many jobs are enough if they leave, as long as `changes` is what it was: the fewest if `is_fewest`."""

    changes: tuple[object, ...]
    count: int
    is_fewest: bool = False


@dataclass(slots=True)
class Preempt:
    """Preempts the fewest running jobs that the newcomer may preempt, the last in order first.

    The job that is promised a start may need more moves than a round has. The round leaves its moves to the next one
    then, until what rounds left suffices: nobody behind the job takes them.
    """

    session: Session
    _failed: dict[Hashable, int] = field(default_factory=dict)
    """By what newcomers ask for how many jobs are not enough if all of them leave; until somebody is evicted."""
    _over_move_limit: FailedRequestCache = field(default_factory=FailedRequestCache)
    _enough: dict[Hashable, _Enough] = field(default_factory=dict)
    """By what newcomers ask for how many jobs are enough; until somebody is evicted."""
    _queue: VictimQueue | None = None
    _epoch: int = -1
    _stays: tuple[VictimQueue, frozenset[JobId], Mask] | None = None
    """What `_stay` was asked last, and what it returned: the same for all newcomers until somebody is evicted."""
    _moves_spent: Reason = field(init=False)
    _moves_saved: Reason = field(init=False)

    def __post_init__(self) -> None:
        limit = {"limit": self.session.situation.max_moves}
        self._moves_spent = Reason(ReasonCode.MOVES_SPENT, limit)
        self._moves_saved = Reason(ReasonCode.MOVES_SAVED, limit)

    def try_admit(self, job: Job) -> bool:
        session = self.session
        if not session.may_evict:
            return False
        queue = self._current_queue()
        preemptible = self._count_preemptible(job, queue)
        if not preemptible:
            return False
        asked = session.attempt(job)
        if preemptible <= self._failed.get(asked, 0):
            return False
        attempt = asked, preemptible
        over_limit = self._over_move_limit.contains(attempt, session.eviction_epoch)
        if not over_limit and not self._are_enough(job, asked, queue, preemptible):
            self._failed[asked] = preemptible
            return False
        preemption = None
        if self._moves_for(job) > 0 and not over_limit:
            preemption = self._fewest_victims(job, queue) or self._fewest_victims(job, self._large_victims(job, queue))
        if preemption is None:
            self._over_move_limit.add(attempt)
            if job.id in session.first:
                session.unused_moves, session.moves_left = session.unused_moves + session.moves_left, 0
            saves = job.id in session.first and session.situation.max_moves > 0
            session.set_waiting_reason(job, self._moves_saved if saves else self._moves_spent)
            return False
        victims, placement = preemption
        session.moves_left = max(session.moves_left, len(victims))
        for victim in victims:
            session.evict(victim, job)
        session.allocate(job, placement)
        return True

    def _current_queue(self) -> VictimQueue:
        """Return the queue of all preemptible jobs, computed anew after an eviction."""
        if self._queue is None or self._epoch != self.session.eviction_epoch:
            self._epoch = self.session.eviction_epoch
            self._failed.clear()
            self._enough.clear()
            self._queue = self._without_evicted(self._queue) if self._queue is not None else self._all_preemptible()
        return self._queue

    def _preemptible_among(self, running: Set[JobId]) -> Iterable[JobId]:
        """Return those of these running jobs that may be preempted at all."""
        return filter(self.session.is_preemptible, running - self.session.entitlement.movable_only)

    def _all_preemptible(self) -> VictimQueue:
        return VictimQueue.of(self.session, self._preemptible_among({*self.session.running, *self.session.shrunk}))

    def _without_evicted(self, queue: VictimQueue) -> VictimQueue:
        """Return the queue of all preemptible jobs from an earlier one. Nobody else runs since then, but for those who
        are restarted with less."""
        session, running, shrunk = self.session, self.session.running, self.session.shrunk
        stay = queue.are_not_in(session.victims)
        for number in np.flatnonzero(~stay).tolist():
            job, has = queue.jobs[number], queue.allocations[number]
            stay[number] = running.get(job) is has or shrunk.get(job) is has
        left = queue.those(np.flatnonzero(stay))
        restarted = [*self._preemptible_among(shrunk.keys() - {*left.jobs})] if shrunk else []
        return left.with_others(VictimQueue.of(session, restarted), session) if restarted else left

    def _large_victims(self, job: Job, queue: VictimQueue) -> VictimQueue:
        """Return the queue of jobs so large that the remaining moves could free enough GPUs."""
        least = -(-job.gpus // self._moves_for(job))
        large = [self.session.jobs[other].gpus >= least for other in queue.jobs]
        return queue.those(np.flatnonzero(np.array(large, dtype=np.bool_)))

    def _count_preemptible(self, job: Job, queue: VictimQueue) -> int:
        """Return how many jobs, from the start of the queue, the newcomer may preempt."""
        session = self.session
        if not queue.jobs or not session.may_preempt(job, session.jobs[queue.jobs[0]]):
            return 0
        return bisect_left(
            queue.jobs, True, key=lambda other: not self.session.may_preempt(job, self.session.jobs[other])
        )

    def _fits_without(self, job: Job, queue: VictimQueue, count: int) -> bool:
        """Return whether the newcomer has a placement after the eviction of the first `count` jobs."""
        return self._placement_without(job, queue, count, FIRST_FIT) is not None

    def _are_enough(self, job: Job, asked: Hashable, queue: VictimQueue, count: int) -> bool:
        """Return the same for the queue of all preemptible jobs. At the second newcomer that asks alike, while nothing
        else changed, the fewest that are enough are looked for: those behind it may preempt fewer and fewer."""
        session, promise = self.session, self.session.promise
        free, beside = session.free_at_minimum, promise.beside if promise else None
        changes = free, len(free.changed_nodes), beside, len(beside.changed_nodes) if beside else 0
        known = self._enough.get(asked)
        if known is None or known.changes != changes:
            fits = self._fits_without(job, queue, count)
            self._enough[asked] = _Enough(changes, count if fits else len(queue.jobs) + 1)
            return fits
        if count < known.count and not known.is_fewest:
            counts = range(1, min(known.count, len(queue.jobs) + 1))
            known.count = bisect_left(counts, True, key=lambda k: self._fits_without(job, queue, k)) + 1
            known.is_fewest = True
        return count >= known.count

    def _placement_without(
        self, job: Job, queue: VictimQueue, count: int, node_score: NodeScore | None = None
    ) -> Placement | None:
        """Return the newcomer's placement after the eviction of the first `count` jobs. In the place of one that would
        outlast the promised start, it delays that no more than the victim did."""
        session, promise = self.session, self.session.promise
        beside = None
        if promise is not None and session.outlasts_promise(job):
            beside = queue.free_without(count, promise.beside, self._stay(queue, promise.ended))
        return self.placement_on(job, queue.free_without(count, session.free_at_minimum), beside, node_score)

    def _stay(self, queue: VictimQueue, ended: frozenset[JobId]) -> Mask:
        """Return whether each job of the queue has not ended by then; [jobs]."""
        if self._stays is None or self._stays[0] is not queue or self._stays[1] is not ended:
            self._stays = queue, ended, queue.are_not_in(ended)
        return self._stays[2]

    def placement_on(
        self, job: Job, free: FreeResources, beside: FreeResources | None, node_score: NodeScore | None
    ) -> Placement | None:
        """Return where the newcomer would start on these free resources, beside a promise on others; or None.

        `node_score` is as in `Session.find_placement`.
        """
        return self.session.find_placement(job, DemandLevel.MINIMUM, free, beside=beside, node_score=node_score)

    def _fewest_victims(self, job: Job, queue: VictimQueue) -> tuple[list[JobId], Placement] | None:
        """Return the victims and the placement; None where the job does not fit or more jobs must move than may."""
        preemptible = self._count_preemptible(job, queue)
        counts = range(1, preemptible + 1)
        count = bisect_left(counts, True, key=lambda k: self._fits_without(job, queue, k)) + 1
        placement = self._placement_without(job, queue, count) if count <= preemptible else None
        if placement is None:
            return None
        victims = self._needed_victims(placement, queue, count)
        return (victims, placement) if len(victims) <= self._moves_for(job) else None

    def _moves_for(self, job: Job) -> int:
        session = self.session
        may_use_saved = job.id in session.first and session.situation.max_moves > 0
        return session.moves_left + (session.saved_moves if may_use_saved else 0)

    def _needed_victims(self, placement: Placement, queue: VictimQueue, count: int) -> list[JobId]:
        """Return those of the first `count` jobs that must be evicted to free the placement. Jobs of better rank are
        spared first."""
        session = self.session
        free = queue.free_without(count, session.free_at_minimum)
        held = ((victim, session.allocation_of(victim)) for victim in reversed(queue.jobs[:count]))
        return free.must_leave(placement.allocation(session.pools), held)
