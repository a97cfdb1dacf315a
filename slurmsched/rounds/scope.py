"""Which jobs are managed, which pending jobs could start now on free nodes, and which nodes a job may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Final

from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobState,
    NodeState,
    Reason,
    ReasonCode,
    Reservation,
    SchedulerState,
    Snapshot,
)
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.policies import schedules_shards
from slurmsched.rounds.release import held_by_us
from slurmsched.settings.definition import ManageSettings, Settings

_LIVE = (JobState.PENDING, JobState.RUNNING)


def unmanaged_reason(job: Job, settings: Settings) -> Reason | None:
    """Why the job is left to Slurm; None if it is managed.

    Managed are pending and running batch jobs with whole GPUs, array tasks included, in a managed partition or QOS, or
    with a hint if `manage.opt_in` is set. A policy that schedules shards also manages jobs with shards or without GPUs.
    """
    shards = schedules_shards(settings.policy.system, settings.policy.parts)
    return (
        _out_of_scope(job, settings.manage) or (None if shards else _without_whole_gpus(job)) or _unsupported_kind(job)
    )


def _out_of_scope(job: Job, manage: ManageSettings) -> Reason | None:
    partitions = set(job.partitions)
    # Only if it names no other partition: naming one of these too does not exempt a job in a managed partition.
    if partitions and partitions <= set(manage.never_partitions):
        return _because(f"no job is managed in partition {min(partitions)}")
    if partitions & set(manage.partitions) or job.qos in manage.qos:
        return None
    if not manage.opt_in:
        return _because("neither its partition nor its QOS is managed")
    if job.hints.given:
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
    if job.unmanageable:
        return _because(job.unmanageable)
    return None if job.state in _LIVE else _because(f"its state is {job.state_text.lower() or job.state}")


def _because(why: str) -> Reason:
    return Reason(ReasonCode.UNMANAGED, {"why": why})


_LIMIT_REASONS: Final = ("QOS", "Assoc", "InvalidQOS", "InvalidAccount", "AccountNotAllowed", "Licenses", "MaxJobs")
"""Prefixes of Slurm's reasons for jobs that it would not start even on free nodes."""


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
    return next((reason for check in _CHECKS if (reason := check(job, waiting)) is not None), None)


def _held(job: Job, waiting: _PendingContext) -> Reason | None:
    if job.hold is Hold.NONE or held_by_us(job, waiting.state):
        return None
    return Reason(ReasonCode.USER_HOLD if job.hold is Hold.USER else ReasonCode.ADMIN_HOLD, {"job": job.id})


def _depends(job: Job, _: _PendingContext) -> Reason | None:
    return Reason(ReasonCode.DEPENDENCY, {"dependency": job.dependency}) if job.dependency else None


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


def _limited(job: Job, _: _PendingContext) -> Reason | None:
    return Reason(ReasonCode.LIMITS, {"reason": job.reason}) if job.reason.startswith(_LIMIT_REASONS) else None


def _stalled(job: Job, waiting: _PendingContext) -> Reason | None:
    slurm_reason = waiting.state.stalled.get(job.id)
    if slurm_reason is None:
        return None
    return Reason(
        ReasonCode.LIMITS if slurm_reason.startswith(_LIMIT_REASONS) else ReasonCode.STALLED,
        {"reason": slurm_reason or "Slurm gave no reason"},
    )


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
    """The nodes on which this job may start: the usable ones of its partitions, or those of its reservation.

    Nodes of a reservation that begins before the job would end are left out, since Slurm starts no job there.
    """
    if job.reservation:
        return _reserved_for(job, snapshot)
    nodes = frozenset().union(*(usable.get(partition, frozenset()) for partition in job.partitions))
    return nodes - _reserved_before_it_ends(job, snapshot)


def exclude_reserved_nodes(job: Job, snapshot: Snapshot) -> Job:
    """The job with nodes that a coming reservation closes to it added to `excluded`, for the policy."""
    closed = frozenset() if job.reservation else _reserved_before_it_ends(job, snapshot)
    if closed <= job.original_request.excluded:
        return job
    return replace(job, original_request=replace(job.original_request, excluded=job.original_request.excluded | closed))


def _reserved_for(job: Job, snapshot: Snapshot) -> frozenset[str]:
    active = Reservation.active(snapshot.reservations, snapshot.time)
    nodes = frozenset().union(*(reservation.nodes for reservation in active if reservation.name == job.reservation))
    open_partitions = [p for p in snapshot.partitions if p.up and p.name in job.partitions]
    allowed = frozenset().union(*(partition.nodes for partition in open_partitions))
    return frozenset(
        name
        for name in nodes & allowed
        if name in snapshot.nodes_by_name and snapshot.nodes_by_name[name].state is NodeState.UP
    )


def _reserved_before_it_ends(job: Job, snapshot: Snapshot) -> frozenset[str]:
    end = inf if job.time_limit is None else snapshot.time + job.time_limit
    coming = (r for r in snapshot.reservations if snapshot.time < r.start < end)
    return frozenset().union(*(reservation.nodes for reservation in coming))
