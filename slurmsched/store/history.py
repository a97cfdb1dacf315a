"""What happened to a job, for `synsched history`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from slurmsched.model import JobId, Outcome, Result, Verb
from slurmsched.store.database import Database

__all__ = ["Event", "Kind", "events_of", "note"]


class Kind(StrEnum):
    """The kinds of things that happen to a job."""

    SEEN = "seen"
    STARTED = "started"
    MOVED = "moved"
    DISPLACED = "displaced"
    RESHAPED = "reshaped"
    RELEASED = "released"
    ENDED = "ended"
    REFUSED = "refused"
    HINT = "hint"
    UNDONE = "undone"
    DEVICE = "device"
    OVERRULED = "overruled"
    """Somebody else lifted our hold."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing at one time (unix seconds); `code` is the machine reason where a decision stood behind it."""

    at: float
    job: JobId
    kind: Kind
    sentence: str
    code: str = ""


def note(database: Database, round_id: int | None, events: Iterable[Event]) -> None:
    """Keep these."""
    database.write_many(
        "INSERT INTO events (at, round, job, kind, code, sentence) VALUES (?, ?, ?, ?, ?, ?)",
        [(event.at, round_id, event.job, event.kind.value, event.code, event.sentence) for event in events],
    )


def events_of(outcomes: Iterable[Outcome], targets: Iterable[JobId], at: float) -> tuple[Event, ...]:
    """What operations did to jobs. A job that is displaced and has a target in the same round is moved."""
    placed = frozenset(targets)
    return tuple(event for outcome in outcomes if (event := _event(outcome, placed, at)) is not None)


def _event(outcome: Outcome, placed: frozenset[JobId], at: float) -> Event | None:
    operation, job = outcome.operation, outcome.operation.subject
    sentence, code = operation.reason.sentence, operation.reason.code.value
    match outcome.result, operation.verb:
        case _, Verb.WEIGH | Verb.CONFIGURE:
            return None
        case Result.DONE, Verb.REQUEUE:
            return Event(at, job, Kind.MOVED if job in placed else Kind.DISPLACED, sentence, code)
        case Result.DONE, (Verb.RESHAPE | Verb.RELEASE) as verb:
            return Event(at, job, Kind.RESHAPED if verb is Verb.RESHAPE else Kind.RELEASED, sentence, code)
        case ((Result.REFUSED | Result.FAILED), verb):
            return Event(at, job, Kind.REFUSED, f"{verb.value} was {outcome.result.value}: {outcome.detail}", code)
        case Result.UNDONE, verb:
            return Event(at, job, Kind.UNDONE, f"{verb.value} taken back: {sentence}", code)
        case _:
            return None
