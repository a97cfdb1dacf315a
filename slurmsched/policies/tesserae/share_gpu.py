"""Tesserae with packing on GPUs that Slurm divides into shards (Tesserae, sections 3.2 and 4.2, algorithms 1 and 4).

In order, each waiting job gets GPUs of its own, on nodes where fragmentation grows least: idle ones, or those of
running jobs that the order lets it preempt. Then the jobs without GPUs, those preempted among them, are matched with
placed jobs. Who runs stays on its GPUs, so the migration of section 4.1 has nothing to rename. A pair is moved apart
once a GPU is idle and that pays for the restart; a site may let jobs be paired that nobody measured together, and then
two that do less than one alone are moved apart too.

Two jobs share a GPU by asking for half of its shards each; Slurm has no other way. A round chooses nodes, but Slurm
chooses the device: the first by index with enough shards left. So that no job comes beside another one by chance, a job
without a partner is given all shards of its device, and the pairs of a node start one after another. Who has all shards
takes an idle device, whatever the order, and so does each pair where no other device has half of its shards left.

Where jobs leave a node in this round, pairs start there once all have left and all others have started, if then no
other device of the node has room; or one guest of a running job does.

Where a request cannot be widened so (`Snapshot.widens_shards`), nobody gives way to a newcomer, and at most one device
of a node is divided or shared per round, and only where no job of whole GPUs that starts there could change which.
Sharers of running jobs are read back from Slurm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from slurmsched.arrays import Ints
from slurmsched.knowledge.refinement import estimated_pairs
from slurmsched.model import (
    Job,
    JobId,
    JobState,
    Reason,
    ReasonCode,
)
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.placement import Placement, fitting_pools
from slurmsched.policies.session import Session
from slurmsched.policies.tesserae.own_gpu import HALF_GPU_MILLI, ShardedDevices, move_apart
from slurmsched.policies.tesserae.packing import (
    GpuSharers,
    NeverTogether,
    PackedPair,
    TriedPairs,
    match_pairs,
    may_share,
    relative_rates_of_pair,
    shares_gpu_reason,
)


@dataclass(frozen=True, slots=True)
class ShareGpus:
    """Finish step: places waiting jobs on halves of GPUs beside the placed jobs they are matched with (algorithm 4).

    A pair is moved apart onto an idle GPU where that pays for the restart. With `try_unmeasured` pairs that nobody
    measured are made too where an estimate promises a gain (section 4.3), and two that turn out to do less than one job
    alone are moved apart as soon as a GPU is idle.
    """

    try_unmeasured: bool = False

    def __call__(self, session: Session) -> None:
        session.cancel_noop_evictions()  # who would keep its GPU whole is not restarted to be joined there
        tried = _tried_pairs(session) if self.try_unmeasured else None
        moved = move_apart(session, also_worse=self.try_unmeasured)
        share_gpus(session, tried, moved)


def _tried_pairs(session: Session) -> TriedPairs:
    situation = session.situation
    types = {gpu_type for gpu_type in session.pools.gpu_types if gpu_type}
    estimates = {gpu_type: estimated_pairs(situation.knowledge, gpu_type) for gpu_type in types}
    return TriedPairs(estimates, session.jobs.keys() - situation.unmovable)


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
    slots.order_starts()
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
    _halves: defaultdict[int, list[tuple[JobId, ...]]] = field(default_factory=lambda: defaultdict(list))
    """For each pool that jobs leave, those that start there with halves of a device, by device, in order."""
    _leaving: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._leaving = self.devices.leaving()

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
            if host not in self.session.running
            and self._leaving.isdisjoint(allocation.pools)
            and not self.devices.open_halves(allocation.pools) <= filled
        }

    def place_beside(self, pair: PackedPair) -> None:
        """Places the guest on its host's devices, and records both."""
        if self.session.limits.reached(self.session.jobs[pair.guest]):
            return  # others of its group were placed since the pairs were matched
        session, held = self.session, self._allocation(pair.host)
        host, guest = session.placements.get(pair.host), session.jobs[pair.guest]
        if not self._leaving.isdisjoint(held.pools):
            if not self._is_certain(held, (pair.host, pair.guest)):
                return  # Slurm might put one of them beside a job that leaves, or on another device
        elif host is not None and not self.devices.open_halves(held.pools) <= self._filled:
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
            certain = self._is_last(placement) and not self.devices.is_starting(pools)
            if full and half and certain and may_share(job):
                seen.update(pools)
                session.place_again(job, replace(placement, whole_devices=False))
                before = dict.fromkeys(other for pool in pools for other in others[pool] if other != name)
                if self._leaving.isdisjoint(pools):
                    session.starts_after |= {name: tuple(before)} if before else {}
                else:
                    self._halves[pools[0]].append((name,))

    def order_starts(self) -> None:
        """Lets those with halves of a device in pools that jobs leave start once these have left and all others run."""
        session, pools = self.session, self.session.pools
        with_halves = {job for pairs in self._halves.values() for jobs in pairs for job in jobs}
        for pool, pairs in self._halves.items():
            left = [job for job in session.victims if pool in pools.allocation(session.jobs[job].allocations).pools]
            placed = [job for job, placement in session.placements.items() if pool in placement.pools]
            before = [job for job in placed if job not in with_halves]
            for jobs in pairs:
                session.starts_after |= dict.fromkeys(jobs, tuple(before)) if before else {}
                session.starts_once_left |= {job: tuple(other for other in left if other != job) for job in jobs}
                before += jobs

    def _is_last(self, placement: Placement) -> bool:
        """Returns whether a job that starts after all others gets this device for certain, and has it alone."""
        held = placement.allocation(self.session.pools)
        if self._leaving.isdisjoint(held.pools):
            return self.devices.open_halves(held.pools) <= self._filled
        certain = len(held.pools) == 1 and self._is_certain(held)
        return certain and self.devices.is_left_before(held.pools[0], held.devices[0][0])

    def _is_certain(self, held: Allocation, partners: tuple[JobId, ...] = ()) -> bool:
        """Returns whether those that start with halves in a pool that others leave get this device, beside partners
        that stay there or none."""
        pool, device = held.pools[0], held.devices[0][0]
        only_room = self.devices.is_only_room(pool, device) and not self.devices.is_starting((pool,))
        first = not self._halves[pool] if self._joins(held, partners) else pool not in {own for own, _ in self._filled}
        return only_room and first

    def _joins(self, held: Allocation, partners: tuple[JobId, ...]) -> bool:
        """Returns whether one of these partners stays on this device: then no other one would do for the job."""
        return bool(self.devices.staying(held.pools[0], held.devices[0][0], partners))

    def _start_in_turn(self, pair: PackedPair, held: Allocation) -> None:
        """Lets the pair start after the last one in each of its pools."""
        new = tuple(job for job in (pair.host, pair.guest) if job in self.session.placements)
        if pair.host in self.session.running or self._joins(held, (pair.guest,)):
            self._filled |= _positions(held)
        if not self._leaving.isdisjoint(held.pools):
            self._halves[held.pools[0]].append(new)
            return
        before = tuple(dict.fromkeys(job for pool in held.pools for job in self._last.get(pool, ())))
        for job in new if before else ():
            self.session.starts_after[job] = before
        self._last.update(dict.fromkeys(held.pools, new))

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
        half = (
            2 * placement.gang.shards == shards
            if placement and placement.whole_devices
            else held.part == HALF_GPU_MILLI
        )
        if not half:
            return False
        if not self._leaving.isdisjoint(held.pools):
            return len(held.pools) == 1 and self.devices.is_only_room(held.pools[0], held.devices[0][0])
        if placement is not None and placement.whole_devices:
            return not self.devices.is_starting(held.pools)
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
