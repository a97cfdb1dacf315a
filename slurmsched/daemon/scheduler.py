"""Runs one scheduling round: observe, decide, plan, apply, record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Final

from slurmsched.backends.prometheus import EXPORTERS, MOST_RUNS, AskedRun, Prometheus, PrometheusError
from slurmsched.backends.protocol import Backend, BackendError, CallCounts, Identity
from slurmsched.backends.recorded import RecordingPacker
from slurmsched.daemon.batches import RoundEnd
from slurmsched.daemon.cleanup import resolve_open_intents, stray_release_plan
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.config_fragments import render_fragments
from slurmsched.daemon.dispatch_files import DISPATCH_PERIODS, make_dispatches, write_dispatches
from slurmsched.daemon.execution import Applier, ApplyResult, OpenPlan, advance_plans
from slurmsched.daemon.gate import Gate, mode_in_force
from slurmsched.daemon.isolation import (
    IsolatedDecision,
    RoundFailedError,
    decide_isolated,
    describe_error,
    format_trace,
    managed_jobs,
    record_poll_isolated,
    still_failing_jobs,
    with_fragments_if_possible,
)
from slurmsched.daemon.job_reports import checkpointed_jobs, ingest, record_idle_gpus, record_out_of_memory
from slurmsched.daemon.log import NO_LOG, DaemonLog
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    MILLI_PER_GPU,
    AccountedRun,
    BlockCause,
    Decision,
    IdleGpus,
    Job,
    JobId,
    JobState,
    NodeState,
    Outcome,
    Plan,
    SchedulerState,
    Snapshot,
    SynschedError,
)
from slurmsched.model.reasons import pluralise
from slurmsched.policies.policies import configured_policy, order_read
from slurmsched.policies.stages import Policy, Situation
from slurmsched.rounds.device_mismatch import device_mismatches
from slurmsched.rounds.refusals import refused_starts
from slurmsched.rounds.round import RoundResult, paused_collector, run_round
from slurmsched.rounds.set_aside import JobFingerprints, set_aside_jobs
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.errors import StoreError
from slurmsched.store.finished_runs import pauses
from slurmsched.store.journal import RoundStatistics
from slurmsched.store.rows import ExporterRow
from slurmsched.store.store import Store


class TimedPolicy:
    """Wraps a policy and measures it; `seconds` is the duration of the last decision."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self.seconds = 0.0

    @property
    def name(self) -> str:
        return self._policy.name

    def decide(self, situation: Situation) -> Decision:
        """Return the wrapped policy's decision."""
        began = self._clock.monotonic()
        decision = self._policy.decide(situation)
        self.seconds = self._clock.monotonic() - began
        return decision


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What rounds need: the settings in force, the backend of the cluster, and the knowledge about jobs; what packs the
    recording of each round, the fingerprints of jobs, and how long rounds take to end."""

    settings: Settings
    backend: Backend
    knowledge: Knowledge
    packer: RecordingPacker = field(default_factory=RecordingPacker)
    fingerprints: JobFingerprints = field(default_factory=JobFingerprints)
    end: RoundEnd = field(default_factory=RoundEnd)


def current_identity(backend: Backend) -> Identity | None:
    """Whom the backend acts as; None where it cannot be asked for."""
    try:
        return backend.identity()
    except BackendError:
        return None


def _in_force(context: SchedulerContext) -> SchedulerContext:
    """The context with the mode in force. If nobody answers, the round fails by itself, under its own mode."""
    identity = current_identity(context.backend)
    mode = context.settings.rounds.mode if identity is None else mode_in_force(context.settings, identity)
    rounds = replace(context.settings.rounds, mode=mode)
    return replace(context, settings=replace(context.settings, rounds=rounds))


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A finished round. `snapshot` is the cluster as last polled."""

    id: int
    result: RoundResult
    outcomes: tuple[Outcome, ...]
    snapshot: Snapshot
    tally: RoundStatistics
    retry_at: float = inf
    """When the first refused start is due again, or a round before the clock brings one, in unix seconds."""


@paused_collector()
def schedule_round(
    context: SchedulerContext,
    store: Store,
    clock: Clock,
    *,
    tick: Callable[[], None] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
    log: DaemonLog = NO_LOG,
    starts_only: bool = False,
    open_plans: list[OpenPlan] | None = None,
) -> RoundReport:
    """Run one round; with `starts_only` an early one, which starts jobs on free resources and does nothing else, unless
    the policy finds that a full one is due.

    With `open_plans` the round does not wait for what takes time: its plan is added to the list, to be advanced by
    `advance_plans` until it has settled, and what the plans in the list promise is kept for their jobs.

    Raises BackendError, StoreError, RoundFailedError and other errors that prevent a decision.

    The round is stored in the database before the cluster is polled: without space for it nothing is changed. After an
    error the next round determines the outcomes of open intents. `log` gets what is done to jobs, and errors that did
    not end the round. While our rights are unknown or too few, mode OBSERVE is in force instead of ENFORCE.
    """
    context = _in_force(context)
    settings = context.settings
    if interrupted := store.journal.close_interrupted_rounds(clock.now()):
        log.event(f"{pluralise(interrupted, 'round')} of an earlier process did not end: it was killed", verb="recover")
    order = order_read(settings.policy.system, settings.policy.order)
    round_id = store.journal.begin_round(clock.now(), settings.rounds.mode.value, settings.policy.system, order)
    gate = Gate(settings, store.switches, clock)
    spool = settings.reports.spool
    applier = Applier(
        context.backend,
        store.journal,
        gate,
        clock,
        settings.rounds,
        tick=tick,
        stopping=stopping,
        checkpointed=lambda jobs: _checkpointed(spool, jobs),
        log=log,
        round_began=clock.monotonic(),
    )
    try:
        report = _Round(round_id, context, store, clock, applier, gate, log, starts_only, open_plans).run()
        store.journal.finish_round(round_id, clock.now(), report.tally)
    except SynschedError as error:
        with suppress(StoreError):  # the first error is the one to report
            store.journal.finish_round(round_id, clock.now(), RoundStatistics(), str(error))
        raise
    except Exception as error:
        failed = RoundFailedError(f"the round failed: {describe_error(error)}")
        log.once(f"the round failed: {format_trace(error)}")
        with suppress(StoreError):  # as above
            store.journal.finish_round(round_id, clock.now(), RoundStatistics(), str(failed))
        raise failed from error
    return report


def _checkpointed(spool: str, jobs: Sequence[Job]) -> frozenset[JobId]:
    """The jobs that report a written checkpoint; empty if the reports cannot be read."""
    try:
        return checkpointed_jobs(Path(spool), jobs) if spool and jobs else frozenset()
    except (SynschedError, OSError, ValueError):
        return frozenset()


@dataclass(frozen=True, slots=True)
class _Observation:
    """The cluster and the scheduler's state at the start of the round.

    `failing` are jobs of the poll that are set aside by us, with the reason.
    """

    snapshot: Snapshot
    state: SchedulerState
    managed: frozenset[JobId]
    failing: Mapping[JobId, str]


@dataclass(frozen=True, slots=True)
class _Round:
    id: int
    context: SchedulerContext
    store: Store
    clock: Clock
    applier: Applier
    gate: Gate
    log: DaemonLog
    starts_only: bool = False
    open_plans: list[OpenPlan] | None = None

    def run(self) -> RoundReport:
        calls, began = replace(self.context.backend.calls), self.clock.monotonic()
        seen, returned = self._observe()
        seen = seen if self.starts_only else self._with_idle_gpus(seen)
        observed = self.clock.monotonic()
        decided, decide_s = self._decide(seen)
        planned, result = self.clock.monotonic(), decided.result
        self._record(seen, decided)
        first_look, end = observed - began + self.clock.monotonic() - planned, self.context.end
        self.applier.last_look = end.expected(first_look)
        applied = self._apply(seen, result)
        self.store.start_forecasts.compare(applied.snapshot)
        if self.context.settings.learning.accounting and not result.starts_only:
            self._learn(seen)
        left_over = tuple(_left_over(applied))
        if left_over:
            end.learn(first_look, self.clock.monotonic() - self.applier.changed_at)
        tally = replace(
            _tally(seen, calls, self.context.backend.calls),
            observe_s=observed - began,
            decide_s=decide_s,
            plan_s=planned - observed - decide_s,
            apply_s=self.clock.monotonic() - planned,
        )
        return RoundReport(
            self.id,
            result,
            (*returned, *applied.outcomes),
            applied.snapshot,
            tally,
            min((*seen.state.retry_at.values(), result.decision.full_round_at, *left_over), default=inf),
        )

    def _observe(self) -> tuple[_Observation, tuple[Outcome, ...]]:
        """Poll; if an interrupted round or other settings left changes behind, repair them and poll again."""
        seen, advanced = self._poll(), tuple[Outcome, ...]()
        if self.open_plans:
            advanced = advance_plans(self.open_plans, seen.snapshot)
            seen = self._poll() if advanced else seen
            promised = {job: start for opened in self.open_plans for job, start in opened.open_starts.items()}
            seen = replace(seen, state=replace(seen.state, starting=promised))
        mode, at = self.context.settings.rounds.mode, self.clock.now()
        repairs = resolve_open_intents(self.store.journal, seen.snapshot, seen.state, at, self.log).operations
        planned = stray_release_plan(seen.snapshot, seen.state, seen.managed - seen.state.let_go, mode).operations
        identity = self.context.backend.identity()
        strays = [replace(op, permitted=identity.may(op.verb) or bool(identity.unread)) for op in planned]
        if not repairs and not strays:
            return seen, advanced
        repaired = self.applier.apply_without_waiting(self.id, Plan((*repairs, *strays)), seen.snapshot)
        if repaired.changed:
            seen = replace(self._poll(), state=replace(seen.state, starting=seen.state.starting))
        return seen, (*advanced, *repaired.outcomes)

    def _poll(self) -> _Observation:
        settings, now = self.context.settings, self.clock.now()
        with ThreadPoolExecutor(max_workers=1) as beside:
            observed = beside.submit(self.context.backend.observe)
            self.store.state.read_ahead(now)
            polled = observed.result()
        managed, failing = managed_jobs(polled, settings)
        read = set_aside_jobs(polled, failing)
        failing |= record_poll_isolated(self.store, self.id, read, managed, log=self.log)
        failing |= still_failing_jobs(polled, self.store, self.context.fingerprints)
        snapshot = set_aside_jobs(polled, failing)
        managed -= failing.keys()
        self._ingest(snapshot, managed)
        state = self.store.state.load_state(snapshot, settings.policy.system, lengths=settings.learning.knows_lengths)
        checkpointed = _checkpointed(settings.reports.spool, [snapshot.jobs_by_id[job] for job in state.notified])
        notified = {job: replace(notice, saved=job in checkpointed) for job, notice in state.notified.items()}
        return _Observation(snapshot, replace(state, notified=notified), managed, failing)

    def _ingest(self, snapshot: Snapshot, managed: frozenset[JobId]) -> None:
        """Read the reports of jobs, and who ran out of memory; every user may write to the spool, so no error there
        ends a round."""
        folder, measurements = self.context.settings.reports.spool, self.store.measurements
        spool = Path(folder) if folder else None
        try:
            if spool is not None:
                ingest(spool, snapshot, managed, measurements, forgotten=self.store.finished_runs.forgotten())
            record_out_of_memory(spool, snapshot, measurements)
        except SynschedError:
            raise
        except Exception as error:
            self.log.once(f"the reports of jobs are ignored: {format_trace(error)}")

    def _with_idle_gpus(self, seen: _Observation) -> _Observation:
        """The observation with the running jobs that have idle GPUs, as told now: nothing older counts in the decision,
        and no error ends a round."""
        idle: Mapping[JobId, IdleGpus] = {}
        try:
            idle = record_idle_gpus(seen.snapshot, self.context.settings, self.store, self.clock.now())
        except StoreError:
            raise
        except Exception as error:
            self.log.once(f"no job is known to have idle GPUs: {format_trace(error)}")
        return replace(seen, state=replace(seen.state, idle=idle))

    def _decide(self, seen: _Observation) -> tuple[IsolatedDecision, float]:
        settings = self.context.settings
        timed = TimedPolicy(configured_policy(settings.policy), self.clock)
        identity = self.context.backend.identity()
        files = render_fragments(settings, seen.snapshot)

        def decide(snapshot: Snapshot) -> RoundResult:
            return run_round(
                snapshot,
                seen.state,
                settings,
                self.context.knowledge,
                identity,
                policy_override=timed,
                config_fragments=files,
                starts_only=self.starts_only,
            )

        prints, log = self.context.fingerprints, self.log.once
        return decide_isolated(seen.snapshot, decide, self.store, self.clock, log, prints=prints), timed.seconds

    def _record(self, seen: _Observation, decided: IsolatedDecision) -> None:
        storage, result = self.context.settings.storage, decided.result
        recorded = storage.keep_snapshots and (result.plan.operations or not result.starts_only)
        with ThreadPoolExecutor(max_workers=1) as beside:  # compressing takes a second processor
            packed = beside.submit(self.context.packer.pack, seen.snapshot, seen.state) if recorded else None
            overview = with_fragments_if_possible(self.store.state.overviews.of(result.snapshot), seen.state.usual)
            recording = packed.result if packed else None
            self.store.state.record_decision(self.id, result, decided.explain, recording, overview)
        carried = {job: mark for job, mark in self.store.set_aside.fingerprints().items() if job in seen.failing}
        self.store.set_aside.replace(result.snapshot.set_aside, seen.snapshot.time, {**carried, **decided.marks})
        self.store.state.prune(self.clock.now(), storage.keep_days, storage.keep_snapshots)

    def _apply(self, seen: _Observation, result: RoundResult) -> ApplyResult:
        """Apply the plan; what its open rest does later is recorded then."""

        def record(applied: ApplyResult, settled: bool) -> None:
            self._record_applied(seen, result, applied, settled=settled)

        if self.context.settings.rounds.mode is not Mode.ENFORCE:
            applied = self.applier.apply_without_waiting(self.id, result.plan, seen.snapshot)
        elif self.open_plans is None:
            applied = self.applier.apply(self.id, result.plan, seen.snapshot)
        else:
            opened = self.applier.open(self.id, result.plan, seen.snapshot)
            if not opened.settled:
                opened.after = record
                self.open_plans.append(opened)
                return opened.report()
            applied = opened.finish()
        record(applied, True)
        return applied

    def _record_applied(self, seen: _Observation, result: RoundResult, applied: ApplyResult, *, settled: bool) -> None:
        enforces = self.context.settings.rounds.mode is Mode.ENFORCE
        if settled and enforces and not result.starts_only and self.gate.closed_reason() is None:
            self._dispatch(result, applied.snapshot)
        if applied.changed:
            last, targets = applied.snapshot, result.decision.targets
            earlier = self.store.state.refused_starts()
            refused = tuple(refused_starts(applied.outcomes, result.snapshot, earlier, last.time))
            self.store.state.record_refusals(refused)
            waiting = {job.id: job for job in last.jobs_in_state(JobState.PENDING)}
            self.store.state.record_reasons(
                {one.job: one.why(waiting[one.job], last) for one in refused if one.job in waiting}
            )
            mismatches = device_mismatches(targets.values(), seen.snapshot, last) if settled else ()
            self.store.state.record_events(self.id, applied.outcomes, targets, last.time, mismatches)
            overview = with_fragments_if_possible(self.store.state.overviews.of(last), seen.state.usual)
            record_poll_isolated(self.store, self.id, last, seen.managed, overview, log=self.log)

    def _learn(self, seen: _Observation) -> None:
        """Ask accounting which runs have ended, and Slurm for the scripts of new jobs; once the round is applied, as an
        error there costs what would have been learnt and nothing else."""
        backend, runs, now = self.context.backend, self.store.finished_runs, self.clock.now()
        try:
            waiting = (job.id for job in seen.snapshot.jobs_in_state(JobState.PENDING, JobState.RUNNING))
            unknown = runs.unknown_origins(job for job in waiting if job in seen.managed)
            runs.record_origins(backend.origins(unknown) if unknown else {})
            types = {gpu.type for node in seen.snapshot.nodes for gpu in node.gpus}
            cursor, began = runs.cursor(now), self.clock.monotonic()
            for _ in range(_MOST_PAGES):
                window = cursor.window(now)
                if window is None or self.clock.monotonic() - began > _LONGEST_LEARNING:
                    break
                try:
                    page = backend.finished_runs(*window)
                except BackendError as error:
                    runs.record(cursor.failed(str(error), now))
                    break
                cursor, ended = cursor.after(page.runs, now)
                if cursor.reached >= now:  # once in a round: exporters keep little of long ago
                    ended = self._measured(ended, page.numbers, now)
                runs.record(cursor, ended, next(iter(types)) if len(types) == 1 else "")
        except StoreError:
            raise
        except Exception as error:
            self.log.once(f"nothing is learnt of jobs that have ended: {format_trace(error)}")

    def _measured(
        self, ended: Sequence[AccountedRun], numbers: Mapping[JobId, str], now: float
    ) -> Sequence[AccountedRun]:
        """These runs with what a Prometheus tells of how busy the GPUs of the latest were."""
        settings, runs = self.context.settings.learning, self.store.finished_runs
        lately = [run for run in ended if now - run.ended < _LATELY and run.seconds >= _MEASURABLE]
        if not settings.prometheus or not lately:
            return ended
        known = runs.exporters()
        due = {one: known.get(one.name, ExporterRow(one.name)) for one in EXPORTERS}
        due = {one: record for one, record in due.items() if not pauses(record.asked, record.failures, now)}
        most = MOST_RUNS >> min(max((record.failures for record in due.values()), default=0), _MOST_HALVINGS)
        lacking = runs.without_gpu_use(lately)[-most:]
        asked = [AskedRun(run, number) for run in lacking if (number := numbers.get(run.job, run.job)).isdecimal()]
        if not due or not asked:
            return ended
        told, outcomes = Prometheus(settings.prometheus, settings.prometheus_cluster).measure(tuple(due), asked)
        runs.record_exporters(
            record.failed(str(outcome), now) if isinstance(outcome, PrometheusError) else record.after(outcome, now)
            for record, outcome in zip(due.values(), outcomes, strict=True)
        )
        return [told.get((run.job, run.ended), run) for run in ended]

    def _dispatch(self, result: RoundResult, last: Snapshot) -> None:
        """Write how many steps each running copy of a forked job does."""
        spool, now = self.context.settings.reports.spool, self.clock.now()
        forked = {job.copy_of for job in last.jobs if job.copy_of}
        if not spool:
            return
        until = now + DISPATCH_PERIODS * self.context.settings.rounds.period
        dispatches = make_dispatches(result.decision.targets.values(), last, round(now * 1000), until)
        if complaints := write_dispatches(Path(spool), dispatches, forked) if forked or dispatches else ():
            self.store.measurements.record((), (), complaints, now)


_MOST_PAGES: Final = 8
"""Questions to accounting in one round at most: one, once it has caught up."""
_LONGEST_LEARNING: Final = 2.0
"""Seconds after which a round asks accounting nothing more."""
_LATELY: Final = 86400.0
_MEASURABLE: Final = 60.0
"""Prometheus is asked for runs that ended within so many seconds and took so long: exporters look now and then."""
_MOST_HALVINGS: Final = 4
"""Failures in a row after each of which half as many runs are asked for: perhaps it was too much."""


def _left_over(applied: ApplyResult) -> Iterator[float]:
    """When the last poll was, if the time did not suffice for all starts: the next round is due at once."""
    if any(outcome.cause is BlockCause.OUT_OF_TIME for outcome in applied.outcomes):
        yield applied.snapshot.time


def _tally(seen: _Observation, before: CallCounts, after: CallCounts) -> RoundStatistics:
    managed = [job for job in seen.snapshot.jobs if job.id in seen.managed]
    nodes = seen.snapshot.nodes
    down = (gpu for node in nodes if node.state is not NodeState.UP for gpu in node.gpus)
    return RoundStatistics(
        gpus=sum(len(node.gpus) for node in nodes),
        gpus_used=sum(gpu.used for node in nodes for gpu in node.gpus) / MILLI_PER_GPU,
        gpus_down=sum(not gpu.used for gpu in down),
        nodes=len(nodes),
        jobs=len(seen.snapshot.jobs),
        managed=len(managed),
        running=sum(job.state is JobState.RUNNING for job in managed),
        waiting=sum(job.state is JobState.PENDING for job in managed),
        reads=after.reads - before.reads,
        writes=after.writes - before.writes,
    )
