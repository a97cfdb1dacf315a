"""A GPU to itself for each job: on idle GPUs, by preemption, or apart from a partner (Tesserae, sections 3.2 and 4.2).

The paper places as many jobs as it can without packing, in order, on GPUs of which it stops all jobs each round. Here
those that run keep theirs unless the order lets a newcomer preempt them, since each restart costs minutes; what a pair
would gain apart has to pay for that too. `share_gpu` says how Slurm chooses devices for jobs with shards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf
from typing import Final

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.model import MILLI_PER_GPU, Job, JobId, Reason, ReasonCode
from slurmsched.policies.admit.allocate import AllocateFree, FailedRequestCache
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import FreeResources
from slurmsched.policies.finish.restart import remaining_or_executed, restart_reason
from slurmsched.policies.place.placement import NodeScore, Placement
from slurmsched.policies.session import Session
from slurmsched.policies.stages import MIN_BENEFIT
from slurmsched.policies.tesserae.packing import relative_rates_of_pair

HALF_GPU_MILLI: Final = MILLI_PER_GPU // 2


class ShardedDevices:
    """The devices at the start of the round, and the pools in which jobs start with some shards of a device."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._initial = session.free_at_start.milli
        self._starting: Mask = np.zeros(len(session.pools), dtype=np.bool_)
        for placement in session.placements.values():
            if placement.gang.shards and not placement.whole_devices:
                self.mark_starting(placement.pools)
        for allocations in session.situation.starting.values():  # of earlier rounds
            if any(on_node.shards for on_node in allocations):
                self.mark_starting(session.pools.allocation(allocations).pools)

    def leaving(self) -> frozenset[int]:
        """Returns the pools that running jobs leave in this round."""
        session = self._session
        left = (session.pools.allocation(session.jobs[victim].allocations).pools for victim in session.victims)
        return frozenset(pool for pools in left for pool in pools)

    def is_only_room(self, pool: int, device: int) -> bool:
        """Returns whether no other device of the pool has room for a half once all jobs placed so far have started."""
        room = np.flatnonzero(self._session.free_at_minimum.milli[pool] >= HALF_GPU_MILLI)
        return not set(room.tolist()) - {device}

    def is_left_before(self, pool: int, device: int) -> bool:
        """Returns whether half of the device is free only once all have left who have it now."""
        holders = self._holders(pool, device)
        return not holders or (len(holders) == 1 and bool(self._initial[pool, device] < HALF_GPU_MILLI))

    def staying(self, pool: int, device: int, jobs: Collection[JobId]) -> list[JobId]:
        """Returns which of the jobs have the device now, with the shards that they ask for."""
        by_id = self._session.jobs
        return [
            job
            for job in self._holders(pool, device)
            if job in jobs and sum(on.shards for on in by_id[job].allocations) == by_id[job].original_request.shards
        ]

    def _holders(self, pool: int, device: int) -> list[JobId]:
        pools, snapshot = self._session.pools, self._session.situation.snapshot
        return [job.id for job in snapshot.jobs_on(pools.node(pool).name, pools.devices[pool][device].index)]

    def with_own_device(self, milli: Ints) -> Mask:
        """Returns the pools where so much of a device is one to itself, whichever one Slurm chooses; [pools]."""
        return ~self._starting & ~self._partly_used(milli).any(axis=1)

    def is_half_free(self, pool: int, devices: tuple[int, ...]) -> bool:
        """Returns whether half of this one device is idle and a half-GPU job started in the pool gets it."""
        first = int((self._initial[pool] >= HALF_GPU_MILLI).argmax())
        half = bool(self._initial[pool, first] == HALF_GPU_MILLI)
        return not self._starting[pool] and devices == (first,) and half

    def is_starting(self, pools: Sequence[int]) -> bool:
        """Returns whether a job that starts in one of the pools may divide a device there."""
        return bool(self._starting[list(pools)].any())

    def open_halves(self, pools: Sequence[int]) -> set[tuple[int, int]]:
        """Returns the pools and devices that are partly used and have half of their shards left."""
        initial = self._initial[list(pools)]
        rows, devices = np.nonzero((initial >= HALF_GPU_MILLI) & (initial < MILLI_PER_GPU))
        return {(pools[row], device) for row, device in zip(rows.tolist(), devices.tolist(), strict=True)}

    def mark_starting(self, pools: Sequence[int]) -> None:
        """Marks the pools as starting a job with some shards of a device."""
        self._starting[list(pools)] = True

    def find_partly_used(self, milli: Ints, pools: Ints) -> tuple[int, int] | None:
        """Returns a pool and a device on which Slurm may put the task beside another job, or None."""
        devices = np.argwhere(self._partly_used(milli)[pools])
        return (int(pools[devices[0, 0]]), int(devices[0, 1])) if len(devices) else None

    def find_starting(self, pools: Ints) -> int | None:
        """Returns a pool with an idle device that starts another job with shards in this round, or None."""
        starting = pools[self._starting[pools] & (self._session.free_at_minimum.gpus[pools] > 0)]
        return int(starting[0]) if len(starting) else None

    def _partly_used(self, milli: Ints) -> Mask:
        return np.asarray((self._initial >= milli[:, None]) & (self._initial < MILLI_PER_GPU), dtype=np.bool_)


class AllocateOwnGpu:
    """Admits a newcomer on free resources, one with shards on devices that no other job uses or gets."""

    def __init__(self, session: Session) -> None:
        self._session, self._free = session, AllocateFree(session)
        self._devices, self._failed = ShardedDevices(session), FailedRequestCache()
        self._whole = WholeDevices()

    def try_admit(self, job: Job) -> bool:
        session, demand = self._session, self._session.demands.of(job)
        if demand.milli is None:
            return self._free.try_admit(job)
        attempt = session.attempt(job)
        if self._failed.contains(attempt, session.eviction_epoch):
            return False
        widened = _is_widened(session, demand)
        placement = (
            self._whole.find(session, job, session.free_at_minimum)
            if widened
            else self._on_devices_of_its_own(job, demand.milli)
        )
        if placement is None:
            self._failed.add(attempt)
            return False
        session.allocate(job, placement)
        if not widened:
            self._devices.mark_starting(placement.pools)
        return True

    def _on_devices_of_its_own(self, job: Job, milli: Ints) -> Placement | None:
        session, own_device = self._session, self._devices.with_own_device(milli)
        return session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum, own_device)


def _is_widened(session: Session, demand: ResourceDemand) -> bool:
    """Returns whether a job with this demand for shards gets all those of its devices if it has no partner."""
    return session.situation.snapshot.widens_shards and demand.gang.tasks_per_part == 1


class WholeDevices:
    """Finds placements with all shards of each device. Jobs that ask alike have the same demand there too."""

    def __init__(self) -> None:
        self._demands = dict[ResourceDemand, ResourceDemand]()

    def find(
        self,
        session: Session,
        job: Job,
        free: FreeResources,
        *,
        beside: FreeResources | None = None,
        node_score: NodeScore | None = None,
    ) -> Placement | None:
        demand = session.demands.of(job)
        if demand not in self._demands:
            self._demands[demand] = demand.of_whole_devices()
        whole = self._demands[demand]
        found = session.find_placement(
            job, DemandLevel.MINIMUM, free, demand=whole, beside=beside, node_score=node_score
        )
        return found and replace(found, whole_devices=True)


@dataclass(slots=True)
class PreemptForOwnGpu(Preempt):
    """Preempts for GPUs that the newcomer has to itself: nobody is restarted for a half whose device is not certain."""

    _whole: WholeDevices = field(default_factory=WholeDevices)

    def placement_on(
        self, job: Job, free: FreeResources, beside: FreeResources | None, node_score: NodeScore | None
    ) -> Placement | None:
        session, demand = self.session, self.session.demands.of(job)
        if not session.situation.snapshot.widens_shards:
            return None
        if demand.milli is None:
            return session.find_placement(job, DemandLevel.MINIMUM, free, beside=beside, node_score=node_score)
        if not _is_widened(session, demand):
            return None
        return self._whole.find(session, job, free, beside=beside, node_score=node_score)


def move_apart(session: Session, *, also_worse: bool) -> frozenset[JobId]:
    """Moves one of each pair to an idle GPU where that pays for its restart, and if `also_worse` where both measured
    that they do less than one alone; returns the jobs that move. That is the guest, if it may be moved."""
    snapshot, moved = session.situation.snapshot, set[JobId]()
    if not snapshot.widens_shards:
        return frozenset()
    for job in [session.jobs[running] for running in session.running]:
        others = snapshot.sharers_of(job)
        other = others[0] if len(others) == 1 else None
        if other is None or other.id not in session.running or _started(other) > _started(job):
            continue  # each pair once, by the one that came later
        if _move_from(session, job, other, also_worse=also_worse):
            moved.add(job.id)
        elif _move_from(session, other, job, also_worse=False):
            moved.add(other.id)
    return frozenset(moved)


def _move_from(session: Session, job: Job, other: Job, *, also_worse: bool) -> bool:
    """Moves the job away from the other one if that is worth it, possible, and allowed; returns whether it moves."""
    if session.moves_left <= 0 or not session.is_preemptible(job.id):
        return False
    why = (_worse_together(session, job, other) if also_worse else None) or _pays_apart(session, job, other)
    demand = session.demands.of(job)
    if why is None or demand.milli is None or not _is_widened(session, demand):
        return False
    placement = WholeDevices().find(session, job, session.free_at_minimum)
    if placement is not None:
        session.restart_with(job, placement, why)
    return placement is not None


def _started(job: Job) -> tuple[float, tuple[float, int, int, JobId]]:
    return job.start_time or 0.0, job.queue_key


def _worse_together(session: Session, job: Job, other: Job) -> Reason | None:
    """Returns the reason to move the job if both measured that together they do less than one alone."""
    rates, gpu_type = session.situation.knowledge.pairs, job.gpu_type_held
    work = [rates.rate(*pair, gpu_type) for pair in ((job, other), (other, job))]
    worth = sum(rate for rate in work if rate is not None)
    if None in work or worth >= 1:
        return None
    return Reason(ReasonCode.WORSE_TOGETHER, {"job": other.id, "work": str(round(worth, 2))})


def _pays_apart(session: Session, job: Job, other: Job) -> Reason | None:
    """Returns the reason to move the job if, by known rates, it alone gains more than its restart costs."""
    situation = session.situation
    gpu_type = job.gpu_type_held
    rates = relative_rates_of_pair(situation.knowledge, job, other, gpu_type)
    if rates is None:
        return None
    lengths = [remaining_or_executed(situation.knowledge, one) for one in (job, other)]
    together = min(left / rate if rate else inf for left, rate in zip(lengths, rates, strict=True))
    saving, cost = together * (1 - rates[0]), situation.cost_of_restart(job.id)
    if isinf(together) or saving <= MIN_BENEFIT * cost:
        return None
    return restart_reason(saving, cost)
