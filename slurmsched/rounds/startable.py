"""Which waiting managed jobs could start now, room aside, and what keeps the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from slurmsched.model import Code, Hold, Job, JobId, JobState, Memory, Reason, Reservation, Snapshot
from slurmsched.rounds.holds import held_by_us
from slurmsched.rounds.wording import moment

__all__ = ["startable", "stopped"]

_LIMIT_REASONS: Final = ("QOS", "Assoc", "InvalidQOS", "InvalidAccount", "AccountNotAllowed", "Licenses", "MaxJobs")
"""How Slurm's reasons begin for jobs that it would not start on free nodes either."""


@dataclass(frozen=True)
class _Waiting:
    """What the checks look at: the whole snapshot and what is remembered."""

    snapshot: Snapshot
    memory: Memory

    @cached_property
    def running_tasks(self) -> Counter[str]:
        """Tasks per array that have their resources."""
        return Counter(
            job.array_job for job in self.snapshot.in_state(JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)
        )


def startable(job: Job, memory: Memory, snapshot: Snapshot) -> Reason | None:
    """Why this pending managed job could not start now; None where only room decides.

    Of an array that may run few tasks at once it says no more than that slots are left: `stopped` shares them out.
    """
    return _first_reason(job, _Waiting(snapshot, memory))


def stopped(jobs: Iterable[Job], memory: Memory, snapshot: Snapshot) -> dict[JobId, Reason]:
    """The pending ones among the managed jobs that could not start now, and why.

    The free slots of a throttled array go to its earliest tasks; the others count as stopped.
    """
    waiting, reasons = _Waiting(snapshot, memory), dict[JobId, Reason]()
    taken = Counter(waiting.running_tasks)
    for job in sorted((job for job in jobs if job.state is JobState.PENDING), key=_task_order):
        reason = _first_reason(job, waiting)
        if reason is None and job.array_job and job.throttle:
            if taken[job.array_job] >= job.throttle:
                reason = _throttled(job)
            taken[job.array_job] += 1
        if reason is not None:
            reasons[job.id] = reason
    return reasons


def _first_reason(job: Job, waiting: _Waiting) -> Reason | None:
    return next((reason for check in _CHECKS if (reason := check(job, waiting)) is not None), None)


def _held(job: Job, waiting: _Waiting) -> Reason | None:
    if job.hold is Hold.NONE or held_by_us(job, waiting.memory):
        return None
    return Reason(Code.USER_HOLD if job.hold is Hold.USER else Code.ADMIN_HOLD, {"job": job.id})


def _depends(job: Job, _: _Waiting) -> Reason | None:
    return Reason(Code.DEPENDENCY, {"dependency": job.dependency}) if job.dependency else None


def _begins_later(job: Job, waiting: _Waiting) -> Reason | None:
    now = waiting.snapshot.time
    endless = job.eligible_time is None and job.reason == "BeginTime"  # a time that Slurm writes as none
    if not endless and (job.eligible_time is None or job.eligible_time <= now):
        return None
    if job.restarts and job.id in waiting.memory.held:
        return None  # the delay Slurm puts on what we requeued; a RELEASE clears it
    return Reason(Code.BEGIN_TIME, {"when": "the end of time" if endless else moment(job.eligible_time or 0.0, now)})


def _array_is_full(job: Job, waiting: _Waiting) -> Reason | None:
    full = job.throttle and waiting.running_tasks[job.array_job] >= job.throttle
    return _throttled(job) if job.array_job and full else None


def _partition_is_down(job: Job, waiting: _Waiting) -> Reason | None:
    known = [p for p in waiting.snapshot.partitions if p.name in job.partitions]
    if not known or any(partition.up for partition in known):
        return None
    return Reason(Code.PARTITION_DOWN, {"partition": ",".join(partition.name for partition in known)})


def _reservation_is_not_active(job: Job, waiting: _Waiting) -> Reason | None:
    active = Reservation.active(waiting.snapshot.reservations, waiting.snapshot.time)
    if not job.reservation or any(reservation.name == job.reservation for reservation in active):
        return None
    return Reason(Code.RESERVED, {"reservation": f"{job.reservation} is not active"})


def _limited(job: Job, _: _Waiting) -> Reason | None:
    return Reason(Code.LIMITS, {"reason": job.reason}) if job.reason.startswith(_LIMIT_REASONS) else None


def _stalled(job: Job, waiting: _Waiting) -> Reason | None:
    said = waiting.memory.stalled.get(job.id)
    if said is None:
        return None
    return Reason(Code.LIMITS if said.startswith(_LIMIT_REASONS) else Code.STALLED, {"reason": said})


_CHECKS: Final[tuple[Callable[[Job, _Waiting], Reason | None], ...]] = (
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
    return Reason(Code.ARRAY_LIMIT, {"limit": job.throttle or 0})


def _task_order(job: Job) -> tuple[float, int, str]:
    index = job.id.rpartition("_")[2]
    return job.submit_time, int(index) if index.isdigit() else 0, job.id
