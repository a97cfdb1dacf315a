"""Slurm's own scheduler, simulated: priority order with EASY backfill, eligibility of jobs and of nodes.

Jobs are tried in order of priority. The first job that does not fit gets a reservation at the earliest time at which
the time limits of running jobs free enough resources; a later job starts only if it does not delay that reservation:
it ends before, or uses resources that the reserved job does not need. (sched/backfill with bf_max_job_part unlimited
and one reservation.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Final

from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.backends.simulated.nodes import SimulatedNode, fit_request
from slurmsched.model import Hold, JobId, JobState, Node, NodeAllocation, Partition, Request, Reservation

NodesByName = Mapping[str, SimulatedNode]
_RequestClass = tuple[Request, tuple[tuple[str, ...], ...]]


@dataclass(frozen=True, slots=True)
class BackfillCandidate:
    """A pending job that waits for resources only.

    `node_lists` are its eligible nodes by partition, each list in order of preference; `time_limit` is in seconds, None
    for no limit; `array` is set for a task of a throttled array.
    """

    job: JobId
    request: Request
    node_lists: tuple[tuple[str, ...], ...]
    time_limit: int | None
    array: str = ""
    kind: int | None = None
    """The same number for jobs with the same request and the same node lists, where the cluster counts them."""


@dataclass(frozen=True, slots=True)
class FutureRelease:
    """The allocations that a running or completing job releases by `end` (unix seconds) at the latest."""

    allocations: tuple[NodeAllocation, ...]
    end: float


class NodeCopies(Mapping[str, SimulatedNode]):
    """Nodes as they are, each copied once it has to change."""

    def __init__(self, nodes: NodesByName) -> None:
        self._nodes = dict(nodes)
        self._own = set[str]()
        if isinstance(nodes, NodeCopies):
            nodes._own.clear()  # noqa: SLF001  # its own class: from now on both have the same nodes

    def own(self, name: str) -> SimulatedNode:
        """Returns the copy of a node, which may be changed."""
        if name not in self._own:
            self._nodes[name] = self._nodes[name].clone()
            self._own.add(name)
        return self._nodes[name]

    def named(self, names: Iterable[str]) -> list[SimulatedNode]:
        """Returns these nodes."""
        return list(map(self._nodes.__getitem__, names))

    def __getitem__(self, name: str) -> SimulatedNode:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


@dataclass(frozen=True, slots=True)
class _Reservation:
    start: float
    nodes_then: NodeCopies
    """The nodes at `start`, with the reserved job's allocations."""
    nodes: frozenset[str]
    """The reserved job's nodes."""

    def admits(self, allocations: Sequence[NodeAllocation]) -> bool:
        """Whether these allocations may last beyond `start`; if so they are allocated in `nodes_then` too.

        GPUs of the same type are interchangeable.
        """
        candidates = [_equivalent(allocation, self.nodes_then[allocation.node]) for allocation in allocations]
        equivalents = [allocation for allocation in candidates if allocation is not None]
        if len(equivalents) < len(candidates):
            return False
        for allocation in equivalents:
            self.nodes_then.own(allocation.node).allocate(allocation)
        return True


def schedule_queue(
    queue: Iterable[BackfillCandidate],
    running: Callable[[], Sequence[FutureRelease]],
    nodes: NodesByName,
    now: float,
    slots: Mapping[str, int],
) -> Iterator[tuple[JobId, tuple[NodeAllocation, ...]]]:
    """The jobs of the queue (highest priority first) that start now, with their allocations.

    `running` returns what is released and when, asked only for a reservation. `slots` is how many more tasks of each
    throttled array may run. Works on copies: `nodes` is not changed.
    """
    nodes = NodeCopies(nodes)
    idle = sum(len(node.idle_gpus) for node in nodes.values())
    slots, started = dict(slots), list[FutureRelease]()
    reservation: _Reservation | None = None
    not_fitting, would_delay = set[_RequestClass | int](), set[_RequestClass | int]()
    for candidate in queue:
        kind = (candidate.request, candidate.node_lists) if candidate.kind is None else candidate.kind
        if kind in not_fitting or (candidate.array and slots.get(candidate.array, 0) <= 0):
            continue  # free resources only shrink during one pass
        end = now + candidate.time_limit if candidate.time_limit is not None else inf
        allocations = _first_fit(candidate, nodes) if candidate.request.gpus <= idle else None
        if allocations is None:
            not_fitting.add(kind)
            reservation = reservation or _reserve(candidate, [*running(), *started], nodes)
            continue
        if reservation is not None and end > reservation.start:
            allocations = None if kind in would_delay else _backfill(candidate, nodes, reservation, allocations)
            if allocations is None:
                would_delay.add(kind)
                continue
        for allocation in allocations:
            node = nodes.own(allocation.node)
            idle -= len(node.idle_gpus)
            node.allocate(allocation)
            idle += len(node.idle_gpus)
        started.append(FutureRelease(allocations, end))
        if candidate.array:
            slots[candidate.array] -= 1
        yield candidate.job, allocations


def _backfill(
    candidate: BackfillCandidate, nodes: NodeCopies, reservation: _Reservation, allocations: tuple[NodeAllocation, ...]
) -> tuple[NodeAllocation, ...] | None:
    """Allocations that do not delay the reservation: these, or others off the reserved nodes; else None."""
    if reservation.admits(allocations):
        return allocations
    elsewhere = _first_fit(candidate, nodes, excluded=reservation.nodes)
    return elsewhere if elsewhere is not None and reservation.admits(elsewhere) else None


def _first_fit(
    candidate: BackfillCandidate, nodes: NodeCopies, excluded: frozenset[str] = frozenset()
) -> tuple[NodeAllocation, ...] | None:
    for names in candidate.node_lists:
        allowed = [name for name in names if name not in excluded] if excluded else names
        allocations = fit_request(candidate.request, nodes.named(allowed))
        if allocations is not None:
            return allocations
    return None


def _reserve(candidate: BackfillCandidate, running: Sequence[FutureRelease], nodes: NodesByName) -> _Reservation | None:
    """When and where the blocked job will fit; None if it would not fit after all running jobs have ended."""
    later = NodeCopies(nodes)
    by_end = sorted(running, key=lambda release: release.end)
    each = max(candidate.request.gpus_per_node or 0, 1)
    count = -(-candidate.request.gpus // each) if candidate.request.gpus_per_node else 0
    large_enough = {name for name, node in later.items() if len(node.idle_gpus) >= each}
    for end, releases in groupby(by_end, key=lambda release: release.end):
        for allocation in (allocation for release in releases for allocation in release.allocations):
            node = later.own(allocation.node)
            node.release(allocation)
            if len(node.idle_gpus) >= each:
                large_enough.add(node.name)
        if len(large_enough) < count:
            continue  # what follows looks at every node, and there are many times at which something ends
        allocations = _first_fit(candidate, later)
        if allocations is not None:
            for allocation in allocations:
                later.own(allocation.node).allocate(allocation)
            return _Reservation(end, later, frozenset(allocation.node for allocation in allocations))
    return None


def _equivalent(allocation: NodeAllocation, node: SimulatedNode) -> NodeAllocation | None:
    """The same amounts on the same node, on any of its free GPUs; None if they are not free."""
    idle = node.idle_gpus_by_type(allocation.gpu_type).get(allocation.gpu_type, []) if allocation.gpu_type else []
    if not allocation.shards:
        allocation = replace(allocation, indices=tuple(idle[: allocation.resources.gpus]))
    complete = allocation.shards or len(allocation.indices) == allocation.resources.gpus
    return allocation if complete and node.can_allocate(allocation) else None


_HOLDING = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


def future_releases(jobs: Collection[SimulatedJob], completing: float, now: float) -> list[FutureRelease]:
    """The allocations of all jobs with the latest time of their release; completing takes `completing` seconds."""
    return [
        FutureRelease(_held_allocations(job), _latest_end(job, now) + completing)
        for job in jobs
        if job.state in _HOLDING
    ]


def free_array_slots(jobs: Collection[SimulatedJob]) -> dict[JobId, int]:
    """The number of further tasks of each throttled array that may run."""
    limits = {job.array_job: job.throttle for job in jobs if job.throttle is not None}
    if not limits:
        return {}
    running = Counter(job.array_job for job in jobs if job.array_job and job.state in _HOLDING)
    return {array: limit - running[array] for array, limit in limits.items()}


def _latest_end(job: SimulatedJob, now: float) -> float:
    match job.state:
        case JobState.SUSPENDED:
            return inf
        case JobState.COMPLETING:
            return now if job.end_time is None else job.end_time
        case _:
            return job.latest_end


def _held_allocations(job: SimulatedJob) -> tuple[NodeAllocation, ...]:
    """The allocations that the job holds; a suspended job holds no CPUs."""
    if not job.cpus_released:
        return job.allocations
    return tuple(replace(allocation, resources=replace(allocation.resources, cpus=0)) for allocation in job.allocations)


_HOLD_REASONS: Final[Mapping[Hold, str]] = {
    Hold.USER: "JobHeldUser",
    Hold.ADMIN: "JobHeldAdmin",
    Hold.REQUEUED: "job_requeued_in_held_state",
}


def pending_reason(job: SimulatedJob, now: float) -> str:
    """Slurm's reason why a pending job is not eligible to start, empty if it is.

    Its `dependency` must be what `WaitConditions.unmet` returned.
    """
    if job.hold is not Hold.NONE:
        return _HOLD_REASONS[job.hold]
    if job.begin is not None and job.begin > now:
        return "BeginTime"
    return "Dependency" if job.dependency else ""


class WaitConditions:
    """The dependencies of jobs in one scheduler run; `ended` are finished jobs that are shown no more.

    after, afterany, afterok and afternotok are supported, and all must hold; others are never met. A job that the
    cluster does not know counts as ended long ago.
    """

    def __init__(self, jobs: Mapping[JobId, SimulatedJob], ended: Mapping[JobId, SimulatedJob]) -> None:
        self._known = {**ended, **jobs}
        self._tasks = defaultdict[JobId, list[SimulatedJob]](list)
        for job in self._known.values():
            if job.array_job:
                self._tasks[job.array_job].append(job)

    def unmet(self, dependency: str) -> str:
        """The unmet conditions of a --dependency."""
        return ",".join(part for part in dependency.split(",") if part and not self._is_met(part))

    def _is_met(self, condition: str) -> bool:
        kind, *ids = condition.split(":")
        others = [self._known[name] for name in ids if name in self._known]
        others += [task for name in ids if name in self._tasks for task in self._tasks[name]]
        match kind:
            case "after":
                return all(job.state is not JobState.PENDING for job in others)
            case "afterany":
                return all(job.state is JobState.FINISHED for job in others)
            case "afterok":
                return all(job.state_text == "COMPLETED" for job in others)
            case "afternotok":
                return all(job.state is JobState.FINISHED and job.state_text != "COMPLETED" for job in others)
            case _:
                return False


class EligibleNodes:
    """The eligible nodes of jobs in one scheduler run: up, in a partition of the job, not reserved for others."""

    def __init__(
        self,
        nodes: Mapping[str, SimulatedNode],
        partitions: Iterable[Partition],
        reservations: Iterable[Reservation],
        now: float,
    ) -> None:
        usable = [node for node in nodes.values() if node.is_usable]
        self._usable = [node.name for node in sorted(usable, key=lambda node: node.configured.weight)]
        self._partitions = {partition.name: partition for partition in partitions}
        self._reservations = tuple(reservations)
        self._now = now
        self._known: dict[tuple[tuple[str, ...], frozenset[str]], tuple[tuple[str, ...], ...]] = {}

    @property
    def usable(self) -> Sequence[str]:
        """The nodes that are up, lowest weight first."""
        return self._usable

    def for_job(self, job: SimulatedJob) -> tuple[tuple[str, ...], ...]:
        """The job's eligible nodes for each of its partitions in order, lowest weight first."""
        submission = job.submission
        limit = inf if submission.time_limit is None else submission.time_limit
        excluded = self._excluded_nodes(job, self._now + limit)
        return self.of_partitions(submission.partitions, submission.time_limit, excluded)

    def of_partitions(
        self, partitions: Iterable[str], time_limit: int | None, excluded: frozenset[str] = frozenset()
    ) -> tuple[tuple[str, ...], ...]:
        """The nodes of those of these partitions that admit the time limit, but the excluded ones."""
        limit = inf if time_limit is None else time_limit
        named = [self._partitions[name] for name in partitions if name in self._partitions]
        admitting = tuple(p.name for p in named if p.up and (p.max_time is None or limit <= p.max_time))
        key = admitting, excluded
        if key not in self._known:
            free = [name for name in self._usable if name not in key[1]]
            nodes = [self._partitions[name].nodes for name in admitting]
            self._known[key] = tuple(tuple(name for name in free if name in inside) for inside in nodes)
        return self._known[key]

    def _excluded_nodes(self, job: SimulatedJob, end: float) -> frozenset[str]:
        usable_reservations = [
            r for r in self._reservations if r.name == job.submission.reservation and _may_use_reservation(job, r)
        ]
        excluded = {
            name
            for r in self._reservations
            if r not in usable_reservations and r.start < end and self._now < r.end
            for name in r.nodes
        }
        if job.submission.reservation:
            inside = {name for r in Reservation.active(usable_reservations, self._now) for name in r.nodes}
            excluded |= {name for name in self._usable if name not in inside}
        return frozenset(excluded)


def _may_use_reservation(job: SimulatedJob, reservation: Reservation) -> bool:
    return job.submission.user in reservation.users or job.submission.account in reservation.accounts


def default_partitions(nodes: Iterable[Node]) -> tuple[Partition, ...]:
    """One partition for each name in the nodes' partitions, up and without limits."""
    nodes = tuple(nodes)
    names = sorted({name for node in nodes for name in node.partitions})
    return tuple(Partition(name, frozenset(n.name for n in nodes if name in n.partitions)) for name in names)
