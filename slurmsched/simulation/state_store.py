"""The state store of a simulation: keeps in memory what a round needs of earlier rounds, without a database.

It keeps no history. A test compares it with the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from slurmsched.backends.protocol import JobOrigin
from slurmsched.daemon.job_reports import last_report, rate_sample
from slurmsched.jobside.report import Report
from slurmsched.knowledge.lengths import unfinished_jobs
from slurmsched.knowledge.usage import UseHistory
from slurmsched.knowledge.work import UnfinishedJob, Work
from slurmsched.model import (
    AccountedRun,
    Block,
    ExpectedLength,
    Hold,
    JobId,
    JobState,
    MeasuredRate,
    NotifiedJob,
    Operation,
    Outcome,
    ReasonCode,
    Request,
    Result,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.rounds.checkpoints import NEWCOMERS
from slurmsched.rounds.refusals import RefusedStart, with_refusals
from slurmsched.rounds.specs import held_by_us, with_original_requests
from slurmsched.store.journal import JournalEntry
from slurmsched.store.measurements import LastReport
from slurmsched.store.service import DAY

_EMPTY_STATE = SchedulerState()
_WITH_RESOURCES = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


class LengthSource(Protocol):
    """What is known of the lengths of jobs: `JobLengths`, which learns from the runs that end, or what is foreseen."""

    def ended(self, run: AccountedRun) -> None:
        """Takes notice of a run that has ended."""

    def of(self, jobs: Sequence[UnfinishedJob], now: float) -> Mapping[JobId, ExpectedLength]:
        """Returns how long each of the cluster's jobs still runs, all of which are `jobs`."""


@dataclass(slots=True)
class _JobState:
    """The state of a job: its original request, and whether this scheduler holds it or has updated its request."""

    original_request: Request
    held: bool = False
    updated: bool = False


@dataclass(slots=True)
class InMemoryStateStore:
    """The journal that the applier writes to, and the scheduler state that rounds read."""

    policy_state: Mapping[str, object] = field(default_factory=dict)
    _reports: dict[JobId, LastReport] = field(default_factory=dict)
    _rates: defaultdict[JobId, dict[str, MeasuredRate]] = field(default_factory=lambda: defaultdict(dict))
    _family_rates: defaultdict[str, dict[str, MeasuredRate]] = field(default_factory=lambda: defaultdict(dict))
    _known: dict[JobId, _JobState] = field(default_factory=dict)
    _runs: defaultdict[JobId, dict[float, tuple[str, float]]] = field(default_factory=lambda: defaultdict(dict))
    """By the start of each run its GPU type and GPU-seconds."""
    _earlier: dict[JobId, Mapping[str, float]] = field(default_factory=dict)
    """GPU-seconds by GPU type of the runs before the beginning."""
    _moves: defaultdict[JobId, list[float]] = field(default_factory=lambda: defaultdict(list))
    _refused: dict[JobId, RefusedStart] = field(default_factory=dict)
    _notified: dict[JobId, NotifiedJob] = field(default_factory=dict)
    _last_entry: int = 0
    lengths: LengthSource | None = None
    """What is known of the lengths of jobs; None if nothing is."""
    use: UseHistory | None = None
    """What earlier runs used; None if nobody measures it."""
    _begun_with: SchedulerState = _EMPTY_STATE
    """The state at the beginning: what is not kept track of here stays as it was."""
    _nices: dict[JobId, int] = field(default_factory=dict)
    _origins: dict[JobId, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of_state(cls, state: SchedulerState, snapshot: Snapshot, lengths: LengthSource | None = None) -> Self:
        """A store that goes on from this state of these jobs."""
        store = cls(policy_state=state.policy_state, lengths=lengths, _begun_with=state)
        store._moves.update((job, list(times)) for job, times in state.moves.items())
        store._notified.update(state.notified)
        store._nices.update(state.nices)
        for job in snapshot.jobs:
            original = state.original_requests.get(job.id)
            updated = original is not None
            store._known[job.id] = _JobState(original or job.current_request, job.id in state.held, updated)
            this_run = snapshot.gpus_of(job) * max(job.run_time, 0.0) if job.allocations else 0.0
            now = job.gpu_type_held
            by_type = state.service_by_type.get(job.id) or {now: state.service.get(job.id, 0.0)}
            before = {kind: seconds - this_run * (kind == now) for kind, seconds in by_type.items()}
            store._earlier[job.id] = {kind: seconds for kind, seconds in before.items() if seconds > 0}
        return store

    def load_state(self, snapshot: Snapshot) -> SchedulerState:
        """The scheduler state of the jobs in the snapshot, which must have been recorded by `record_poll`."""
        known = {job: state for job, state in self._known.items() if job in snapshot.jobs_by_id}
        begun_with = self._begun_with
        by_type = {job: self._service_by_type(job) for job in known if job in self._runs or job in self._earlier}
        state = replace(
            begun_with,
            starting={},
            lengths={},
            nices={job: nice for job, nice in self._nices.items() if job in known},
            original_requests={job: state.original_request for job, state in known.items() if state.updated},
            held=frozenset(job for job, state in known.items() if state.held),
            service={job: sum(of_types.values()) for job, of_types in by_type.items()},
            service_by_type=by_type,
            moves={
                job: times
                for job in known
                if job in self._moves and (times := tuple(at for at in self._moves[job] if at > snapshot.time - DAY))
            },
            policy_state=self.policy_state,
            notified={
                job: notified
                for job, notified in self._notified.items()
                if (current := snapshot.jobs_by_id.get(job)) is not None
                and current.state is JobState.RUNNING
                and (current.start_time or 0.0) <= notified.at
            },
            measured={
                **begun_with.measured,
                **{job: tuple(self._rates[job].values()) for job in known if job in self._rates},
            },
            family_rates={
                **begun_with.family_rates,
                **{
                    family: tuple(self._family_rates[family].values())
                    for family in {job.family for job in snapshot.jobs}
                    if family in self._family_rates
                },
            },
            steps={**begun_with.steps, **{job: self._reports[job].steps for job in known if job in self._reports}},
            restart_seconds={
                **begun_with.restart_seconds,
                **{
                    job: seconds
                    for job in known
                    if job in self._reports and (seconds := self._reports[job].restart_seconds) is not None
                },
            },
        )
        if self.use is not None:
            sized = snapshot.jobs_in_state(JobState.PENDING, JobState.RUNNING)
            works = {job.id: Work.of_job(job, *self._origins.get(job.id, ())) for job in sized}
            state = replace(state, use=self.use.of(works, snapshot.time))
        if self.lengths is not None:
            unfinished = unfinished_jobs(snapshot, state.service, state.steps, self._origins)
            lengths = self.lengths.of(unfinished, snapshot.time)
            state = replace(state, lengths={job: length for job, length in lengths.items() if length.runs})
        state = with_refusals(state, self._refused, with_original_requests(snapshot, state))
        return replace(state, let_go=state.let_go | begun_with.let_go) if begun_with.let_go else state

    def _service_by_type(self, job: JobId) -> Mapping[str, float]:
        by_type = dict(self._earlier.get(job, {}))
        for kind, seconds in self._runs.get(job, {}).values():
            by_type[kind] = by_type.get(kind, 0.0) + seconds
        return by_type

    @property
    def learns(self) -> bool:
        """Whether anything is learnt of runs that end."""
        return self.lengths is not None or self.use is not None

    def ended(self, run: AccountedRun) -> None:
        """Learns of a run that has ended."""
        if self.lengths is not None:
            self.lengths.ended(run)
        if self.use is not None:
            self.use.ended(run)

    def unknown_origins(self, jobs: Iterable[JobId]) -> tuple[JobId, ...]:
        """Those of these jobs whose script and folder have not been asked for."""
        return tuple(job for job in jobs if job not in self._origins) if self.learns else ()

    def record_origins(self, origins: Mapping[JobId, JobOrigin]) -> None:
        """Remembers the script and the folder of each of these jobs."""
        self._origins.update((job, (origin.script, origin.folder)) for job, origin in origins.items())

    def refused_starts(self) -> Mapping[JobId, RefusedStart]:
        """The last start of each job that was refused."""
        return self._refused

    def record_refusals(self, refused: Iterable[RefusedStart]) -> None:
        """Remember these refusals."""
        self._refused.update((one.job, one) for one in tuple(refused))

    def record_poll(self, snapshot: Snapshot) -> None:
        """Updates the state from a poll. All jobs are managed; jobs that left the snapshot are forgotten."""
        for job in snapshot.jobs:
            known = self._known.setdefault(job.id, _JobState(job.current_request))
            if job.state is JobState.PENDING:
                known.held = job.hold is not Hold.NONE and (known.held or held_by_us(job, _EMPTY_STATE))
                if not known.updated:
                    known.original_request = job.current_request
            elif job.state in _WITH_RESOURCES:
                known.held = known.held and job.state is JobState.COMPLETING
                if job.start_time is not None:
                    kind, _ = self._runs[job.id].get(job.start_time, ("", 0.0))
                    seconds = snapshot.gpus_of(job) * max(job.run_time, 0.0)
                    self._runs[job.id][job.start_time] = job.gpu_type_held or kind, seconds
        for gone in self._known.keys() - snapshot.jobs_by_id.keys():
            for table in (self._known, self._runs, self._moves, self._refused, self._notified, self._origins):
                table.pop(gone, None)
            self._earlier.pop(gone, None)
            self._reports.pop(gone, None)
            self._rates.pop(gone, None)

    def record_reports(self, reports: Mapping[JobId, Report], snapshot: Snapshot) -> None:
        """Records the steps and rates that jobs report, as the daemon does with the reports in its spool.

        For each GPU type the latest rate counts: a simulated job has one rate on each.
        """
        for job, report in reports.items():
            before = self._reports.get(job)
            same_run = before if before is not None and before.run == report.run else None
            sample = rate_sample(snapshot.jobs_by_id[job], report, same_run, snapshot.nodes_by_name)
            self._reports[job] = last_report(snapshot.jobs_by_id[job], report, before)
            if sample is not None:
                self._rates[job][sample.measured.gpu_type] = sample.measured
                if sample.family:
                    self._family_rates[sample.family][sample.measured.gpu_type] = sample.measured

    def paused(self) -> None:
        """Does nothing: a simulation is never paused."""

    def record_intents(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], _at: float
    ) -> tuple[JournalEntry, ...]:
        """Writes the operations to the journal before they are done, and marks jobs that they hold or update."""
        entries = tuple(JournalEntry(self._next_entry(), round_id, index, operation) for index, operation in numbered)
        for operation in (entry.operation for entry in entries):
            known = self._known.get(operation.subject)
            if known is not None:
                known.held = known.held or operation.verb in (Verb.HOLD, Verb.REQUEUE)
                known.updated = known.updated or operation.verb is Verb.UPDATE
        return entries

    def record_skipped(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], became: Result, detail: str, at: float
    ) -> None:
        """Does nothing: skipped operations are not recorded."""

    def record_blocked(self, round_id: int, numbered: Iterable[tuple[int, Operation]], block: Block, at: float) -> None:
        """Does nothing: no operation of a simulation is blocked."""

    def record_outcomes(self, became: Sequence[tuple[JournalEntry, Outcome]], at: float) -> None:
        """Records the result of each operation, and unmarks jobs that are no longer held or updated."""
        for _, outcome in became:
            operation, done = outcome.operation, outcome.result is Result.DONE
            if operation.verb is Verb.REQUEUE and done:
                self._moves[operation.subject].append(at)
                self._notified.pop(operation.subject, None)
            if operation.verb is Verb.NOTIFY and done:
                self._notified.pop(operation.subject, None)
                if newcomers := str(operation.reason.details.get(NEWCOMERS, "")):
                    self._notified[operation.subject] = NotifiedJob(at, tuple(newcomers.split(",")))
            if done:
                self._record_nice(operation)
            known = self._known.get(operation.subject)
            if known is None:
                continue
            if operation.verb in (Verb.HOLD, Verb.REQUEUE):
                known.held = known.held and done
            elif operation.verb is Verb.RELEASE and done:
                known.held = False
            elif operation.verb is Verb.UPDATE and done and operation.reason.code is ReasonCode.GIVE_BACK:
                known.updated = False

    def _record_nice(self, operation: Operation) -> None:
        if operation.verb is Verb.PRIORITIZE and isinstance(operation.before, int):
            self._nices.setdefault(operation.subject, operation.before)
            if operation.reason.code is ReasonCode.GIVE_BACK:
                del self._nices[operation.subject]

    def mark_undone(self, entry: JournalEntry, detail: str) -> None:
        """Does nothing: refused starts are recorded by `record_refusals`."""

    def _next_entry(self) -> int:
        self._last_entry += 1
        return self._last_entry
