"""What of a job is ours, not its owner's: its hold, its shape, its nice.

A claim is written in the transaction that journals the intent, so before Slurm is changed. It ends only by evidence:
the job was seen without it, or Slurm knows the job no more. So neither a killed daemon nor a job that could not be read
for a while leaves a hold, a pin or a boost that nobody knows of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from slurmsched.model import Code, Operation, Outcome, Request, Result, Verb, encode
from slurmsched.store.database import Database

__all__ = ["claim", "resolve"]

_CLAIMS: Final = {
    Verb.HOLD: "UPDATE jobs SET held_by_us = 1 WHERE id = ?",
    Verb.REQUEUE: "UPDATE jobs SET held_by_us = 1 WHERE id = ?",
    Verb.RESHAPE: "UPDATE jobs SET reshaped = 1 WHERE id = ?",
    Verb.PRIORITIZE: "UPDATE jobs SET boosted = 1 WHERE id = ?",
}
_UNREAD: Final = (
    "INSERT INTO jobs (id, owner, first_seen, last_seen, state, original, held_by_us, sentence)"
    " SELECT job, owner, since, since, 'pending', ?, 1, 'job ' || job || ' is set aside: ' || reason"
    " FROM set_aside WHERE job = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = ?)"
)
"""A job that could never be read has no row yet; what it asks for takes the place of this once it can be."""
_NOTHING_KNOWN: Final = encode(Request())
_NO_HOLD: Final = "UPDATE jobs SET held_by_us = 0 WHERE id = ?"
_NO_SHAPE: Final = "UPDATE jobs SET reshaped = 0 WHERE id = ?"
_NO_BOOST: Final = "UPDATE jobs SET boosted = 0 WHERE id = ?"


def claim(database: Database, operations: Iterable[Operation]) -> None:
    """Before these are done: what they would make ours is ours."""
    for operation in operations:
        statement = _CLAIMS.get(operation.verb)
        if statement is not None:
            database.write(statement, (operation.subject,))
        if operation.verb is Verb.HOLD and operation.reason.code is Code.SET_ASIDE:
            database.write(_UNREAD, (_NOTHING_KNOWN, operation.subject, operation.subject))


def resolve(database: Database, outcomes: Iterable[Outcome]) -> None:
    """After these were read back: what is no longer ours is not."""
    for outcome in outcomes:
        statement = _dropped(outcome)
        if statement is not None:
            database.write(statement, (outcome.operation.subject,))


def _dropped(outcome: Outcome) -> str | None:
    operation, done = outcome.operation, outcome.result is Result.DONE
    match operation.verb:
        case Verb.HOLD | Verb.REQUEUE if outcome.result is Result.REFUSED:
            return _NO_HOLD  # it was seen without one; of any other end the next look at the job tells
        case Verb.RELEASE:
            return _NO_HOLD if done else None
        case Verb.RESHAPE if done and operation.reason.code is Code.GIVE_BACK:
            return _NO_SHAPE
        case Verb.PRIORITIZE if done and operation.reason.code is Code.GIVE_BACK:
            return _NO_BOOST
        case _:
            return None  # a reshape that was refused may have been applied in part: it stays ours to mend
