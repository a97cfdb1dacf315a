"""Events of jobs, for `synsched history`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slurmsched.model import JobId, Outcome, Result, Verb
from slurmsched.store.database import Database


class JobEventKind(StrEnum):
    """What happened to a job."""

    SEEN = "seen"
    STARTED = "started"
    MOVED = "moved"
    DISPLACED = "displaced"
    UPDATED = "reshaped"
    RELEASED = "released"
    ENDED = "ended"
    REFUSED = "refused"
    HINT = "hint"
    UNDONE = "undone"
    DEVICE = "device"
    OVERRULED = "overruled"
    """Our hold was released by a person or another program."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event at a time (unix seconds); `code` is the reason code of the decision behind it, empty without one."""

    at: float
    job: JobId
    kind: JobEventKind
    sentence: str
    code: str = ""


def record_events(database: Database, round_id: int | None, events: Iterable[JobEvent]) -> None:
    """Append the events to the job history; `round_id` is None outside a round. Raises StoreError."""
    database.write_many(
        "INSERT INTO events (at, round, job, kind, code, sentence) VALUES (?, ?, ?, ?, ?, ?)",
        [(event.at, round_id, event.job, event.kind.value, event.code, event.sentence) for event in events],
    )


def events_of_outcomes(
    outcomes: Iterable[Outcome], targets: Iterable[JobId], at: float, done: Mapping[tuple[str, JobId], float]
) -> tuple[JobEvent, ...]:
    """The events that operations caused, each at the time in `done` by verb and job, else at `at` (unix seconds). A job
    that was evicted and has a target in the same round was moved."""
    allocated, events = frozenset(targets), list[JobEvent]()
    for outcome in outcomes:
        key = outcome.operation.verb.value, outcome.operation.subject
        event = _event(outcome, allocated, done.get(key, at) if outcome.result is Result.DONE else at)
        events += [event] if event is not None else []
    return tuple(events)


def _event(outcome: Outcome, allocated: frozenset[JobId], at: float) -> JobEvent | None:
    operation, job = outcome.operation, outcome.operation.subject
    sentence, code = operation.reason.sentence, operation.reason.code.value
    match outcome.result, operation.verb:
        case _, Verb.WEIGH | Verb.CONFIGURE:
            return None
        case Result.DONE, Verb.REQUEUE:
            return JobEvent(at, job, JobEventKind.MOVED if job in allocated else JobEventKind.DISPLACED, sentence, code)
        case Result.DONE, (Verb.UPDATE | Verb.RELEASE) as verb:
            return JobEvent(
                at, job, JobEventKind.UPDATED if verb is Verb.UPDATE else JobEventKind.RELEASED, sentence, code
            )
        case ((Result.REFUSED | Result.FAILED), verb):
            return JobEvent(
                at, job, JobEventKind.REFUSED, f"{verb.value} was {outcome.result.value}: {outcome.detail}", code
            )
        case Result.UNDONE, verb:
            return JobEvent(at, job, JobEventKind.UNDONE, f"{verb.value} was undone: {sentence}", code)
        case _:
            return None
