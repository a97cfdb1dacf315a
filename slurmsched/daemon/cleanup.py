"""Resolves operations that an interruption left open, and gives jobs back to Slurm.

All jobs are given back at a clean stop, by `synsched release` and by the watchdog, with or without a database.
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
from slurmsched.daemon.log import NO_LOG, DaemonLog
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
from slurmsched.rounds.specs import release_plan
from slurmsched.settings.definition import HookSettings, Mode
from slurmsched.store.errors import StoreError
from slurmsched.store.journal import Journal, JournalEntry, RoundStatistics
from slurmsched.store.store import Store


def resolve_open_intents(
    journal: Journal, snapshot: Snapshot, state: SchedulerState, at: float, log: DaemonLog = NO_LOG
) -> Plan:
    """Record the outcome of each open intent as the cluster shows it; return the repairs. Raises StoreError.

    The intents of a job whose record cannot be read stay open until it can be.
    """
    entries = journal.open_intents()
    recovery = resolve_intents([entry.operation for entry in entries], snapshot, state)
    resolved = [
        (entry, Outcome(operation, result, detail="determined by a later round"))
        for entry, (operation, result) in zip(entries, recovery.results, strict=True)
        if result is not Result.INTENDED
    ]
    if resolved:
        journal.record_outcomes(resolved, at)
        log.operations((outcome for _, outcome in resolved), snapshot, resumed=True)
    return recovery.repairs


def stray_release_plan(snapshot: Snapshot, state: SchedulerState, managed: Collection[JobId], mode: Mode) -> Plan:
    """Undo our changes that this mode does not use: all those of jobs that are no longer managed; holds and changed
    requests except in ENFORCE; nices except in PRIORITIZE. The plan of the round releases jobs that are set aside.
    """
    hooked = (aside.job for aside in snapshot.set_aside if aside.held_by_hook)
    kept = frozenset((*managed, *state.held_aside, *hooked))

    def stays(operation: Operation) -> bool:
        needed_in = Mode.PRIORITIZE if operation.verb is Verb.PRIORITIZE else Mode.ENFORCE
        return mode is needed_in and operation.subject in kept

    placed = kept if mode is Mode.ENFORCE else ()
    return Plan(tuple(op for op in release_plan(snapshot, state, placed).operations if not stays(op)))


_POLL_INTERVAL: Final = 5.0
"""Seconds between polls while requeued jobs are completing."""

_MODE: Final = "release"
_NO_ROUND: Final = "not a scheduling round: jobs were given back to Slurm"
_UNKNOWN: Final = "only jobs that the hook held are given back, since Slurm does not show which other holds are ours"


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The outcomes of giving jobs back; `warnings` are sentences on what could not be read or recorded."""

    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The jobs that were released, in order."""
        done = (outcome.operation for outcome in self.outcomes if outcome.result is Result.DONE)
        return tuple(dict.fromkeys(operation.subject for operation in done if operation.verb is Verb.RELEASE))


def no_scheduler_alive(hook: HookSettings, now: float) -> bool:
    """Whether the heartbeat is missing or stale, or says that the daemon stopped."""
    beat = HeartbeatFile(Path(hook.heartbeat)).read()
    return beat is None or beat.is_stale(now, hook.stale_after)


def open_store_if_usable(path: Path, at: float) -> tuple[Store | None, str]:
    """The database; or None and a sentence on what follows if it cannot be used."""
    if not path.exists():
        return None, f"there is no database {path}: {_UNKNOWN}"
    try:
        return Store.open(path, at), ""
    except StoreError as error:
        return None, f"{error}; {_UNKNOWN}"


def release_all(
    backend: Backend,
    store: Store | None,
    clock: Clock,
    patience: float,
    only: Collection[JobId] | None = None,
    *,
    log: DaemonLog = NO_LOG,
) -> ReleaseResult:
    """Undo all our changed requests, nices and holds, or those of the jobs in `only`. Raises BackendError.

    Waits up to `patience` seconds for jobs that we requeued and that are still completing, since they would come back
    held, and for operations that may not have taken effect. Without a database only what Slurm shows to be ours is
    undone.
    """
    release = _Release(backend, store, clock, log)
    end = clock.monotonic() + patience
    while True:
        snapshot = backend.observe()
        state = release.state(snapshot)
        planned = [op for op in release_plan(snapshot, state).operations if only is None or op.subject in only]
        in_doubt = release.execute([operation for operation in planned if operation not in release.tried], snapshot)
        awaited = [job for job in snapshot.jobs_in_state(JobState.COMPLETING) if job.id in state.held]
        if not (awaited or in_doubt) or clock.monotonic() >= end:
            return release.end()
        clock.sleep(_POLL_INTERVAL)


@dataclass(slots=True)
class _Release:
    backend: Backend
    store: Store | None
    clock: Clock
    log: DaemonLog
    round_id: int | None = None
    tried: list[Operation] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def state(self, snapshot: Snapshot) -> SchedulerState:
        """Our changes to the jobs of the snapshot, as far as they can be known."""
        if self.store is None:
            return SchedulerState()
        try:
            record_poll_isolated(self.store, None, snapshot, ())
        except SynschedError as error:
            self._warn(error)  # a database on a full disk can still be read
        try:
            return self.store.state.load_state(snapshot, "")
        except SynschedError as error:
            self._warn(error, _UNKNOWN)
            return SchedulerState()

    def execute(self, operations: Sequence[Operation], snapshot: Snapshot) -> bool:
        """Execute them as one batch, in order; return whether some FAILED, so that they may be tried again.

        A job whose UPDATE is refused is still released: a pinned job is better than a held one.
        """
        if not operations:
            return False
        entries = self._intend(operations)
        outcomes = self.backend.execute(operations)
        before = [outcome for outcome in self.outcomes if outcome.operation not in operations]
        self.outcomes = [*before, *outcomes]
        self.tried.extend(outcome.operation for outcome in outcomes if outcome.result is not Result.FAILED)
        self._record(entries, outcomes)
        self.log.operations(outcomes, snapshot)
        return any(outcome.result is Result.FAILED for outcome in outcomes)

    def end(self) -> ReleaseResult:
        """Return all that was done, and mark its round in the database as not a scheduling round."""
        if self.store is not None and self.round_id is not None:
            try:
                self.store.journal.finish_round(self.round_id, self.clock.now(), RoundStatistics(), _NO_ROUND)
            except StoreError as error:
                self._warn(error)
        return ReleaseResult(tuple(self.outcomes), tuple(dict.fromkeys(self.warnings)))

    def _intend(self, operations: Sequence[Operation]) -> tuple[JournalEntry, ...]:
        """Record the intents if possible: giving back is safe without a journal, since it can be repeated."""
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
