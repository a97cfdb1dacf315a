"""A virtual cluster as a poll of a real one shows it, from which time can run on.

Running jobs keep their allocations and run time, and get the seconds that they have left; waiting jobs wait as they
were submitted. What the simulator cannot represent is left out and named.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from slurmsched.backends.simulated.cluster import VirtualCluster
from slurmsched.backends.simulated.events import Event, SimulatedEventKind
from slurmsched.backends.simulated.job import MAX_PRIORITY, JobRun, JobWork, SimulatedJob, Speed, Submission
from slurmsched.backends.simulated.lifecycle import Delays
from slurmsched.backends.simulated.nodes import SimulatedNode, fit_request
from slurmsched.backends.simulated.scheduler import EligibleNodes
from slurmsched.model import MILLI_PER_GPU, Gpu, Hold, Job, JobId, JobState, Node, NodeAllocation, Resources, Snapshot
from slurmsched.policies.cluster.eligibility import parse_constraint
from slurmsched.policies.errors import PolicyError

_LONGEST: Final = 10 * 365 * 86400.0
"""Seconds for which a job of which no length is given runs on."""

_BEYOND: Final = 1.0
"""Seconds by which a job that has its whole time limit left over would run on, so that the limit ends it."""

_DEPENDENCY: Final = re.compile(
    r"(?P<kind>after(?:any|ok|notok)?):(?P<job>\d+(?:_\d+)?)(?:_\*)?(?:\((?P<state>[a-z]+)\))?"
)


def cluster_of_snapshot(
    snapshot: Snapshot,
    seconds: Mapping[JobId, float],
    *,
    speed: Speed,
    delays: Delays,
    left_out: Collection[JobId] = (),
    released: Collection[JobId] = (),
    requeued: Collection[JobId] = (),
) -> tuple[VirtualCluster, tuple[str, ...]]:
    """Returns the cluster at the snapshot's time, and what is not as on the real cluster, in a few words each.

    `seconds` are how long each job that runs still runs at its present speed, and each that waits would at the
    GPU-proportional share. Waiting jobs in `left_out` are; holds on `released` jobs do not count; completing jobs in
    `requeued` wait again, held, once their nodes are free.
    """
    cluster = VirtualCluster(
        [_numbered(node) for node in snapshot.nodes],
        snapshot.partitions,
        snapshot.reservations,
        start=snapshot.time,
        speed=speed,
        delays=delays,
        name=snapshot.cluster,
    )
    cluster.widens_shards = snapshot.widens_shards
    builder = _Builder(snapshot, cluster, seconds, _priorities(snapshot), frozenset(released), frozenset(requeued))
    for job in snapshot.jobs:
        if job.id not in left_out:
            builder.add(job)
    for job in snapshot.jobs_in_state(JobState.RUNNING):
        builder.run(job)
    builder.take_what_nobody_has()
    cluster.lifecycle.changed = True
    return cluster, builder.remarks()


def _numbered(node: Node) -> Node:
    """The node with its GPUs numbered in order from 0, as virtual nodes have them."""
    return replace(node, gpus=tuple(replace(gpu, index=index) for index, gpu in enumerate(node.gpus)))


def jobs_left_out(snapshot: Snapshot, without: Mapping[JobId, str]) -> Mapping[JobId, str]:
    """Returns the waiting jobs that cannot be simulated, or could never start on the nodes as they are, each with why;
    beside those of `without`, and with those that wait for one of them."""
    waiting, room = tuple(snapshot.jobs_in_state(JobState.PENDING)), _EmptyCluster(snapshot)
    why = {job.id: reason for job in waiting if (reason := without.get(job.id) or _unrepresented(job))}
    why |= {
        job.id: "no nodes that are up have what it asks for"
        for job in waiting
        if job.id not in why and not room.has_room_for(job)
    }
    dependents = _dependents(waiting)
    left = [*why, *(record.job for record in snapshot.set_aside)]
    while left:
        known = snapshot.jobs_by_id.get(name := left.pop())
        for job in (*dependents[name], *dependents[known.array_job if known else ""]):
            if job not in why:
                why[job] = "it waits for a job that is not simulated"
                left.append(job)
    return why


def _dependents(waiting: Iterable[Job]) -> Mapping[JobId, list[JobId]]:
    """The jobs that wait for each job or array."""
    dependents = defaultdict[JobId, list[JobId]](list)
    for job in waiting:
        for condition in filter(None, (simulated_dependency(job.dependency) or "").split(",")):
            dependents[condition.partition(":")[2]].append(job.id)
    return dependents


class _EmptyCluster:
    """The nodes of a snapshot without any job."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = {node.name: SimulatedNode(_numbered(node)) for node in snapshot.nodes}
        self._gpus = sum(len(node.gpus) for node in snapshot.nodes)
        self._eligible = EligibleNodes(self._nodes, snapshot.partitions, (), snapshot.time)
        self._known: dict[object, bool] = {}

    def has_room_for(self, job: Job) -> bool:
        """Whether the job could start; taken for granted where its reservation or its tuning decides that."""
        if job.reservation or job.hints.memory_tunable or job.hints.cpus_tunable:
            return True
        if job.original_request.gpus > self._gpus:
            return False
        key = job.original_request, job.partitions, job.time_limit
        if key not in self._known:
            names = self._eligible.of_partitions(job.partitions, job.time_limit)
            fits = (fit_request(job.original_request, [self._nodes[name] for name in group]) for group in names)
            self._known[key] = any(fits)
        return self._known[key]


def _unrepresented(job: Job) -> str:
    if "+" in job.id:
        return "it is part of a heterogeneous job"
    if job.unmanageable:
        return f"only Slurm can place it: {job.unmanageable}"
    try:
        parse_constraint(job.current_request.features)
    except PolicyError:
        return "its constraint is not simulated"
    return "" if simulated_dependency(job.dependency) is not None else "its dependency is not simulated"


def simulated_dependency(text: str) -> str | None:
    """The conditions that are not met yet, as the virtual cluster writes them; None if it cannot tell when they are."""
    if "?" in text:
        return None
    conditions = list[str]()
    for part in filter(None, text.split(",")):
        known = _DEPENDENCY.fullmatch(part)
        if known is None or known["state"] == "failed":
            return None
        if known["state"] != "fulfilled":
            conditions.append(f"{known['kind']}:{known['job']}")
    return ",".join(conditions)


def _priorities(snapshot: Snapshot) -> Mapping[JobId, int]:
    """The priority of each waiting or running job without its nice value. Slurm shows none for a held job: it has that
    of the last one without a hold that was submitted before it."""
    known: dict[JobId, int] = {}
    last = max((job.priority + job.nice for job in snapshot.jobs), default=0) or MAX_PRIORITY
    for job in sorted(snapshot.jobs, key=lambda job: job.queue_key):
        last = job.priority + job.nice if job.priority > 0 else last
        known[job.id] = last
    return known


@dataclass(slots=True)
class _Builder:
    """Adds the jobs of a snapshot to a cluster that has none."""

    snapshot: Snapshot
    cluster: VirtualCluster
    seconds: Mapping[JobId, float]
    priorities: Mapping[JobId, int]
    released: frozenset[JobId]
    requeued: frozenset[JobId]
    counted: Counter[str] = field(default_factory=Counter)

    def remarks(self) -> tuple[str, ...]:
        """What is not as on the real cluster, and how often."""
        return tuple(f"{what}: {count}" for what, count in self.counted.items())

    def add(self, job: Job) -> None:
        """Adds a job with what it has."""
        now, number = self.snapshot.time, job.id.partition("_")[0]
        simulated = SimulatedJob(
            id=job.id,
            number=int(number) if number.isdecimal() else 0,
            submission=_submission(job),
            submit_time=job.submit_time,
            work=JobWork(self._left(job, 0.0)),
            current_request=job.current_request,
            hold=Hold.NONE if job.id in self.released else job.hold,
            nice=job.nice,
            begin=None,
            state=job.state,
            state_text=job.state_text,
            reason=job.reason,
            restarts=job.restarts,
            admin_comment=job.admin_comment,
            array_job=job.array_job,
            throttle=job.throttle,
            dependency=simulated_dependency(job.dependency) or "",
            base_priority=self.priorities[job.id],
        )
        if job.state is JobState.FINISHED:  # dependencies ask how it ended
            self.cluster.lifecycle.ended[job.id] = simulated
            return
        self.cluster.jobs[job.id] = simulated
        if job.hints.fork:
            self.counted["copies of forked jobs that run as jobs of their own"] += 1
        if job.state is JobState.PENDING:
            if job.eligible_time is not None and job.eligible_time > now:
                simulated.begin, simulated.begin_from_requeue = job.eligible_time, job.restarts > 0
                self.cluster.events.push(Event(job.eligible_time, SimulatedEventKind.ELIGIBLE, job.id))
            return
        self._allocate(job, simulated)

    def _left(self, job: Job, run_time: float) -> float:
        """The seconds that it has left after so many of this run; with all of its time limit left a little more."""
        left = self.seconds.get(job.id, _LONGEST)
        if job.time_limit is None or left < job.time_limit - run_time:
            return left
        return max(job.time_limit - run_time, 0.0) + _BEYOND

    def _allocate(self, job: Job, simulated: SimulatedJob) -> None:
        now = self.snapshot.time
        allocated = [self._taken(allocation) for allocation in job.allocations]
        simulated.allocations = tuple(allocation for allocation in allocated if allocation is not None)
        simulated.run_number = 1
        simulated.start_time = now - job.run_time if job.start_time is None else min(job.start_time, now)
        simulated.suspended_seconds = max(0.0, now - simulated.start_time - job.run_time)
        if job.state is JobState.COMPLETING:
            timed_out = job.time_limit is not None and job.run_time >= job.time_limit
            simulated.end_time = min(job.end_time or now, now)
            simulated.next_state = "TIMEOUT" if timed_out else "COMPLETED"
            if job.id in self.requeued:
                simulated.next_state, simulated.requeue_held = "PENDING", True
            freed = simulated.end_time + self.cluster.lifecycle.delays.completing
            freed = freed if freed > now else now + self.cluster.lifecycle.delays.completing
            self.cluster.events.push(Event(freed, SimulatedEventKind.RESOURCES_FREED, job.id, 1))
        if job.state is JobState.SUSPENDED:  # without CPUs, and nobody knows when it goes on
            simulated.suspended_since, simulated.cpus_released = now, True
            for allocation in simulated.allocations:
                self.cluster.nodes[allocation.node].take_cpus(-allocation.resources.cpus)
            self.counted["suspended jobs that stay so, with their GPUs"] += 1
        self.cluster.lifecycle.sharers.add(simulated, simulated.allocations)

    def _taken(self, allocation: NodeAllocation) -> NodeAllocation | None:
        """Takes an allocation from its node, as far as the node has it, and returns that."""
        node = self.cluster.nodes.get(allocation.node)
        if node is None:
            return None
        wanted = allocation.resources
        cpus, memory = min(wanted.cpus, max(node.free_cpus, 0)), min(wanted.memory, max(node.free_memory, 0))
        if allocation.shards:
            part = replace(allocation, resources=Resources(0, cpus, memory))
            shared = [
                replace(part, indices=(index,)) for index in allocation.indices[:1] or range(len(self._gpus(node)))
            ]
            taken = next((one for one in shared if node.can_allocate(one)), NodeAllocation(node.name, part.resources))
        else:
            devices = self._devices(node, allocation)
            kind = node.configured.gpus[devices[0]].type if devices else ""
            taken = NodeAllocation(node.name, Resources(len(devices), cpus, memory), kind, devices)
        node.allocate(taken)
        return taken

    def _devices(self, node: SimulatedNode, allocation: NodeAllocation) -> tuple[int, ...]:
        """The GPUs that the allocation has on the node: its own, where Slurm shows which and they are idle yet."""
        places = {gpu.index: place for place, gpu in enumerate(self._gpus(node))}
        own = [places[index] for index in allocation.indices if index in places]
        idle = node.idle_gpus_by_type(allocation.gpu_type or None)
        others = [index for devices in idle.values() for index in devices if index not in own]
        known = [index for index in own if index in node.idle_gpus]
        return tuple(sorted((known + others)[: allocation.resources.gpus]))

    def _gpus(self, node: SimulatedNode) -> Sequence[Gpu]:
        return self.snapshot.nodes_by_name[node.name].gpus

    def run(self, job: Job) -> None:
        """Lets a running job run for the seconds that it has left. All jobs have been added, since those that share
        GPUs slow each other down."""
        now, lifecycle, simulated = self.snapshot.time, self.cluster.lifecycle, self.cluster.jobs[job.id]
        partners = [other.view_at(now) for other in lifecycle.sharers.sharers(simulated, simulated.allocations)]
        rate = lifecycle.speed(simulated.view_at(now), simulated.allocations, partners)
        run = JobRun(simulated.start_time or now, rate, now, 0.0)
        run.done_before, run.seconds_before = job.run_time * rate, job.run_time
        simulated.work.total, simulated.work.run = (job.run_time + self._left(job, job.run_time)) * rate, run
        lifecycle.schedule_end(simulated)

    def take_what_nobody_has(self) -> None:
        """Takes what nodes show as used and no job has, where jobs are set aside that may have it: for good, as nobody
        knows when it is free."""
        if not self.snapshot.set_aside:
            return
        for node in self.snapshot.nodes:
            simulated = self.cluster.nodes[node.name]
            used = simulated.view().used
            gpus = [
                place
                for place, gpu in enumerate(node.gpus)
                if gpu.used == MILLI_PER_GPU and place in simulated.idle_gpus
            ]
            rest = Resources(len(gpus), max(node.used.cpus - used.cpus, 0), max(node.used.memory - used.memory, 0))
            if rest != Resources():
                self.counted["nodes that keep what jobs use that could not be read"] += 1
                simulated.allocate(NodeAllocation(node.name, rest, "", tuple(gpus)))


def _submission(job: Job) -> Submission:
    return Submission(
        user=job.user,
        request=job.original_request,
        work=0.0,
        time_limit=job.time_limit,
        partitions=job.partitions,
        name=job.name,
        account=job.account,
        qos=job.qos,
        comment=job.comment,
        reservation=job.reservation,
        batch=job.batch,
        requeue=job.requeue,
        checkpoint_time=0.0,
    )
