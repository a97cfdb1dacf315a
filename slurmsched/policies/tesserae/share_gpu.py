"""Tesserae with packing on GPUs that Slurm divides into shards (Tesserae, sections 3.2 and 4.2, algorithms 1 and 4).

In order, each waiting job gets GPUs of its own, on nodes where fragmentation grows least. Then the jobs without GPUs
are matched with placed jobs. No job is preempted, so the migration of section 4.1 does not apply; a site may let jobs
be paired that nobody measured together, and then two that do less than one alone are moved apart.

Two jobs share a GPU by asking for half of its shards each; Slurm has no other way. A round chooses nodes, but Slurm
chooses the device: the first by index with enough shards left. So that no job comes beside another one by chance, a job
without a partner is given all shards of its device, and the pairs of a node start one after another. Who has all shards
takes an idle device, whatever the order, and so does each pair where no other device has half of its shards left.

Where a request cannot be widened so (`Snapshot.widens_shards`), at most one device of a node is divided or shared per
round, and only where no job of whole GPUs that starts there could change which. Sharers of running jobs are read back
from Slurm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from slurmsched.arrays import Ints, Mask
from slurmsched.knowledge.knowledge import OUT_OF_MEMORY_SECONDS
from slurmsched.knowledge.refinement import estimated_pairs
from slurmsched.model import (
    MILLI_PER_GPU,
    Job,
    JobId,
    JobState,
    Reason,
    ReasonCode,
)
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.admit.allocate import AllocateFree, FailedRequestCache
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.placement import Placement, fitting_pools
from slurmsched.policies.session import Session
from slurmsched.policies.tesserae.packing import (
    GpuSharers,
    PackedPair,
    TriedPairs,
    match_pairs,
    may_share,
    relative_rates_of_pair,
    shares_gpu_reason,
)

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
        self._whole = dict[ResourceDemand, ResourceDemand]()

    def try_admit(self, job: Job) -> bool:
        session, demand = self._session, self._session.demands.of(job)
        if demand.milli is None:
            return self._free.try_admit(job)
        attempt = session.attempt(job)
        if self._failed.contains(attempt, session.eviction_epoch):
            return False
        widened = session.situation.snapshot.widens_shards and demand.gang.tasks_per_part == 1
        placement = self._on_whole_devices(job, demand) if widened else self._on_devices_of_its_own(job, demand.milli)
        if placement is None:
            self._failed.add(attempt)
            return False
        session.allocate(job, placement)
        if not widened:
            self._devices.mark_starting(placement.pools)
        return True

    def _on_whole_devices(self, job: Job, demand: ResourceDemand) -> Placement | None:
        if demand not in self._whole:
            self._whole[demand] = demand.of_whole_devices()
        session, whole = self._session, self._whole[demand]
        placement = session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum, demand=whole)
        return placement and replace(placement, whole_devices=True)

    def _on_devices_of_its_own(self, job: Job, milli: Ints) -> Placement | None:
        session, own_device = self._session, self._devices.with_own_device(milli)
        return session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum, own_device)


@dataclass(frozen=True, slots=True)
class ShareGpus:
    """Finish step: places waiting jobs on halves of GPUs beside the placed jobs they are matched with (algorithm 4).

    With `try_unmeasured` pairs that nobody measured are made too where an estimate promises a gain (section 4.3); two
    that turn out to do less than one job alone are moved apart as soon as a GPU is idle.
    """

    try_unmeasured: bool = False

    def __call__(self, session: Session) -> None:
        tried = _tried_pairs(session) if self.try_unmeasured else None
        moved = _move_apart(session) if self.try_unmeasured else frozenset()
        share_gpus(session, tried, moved)


def _tried_pairs(session: Session) -> TriedPairs:
    situation = session.situation
    types = {gpu_type for gpu_type in session.pools.gpu_types if gpu_type}
    estimates = {gpu_type: estimated_pairs(situation.knowledge, gpu_type) for gpu_type in types}
    return TriedPairs(estimates, session.jobs.keys() - situation.unmovable)


def _move_apart(session: Session) -> frozenset[JobId]:
    """Moves the guest of each pair whose jobs measured that they do less than one alone to an idle GPU of another node;
    returns the guests that move."""
    snapshot, moved = session.situation.snapshot, set[JobId]()
    if not snapshot.widens_shards:
        return frozenset()
    for job in [session.jobs[running] for running in session.running]:
        others = snapshot.sharers_of(job)
        other = others[0] if len(others) == 1 else None
        if other is None or other.id not in session.jobs or _started(other) > _started(job):
            continue  # the one that came later moves
        rates, gpu_type = session.situation.knowledge.pairs, snapshot.gpu_type_of(job.allocations)
        work = [rates.rate(*pair, gpu_type) for pair in ((job, other), (other, job))]
        worth = sum(rate for rate in work if rate is not None)
        if None in work or worth >= 1 or session.moves_left <= 0 or not session.is_preemptible(job.id):
            continue
        if (placement := _own_device_elsewhere(session, job)) is not None:
            details = {"job": other.id, "work": f"{round(worth, 2):g}"}
            session.restart_with(job, placement, Reason(ReasonCode.WORSE_TOGETHER, details))
            moved.add(job.id)
    return frozenset(moved)


def _started(job: Job) -> tuple[float, tuple[float, int, int, JobId]]:
    return job.start_time or 0.0, job.queue_key


def _own_device_elsewhere(session: Session, job: Job) -> Placement | None:
    """Returns a placement on an idle device of another node, with all of its shards; on its own node Slurm would see no
    change."""
    demand, own = session.demands.of(job), {session.pools.node_of[pool] for pool in session.running[job.id].pools}
    if demand.milli is None or demand.gang.tasks_per_part != 1:
        return None
    elsewhere = ~np.isin(session.pools.node_of, list(own))
    whole = demand.of_whole_devices()
    found = session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum, elsewhere, demand=whole)
    return found and replace(found, whole_devices=True)


def share_gpus(session: Session, tried: TriedPairs | None = None, moved: Collection[JobId] = frozenset()) -> None:
    """Does so with these pairs to be tried; `moved` are running jobs that get another GPU and share it with nobody."""
    devices, sharers = ShardedDevices(session), GpuSharers(session, tried)
    for running in session.running:
        sharers.record(session, session.jobs[running])
    in_order = [session.jobs[ranked.job] for ranked in session.ranking if ranked.job not in moved]
    waiting = [job for job in in_order if session.needs_placement(job)]
    placed = [job for job in in_order if job.id in session.running or job.id in session.placements]
    slots = HalfGpuSlots(session, devices, tried)
    for pair in slots.match(placed, waiting) if waiting else ():
        slots.place_beside(pair)
    slots.leave_last_halves(moved)
    obstacles = dict[ResourceDemand, Reason | None]()
    never = NeverTogether(session, [job for job in placed if job.id not in session.beside])
    for job in waiting:
        if job.id in session.placements:
            continue
        demand = session.demands.of(job)
        if demand not in obstacles:
            obstacles[demand] = _sharing_obstacle(session, job, devices, sharers)
        if (why := never.why(job) or obstacles[demand]) is not None:
            session.set_waiting_reason(job, why)


@dataclass(slots=True)
class HalfGpuSlots:
    """The half GPUs open to a second job, after all jobs with GPUs of their own are placed."""

    session: Session
    devices: ShardedDevices
    tried: TriedPairs | None = None
    _filled: set[tuple[int, int]] = field(default_factory=set)
    """Pools and devices on which a guest joins a running job in this round."""
    _last: dict[int, tuple[JobId, ...]] = field(default_factory=dict)
    """For each pool the jobs after which the next one may start there with half of a device."""

    def match(self, placed: Sequence[Job], waiting: Sequence[Job]) -> Iterator[PackedPair]:
        """Yields the maximum-weight matching, by shards per GPU, the most first; both sequences are in order.

        Guests of running jobs come first: they leave no device half used, on which a pair might land.
        """
        left, free = list(waiting), self._with_halves_of_hosts(placed)
        for shards in sorted({int(count) for count in self.session.pools.shards if count}, reverse=True):
            hosts = [job for job in placed if may_share(job) and self._has_free_half(job, shards)]
            pairs = list(self._match_on(shards, hosts, left, free)) if hosts else []
            while parted := self._hosts_beside_open_halves(pairs):
                hosts = [job for job in hosts if job.id not in parted]
                pairs = list(self._match_on(shards, hosts, left, free)) if hosts else []
            matched = {pair.guest for pair in pairs}
            left = [job for job in left if job.id not in matched]
            yield from sorted(pairs, key=lambda pair: pair.host not in self.session.running)

    def _with_halves_of_hosts(self, placed: Sequence[Job]) -> FreeResources:
        """Returns what is free if each job that was given whole devices has only half of them."""
        free = self.session.free_at_minimum.copy()
        for job in placed:
            placement = self.session.placements.get(job.id)
            if placement is not None and placement.whole_devices:
                none = (0,) * len(placement.pools)
                free.release(
                    Allocation(placement.pools, none, none, none, part=HALF_GPU_MILLI, devices=placement.devices)
                )
        return free

    def _hosts_beside_open_halves(self, pairs: Sequence[PackedPair]) -> set[JobId]:
        """Returns the hosts that start in a pool where no guest takes the half of a device that is left."""
        held = {pair.host: self._allocation(pair.host) for pair in pairs}
        running = [host for host in held if host in self.session.running]
        filled = self._filled | {device for host in running for device in _positions(held[host])}
        return {
            host
            for host, allocation in held.items()
            if host not in self.session.running and not self.devices.open_halves(allocation.pools) <= filled
        }

    def place_beside(self, pair: PackedPair) -> None:
        """Places the guest on its host's devices, and records both."""
        if self.session.limits.reached(self.session.jobs[pair.guest]):
            return  # others of its group were placed since the pairs were matched
        session, held = self.session, self._allocation(pair.host)
        host, guest = session.placements.get(pair.host), session.jobs[pair.guest]
        if host is not None and not self.devices.open_halves(held.pools) <= self._filled:
            return  # the guest of a running job there could not be placed
        demand, kind = session.demands.of(guest), int(session.pools.kind_of[held.pools[0]])
        parts = (1,) * len(held.pools)
        placement = Placement(demand.gang, held.pools, parts, demand.ranges[kind].minimum, kind, held.devices)
        widened = host is not None and host.whole_devices
        if host is not None and widened:
            session.place_again(session.jobs[pair.host], replace(host, whole_devices=False))
        allocation = placement.allocation(session.pools)
        if session.delays_promise(guest, allocation) or not session.free_at_minimum.fits(allocation):
            if host is not None and widened:
                session.place_again(session.jobs[pair.host], host)
            return
        session.allocate(guest, placement)
        self._start_in_turn(pair, held)
        if not session.situation.snapshot.widens_shards:
            self.devices.mark_starting(held.pools)
        on_nodes, gpu_type = placement.node_allocations(session.pools), session.pools.gpu_types[held.pools[0]]
        both = relative_rates_of_pair(session.situation.knowledge, session.jobs[pair.host], guest, gpu_type)
        tried = both is None
        for job, other, rate in (
            (pair.host, pair.guest, pair.relative_rates[0]),
            (pair.guest, pair.host, pair.relative_rates[1]),
        ):
            session.share(job, (other,), rate, shares_gpu_reason(on_nodes, other, pair.relative_rates, tried=tried))

    def leave_last_halves(self, moved: Collection[JobId] = frozenset()) -> None:
        """Lets the last job without a partner in each pool that is full keep half of its device open for a later guest.

        It starts last, so that the device is certain.
        """
        session, others = self.session, defaultdict[int, list[JobId]](list)
        for name, placement in session.placements.items():
            for pool in placement.pools:
                others[pool].append(name)
        seen = set[int]()
        for name, placement in reversed(session.placements.items()):
            job, pools = session.jobs[name], placement.pools
            if name in moved or not placement.whole_devices or not seen.isdisjoint(pools):
                continue
            full = not any(session.free_at_minimum.gpus[pool] for pool in pools)
            half = all(2 * placement.gang.shards == session.pools.shards[pool] for pool in pools)
            certain = self.devices.open_halves(pools) <= self._filled and not self.devices.is_starting(pools)
            if full and half and certain and may_share(job):
                seen.update(pools)
                session.place_again(job, replace(placement, whole_devices=False))
                before = dict.fromkeys(other for pool in pools for other in others[pool] if other != name)
                if before:
                    session.starts_after[name] = tuple(before)

    def _start_in_turn(self, pair: PackedPair, held: Allocation) -> None:
        """Lets the pair start after the last one in each of its pools."""
        new = tuple(job for job in (pair.host, pair.guest) if job in self.session.placements)
        before = tuple(dict.fromkeys(job for pool in held.pools for job in self._last.get(pool, ())))
        for job in new if before else ():
            self.session.starts_after[job] = before
        self._last.update(dict.fromkeys(held.pools, new))
        if pair.host in self.session.running:
            self._filled |= _positions(held)

    def _match_on(
        self, shards: int, hosts: Sequence[Job], waiting: Sequence[Job], free: FreeResources
    ) -> Iterator[PackedPair]:
        pools, fitting = self.session.pools, dict[JobId, list[frozenset[int]]]()
        held = {host.id: self._allocation(host.id).pools for host in hosts}

        def fits(host: Job, guest: Job) -> bool:
            if guest.id not in fitting:
                fitting[guest.id] = [
                    frozenset(found.tolist()) for found in _pools_for(self.session, guest, free, shards)
                ]
            demand, nodes = self.session.demands.of(guest), {int(pools.node_of[pool]) for pool in held[host.id]}
            return (
                demand.gang.parts == len(held[host.id])
                and nodes.issuperset(demand.required_nodes)
                and any(known.issuperset(held[host.id]) for known in fitting[guest.id])
            )

        yield from match_pairs(
            hosts,
            waiting,
            types={host: pools.gpu_types[on[0]] for host, on in held.items()},
            knowledge=self.session.situation.knowledge,
            shards_per_gpu=shards,
            fits=fits,
            tried=self.tried,
        )

    def _has_free_half(self, host: Job, shards: int) -> bool:
        """Returns whether a half-GPU job started on the same nodes gets the same devices.

        A host that starts in this round qualifies: both get the same device, unless another one there is half used.
        """
        held, pools, placement = self._allocation(host.id), self.session.pools, self.session.placements.get(host.id)
        if not held.devices or any(pools.shards[pool] != shards for pool in held.pools):
            return False
        if placement is not None and placement.whole_devices:
            return 2 * placement.gang.shards == shards and not self.devices.is_starting(held.pools)
        if held.part != HALF_GPU_MILLI:
            return False
        if host.state is JobState.PENDING:
            return True
        return host.state is JobState.RUNNING and all(map(self.devices.is_half_free, held.pools, held.devices))

    def _allocation(self, job: JobId) -> Allocation:
        return _allocation_of(self.session, job)


def _allocation_of(session: Session, job: JobId) -> Allocation:
    return session.running.get(job) or session.placements[job].allocation(session.pools)


def _positions(allocation: Allocation) -> set[tuple[int, int]]:
    """Returns the pools and devices that it has."""
    devices = zip(allocation.pools, allocation.devices, strict=True)
    return {(pool, device) for pool, on_pool in devices for device in on_pool}


def _pools_for(session: Session, job: Job, free: FreeResources, shards: int = 0) -> Iterator[Ints]:
    """Yields the pools that hold a task of the job now, by partition; only those where it takes half a GPU, if `shards`
    are given, which are those of a GPU."""
    demand = session.demands.of(job)
    if demand.milli is None or (shards and 2 * demand.gang.shards != shards):
        return
    for pools in fitting_pools(demand, DemandLevel.MINIMUM, free):
        yield pools[session.pools.shards[pools] == shards] if shards else pools


def _sharing_obstacle(session: Session, job: Job, devices: ShardedDevices, sharers: GpuSharers) -> Reason | None:
    """Returns why the job may not start although a node has free resources, or None."""
    milli = session.demands.of(job).milli
    for pools in _pools_for(session, job, session.free_at_minimum) if milli is not None else ():
        if (starting := devices.find_starting(pools)) is not None:
            return Reason(ReasonCode.ONE_A_ROUND, {"node": session.pools.node(starting).name})
        if milli is not None and (device := devices.find_partly_used(milli, pools)):
            node, gpu = session.pools.node(device[0]).name, session.pools.devices[device[0]][device[1]].index
            jobs = sharers.describe_users(node, gpu)
            return Reason(ReasonCode.BESIDE_ANOTHER, {"node": node, "gpu": gpu, "jobs": jobs})
    return None


class NeverTogether:
    """Why a waiting job shares no GPU with one of `alone`, the jobs without a partner, although their rates would let
    them; each question is answered once for an owner's jobs of one model."""

    def __init__(self, session: Session, alone: Sequence[Job]) -> None:
        self._session, self._knowledge = session, session.situation.knowledge
        self._models = self._knowledge.out_of_memory.models
        self._hosts = {self._kind(job): job for job in reversed(alone) if job.hints.model in self._models}
        self._reasons = dict[tuple[str, str | None, int | None, bool], Reason | None]()

    def why(self, job: Job) -> Reason | None:
        """Returns the reason, or None."""
        if job.hints.model not in self._models or self._session.demands.of(job).milli is None:
            return None
        kind = self._kind(job)
        if kind not in self._reasons:
            reasons = (self._why_not_beside(job, host) for host in self._hosts.values())
            self._reasons[kind] = next((why for why in reasons if why is not None), None)
        return self._reasons[kind]

    @staticmethod
    def _kind(job: Job) -> tuple[str, str | None, int | None, bool]:
        return job.user, job.hints.model, job.hints.gpu_memory, may_share(job)

    def _why_not_beside(self, job: Job, host: Job) -> Reason | None:
        at = self._knowledge.out_of_memory.last(job, host)
        if at is None or not (may_share(job) and may_share(host)):
            return None
        gpu_type = self._session.pools.gpu_types[_allocation_of(self._session, host.id).pools[0]]
        if relative_rates_of_pair(self._knowledge, host, job, gpu_type) is None:
            return None
        models, now = sorted((job.hints.model or "", host.hints.model or "")), self._session.situation.snapshot.time
        details = {
            "job": host.id,
            "models": " and ".join(models) if models[0] != models[1] else f"two of {models[0]}",
            "when": time_of_day(at, now),
            "until": time_of_day(at + OUT_OF_MEMORY_SECONDS, now),
        }
        return Reason(ReasonCode.NEVER_TOGETHER, details)
