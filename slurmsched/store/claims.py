"""What of a job is ours, not its owner's: its hold, its shape, its nice.

A claim is written in the transaction that journals the intent, so before Slurm is changed; it is dropped only once the
change is known to be gone. A killed daemon therefore never leaves a hold, a pin or a boost that nobody knows of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from slurmsched.model import Code, Operation, Outcome, Result, Verb
from slurmsched.store.database import Database

__all__ = ["claim", "resolve"]

_CLAIMS: Final = {
    Verb.HOLD: "UPDATE jobs SET held_by_us = 1 WHERE id = ?",
    Verb.REQUEUE: "UPDATE jobs SET held_by_us = 1 WHERE id = ?",
    Verb.RESHAPE: "UPDATE jobs SET reshaped = 1 WHERE id = ?",
    Verb.PRIORITIZE: "UPDATE jobs SET boosted = 1 WHERE id = ?",
}
_NO_HOLD: Final = "UPDATE jobs SET held_by_us = 0 WHERE id = ?"
_NO_SHAPE: Final = "UPDATE jobs SET reshaped = 0 WHERE id = ?"
_NO_BOOST: Final = "UPDATE jobs SET boosted = 0 WHERE id = ?"


def claim(database: Database, operations: Iterable[Operation]) -> None:
    """Before these are done: what they would make ours is ours."""
    for operation in operations:
        statement = _CLAIMS.get(operation.verb)
        if statement is not None:
            database.write(statement, (operation.subject,))


def resolve(database: Database, outcomes: Iterable[Outcome]) -> None:
    """After these were read back: what is no longer ours is not."""
    for outcome in outcomes:
        statement = _dropped(outcome)
        if statement is not None:
            database.write(statement, (outcome.operation.subject,))


def _dropped(outcome: Outcome) -> str | None:
    operation, done = outcome.operation, outcome.result is Result.DONE
    match operation.verb:
        case Verb.HOLD | Verb.REQUEUE:
            return None if done else _NO_HOLD
        case Verb.RELEASE:
            return _NO_HOLD if done else None
        case Verb.RESHAPE if done and operation.reason.code is Code.GIVE_BACK:
            return _NO_SHAPE
        case Verb.PRIORITIZE if done and operation.reason.code is Code.GIVE_BACK:
            return _NO_BOOST
        case _:
            return None  # a reshape that was refused may have been applied in part: it stays ours to mend
