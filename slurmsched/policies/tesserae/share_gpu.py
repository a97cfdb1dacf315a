"""Tesserae with packing on GPUs that Slurm divides into shards (Tesserae, sections 3.2 and 4.2, algorithms 1 and 4).

In order, each waiting job gets GPUs of its own, on nodes where fragmentation grows least. Then the jobs without GPUs
are matched with placed jobs. No job is preempted, so the migration of section 4.1 does not apply.

Two jobs share a GPU by asking for half of its shards each; Slurm has no other way. A round chooses nodes, but Slurm
chooses the device: the first by index with enough shards left, for jobs in an order that Slurm chooses too. So that the
device is certain, at most one device of a node is divided or shared per round, and only where no job of whole GPUs that
starts there could change which. Sharers of running jobs are read back from Slurm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurmsched.arrays import Mask
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    MILLI_PER_GPU,
    Decision,
    Job,
    JobId,
    JobState,
    Node,
    NodeAllocation,
    RankedJob,
    Reason,
    ReasonCode,
    Snapshot,
    Target,
)
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.placer import FgdCluster, FgdPlacer, NodeDemands
from slurmsched.policies.fgd.policy import keeps_allocation, unschedulable_reason
from slurmsched.policies.place.fragmentation import TaskDemand
from slurmsched.policies.session import completing_reason
from slurmsched.policies.stages import Order, Situation
from slurmsched.policies.tesserae.packing import PackedPair, match_pairs, may_share, relative_rates_of_pair


class GpuSharers:
    """All jobs, managed or not, by the devices they use."""

    def __init__(self, snapshot: Snapshot, knowledge: Knowledge, managed: frozenset[JobId]) -> None:
        self._nodes, self._knowledge, self._managed = snapshot.nodes_by_name, knowledge, managed
        self._users = defaultdict[tuple[str, int], list[Job]](list)
        for job in (job for job in snapshot.jobs if job.state is not JobState.FINISHED):
            for device in _devices_of(job):
                self._users[device].append(job)

    def sharers_of(self, job: Job) -> tuple[Job, ...]:
        """Returns the other jobs on its devices."""
        others = {other.id: other for device in _devices_of(job) for other in self._users[device] if other.id != job.id}
        return tuple(others.values())

    def describe_users(self, node: str, gpu: int) -> str:
        """Returns the jobs on this device as text: `jobs 4, 7`."""
        return _format_jobs(self._users[node, gpu])

    def target_of(self, job: Job) -> Target:
        """Returns the target of a job that keeps running, with its sharers and its speed beside them."""
        others = self.sharers_of(job)
        if not others:
            return Target(job.id, job.allocations, (Reason(ReasonCode.KEEPS_LEASE),))
        gpu_type = gpu_type_of(job.allocations, self._nodes)
        speed = min(self._knowledge.shared_gpu_speed(job, other, gpu_type) for other in others)
        if len(others) == 1 and self._is_pair(job, others[0]):
            both = relative_rates_of_pair(self._knowledge, job, others[0], gpu_type)
            if both is not None:
                return Target(
                    job.id,
                    job.allocations,
                    (shares_gpu_reason(job.allocations, others[0].id, both),),
                    speed,
                    (others[0].id,),
                )
        why = Reason(
            ReasonCode.SHARES_UNASKED, {"devices": _device_names(job.allocations), "jobs": _format_jobs(others)}
        )
        return Target(job.id, job.allocations, (why,), speed)

    def _is_pair(self, job: Job, other: Job) -> bool:
        """Returns whether the other is managed too, both allow sharing, and they use the same devices."""
        may_pair = other.id in self._managed and may_share(job) and may_share(other)
        return may_pair and set(_devices_of(job)) == set(_devices_of(other))


def shares_gpu_reason(
    allocations: Sequence[NodeAllocation], partner: JobId, relative_rates: tuple[float, float]
) -> Reason:
    """Returns the reason for a shared allocation; `work` is that of both jobs over that of one job alone."""
    work = f"{round(sum(relative_rates), 2):g}"
    return Reason(ReasonCode.SHARES_GPU, {"devices": _device_names(allocations), "job": partner, "work": work})


def _device_names(allocations: Sequence[NodeAllocation]) -> str:
    """Returns the devices as text: `GPU 0 of v100-1`."""
    return ", ".join(f"GPU {index} of {share.node}" for share in allocations for index in share.indices)


def gpu_type_of(allocations: Sequence[NodeAllocation], nodes: Mapping[str, Node]) -> str:
    """Returns the GPU type of the first node; for shards Slurm reports none, so it is the node's."""
    first, node = allocations[0], nodes.get(allocations[0].node)
    return first.gpu_type or next(iter(node.gpu_types if node else ()), "")


def _format_jobs(jobs: Sequence[Job]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(job.id for job in jobs)}"


def _devices_of(job: Job) -> list[tuple[str, int]]:
    return [(share.node, index) for share in job.allocations for index in share.indices]


HALF_GPU_MILLI: Final = MILLI_PER_GPU // 2


class ShardedDevices:
    """The devices at the start of the round, and the nodes on which it starts jobs with shards."""

    def __init__(self, cluster: FgdCluster) -> None:
        self.node_index = {node.name: index for index, node in enumerate(cluster.nodes)}
        self._idle = cluster.free
        self._initial = cluster.free.milli_gpus.copy()
        self._starting: Mask = np.zeros(len(cluster.nodes), dtype=np.bool_)

    def nodes_of(self, allocations: Sequence[NodeAllocation]) -> list[int]:
        """Returns the indices of the nodes in the cluster."""
        return [self.node_index[share.node] for share in allocations]

    def nodes_with_own_device(self, task: TaskDemand) -> Mask:
        """Returns the mask of nodes where the task gets a device to itself, whichever one Slurm chooses; [nodes]."""
        return ~self._starting & ~self._partly_used(task).any(axis=1)

    def is_half_free(self, share: NodeAllocation) -> bool:
        """Returns whether half of the share's one device is idle and a half-GPU job started on the node gets it."""
        node = self.node_index[share.node]
        first = int((self._initial[node] >= HALF_GPU_MILLI).argmax())
        return (
            not self._starting[node]
            and share.indices == (first,)
            and bool(self._initial[node, first] == HALF_GPU_MILLI)
        )

    def mark_starting(self, allocations: Sequence[NodeAllocation]) -> None:
        """Marks the nodes as starting a job with shards in this round."""
        self._starting[self.nodes_of(allocations)] = True

    def find_partly_used(self, task: TaskDemand, nodes: Mask) -> tuple[int, int] | None:
        """Returns a node and a device on which Slurm may put the task beside another job, or None."""
        devices = np.argwhere(self._partly_used(task) & nodes[:, None])
        return (int(devices[0, 0]), int(devices[0, 1])) if len(devices) else None

    def find_starting_node(self, nodes: Mask) -> int | None:
        """Returns a node with an idle device that starts another job with shards in this round, or None."""
        starting = np.flatnonzero(nodes & self._starting & (self._idle.milli_gpus == MILLI_PER_GPU).any(axis=1))
        return int(starting[0]) if len(starting) else None

    def _partly_used(self, task: TaskDemand) -> Mask:
        return np.asarray((self._initial >= task.milli_per_gpu) & (self._initial < MILLI_PER_GPU), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class GuestPlacement:
    """A pair, and the guest's demand on the host's nodes."""

    pair: PackedPair
    demand: NodeDemands


@dataclass(slots=True)
class HalfGpuSlots:
    """The half GPUs open to a second job, after all jobs with GPUs of their own are placed.

    `allocations` are those of the placed jobs.
    """

    cluster: FgdCluster
    devices: ShardedDevices
    allocations: Mapping[JobId, tuple[NodeAllocation, ...]]

    def match(self, placed: Sequence[Job], pending: Sequence[Job], knowledge: Knowledge) -> Iterator[GuestPlacement]:
        """Yields the maximum-weight matching, by shards per GPU, the most first; both sequences are in order."""
        left = list(pending)
        for shards in sorted({int(count) for count in self.cluster.shards_per_gpu if count}, reverse=True):
            hosts = [job for job in placed if may_share(job) and self._has_free_half(job, shards)]
            guests = list(self._match_on(shards, hosts, left, knowledge)) if hosts else []
            matched = {guest.pair.guest for guest in guests}
            left = [job for job in left if job.id not in matched]
            yield from guests

    def _match_on(
        self, shards: int, hosts: Sequence[Job], pending: Sequence[Job], knowledge: Knowledge
    ) -> Iterator[GuestPlacement]:
        jobs = {job.id: job for job in (*hosts, *pending)}
        types = {host.id: gpu_type_of(self.allocations[host.id], self.cluster.snapshot.nodes_by_name) for host in hosts}

        nodes_of_host = {host.id: self.devices.nodes_of(self.allocations[host.id]) for host in hosts}
        eligible = dict[JobId, list[tuple[NodeDemands, Mask]]]()

        def demand_at(host: Job, guest: Job) -> NodeDemands | None:
            if guest.id not in eligible:
                eligible[guest.id] = [
                    (demand, nodes) for demand, nodes in self.feasible_nodes(guest) if 2 * demand.shards == shards
                ]
            host_nodes = nodes_of_host[host.id]
            demands = (
                demand
                for demand, nodes in eligible[guest.id]
                if len(demand.tasks) == len(host_nodes) and nodes[host_nodes].all()
            )
            return next(demands, None)

        pairs = match_pairs(
            hosts,
            pending,
            types=types,
            knowledge=knowledge,
            shards_per_gpu=shards,
            fits=lambda host, guest: demand_at(host, guest) is not None,
        )
        for pair in pairs:
            if demand := demand_at(jobs[pair.host], jobs[pair.guest]):
                yield GuestPlacement(pair, demand)

    def _has_free_half(self, host: Job, shards: int) -> bool:
        """Returns whether a half-GPU job started on the same nodes gets the same devices.

        A host that starts in this round qualifies: no other job with shards starts there, so both get the same device.
        """
        shares = self.allocations[host.id]
        node_index = self.devices.node_index
        known = all(share.node in node_index for share in shares)
        if not known or not all(
            2 * share.shards == shards == self.cluster.shards_per_gpu[node_index[share.node]] for share in shares
        ):
            return False
        if host.state is JobState.PENDING:
            return True
        return host.state is JobState.RUNNING and all(map(self.devices.is_half_free, shares))

    def feasible_nodes(self, job: Job) -> Iterator[tuple[NodeDemands, Mask]]:
        """Yields each way to meet the job's demand with the nodes that have free resources for a task of it now."""
        everywhere = np.arange(len(self.cluster.nodes))
        try:
            for demand, nodes in self.cluster.candidates(job):
                yield demand, nodes & self.cluster.free.fits(demand.tasks[0], everywhere)
        except PolicyError:
            return


@dataclass(frozen=True, slots=True)
class TesseraePacked:
    """Tesserae's policy with packing, over any order of jobs."""

    order: Order
    name: str = "tesserae-packed"

    def decide(self, situation: Situation) -> Decision:
        ranked = self.order.rank(situation)
        packed_round = _PackedRound(situation, ranked)
        first_reason = Reason(ReasonCode.FIRST_IN_ORDER, {"order": self.order.name})
        for job in packed_round.jobs.values():
            packed_round.place(job, first_reason)
        packed_round.pack()
        return Decision(self.name, ranked, packed_round.targets, packed_round.wait_reasons(), {}, dict(situation.state))


class _PackedRound:
    """The targets of a round so far. `jobs` are in order."""

    def __init__(self, situation: Situation, order: Sequence[RankedJob]) -> None:
        known = {job.id: job for job in situation.jobs}
        self.jobs = {ranked.job: known[ranked.job] for ranked in order}
        self.targets = dict[JobId, Target]()
        self._knowledge = situation.knowledge
        self._ending = dict[JobId, Reason]()
        self._pending = list[Job]()
        self._placer = FgdPlacer.of_situation(situation)
        self._devices = ShardedDevices(self._placer.cluster)
        self._sharers = GpuSharers(situation.snapshot, situation.knowledge, frozenset(known))

    def place(self, job: Job, first_reason: Reason) -> None:
        """Keeps the job's allocation, or gives it GPUs of its own."""
        if keeps_allocation(job):
            self.targets[job.id] = self._sharers.target_of(job)
        elif why := completing_reason(job):
            self._ending[job.id] = why
        elif shares := self._place_on_own_devices(job) if job.original_request.shards else self._placer.place(job):
            first = Reason(ReasonCode.FILLS_IN) if self._pending else first_reason
            self.targets[job.id] = Target(job.id, shares, (first, Reason(ReasonCode.FEWEST_FRAGMENTS)))
        else:
            self._pending.append(job)

    def _place_on_own_devices(self, job: Job) -> tuple[NodeAllocation, ...]:
        """Returns an allocation on devices that no other job uses or gets; empty if there is none."""
        try:
            eligible = list(self._placer.cluster.candidates(job))
        except PolicyError:
            return ()
        for demand, nodes in eligible:
            own_device = self._devices.nodes_with_own_device(demand.tasks[0])
            if shares := self._placer.place_gang(demand, nodes & own_device):
                self._devices.mark_starting(shares)
                return shares
        return ()

    def pack(self) -> None:
        """Places waiting jobs beside the placed jobs they are matched with."""
        placed = [self.jobs[job] for job in self.jobs if job in self.targets]
        for guest in self._half_slots().match(placed, self._pending, self._knowledge):
            self._place_beside(guest)
        self._pending = [job for job in self._pending if job.id not in self.targets]

    def _half_slots(self) -> HalfGpuSlots:
        allocations = {job: target.allocations for job, target in self.targets.items()}
        return HalfGpuSlots(self._placer.cluster, self._devices, allocations)

    def _place_beside(self, guest: GuestPlacement) -> None:
        pair, host = guest.pair, self.targets[guest.pair.host]
        shares = []
        for share, task in zip(host.allocations, guest.demand.tasks, strict=True):
            node = self._devices.node_index[share.node]
            self._placer.cluster.free.allocate(node, task, share.indices)
            shares.append(self._placer.node_allocation(guest.demand.shards, node, task, share.indices))
        self._devices.mark_starting(shares)
        first, second = (
            shares_gpu_reason(shares, pair.guest, pair.relative_rates),
            shares_gpu_reason(shares, pair.host, pair.relative_rates),
        )
        others = tuple(why for why in host.reasons if why.code is not ReasonCode.KEEPS_LEASE)
        self.targets[pair.host] = Target(
            pair.host, host.allocations, (first, *others), pair.relative_rates[0], (pair.guest,)
        )
        self.targets[pair.guest] = Target(pair.guest, tuple(shares), (second,), pair.relative_rates[1], (pair.host,))

    def wait_reasons(self) -> dict[JobId, Reason]:
        """Returns why each of the other jobs waits."""
        if not self._pending:
            return self._ending
        empty, halves = self._placer.cluster.as_empty(), self._half_slots()
        why = {job.id: self._sharing_obstacle(job, halves) or unschedulable_reason(job, empty) for job in self._pending}
        return self._ending | why

    def _sharing_obstacle(self, job: Job, halves: HalfGpuSlots) -> Reason | None:
        """Returns why the job may not start although a node has free resources, or None."""
        nodes = self._placer.cluster.nodes
        for demand, free in halves.feasible_nodes(job) if job.original_request.shards else ():
            if (node := self._devices.find_starting_node(free)) is not None:
                return Reason(ReasonCode.ONE_A_ROUND, {"node": nodes[node].name})
            if device := self._devices.find_partly_used(demand.tasks[0], free):
                node, gpu = device
                jobs = self._sharers.describe_users(nodes[node].name, gpu)
                return Reason(ReasonCode.BESIDE_ANOTHER, {"node": nodes[node].name, "gpu": gpu, "jobs": jobs})
        return None
