"""Jobs as Slurm shows them, as the model has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

from slurmsched.backends.slurm.errors import why_unread
from slurmsched.backends.slurm.hostlist import ranges
from slurmsched.backends.slurm.limits import Limits
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.backends.slurm.requests import Form, form_of, request_of, unmanageable
from slurmsched.backends.slurm.shares import shares_of
from slurmsched.backends.slurm.values import moment, said, seconds, whole
from slurmsched.model import Hold, Job, JobId, JobState, SetAside, parse_hints

__all__ = ["MOST_TASKS", "SeenJob", "jobs_of", "seen", "state_of"]

MOST_TASKS: Final = 2_000
"""So many waiting tasks of one array are told apart; the others come up as these go."""

_STATES: Final = {
    "PENDING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "POWER_UP_NODE": JobState.RUNNING,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "SUSPENDED": JobState.SUSPENDED,
}
_HELD_BY: Final = {"JobHeldUser": Hold.USER, "JobHeldAdmin": Hold.ADMIN}
_NO_TASK: Final = "4294967294"


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job, and in which form its request stands."""

    job: Job
    form: Form


def jobs_of(records: Iterable[JobRecord], limits: Limits) -> tuple[list[SeenJob], list[SetAside], list[str]]:
    """The jobs, those that make no sense, and a sentence on each array of which more tasks wait than are told apart."""
    jobs: list[SeenJob] = []
    left: list[SetAside] = []
    longer: list[str] = []
    for record in records:
        try:
            jobs += seen(record, limits)
            if record.tasks.endswith("...") or len(_tasks(record.tasks)) > MOST_TASKS:
                longer.append(
                    f"job {record.number} has more waiting tasks than are told apart: the others follow later"
                )
        except Exception as error:
            left.append(_left_out(record, error))
    return jobs, left, longer


def seen(record: JobRecord, limits: Limits) -> list[SeenJob]:
    """One job, or each waiting task of an array, the first `MOST_TASKS` of them. Raises NotUnderstoodError."""
    job, form = _job(record, limits), form_of(record.fields)
    tasks = _tasks(record.tasks)[:MOST_TASKS]
    return [SeenJob(replace(job, id=f"{record.array}_{task}"), form) for task in tasks] or [SeenJob(job, form)]


def state_of(text: str) -> JobState:
    """What Slurm's word for a state comes to; one that is not known counts as finished, and is not touched."""
    return _STATES.get(text, JobState.FINISHED)


def _left_out(record: JobRecord, error: Exception) -> SetAside:
    pending = state_of(record.state) is JobState.PENDING and record.priority != 0
    job = f"{record.array}_{record.tasks}" if record.tasks.isdecimal() else _id(record)
    return SetAside(job, why_unread(error), record.user, record.fields.get("Partition", ""), pending)


def _tasks(expression: str) -> list[int]:
    """Task numbers of `0-9:3,12%2`, one more than is told apart at most; none where there is no array.

    Of a list that Slurm cut off with `...` the last entry is not whole.
    """
    listed = expression.partition("%")[0]
    if listed in ("", _NO_TASK):
        return []
    if listed.endswith("..."):
        listed = listed.rpartition(",")[0]
    return list(islice(chain.from_iterable(ranges(listed)), MOST_TASKS + 1))


def _job(record: JobRecord, limits: Limits) -> Job:
    fields = record.fields
    state = state_of(record.state)
    has_resources = state in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
    request = request_of(fields, waiting=state is JobState.PENDING, most_nodes=limits.names)
    if state is not JobState.FINISHED:
        limits.check(request)
    return Job(
        id=_id(record),
        user=record.user,
        request=request,
        standing=request,
        state=state,
        state_text=record.state,
        name=record.name,
        account=said(record.account),
        partitions=tuple(filter(None, said(fields.get("Partition")).split(","))),
        qos=said(record.qos),
        reason=said(record.reason),
        hold=_hold(record, state),
        shares=shares_of(record.placements, fields, limits.names) if has_resources else (),
        submit_time=moment(fields.get("SubmitTime")) or 0.0,
        eligible_time=moment(fields.get("EligibleTime")),
        start_time=moment(fields.get("StartTime")),
        end_time=moment(fields.get("EndTime")),
        run_time=float(seconds(fields.get("RunTime")) or 0),
        time_limit=seconds(fields.get("TimeLimit")),
        priority=record.priority,
        nice=record.nice,
        batch=fields.get("BatchFlag") == "1",
        requeue=fields.get("Requeue") == "1",
        restarts=whole(fields.get("Restarts")),
        dependency=said(fields.get("Dependency")),
        reservation=said(fields.get("Reservation")),
        array_job=record.array,
        throttle=record.throttle,
        comment=record.comment,
        admin_comment=record.admin_comment,
        hints=parse_hints(record.comment),
        unmanageable=unmanageable(fields),
    )


def _id(record: JobRecord) -> JobId:
    return f"{record.het}+{record.offset}" if record.het else record.number


def _hold(record: JobRecord, state: JobState) -> Hold:
    """Priority 0 is a hold, whoever's. One without a known name counts as an administrator's, which only he lifts."""
    if state is not JobState.PENDING:
        return Hold.NONE
    reason = record.reason.lower()
    if "requeued" in reason and "held" in reason:
        return Hold.REQUEUED
    if record.reason in _HELD_BY:
        return _HELD_BY[record.reason]
    return Hold.ADMIN if record.priority == 0 else Hold.NONE
