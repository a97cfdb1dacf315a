"""Which jobs are managed, which pending jobs could start now on free nodes, and which nodes a job may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobState,
    Node,
    NodeState,
    Reason,
    ReasonCode,
    Request,
    Reservation,
    SameNodes,
    SchedulerState,
    Snapshot,
)
from slurmsched.model.reasons import pluralise, time_of_day
from slurmsched.policies.cluster.eligibility import closed_nodes, parse_constraint, reserved_nodes
from slurmsched.policies.cluster.gang import leaves_node_count, unplannable_reason
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.limits import LimitAccount
from slurmsched.policies.policies import schedules_shards
from slurmsched.rounds.dependencies import Dependencies, has_failed
from slurmsched.rounds.refusals import limit_reason, refusal_reason
from slurmsched.rounds.specs import held_by_us
from slurmsched.settings.definition import ManageSettings, Settings

_LIVE = (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """What all nodes of a partition have together, whatever their state, and the most that one of them has.

    Memory is in MiB. `gpus` is by GPU type, and under the empty text of any type: the most on one node, and all.
    """

    nodes: int
    cpus: int
    node_cpus: int
    node_memory: int
    gpus: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> PartitionTotals:
        """Return the totals of these nodes."""
        known = tuple(nodes)
        gpus = {"": (0, 0)}
        for node in known:
            counts = Counter(gpu.type for gpu in node.gpus if gpu.type)
            for kind, count in (("", len(node.gpus)), *counts.items()):
                most, total = gpus.get(kind, (0, 0))
                gpus[kind] = max(most, count), total + count
        return cls(
            len(known),
            sum(node.total.cpus for node in known),
            max((node.total.cpus for node in known), default=0),
            max((node.total.memory for node in known), default=0),
            gpus,
        )

    def excess(self, request: Request) -> str:
        """Return what the request asks for beyond the partition, for people; empty where it may fit.

        Only what holds however the job may be spread over nodes: what Slurm would refuse at submission, as
        `hooks/job_submit.lua` tells in the same words. The policy finds the rest.
        """
        kind = request.gpu_type or ""
        on_node, in_all = self.gpus.get(kind, (0, 0))
        most_nodes = max(min(self.nodes, max(request.gpus, request.shards, request.tasks, request.nodes)), 1)
        cpus, memory = -(-request.cpus // most_nodes), -(-request.memory * request.nodes // most_nodes)
        gpus = f"{kind} GPU".strip()
        one, together = " on one node; the largest has", "; the partition has"
        amounts = (
            (request.nodes, self.nodes, "node", together),
            (request.gpus, in_all, gpus, together),
            (request.gpus_per_node or 0, on_node, gpus, one),
            (request.cpus, self.cpus, "CPU", together),
            (cpus, self.node_cpus, "CPU", one),
        )
        for asked, most, what, where in amounts:
            if asked > most:
                return f"{pluralise(asked, what)}{where} {most}"
        return f"{memory} MiB of memory{one} {self.node_memory}" if memory > self.node_memory else ""


def partition_totals(snapshot: Snapshot) -> dict[str, PartitionTotals]:
    """Return the totals of each partition, and under the empty name those of the cluster; nothing without nodes."""
    partitions = tuple([(partition.name, partition.nodes) for partition in snapshot.partitions])
    return dict(_partition_totals(SameNodes(snapshot.nodes), partitions))


@lru_cache(maxsize=2)
def _partition_totals(
    of: SameNodes[Node], partitions: tuple[tuple[str, Collection[str]], ...]
) -> Mapping[str, PartitionTotals]:
    if not of.nodes:
        return {}
    by_name = {node.name: node for node in of.nodes}
    totals = {
        name: PartitionTotals.of(by_name[node] for node in nodes if node in by_name) for name, nodes in partitions
    }
    return {**totals, "": PartitionTotals.of(of.nodes)}


def unmanaged_reason(
    job: Job, settings: Settings, totals: Mapping[str, PartitionTotals] | None = None
) -> Reason | None:
    """Why the job is left to Slurm; None if it is managed.

    Managed are pending and running batch jobs with whole GPUs, array tasks included, in a managed partition or QOS, or
    with a hint if `manage.opt_in` is set. A policy that schedules shards also manages jobs with shards or without GPUs.
    A pending job that asks for more than its partitions have in all (`totals`) is Slurm's to refuse.
    """
    shards = schedules_shards(settings.policy.system, settings.policy.parts)
    return (
        out_of_scope_reason(job, settings.manage)
        or (None if shards else _without_whole_gpus(job))
        or _unsupported_kind(job)
        or _too_large(job, totals or {})
    )


def scope_problems(manage: ManageSettings) -> Iterator[str]:
    """What is wrong with the jobs that the settings choose, each in a sentence that says what to do."""
    for both in sorted(set(manage.partitions) & set(manage.never_partitions)):
        yield f"manage.partitions and manage.never_partitions both name {both}: remove it from one of them"
    if not (manage.partitions or manage.qos or manage.opt_in):
        yield "nothing is managed: name partitions in manage.partitions or QOS in manage.qos, or set manage.opt_in"


def _too_large(job: Job, totals: Mapping[str, PartitionTotals]) -> Reason | None:
    if job.state is not JobState.PENDING or not totals:
        return None
    known = job.partitions and all(partition in totals for partition in job.partitions)
    excesses = [totals[name].excess(job.original_request) for name in (job.partitions if known else ("",))]
    return Reason(ReasonCode.NEVER_FITS, {"what": excesses[0]}) if all(excesses) else None


def out_of_scope_reason(job: Job, manage: ManageSettings) -> Reason | None:
    """Why the settings leave the job to Slurm, whatever it asks for; None if they do not."""
    partitions = set(job.partitions)
    # Only if it names no other partition: naming one of these too does not exempt a job in a managed partition.
    if partitions and partitions <= set(manage.never_partitions):
        return _because(f"no job is managed in partition {min(partitions)}")
    if partitions & set(manage.partitions) or job.qos in manage.qos:
        return None
    if not manage.opt_in:
        return _because("neither its partition nor its QOS is managed")
    if job.hints.opts_in:
        return None
    return _because("it has no synsched: hint, and neither its partition nor its QOS is managed")


def _without_whole_gpus(job: Job) -> Reason | None:
    if job.original_request.shards or any(allocation.shards for allocation in job.allocations):
        return Reason(ReasonCode.SHARDS)
    return Reason(ReasonCode.NO_GPU) if job.original_request.gpus == 0 and job.gpus == 0 else None


def _unsupported_kind(job: Job) -> Reason | None:
    if job.original_request.shards and job.original_request.gpus:
        return Reason(ReasonCode.SHARDS)
    if not job.batch:
        return Reason(ReasonCode.NOT_BATCH)
    if "+" in job.id:
        return _because("it is part of a heterogeneous job, which Slurm starts as one")
    if why := job.unmanageable or _unplanned(job.original_request):
        return _because(why)
    state = job.state_text.lower() or job.state.value
    if job.state is JobState.FINISHED:
        return Reason(ReasonCode.ENDED, {"state": state})
    return None if job.state in _LIVE else _because(f"its state is {state}")


def _unplanned(request: Request) -> str:
    """Why the request is left to Slurm: its constraint, in the words of `--constraint=other` in the table of sbatch's
    options, or its number of nodes."""
    if request.features:
        try:
            parse_constraint(request.features)
        except PolicyError:
            return "its constraint is of a form that is not planned (--constraint)"
    return unplannable_reason(request)


def _because(why: str) -> Reason:
    return Reason(ReasonCode.UNMANAGED, {"why": why})


_LAUNCH_FAILED: Final = "launch failed"
"""In Slurm's reason for a job that it requeued held, since a node could not begin it."""
_IMPOSSIBLE: Final = "BadConstraints"
"""Slurm's reason for a job that no set of its nodes can ever satisfy; it then holds the job."""


@dataclass(frozen=True)
class _PendingContext:
    """What the checks look at beside the job."""

    snapshot: Snapshot
    state: SchedulerState

    @cached_property
    def running_tasks(self) -> Counter[str]:
        """Tasks per array that hold resources."""
        return Counter(
            job.array_job
            for job in self.snapshot.jobs_in_state(JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)
        )

    @cached_property
    def dependencies(self) -> Dependencies:
        return Dependencies(self.snapshot)

    @cached_property
    def limits(self) -> LimitAccount:
        """What limits leave beside the jobs that run."""
        return LimitAccount(self.snapshot)


def ineligible_reason(job: Job, state: SchedulerState, snapshot: Snapshot) -> Reason | None:
    """Why this pending managed job could not start now even on free nodes; None if it could.

    For a throttled array it says only whether slots are left; `ineligible_jobs` assigns them to tasks.
    """
    return _first_reason(job, _PendingContext(snapshot, state))


def ineligible_jobs(jobs: Iterable[Job], state: SchedulerState, snapshot: Snapshot) -> dict[JobId, Reason]:
    """The pending jobs among the managed ones that could not start now even on free nodes, each with the reason.

    The free slots of a throttled array go to its earliest tasks; its other tasks are ineligible.
    """
    waiting, reasons = _PendingContext(snapshot, state), dict[JobId, Reason]()
    taken = Counter(waiting.running_tasks)
    for job in sorted((job for job in jobs if job.state is JobState.PENDING), key=lambda job: job.queue_key):
        reason = _first_reason(job, waiting)
        if reason is None and job.array_job and job.throttle:
            if taken[job.array_job] >= job.throttle:
                reason = _throttled(job)
            taken[job.array_job] += 1
        if reason is not None:
            reasons[job.id] = reason
    return reasons


def _first_reason(job: Job, waiting: _PendingContext) -> Reason | None:
    for check in _CHECKS:
        if (reason := check(job, waiting)) is not None:
            return reason
    return None


def _held(job: Job, waiting: _PendingContext) -> Reason | None:
    if job.hold is Hold.NONE or held_by_us(job, waiting.state) or job.id in waiting.state.let_go:
        return None
    if job.reason == _IMPOSSIBLE:
        return Reason(ReasonCode.NEVER_FITS, {"what": f"Slurm tried it and holds it with the reason {_IMPOSSIBLE}"})
    if _LAUNCH_FAILED in job.reason.lower().replace("_", " "):
        return Reason(ReasonCode.LAUNCH_FAILED, {"job": job.id})
    return Reason(ReasonCode.USER_HOLD if job.hold is Hold.USER else ReasonCode.ADMIN_HOLD, {"job": job.id})


def _depends(job: Job, waiting: _PendingContext) -> Reason | None:
    if not job.dependency:
        return None
    never = job.reason == "DependencyNeverSatisfied" or has_failed(job.dependency)
    if not never and job.hold is not Hold.NONE and waiting.dependencies.may_be_met(job):
        return None
    code = ReasonCode.DEPENDENCY_FAILED if never else ReasonCode.DEPENDENCY
    return Reason(code, {"dependency": job.dependency})


def _begins_later(job: Job, waiting: _PendingContext) -> Reason | None:
    now = waiting.snapshot.time
    endless = job.eligible_time is None and job.reason == "BeginTime"  # Slurm reports no time for it
    if not endless and (job.eligible_time is None or job.eligible_time <= now):
        return None
    if job.restarts and job.id in waiting.state.held:
        return None  # Slurm delays a job that we requeued; a RELEASE clears the delay
    return Reason(
        ReasonCode.BEGIN_TIME, {"when": "an unknown time" if endless else time_of_day(job.eligible_time or 0.0, now)}
    )


def _array_is_full(job: Job, waiting: _PendingContext) -> Reason | None:
    full = job.throttle and waiting.running_tasks[job.array_job] >= job.throttle
    return _throttled(job) if job.array_job and full else None


def _partition_is_down(job: Job, waiting: _PendingContext) -> Reason | None:
    known = [p for p in waiting.snapshot.partitions if p.name in job.partitions]
    if not known or any(partition.up for partition in known):
        return None
    return Reason(ReasonCode.PARTITION_DOWN, {"partition": ",".join(partition.name for partition in known)})


def _reservation_is_not_active(job: Job, waiting: _PendingContext) -> Reason | None:
    active = Reservation.active(waiting.snapshot.reservations, waiting.snapshot.time)
    if not job.reservation or any(reservation.name == job.reservation for reservation in active):
        return None
    return Reason(ReasonCode.RESERVED, {"reservation": f"{job.reservation} is not active"})


def _limited(job: Job, waiting: _PendingContext) -> Reason | None:
    """By the limits that were read, whose names and amounts are known, else by what Slurm says."""
    return waiting.limits.reached(job) or limit_reason(job.reason)


def _stalled(job: Job, waiting: _PendingContext) -> Reason | None:
    slurm_reason = waiting.state.stalled.get(job.id)
    if slurm_reason is None:
        return None
    if job.id in waiting.state.let_go:
        return Reason(ReasonCode.REFUSED, {"reason": slurm_reason})
    due = waiting.state.retry_at.get(job.id)
    return refusal_reason(slurm_reason, "the next round" if due is None else time_of_day(due, waiting.snapshot.time))


_CHECKS: Final[tuple[Callable[[Job, _PendingContext], Reason | None], ...]] = (
    _held,
    _depends,
    _begins_later,
    _array_is_full,
    _partition_is_down,
    _reservation_is_not_active,
    _limited,
    _stalled,
)


def _throttled(job: Job) -> Reason:
    return Reason(ReasonCode.ARRAY_LIMIT, {"limit": job.throttle or 0})


def usable_nodes(snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """The nodes per partition on which jobs may start, without those in an active reservation."""
    up = {node.name for node in snapshot.nodes if node.state is NodeState.UP}
    active = Reservation.active(snapshot.reservations, snapshot.time)
    up -= {name for reservation in active for name in reservation.nodes}
    return {p.name: frozenset(p.nodes & up) if p.up else frozenset() for p in snapshot.partitions}


def eligible_nodes(job: Job, snapshot: Snapshot, usable: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The nodes on which this job may start: the usable ones of its partitions, or those of its reservation, and of
    these only the ones that it names if it names all its nodes.

    Nodes of a reservation that begins before the job would end are left out, since Slurm starts no job there.
    """
    named, request = job.original_request.pinned, job.original_request
    if job.reservation:
        nodes = _reserved_for(job, snapshot)
    else:
        nodes = frozenset().union(*(usable.get(partition, frozenset()) for partition in job.partitions))
        nodes -= closed_nodes(job, snapshot, snapshot.time)
    names_all = len(named) >= (request.max_nodes or request.nodes) and not leaves_node_count(request)
    return nodes & named if named and names_all else nodes


class EligibleNodeCache:
    """The nodes on which each job may start, without those that it excludes: computed once for jobs that ask alike, as
    a set of ten thousand nodes for each of as many jobs takes longer than a round may."""

    def __init__(self, snapshot: Snapshot, usable: Mapping[str, frozenset[str]]) -> None:
        self._snapshot = snapshot
        self._usable = usable
        self._known: dict[Hashable, frozenset[str]] = {}

    def of(self, job: Job) -> frozenset[str]:
        """The nodes for this job: the same object for all jobs that ask alike."""
        request = job.original_request
        closed = closed_nodes(job, self._snapshot, self._snapshot.time)
        names = (request.pinned, request.max_nodes, request.nodes, leaves_node_count(request)) if request.pinned else ()
        key = (job.partitions, job.reservation, request.excluded, closed, names)
        if key not in self._known:
            self._known[key] = eligible_nodes(job, self._snapshot, self._usable) - request.excluded
        return self._known[key]


def _reserved_for(job: Job, snapshot: Snapshot) -> frozenset[str]:
    open_partitions = [p for p in snapshot.partitions if p.up and p.name in job.partitions]
    allowed = frozenset().union(*(partition.nodes for partition in open_partitions))
    return reserved_nodes(job.reservation, snapshot) & allowed
