"""After an interruption: what the journal left open is read back, and what is no longer ours to hold is given back.

Everything of ours given back to Slurm, with a database or without one: a clean stop, `release`, the watchdog.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import Backend
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.daemon.isolation import record_poll_isolated
from slurmsched.model import (
    JobId,
    JobState,
    Operation,
    Outcome,
    Plan,
    Result,
    SchedulerState,
    Snapshot,
    SynschedError,
    Verb,
)
from slurmsched.rounds.recovery import resolve_intents
from slurmsched.rounds.release import release_plan
from slurmsched.settings.definition import HookSettings, Mode
from slurmsched.store.errors import StoreError
from slurmsched.store.journal import Journal, JournalEntry, RoundStatistics
from slurmsched.store.store import Store


def resolve_open_intents(journal: Journal, snapshot: Snapshot, state: SchedulerState, at: float) -> Plan:
    """Give every open intent the outcome that the cluster shows; what has to be mended. Raises StoreError.

    What concerns a job that cannot be read now stays open, and is read back once it can be.
    """
    entries = journal.open_intents()
    recovery = resolve_intents([entry.operation for entry in entries], snapshot, state)
    resolved = [
        (entry, Outcome(operation, result, detail="read back later"))
        for entry, (operation, result) in zip(entries, recovery.results, strict=True)
        if result is not Result.INTENDED
    ]
    if resolved:
        journal.record_outcomes(resolved, at)
    return recovery.repairs


def stray_release_plan(snapshot: Snapshot, state: SchedulerState, managed: Collection[JobId], mode: Mode) -> Plan:
    """Gives back what this mode has no use for: everything of jobs that are not managed any more, holds and shapes
    where Slurm places, nices where it ranks. When jobs that are set aside are let go, the plan of the round says.
    """
    kept = frozenset((*managed, *state.held_aside))

    def stays(operation: Operation) -> bool:
        using = Mode.PRIORITIZE if operation.verb is Verb.PRIORITIZE else Mode.ENFORCE
        return mode is using and operation.subject in kept

    return Plan(tuple(operation for operation in release_plan(snapshot, state).operations if not stays(operation)))


_POLL_INTERVAL: Final = 5.0
"""Seconds between looks at jobs that are on their way back into the queue."""

_MODE: Final = "release"
_NO_ROUND: Final = "no round: what was ours was given back"
_UNKNOWN: Final = "only jobs that the hook held are given back, as Slurm itself shows no other holds of ours"


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """What was given back; `warnings` are sentences on what could not be known or written down."""

    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """Those that were released, in order."""
        done = (outcome.operation for outcome in self.outcomes if outcome.result is Result.DONE)
        return tuple(dict.fromkeys(operation.subject for operation in done if operation.verb is Verb.RELEASE))


def no_scheduler_alive(hook: HookSettings, now: float) -> bool:
    """Whether the last sign of life is too old, says that the daemon stopped, or is missing."""
    beat = HeartbeatFile(Path(hook.heartbeat)).read()
    return beat is None or beat.is_stale(now, hook.stale_after)


def open_store_if_usable(path: Path, at: float) -> tuple[Store | None, str]:
    """The database, or None and a sentence on what follows from its not being usable."""
    if not path.exists():
        return None, f"there is no database {path}: {_UNKNOWN}"
    try:
        return Store.open(path, at), ""
    except StoreError as error:
        return None, f"{error}; {_UNKNOWN}"


def release_all(
    backend: Backend, store: Store | None, clock: Clock, patience: float, only: Collection[JobId] | None = None
) -> ReleaseResult:
    """Give back every shape, nice and hold of ours, or those of the jobs in `only`. Raises BackendError.

    Jobs that we requeued and that are still completing are waited for, `patience` seconds at most: they would come back
    held. So are jobs that cannot be read and of which it is not known whether they were let go. The database is not
    needed for it: without one only what Slurm shows of us is given back.
    """
    release = _Release(backend, store, clock)
    end = clock.monotonic() + patience
    while True:
        snapshot = backend.observe()
        state = release.state(snapshot)
        wanted = [op for op in release_plan(snapshot, state).operations if only is None or op.subject in only]
        in_doubt = release.execute([operation for operation in wanted if operation not in release.tried])
        awaited = [job for job in snapshot.jobs_in_state(JobState.COMPLETING) if job.id in state.held]
        if not (awaited or in_doubt) or clock.monotonic() >= end:
            return release.end()
        clock.sleep(_POLL_INTERVAL)


@dataclass(slots=True)
class _Release:
    backend: Backend
    store: Store | None
    clock: Clock
    round_id: int | None = None
    tried: list[Operation] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def state(self, snapshot: Snapshot) -> SchedulerState:
        """What is ours of the jobs in the snapshot, as far as it can be known."""
        if self.store is None:
            return SchedulerState()
        try:
            record_poll_isolated(self.store, None, snapshot, ())
        except SynschedError as error:
            self._warn(error)  # a full disk can still be read
        try:
            return self.store.state.load_state(snapshot, "")
        except SynschedError as error:
            self._warn(error, _UNKNOWN)
            return SchedulerState()

    def execute(self, operations: Sequence[Operation]) -> bool:
        """All in one batch, in order; whether it is not known of some that they took effect: they may be tried again.

        A job whose shape is refused is let go all the same: better pinned than held.
        """
        if not operations:
            return False
        entries = self._intend(operations)
        outcomes = self.backend.execute(operations)
        before = [outcome for outcome in self.outcomes if outcome.operation not in operations]
        self.outcomes = [*before, *outcomes]
        self.tried.extend(outcome.operation for outcome in outcomes if outcome.result is not Result.FAILED)
        self._record(entries, outcomes)
        return any(outcome.result is Result.FAILED for outcome in outcomes)

    def end(self) -> ReleaseResult:
        """All that was done. The round that stands for it in the database is no round of scheduling, and says so."""
        if self.store is not None and self.round_id is not None:
            try:
                self.store.journal.finish_round(self.round_id, self.clock.now(), RoundStatistics(), _NO_ROUND)
            except StoreError as error:
                self._warn(error)
        return ReleaseResult(tuple(self.outcomes), tuple(dict.fromkeys(self.warnings)))

    def _intend(self, operations: Sequence[Operation]) -> tuple[JournalEntry, ...]:
        """Giving back needs no journal to be safe: what is not written down is tried again, to no harm."""
        if self.store is None:
            return ()
        journal, now = self.store.journal, self.clock.now()
        try:
            if self.round_id is None:
                self.round_id = journal.begin_round(now, _MODE, "", "")
            return journal.record_intents(self.round_id, enumerate(operations), now)
        except StoreError as error:
            self._warn(error)
            return ()

    def _record(self, entries: Sequence[JournalEntry], outcomes: Sequence[Outcome]) -> None:
        if self.store is None or not entries:
            return
        try:
            self.store.journal.record_outcomes(tuple(zip(entries, outcomes, strict=True)), self.clock.now())
        except StoreError as error:
            self._warn(error)

    def _warn(self, error: SynschedError, *more: str) -> None:
        self.warnings.append("; ".join((str(error), *more)))
