"""Who uses the same GPUs as a running job, read back from Slurm, and what each keeps of its speed there.

Devices that are cut into shards, in one round: where Slurm's choice among them is certain.

A round names nodes; Slurm takes the first device, by index, that has enough shards left, and starts the jobs of one
round in an order of its own. So nothing may depend on that order: a node cuts or shares one device a round, and only
where no job of whole GPUs that starts there too could change which.

Halves of GPUs: which of them are open to a second job, and which second job gets each.

A half is a job with half a GPU's shards on each of its nodes; Slurm has no other way to give two jobs the same GPU.

A round of Tesserae on GPUs that Slurm cuts into shards (sections 3.2 and 4.2, algorithms 1 and 4).

In order, each waiting job gets GPUs of its own, where the fewest idle ones become unusable; then those for whom there
are none are matched with jobs that have some. Nobody is displaced, so the migration of section 4.1 has nothing to name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
from slurmsched.policies.fgd import (
    FgdCluster,
    FgdPlacer,
    NodeDemands,
    completing_reason,
    keeps_allocation,
    unschedulable_reason,
)
from slurmsched.policies.place.fragmentation import TaskDemand
from slurmsched.policies.stages import Order, Situation
from slurmsched.policies.tesserae.packing import PackedPair, match_pairs, may_share, relative_rates_of_pair


class GpuSharers:
    """Jobs by the devices they use, managed or not."""

    def __init__(self, snapshot: Snapshot, knowledge: Knowledge, managed: frozenset[JobId]) -> None:
        self._nodes, self._knowledge, self._managed = snapshot.nodes_by_name, knowledge, managed
        self._users = defaultdict[tuple[str, int], list[Job]](list)
        for job in (job for job in snapshot.jobs if job.state is not JobState.FINISHED):
            for device in _devices_of(job):
                self._users[device].append(job)

    def sharers_of(self, job: Job) -> tuple[Job, ...]:
        """The others on its devices."""
        others = {other.id: other for device in _devices_of(job) for other in self._users[device] if other.id != job.id}
        return tuple(others.values())

    def describe_users(self, node: str, gpu: int) -> str:
        """Who uses this device, for people: `jobs 4, 7`."""
        return _format_jobs(self._users[node, gpu])

    def target_of(self, job: Job) -> Target:
        """The running job goes on; whom it shares its GPUs with, and how fast it is there."""
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
        """Whether they are on the same devices, ours both, and both allow it."""
        ours = other.id in self._managed and may_share(job) and may_share(other)
        return ours and set(_devices_of(job)) == set(_devices_of(other))


def shares_gpu_reason(allocations: Sequence[NodeAllocation], partner: JobId, kept: tuple[float, float]) -> Reason:
    """That a job has these shares beside another, and what both together do of what one does alone."""
    work = f"{round(sum(kept), 2):g}"
    return Reason(ReasonCode.SHARES_GPU, {"devices": _device_names(allocations), "job": partner, "work": work})


def _device_names(allocations: Sequence[NodeAllocation]) -> str:
    """For people: `GPU 0 of v100-1`."""
    return ", ".join(f"GPU {index} of {share.node}" for share in allocations for index in share.indices)


def gpu_type_of(allocations: Sequence[NodeAllocation], nodes: Mapping[str, Node]) -> str:
    """The GPU type of the first share; Slurm does not say it of shards, so the node does."""
    first, node = allocations[0], nodes.get(allocations[0].node)
    return first.gpu_type or next(iter(node.gpu_types if node else ()), "")


def _format_jobs(jobs: Sequence[Job]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(job.id for job in jobs)}"


def _devices_of(job: Job) -> list[tuple[str, int]]:
    return [(share.node, index) for share in job.allocations for index in share.indices]


Mask = NDArray[np.bool_]

HALF_GPU_MILLI: Final = MILLI_PER_GPU // 2


class ShardedDevices:
    """The devices as the round found them, and on which nodes it starts jobs with shards."""

    def __init__(self, cluster: FgdCluster) -> None:
        self.node_index = {node.name: index for index, node in enumerate(cluster.nodes)}
        self._idle = cluster.free
        self._initial = cluster.free.milli_gpus.copy()
        self._starting: Mask = np.zeros(len(cluster.nodes), dtype=np.bool_)

    def nodes_of(self, allocations: Sequence[NodeAllocation]) -> list[int]:
        """The nodes of these shares, by their places in the cluster."""
        return [self.node_index[share.node] for share in allocations]

    def nodes_with_own_device(self, task: TaskDemand) -> Mask:
        """Nodes where the task gets a device to itself, whichever one that is; [nodes]"""
        return ~self._starting & ~self._partly_used(task).any(axis=1)

    def is_half_free(self, share: NodeAllocation) -> bool:
        """Whether half of a share's one device is idle, and another half that is sent to the node gets it."""
        node = self.node_index[share.node]
        first = int((self._initial[node] >= HALF_GPU_MILLI).argmax())
        return (
            not self._starting[node]
            and share.indices == (first,)
            and bool(self._initial[node, first] == HALF_GPU_MILLI)
        )

    def mark_starting(self, allocations: Sequence[NodeAllocation]) -> None:
        """A job with these shares starts in this round."""
        self._starting[self.nodes_of(allocations)] = True

    def find_partly_used(self, task: TaskDemand, nodes: Mask) -> tuple[int, int] | None:
        """A node that Slurm may put the task beside somebody on, and the device there; None where there is none."""
        found = np.argwhere(self._partly_used(task) & nodes[:, None])
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    def find_starting_node(self, nodes: Mask) -> int | None:
        """A node that still has an idle device, and starts others in this round; None where there is none."""
        found = np.flatnonzero(nodes & self._starting & (self._idle.milli_gpus == MILLI_PER_GPU).any(axis=1))
        return int(found[0]) if len(found) else None

    def _partly_used(self, task: TaskDemand) -> Mask:
        return np.asarray((self._initial >= task.milli_per_gpu) & (self._initial < MILLI_PER_GPU), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class GuestPlacement:
    """A pair, and what the pending one of it asks for where the placed one is."""

    pair: PackedPair
    demand: NodeDemands


@dataclass(slots=True)
class HalfGpuSlots:
    """The cluster with everybody placed who gets GPUs of their own. `places` has the shares of these."""

    cluster: FgdCluster
    devices: ShardedDevices
    allocations: Mapping[JobId, tuple[NodeAllocation, ...]]

    def match(self, placed: Sequence[Job], pending: Sequence[Job], knowledge: Knowledge) -> Iterator[GuestPlacement]:
        """The heaviest matching, both in order, apart for GPUs of each number of shards: the most come first."""
        left = list(pending)
        for shards in sorted({int(own) for own in self.cluster.shards_per_gpu if own}, reverse=True):
            hosts = [job for job in placed if may_share(job) and self._has_free_half(job, shards)]
            found = list(self._match_on(shards, hosts, left, knowledge)) if hosts else []
            taken = {guest.pair.guest for guest in found}
            left = [job for job in left if job.id not in taken]
            yield from found

    def _match_on(
        self, shards: int, hosts: Sequence[Job], pending: Sequence[Job], knowledge: Knowledge
    ) -> Iterator[GuestPlacement]:
        jobs = {job.id: job for job in (*hosts, *pending)}
        types = {host.id: gpu_type_of(self.allocations[host.id], self.cluster.snapshot.nodes_by_name) for host in hosts}

        nodes_of_host = {host.id: self.devices.nodes_of(self.allocations[host.id]) for host in hosts}
        eligible = dict[JobId, list[tuple[NodeDemands, Mask]]]()

        def demand_at(host: Job, guest: Job) -> NodeDemands | None:
            if guest.id not in eligible:
                eligible[guest.id] = [own for own in self.nodes_with_room(guest) if 2 * own[0].shards == shards]
            there = nodes_of_host[host.id]
            found = (own for own, nodes in eligible[guest.id] if len(own.tasks) == len(there) and nodes[there].all())
            return next(found, None)

        found = match_pairs(
            hosts,
            pending,
            types=types,
            knowledge=knowledge,
            shards_per_gpu=shards,
            fits=lambda host, guest: demand_at(host, guest) is not None,
        )
        for pair in found:
            if demand := demand_at(jobs[pair.host], jobs[pair.guest]):
                yield GuestPlacement(pair, demand)

    def _has_free_half(self, host: Job, shards: int) -> bool:
        """Whether a half that is sent to the same nodes comes onto the same devices. That of a job which starts in this
        round is certain: nobody else with shards starts there, and both take the same device."""
        shares = self.allocations[host.id]
        number = self.devices.node_index
        known = all(own.node in number for own in shares)
        if not known or not all(
            2 * own.shards == shards == self.cluster.shards_per_gpu[number[own.node]] for own in shares
        ):
            return False
        if host.state is JobState.PENDING:
            return True
        return host.state is JobState.RUNNING and all(map(self.devices.is_half_free, shares))

    def nodes_with_room(self, job: Job) -> Iterator[tuple[NodeDemands, Mask]]:
        """What the job asks for, and the nodes that have room for a task of it now."""
        everywhere = np.arange(len(self.cluster.nodes))
        try:
            for wanted, nodes in self.cluster.candidates(job):
                yield wanted, nodes & self.cluster.free.fits(wanted.tasks[0], everywhere)
        except PolicyError:
            return


@dataclass(frozen=True, slots=True)
class TesseraePacked:
    """The whole system, over any order."""

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
    """Who has which place so far. `jobs` are in order."""

    def __init__(self, situation: Situation, order: Sequence[RankedJob]) -> None:
        known = {job.id: job for job in situation.jobs}
        self.jobs = {ranked.job: known[ranked.job] for ranked in order}
        self.targets = dict[JobId, Target]()
        self._knowledge = situation.knowledge
        self._ending = dict[JobId, Reason]()
        self._pending = list[Job]()
        self._seats = FgdPlacer.of_situation(situation)
        self._devices = ShardedDevices(self._seats.cluster)
        self._sharers = GpuSharers(situation.snapshot, situation.knowledge, frozenset(known))

    def place(self, job: Job, first_reason: Reason) -> None:
        """The place it has, or GPUs of its own."""
        if keeps_allocation(job):
            self.targets[job.id] = self._sharers.target_of(job)
        elif why := completing_reason(job):
            self._ending[job.id] = why
        elif shares := self._place_on_own_devices(job) if job.original_request.shards else self._seats.place(job):
            first = Reason(ReasonCode.FILLS_IN) if self._pending else first_reason
            self.targets[job.id] = Target(job.id, shares, (first, Reason(ReasonCode.FEWEST_FRAGMENTS)))
        else:
            self._pending.append(job)

    def _place_on_own_devices(self, job: Job) -> tuple[NodeAllocation, ...]:
        """A device that nobody else comes to on each of its nodes; nothing where there is none."""
        try:
            eligible = list(self._seats.cluster.candidates(job))
        except PolicyError:
            return ()
        for wanted, nodes in eligible:
            if shares := self._seats.place_gang(wanted, nodes & self._devices.nodes_with_own_device(wanted.tasks[0])):
                self._devices.mark_starting(shares)
                return shares
        return ()

    def pack(self) -> None:
        """Send those who found no GPUs of their own to those they do most with."""
        placed = [self.jobs[job] for job in self.jobs if job in self.targets]
        for guest in self._half_slots().match(placed, self._pending, self._knowledge):
            self._place_beside(guest)
        self._pending = [job for job in self._pending if job.id not in self.targets]

    def _half_slots(self) -> HalfGpuSlots:
        places = {job: target.allocations for job, target in self.targets.items()}
        return HalfGpuSlots(self._seats.cluster, self._devices, places)

    def _place_beside(self, guest: GuestPlacement) -> None:
        pair, host = guest.pair, self.targets[guest.pair.host]
        shares = []
        for share, task in zip(host.allocations, guest.demand.tasks, strict=True):
            node = self._devices.node_index[share.node]
            self._seats.cluster.free.allocate(node, task, share.indices)
            shares.append(self._seats.node_allocation(guest.demand.shards, node, task, share.indices))
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
        """Why the others wait."""
        if not self._pending:
            return self._ending
        empty, halves = self._seats.cluster.as_empty(), self._half_slots()
        why = {job.id: self._sharing_obstacle(job, halves) or unschedulable_reason(job, empty) for job in self._pending}
        return self._ending | why

    def _sharing_obstacle(self, job: Job, halves: HalfGpuSlots) -> Reason | None:
        """That there is room, but not for it alone."""
        nodes = self._seats.cluster.nodes
        for wanted, free in halves.nodes_with_room(job) if job.original_request.shards else ():
            if (node := self._devices.find_starting_node(free)) is not None:
                return Reason(ReasonCode.ONE_A_ROUND, {"node": nodes[node].name})
            if found := self._devices.find_partly_used(wanted.tasks[0], free):
                node, gpu = found
                jobs = self._sharers.describe_users(nodes[node].name, gpu)
                return Reason(ReasonCode.BESIDE_ANOTHER, {"node": nodes[node].name, "gpu": gpu, "jobs": jobs})
        return None
