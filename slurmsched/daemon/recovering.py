"""After an interruption: what the journal left open is read back, and what is no longer ours to hold is given back."""

from __future__ import annotations

from collections.abc import Collection

from slurmsched.model import JobId, Memory, Operation, Outcome, Plan, Result, Snapshot, Verb
from slurmsched.rounds.giving_back import release_plan
from slurmsched.rounds.recovery import recover
from slurmsched.settings.definition import Mode
from slurmsched.store.journal import Journal

__all__ = ["no_longer_ours", "read_back"]


def read_back(journal: Journal, snapshot: Snapshot, memory: Memory, at: float) -> Plan:
    """Give every open intent the outcome that the cluster shows; what has to be mended. Raises StoreError.

    What concerns a job that cannot be read now stays open, and is read back once it can be.
    """
    entries = journal.open_intents()
    recovery = recover([entry.operation for entry in entries], snapshot, memory)
    became = [
        (entry, Outcome(operation, result, detail="read back later"))
        for entry, (operation, result) in zip(entries, recovery.results, strict=True)
        if result is not Result.INTENDED
    ]
    if became:
        journal.record(became, at)
    return recovery.repairs


def no_longer_ours(snapshot: Snapshot, memory: Memory, managed: Collection[JobId], mode: Mode) -> Plan:
    """Gives back what this mode has no use for: everything of jobs that are not managed any more, holds and shapes
    where Slurm places, nices where it ranks. When jobs that are set aside are let go, the plan of the round says.
    """
    kept = frozenset((*managed, *memory.held_aside))

    def stays(operation: Operation) -> bool:
        using = Mode.PRIORITIZE if operation.verb is Verb.PRIORITIZE else Mode.ENFORCE
        return mode is using and operation.subject in kept

    return Plan(tuple(operation for operation in release_plan(snapshot, memory).operations if not stays(operation)))
