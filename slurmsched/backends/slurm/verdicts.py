"""What became of an operation, told from the cluster as it was read back. Slurm's words only say why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from slurmsched.model import Hold, Job, JobState, Operation, Request, Result, SetAside, Shape, Verb

__all__ = ["Verdict", "complaints", "of_job", "stands_as"]

Verdict = tuple[Result, str]

_FORMS: Final = (
    re.compile(r"(?:scancel: error: )?Kill job error on job id (?P<job>[\d_+]+): (?P<words>.+)"),
    re.compile(r"(?P<words>.+) for job (?P<job>[\d_+]+)\Z"),
    re.compile(r"(?P<job>[\d_]+): (?P<words>.+)"),
)


def complaints(said: str) -> dict[str, str]:
    """Slurm's words by job, the first ones for each; under an empty name what names no job."""
    found: dict[str, str] = {}
    for line in said.splitlines():
        match = next((match for form in _FORMS if (match := form.match(line.strip()))), None)
        if match:
            found.setdefault(match["job"], match["words"])
        elif line.strip():
            found.setdefault("", line.strip())
    return found


def of_job(operation: Operation, job: Job | None, words: str, aside: SetAside | None = None) -> Verdict:
    """How an operation on a job ended, the job being what it is now.

    `job` is None where Slurm knows it no more, or, with `aside`, where it exists and its record could not be read.
    """
    if aside is not None and job is None:
        return _unread(operation, aside, words)
    if job is None or job.state is JobState.FINISHED:
        ended = "is gone" if job is None else f"is {job.state_text.lower()}"
        return Result.OVERTAKEN, f"job {operation.subject} {ended}"
    result, otherwise = _JUDGES[operation.verb](operation, job)
    if operation.verb is Verb.NOTIFY and words and result is Result.DONE:
        result = Result.REFUSED  # a signal cannot be read back: here what scancel says is all there is
    return result, "" if result is Result.DONE else (words if result is Result.REFUSED and words else otherwise)


def _unread(operation: Operation, aside: SetAside, words: str) -> Verdict:
    """Of a job whose record cannot be read no more is known than whether it waits without a hold.

    A hold that does not show was not made, and a release that shows was. Whether anything else happened is not known:
    FAILED says so, and whatever is ours of the job stays ours.
    """
    match operation.verb, aside.pending:
        case Verb.HOLD, True:
            return Result.REFUSED, words or "it is not held"
        case Verb.HOLD, False:
            return (Result.FAILED, words) if words else (Result.DONE, "")
        case Verb.RELEASE, True:
            return Result.DONE, ""
    return Result.FAILED, words or f"whether it took effect is not known: {aside.reason}"


def stands_as(shape: Shape, standing: Request) -> bool:
    """Whether this request is the shape."""
    return (
        standing.pinned == frozenset(shape.nodes)
        and standing.nodes == shape.node_count
        and (standing.gpus, standing.gpu_type) == (shape.gpus, shape.gpu_type)
        and (standing.cpus, standing.tasks) == (shape.cpus * shape.node_count, shape.tasks)
        and shape.memory in (0, standing.memory)
    )


def _unlike(job: Job) -> str:
    return f"job {job.id} is {job.state_text.lower()}"


def _held(_operation: Operation, job: Job) -> Verdict:
    if job.state is not JobState.PENDING:
        return Result.OVERTAKEN, _unlike(job)
    return (Result.REFUSED, "it is not held") if job.hold is Hold.NONE else (Result.DONE, "")


def _released(_operation: Operation, job: Job) -> Verdict:
    return (Result.DONE, "") if job.hold is Hold.NONE else (Result.REFUSED, f"it is still held: {job.reason}")


def _reshaped(operation: Operation, job: Job) -> Verdict:
    shape, now = operation.after, job.standing
    if isinstance(shape, Shape) and stands_as(shape, now):
        return Result.DONE, ""
    if job.state is not JobState.PENDING:
        return Result.OVERTAKEN, _unlike(job)
    kind = f"{now.gpu_type}:" if now.gpu_type else ""
    where = f" on {','.join(sorted(now.pinned))}" if now.pinned else ""
    return Result.REFUSED, (
        f"it now asks for {now.nodes} nodes{where}, {kind}{now.gpus} GPUs, {now.cpus} CPUs,"
        f" {now.memory} MiB per node, {now.tasks} tasks"
    )


def _notified(_operation: Operation, job: Job) -> Verdict:
    return (Result.DONE, "") if job.state is JobState.RUNNING else (Result.OVERTAKEN, _unlike(job))


def _requeued(_operation: Operation, job: Job) -> Verdict:
    match job.state:
        case JobState.PENDING:
            return (
                (Result.DONE, "") if job.hold is not Hold.NONE else (Result.REFUSED, "it waits again, but is not held")
            )
        case JobState.COMPLETING:
            on_its_way = "held" in job.reason.lower()
            return (Result.DONE, "") if on_its_way else (Result.OVERTAKEN, "it is ending by itself")
        case _:
            return Result.REFUSED, f"it is still {job.state_text.lower()}"


def _prioritized(operation: Operation, job: Job) -> Verdict:
    if job.nice == operation.after:
        return Result.DONE, ""
    pending = job.state is JobState.PENDING
    return (Result.REFUSED, f"its nice is {job.nice}") if pending else (Result.OVERTAKEN, _unlike(job))


def _noted(operation: Operation, job: Job) -> Verdict:
    text = operation.after if isinstance(operation.after, str) else ""
    same = job.admin_comment == text.rstrip()
    return (Result.DONE, "") if same else (Result.REFUSED, "the note is not there")


_JUDGES: Final[Mapping[Verb, Callable[[Operation, Job], Verdict]]] = {
    Verb.HOLD: _held,
    Verb.RESHAPE: _reshaped,
    Verb.RELEASE: _released,
    Verb.NOTIFY: _notified,
    Verb.REQUEUE: _requeued,
    Verb.PRIORITIZE: _prioritized,
    Verb.NOTE: _noted,
}
