"""After the daemon was killed: which journalled operations were executed, as the cluster shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.model import (
    Hold,
    Job,
    JobSpec,
    JobState,
    Operation,
    Plan,
    Reason,
    ReasonCode,
    Result,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.rounds.specs import equivalent, spec_of


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of each intended operation, in order, and the repairs needed before the next round."""

    results: tuple[tuple[Operation, Result], ...]
    repairs: Plan


def resolve_intents(intended: Sequence[Operation], snapshot: Snapshot, state: SchedulerState) -> Recovery:
    """Determine for each operation without an outcome whether it is DONE, FAILED (not executed) or OVERTAKEN.

    An operation on a job that is set aside stays INTENDED, since its record cannot be read. One that leaves no trace
    (a signal, a written file) counts as FAILED: it is safe to repeat. The repairs restore the original request of each
    job whose spec is neither the old nor the new one; the next round or `release_plan` handles everything else.
    """
    results = tuple((operation, observed_result(operation, snapshot)) for operation in intended)
    return Recovery(results, Plan(tuple(_repairs(intended, snapshot, state))))


def observed_result(operation: Operation, snapshot: Snapshot) -> Result:
    """The result that the snapshot shows: DONE if applied, FAILED if it could still be done, OVERTAKEN if it could not.

    INTENDED if the job exists and its record cannot be read.
    """
    if operation.verb is Verb.CONFIGURE:
        return Result.FAILED
    if operation.verb is Verb.WEIGH:
        node = snapshot.nodes_by_name.get(operation.subject)
        if node is None:
            return Result.OVERTAKEN
        return Result.DONE if node.weight == operation.after else Result.FAILED
    job = snapshot.jobs_by_id.get(operation.subject)
    if job is None:
        return Result.OVERTAKEN if snapshot.is_gone(operation.subject) else Result.INTENDED
    return _job_result(operation, job)


def _job_result(operation: Operation, job: Job) -> Result:
    if job.state is JobState.FINISHED:
        return Result.OVERTAKEN
    if _IS_APPLIED[operation.verb](operation, job):
        return Result.DONE
    return Result.FAILED if _CAN_APPLY[operation.verb](job) else Result.OVERTAKEN


def _is_pending(job: Job) -> bool:
    return job.state is JobState.PENDING


def _is_running(job: Job) -> bool:
    return job.state in (JobState.RUNNING, JobState.SUSPENDED)


def _is_held(job: Job) -> bool:
    """Whether it is held as an operator would hold it; a hold by its owner is not ours."""
    return _is_pending(job) and job.hold in (Hold.ADMIN, Hold.REQUEUED)


def _has_spec(job: Job, spec: object) -> bool:
    return isinstance(spec, JobSpec) and equivalent(spec_of(job.current_request), spec)


_IS_APPLIED: Final[Mapping[Verb, Callable[[Operation, Job], bool]]] = {
    Verb.HOLD: lambda _, job: _is_held(job),
    Verb.UPDATE: lambda operation, job: _has_spec(job, operation.after),
    Verb.RELEASE: lambda _, job: not _is_pending(job) or job.hold is Hold.NONE,
    Verb.NOTIFY: lambda _, _job: False,
    Verb.REQUEUE: lambda _, job: job.state is JobState.COMPLETING or _is_held(job),
    Verb.PRIORITIZE: lambda operation, job: job.nice == operation.after,
    Verb.NOTE: lambda operation, job: job.admin_comment == operation.after,
}
"""Whether a job already is as the operation makes it."""

_CAN_APPLY: Final[Mapping[Verb, Callable[[Job], bool]]] = {
    Verb.HOLD: lambda job: _is_pending(job) and job.hold is Hold.NONE,
    Verb.UPDATE: _is_pending,
    Verb.RELEASE: _is_pending,
    Verb.NOTIFY: _is_running,
    Verb.REQUEUE: _is_running,
    Verb.PRIORITIZE: _is_pending,
    Verb.NOTE: lambda _: True,
}
"""Whether the operation could still be applied to a job."""


def _repairs(intended: Sequence[Operation], snapshot: Snapshot, state: SchedulerState) -> Sequence[Operation]:
    """Restore the original request of each job whose last intended spec was applied in part."""
    last = {op.subject: op for op in intended if op.verb is Verb.UPDATE}
    repairs = []
    for operation in last.values():
        job = snapshot.jobs_by_id.get(operation.subject)
        if job is None or job.state is not JobState.PENDING:
            continue
        if _has_spec(job, operation.after) or _has_spec(job, operation.before):
            continue
        original = state.original_requests.get(job.id)
        restored = spec_of(original) if original is not None else operation.before
        if isinstance(restored, JobSpec):
            repairs.append(
                Operation(Verb.UPDATE, job.id, Reason(ReasonCode.MENDED), spec_of(job.current_request), restored)
            )
    return repairs
