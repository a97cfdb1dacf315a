"""What to take back when a start has not happened: the newcomer waits again, whoever gave way for it returns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from slurmsched.model import (
    Code,
    Hold,
    Job,
    JobId,
    JobState,
    Operation,
    Plan,
    Reason,
    Resources,
    Shape,
    Share,
    Verb,
)
from slurmsched.rounds.progress import Progress
from slurmsched.rounds.room import Room
from slurmsched.rounds.shapes import same, shape_of

__all__ = ["overdue"]


def overdue(progress: Progress, timeout: float) -> Plan:
    """The operations that undo every start which can no longer happen, or has not within `timeout` seconds.

    Such a job waits under our hold with the shape that stood before. A job that was requeued for it, and for nobody
    who can still start, is started again where it ran, if that place is still free. Empty while all goes well.
    """
    late = [index for index in progress.starts.values() if _is_late(progress, index, timeout)]
    returns = tuple(_returns(progress, late))
    returning = {operation.subject for operation in returns}
    held = [operation for index in late for operation in _held_again(progress, index, returning)]
    return Plan((*held, *returns))


def _is_late(progress: Progress, index: int, timeout: float) -> bool:
    if progress.succeeded(index):
        return progress.has_not_started(index) and progress.now - progress.done[index].at >= timeout
    if index in progress.done or progress.hopeless(index):
        return True
    waited_for = [progress.requeues[job] for job in progress.plan.operations[index].gone if job in progress.requeues]
    if not waited_for or any(i not in progress.done and not progress.hopeless(i) for i in waited_for):
        return False
    last = max((progress.done[i].at for i in waited_for if i in progress.done), default=progress.now)
    return progress.now - last >= timeout


def _held_again(progress: Progress, index: int, returning: Collection[JobId]) -> Iterator[Operation]:
    """The job under our hold, with the shape that stood before unless it returns to where it ran."""
    job = _waiting(progress, progress.plan.operations[index].subject)
    if job is None:
        return
    why = Reason(Code.NOT_STARTED)
    if job.hold is Hold.NONE:
        yield Operation(Verb.HOLD, job.id, why, job.hold.value, Hold.ADMIN.value)
    stood = next((op.before for op in _of(progress, job.id, Verb.RESHAPE)), None)
    if job.id not in returning and isinstance(stood, Shape) and not same(stood, shape_of(job.standing)):
        yield Operation(Verb.RESHAPE, job.id, why, shape_of(job.standing), stood)


def _returns(progress: Progress, late: Sequence[int]) -> Iterator[Operation]:
    """Restarts of those who gave way for nothing, as far as their former places are free and promised to nobody."""
    room, released = Room(progress.snapshot), set(late)
    for index in progress.starts.values():
        if index not in released and not _has_ended(progress, index):
            room.claim(_shares(_pinned(progress, index)), lambda _: None)
    displaced = dict.fromkeys(job for index in late for job in progress.plan.operations[index].gone)
    for job_id in displaced:
        job, lease = _waiting(progress, job_id), _lease(progress, job_id)
        if job is None or lease is None or _is_expected(progress, job_id, released):
            continue
        if room.claim(_shares(lease), lambda _: None) is None:
            continue
        why = Reason(Code.RETURNS, {"nodes": ",".join(lease.nodes)})
        if not same(lease, shape_of(job.standing)):
            yield Operation(Verb.RESHAPE, job.id, why, shape_of(job.standing), lease)
        yield Operation(Verb.RELEASE, job.id, why, Hold.REQUEUED.value, Hold.NONE.value)


def _waiting(progress: Progress, job_id: JobId) -> Job | None:
    job = progress.snapshot.job.get(job_id)
    return job if job is not None and job.state is JobState.PENDING else None


def _has_ended(progress: Progress, index: int) -> bool:
    """Whether this start needs no room any more: it runs, or its job is gone."""
    return progress.succeeded(index) and not progress.has_not_started(index)


def _is_expected(progress: Progress, job_id: JobId, late: set[int]) -> bool:
    """Whether a displaced job has a start of its own in the plan that may still come."""
    return job_id in progress.starts and progress.starts[job_id] not in late


def _lease(progress: Progress, job_id: JobId) -> Shape | None:
    """What a job that we requeued ran on; None where that cannot be said node by node."""
    index = progress.requeues.get(job_id)
    if index is None or not progress.succeeded(index):
        return None
    before = progress.plan.operations[index].before
    return before if isinstance(before, Shape) and before.gpus_per_node is not None else None


def _pinned(progress: Progress, index: int) -> Shape | None:
    """What a started job is pinned to: by its RESHAPE, or as it stands."""
    subject = progress.plan.operations[index].subject
    shape = next((op.after for op in _of(progress, subject, Verb.RESHAPE)), None)
    if isinstance(shape, Shape):
        return shape
    job = progress.snapshot.job.get(subject)
    return None if job is None else shape_of(job.standing)


def _of(progress: Progress, subject: str, verb: Verb) -> Iterator[Operation]:
    return (op for op in progress.plan.operations if op.subject == subject and op.verb is verb)


def _shares(shape: Shape | None) -> tuple[Share, ...]:
    """A pinned shape node by node; an uneven split counts in full on each node."""
    if shape is None:
        return ()
    gpus = shape.gpus if shape.gpus_per_node is None else shape.gpus_per_node
    size = Resources(gpus, shape.cpus, shape.memory)
    return tuple(Share(node, size, shape.gpu_type or "") for node in shape.nodes)
