"""After a kill: which journalled operations happened, told from what the cluster shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.model import (
    Code,
    Hold,
    Job,
    JobState,
    Memory,
    Operation,
    Plan,
    Reason,
    Result,
    Shape,
    Snapshot,
    Verb,
)
from slurmsched.rounds.shapes import same, shape_of

__all__ = ["Recovery", "became", "recover"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """For each intended operation, in order, what became of it; and what must be mended before the next round."""

    results: tuple[tuple[Operation, Result], ...]
    repairs: Plan


def recover(intended: Sequence[Operation], snapshot: Snapshot, memory: Memory) -> Recovery:
    """Tell for each operation without an outcome whether it was DONE, FAILED (did not happen) or OVERTAKEN.

    Of a job that exists and is set aside nothing can be told: what was intended for it stays INTENDED.
    What can leave no trace (a signal, a written file) counts as FAILED: to do it again harms nobody. Repairs put a job
    whose shape is neither the old nor the new one back to its original; everything else the next round, or
    `release_plan`, takes from where it stands.
    """
    results = tuple((operation, became(operation, snapshot)) for operation in intended)
    return Recovery(results, Plan(tuple(_repairs(intended, snapshot, memory))))


def became(operation: Operation, snapshot: Snapshot) -> Result:
    """What the snapshot shows of one operation: DONE where it shows, FAILED while it could still be done, INTENDED of a
    job that is there and cannot be read."""
    if operation.verb is Verb.CONFIGURE:
        return Result.FAILED
    if operation.verb is Verb.WEIGH:
        node = snapshot.node.get(operation.subject)
        if node is None:
            return Result.OVERTAKEN
        return Result.DONE if node.weight == operation.after else Result.FAILED
    job = snapshot.job.get(operation.subject)
    if job is None:
        return Result.OVERTAKEN if snapshot.is_gone(operation.subject) else Result.INTENDED
    return _of_job(operation, job)


def _of_job(operation: Operation, job: Job) -> Result:
    if job.state is JobState.FINISHED:
        return Result.OVERTAKEN
    if _SHOWS[operation.verb](operation, job):
        return Result.DONE
    return Result.FAILED if _POSSIBLE[operation.verb](job) else Result.OVERTAKEN


def _waits(job: Job) -> bool:
    return job.state is JobState.PENDING


def _runs(job: Job) -> bool:
    return job.state in (JobState.RUNNING, JobState.SUSPENDED)


def _held(job: Job) -> bool:
    """As an operator holds it; a hold by its owner is not ours."""
    return _waits(job) and job.hold in (Hold.ADMIN, Hold.REQUEUED)


def _has_shape(job: Job, shape: object) -> bool:
    return isinstance(shape, Shape) and same(shape_of(job.standing), shape)


_SHOWS: Final[Mapping[Verb, Callable[[Operation, Job], bool]]] = {
    Verb.HOLD: lambda _, job: _held(job),
    Verb.RESHAPE: lambda operation, job: _has_shape(job, operation.after),
    Verb.RELEASE: lambda _, job: not _waits(job) or job.hold is Hold.NONE,
    Verb.NOTIFY: lambda _, _job: False,
    Verb.REQUEUE: lambda _, job: job.state is JobState.COMPLETING or _held(job),
    Verb.PRIORITIZE: lambda operation, job: job.nice == operation.after,
    Verb.NOTE: lambda operation, job: job.admin_comment == operation.after,
}
"""Whether a live job looks as the operation makes it."""

_POSSIBLE: Final[Mapping[Verb, Callable[[Job], bool]]] = {
    Verb.HOLD: lambda job: _waits(job) and job.hold is Hold.NONE,
    Verb.RESHAPE: _waits,
    Verb.RELEASE: _waits,
    Verb.NOTIFY: _runs,
    Verb.REQUEUE: _runs,
    Verb.PRIORITIZE: _waits,
    Verb.NOTE: lambda _: True,
}
"""Whether a live job that does not look so could still be changed."""


def _repairs(intended: Sequence[Operation], snapshot: Snapshot, memory: Memory) -> Sequence[Operation]:
    """Back to its original for each job whose last intended shape was applied in part."""
    last = {op.subject: op for op in intended if op.verb is Verb.RESHAPE}
    repairs = []
    for operation in last.values():
        job = snapshot.job.get(operation.subject)
        if job is None or job.state is not JobState.PENDING:
            continue
        if _has_shape(job, operation.after) or _has_shape(job, operation.before):
            continue
        original = memory.originals.get(job.id)
        stood = shape_of(original) if original is not None else operation.before
        if isinstance(stood, Shape):
            repairs.append(Operation(Verb.RESHAPE, job.id, Reason(Code.MENDED), shape_of(job.standing), stood))
    return repairs
