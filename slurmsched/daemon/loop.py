"""Runs rounds, as a daemon or once from cron; never both at once with one database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import Identity
from slurmsched.daemon.batches import left_over
from slurmsched.daemon.cleanup import release_all
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.execution import DAEMON_STOPS, OpenPlan, advance_plans
from slurmsched.daemon.exporter import Exporter
from slurmsched.daemon.gate import mode_in_force
from slurmsched.daemon.isolation import RoundFailedError, describe_error, format_trace
from slurmsched.daemon.keepalive import Keepalive, SystemdNotifier, totals_line
from slurmsched.daemon.lock import exclusive_lock
from slurmsched.daemon.log import DaemonLog, Severity
from slurmsched.daemon.metrics_exposition import MetricsExporter
from slurmsched.daemon.process import ForecastProcess, PageProcess, SignalRequests, handle_signals
from slurmsched.daemon.scheduler import RoundReport, SchedulerContext, current_identity, schedule_round
from slurmsched.model import Block, BlockCause, JobState, Result, Snapshot, SynschedError
from slurmsched.model.reasons import format_duration, pluralise
from slurmsched.rounds.scope import partition_totals
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.errors import BusyStoreError, StoreError
from slurmsched.store.store import Store

_CHECK_INTERVAL: Final = 1.0
"""Seconds between checks for requests while the loop waits for the next round."""

_SHORTEST_SLEEP: Final = 0.1
"""Seconds."""

_FIRST_RETRY: Final = 10.0
"""Seconds until the first retry after a failed round; doubled with each further failure, up to the period."""


PROBE_INTERVAL: Final = 2.0
"""Seconds between two looks whether anything has changed: each costs slurmctld one request without locks, 1,800 an
hour of 0.1 to 0.3 ms each, whatever the number of jobs (sdiag on Slurm 22.05 to 26.05)."""

_REST_FACTOR: Final = 2.0
"""After a round or a poll that took long, early rounds and the next poll wait for this many times its duration."""

_RECORDING: Final = 10.0
"""Seconds before a round in which no forecast is stored any more: for 10,000 jobs that takes three."""

_DECISIONS_OF_FORECAST: Final = 4
"""Rounds of which the shortest forecast is made: where there is no time for them none is begun."""

_COMPLETES_WITHIN: Final = 120.0
"""Seconds for which the end of a completing job is awaited: Slurm may tell nobody when its resources are free."""


class DaemonLoop:
    """The daemon. `load_context` reads the settings and connects again, for a reload.

    `forecast` is the command that forecasts from the last round, `page` the one that writes the page of the live
    system, each in a process of its own; empty for none.

    At a stop all jobs are given back to Slurm. With `keep_holds`, for a restart, held jobs wait for the next start, or
    for the watchdog once the heartbeat is stale.
    """

    def __init__(
        self,
        context: SchedulerContext,
        load_context: Callable[[], SchedulerContext],
        store: Store,
        clock: Clock,
        *,
        requests: SignalRequests,
        systemd: SystemdNotifier,
        log: DaemonLog,
        forecast: Sequence[str] = (),
        page: Sequence[str] = (),
    ) -> None:
        self._context = context
        self._load_context = load_context
        self._store = store
        self._clock = clock
        self._requests = requests
        self._systemd = systemd
        self._log = log
        self._metrics = MetricsExporter(context.settings, store, clock, self._log.once, serves=True)
        self._keepalive = self._new_keepalive(context)
        self._exporter = self._new_exporter(context)
        self._forecast = ForecastProcess(forecast, clock, self._log.once)
        self._page = PageProcess(page, clock, self._log.once)
        self._failures = 0
        self._last_error = ""
        self._lack = ""
        """What our rights were found to be, if not enough for the mode: `unknown` or `too few`."""
        self._open: list[OpenPlan] = []
        """Plans of earlier rounds that have not settled."""
        self._activity = ""
        self._early_after = 0.0
        """The monotonic time from which on an early round may begin."""
        self._next_probe = 0.0
        self._full_round_began = 0.0
        """The monotonic time of the last full round, by the clock or early."""
        self._settle_at = 0.0
        self._wake_at = inf
        """Unix seconds at which something becomes possible that no event announces."""
        self._waiting, self._decided_in = 0, 0.0
        """The jobs that waited after the last round, and the seconds that the last full round took to decide."""
        self._closed: str | None = None
        """Why nothing may be changed, as logged last."""

    def run(self, *, keep_holds: bool = False) -> None:
        """Run rounds until a stop is requested. Raises HeartbeatError at the start, and StoreError: without a journal
        nothing may be changed.
        """
        self._log.introduce(self._context.settings)
        self._keep_settings("")
        self._check_rights()
        self._metrics.configure(self._context.settings, self._context.backend.name)
        self._keepalive.renew()
        self._systemd.ready(self._mode_text())
        try:
            while not self._requests.stop:
                self._full_round_began = self._clock.monotonic()
                self._round()
                self._start_forecast()
                self._rest()
        except BaseException:
            self._keepalive.stop()
            raise
        finally:
            self._forecast.stop()
            self._page.stop()
            self._exporter.close()
            self._metrics.close()
        self._systemd.stopping()
        self._close_plans(DAEMON_STOPS)
        if not keep_holds:
            self._keepalive.stop()
        released = 0 if keep_holds else self._release_all()
        were = "was" if released == 1 else "were"
        given_back = f"; {pluralise(released, 'job')} {were} given back to Slurm" if released else ""
        kept = "; held jobs stay held" if keep_holds else ""
        self._keep_settings("")
        self._log.event(f"stopped{kept}{given_back}", verb="stop")

    def _round(self, *, starts_only: bool = False) -> None:
        began = self._clock.monotonic()
        self._check_rights()
        if self._runs_early_rounds:
            self._activity = self._context.backend.activity()

        def run() -> Snapshot:
            report = schedule_round(
                self._context,
                self._store,
                self._clock,
                tick=self._keepalive.tick,
                stopping=lambda: self._requests.stop,
                log=self._log,
                starts_only=starts_only,
                open_plans=self._open if self._runs_early_rounds else None,
            )
            self._wake_at = min(wake_time(report.snapshot), report.retry_at)
            self._waiting = report.tally.waiting
            if not report.result.starts_only:
                self._full_round_began, self._decided_in = began, report.tally.decide_s or 0.0
            self._succeeded(report)
            self._metrics.round_ended(report, self._context.backend.calls)
            return report.snapshot

        self._guarded(run)
        if self._failures:
            self._metrics.round_failed(self._context.backend.calls, starts_only=starts_only)
        now = self._clock.monotonic()
        self._early_after = max(
            began + self._context.settings.rounds.early_interval, now + _REST_FACTOR * (now - began)
        )
        self._plan_settling()

    def _start_forecast(self) -> None:
        """Forecast from the round that is over, if somebody waits and its recording is where the settings say."""
        settings, budget = self._context.settings, self._context.settings.learning.forecast_budget
        here = settings.storage.keep_snapshots > 0 and Path(settings.storage.path) == self._store.database.path
        idle = self._failures or self._requests.stop or self._keepalive.on_standby
        if not self._waiting or not here or not budget or idle:
            return
        if budget < _DECISIONS_OF_FORECAST * self._decided_in:
            took = f"a decision takes {self._decided_in:.0f} s"
            self._log.once(f"nothing is forecast: {took}, too long for a learning.forecast_budget of {budget:.0f} s")
        else:
            self._forecast.start(self._keepalive.mode.value, budget)

    def _collect_forecast(self) -> None:
        """Store and publish what was forecast, once that is over; a failure costs this forecast alone."""
        try:
            forecast = self._forecast.collect()
            if forecast is None:
                return
            self._store.start_forecasts.record(forecast, self._clock.now())
        except StoreError as error:
            if not isinstance(error, BusyStoreError):
                raise
            self._log.once(f"nothing is forecast: {error}")
        except Exception as error:  # as for a round
            self._log.once(f"nothing is forecast: {format_trace(error)}")
        else:
            self._publish(None)

    def _write_page(self) -> None:
        """Have the page written, in a process that reads the settings anew: if they are those of this daemon."""
        storage = self._context.settings.storage
        here = Path(storage.path) == self._store.database.path
        self._page.go_on(storage.page if here else "")

    def _check_rights(self) -> None:
        """Find the mode in force; what our rights lack is logged when that changes."""
        settings, identity = self._context.settings, current_identity(self._context.backend)
        mode = mode_in_force(settings, identity)
        if self._open and mode is not Mode.ENFORCE:
            self._close_plans(Block(BlockCause.NO_PERMISSION, "our rights are too few"))
        self._keepalive.mode = mode
        if identity is None or settings.rounds.mode is not Mode.ENFORCE:
            return
        lack = "" if mode is Mode.ENFORCE else "unknown" if identity.unread else "too few"
        if lack != self._lack:
            self._lack = lack
            severity = Severity.WARNING if lack else Severity.NOTICE
            self._log.event(_rights_text(identity, lack), severity, verb="rights")

    def _settle(self) -> None:
        """Go on with the plans of earlier rounds."""

        def advance() -> None:
            outcomes = advance_plans(self._open, self._context.backend.observe())
            if any(outcome.result is Result.UNDONE for outcome in outcomes):
                # Others may have what was kept for a refused start. Each is tried again only after a while, so that
                # no more of these rounds follow than there are such jobs.
                self._early_after = self._next_probe = 0.0

        began = self._clock.monotonic()
        self._guarded(advance)
        self._plan_settling(took=self._clock.monotonic() - began)

    def _plan_settling(self, took: float = 0.0) -> None:
        wait = min((opened.wait for opened in self._open), default=0.0)
        self._settle_at = self._clock.monotonic() + max(wait, _REST_FACTOR * took)

    def _guarded(self, work: Callable[[], Snapshot | None]) -> None:
        """Do this and publish the snapshot that it returns; a failure ends nothing but this."""
        try:
            snapshot = work()
            if snapshot is not None:
                self._publish(snapshot)
        except SynschedError as error:
            if isinstance(error, StoreError) and not isinstance(error, BusyStoreError):
                raise
            self._failed(error)
            self._publish(None)
        except Exception as error:  # no single round may end the daemon: all jobs would wait
            self._log.once(format_trace(error))
            self._failed(RoundFailedError(f"the round failed: {describe_error(error)}"))
            self._publish(None)

    def _publish(self, snapshot: Snapshot | None) -> None:
        """Forget who asked for it, and publish the documents, and in a while the page; a failure is only logged."""
        try:
            self._exporter.forget_who_asked(lambda user: self._store.finished_runs.forget(user, self._clock.now()))
        except StoreError as error:
            self._log.once(f"users who asked to be forgotten are forgotten later: {error}")
        try:
            self._exporter.publish(snapshot)
            self._page.published()
        except Exception as error:  # as for a round
            self._log.once(f"the published documents are not updated: {format_trace(error)}")

    def _failed(self, error: SynschedError) -> None:
        """Back off; the same error is logged once. What was open is left to the next round, which sees what became of
        it."""
        self._open.clear()
        self._failures += 1
        self._keepalive.healthy = False
        if str(error) != self._last_error:
            retry = f"the next round is tried in {format_duration(self._round_interval())}"
            self._log.event(f"{error}; {retry}", Severity.ERROR, verb="fail")
        self._last_error = str(error)
        self._systemd.status(f"{self._mode_text()}; {pluralise(self._failures, 'round')} failed: {error}")

    def _succeeded(self, report: RoundReport) -> None:
        if self._failures:
            self._log.event(f"rounds succeed again after {pluralise(self._failures, 'failure')}", verb="succeed")
        self._failures, self._last_error, self._keepalive.healthy = 0, "", True
        self._keepalive.totals = totals_line(partition_totals(report.snapshot))
        self._keepalive.try_renew()
        changes = pluralise(sum(outcome.result is Result.DONE for outcome in report.outcomes), "change")
        tally, late = report.tally, left_over(report.outcomes)
        self._systemd.status(
            f"{self._mode_text()}; round {report.id}: {tally.running} running, {tally.waiting} waiting, {changes}"
            f"{late and f'; {late} to the next'}"
        )

    def _round_interval(self) -> float:
        """Seconds from the start of one round to the next."""
        period = self._context.settings.rounds.period
        return period if not self._failures else min(period, _FIRST_RETRY * 2.0 ** min(self._failures - 1, 10))

    def _rest(self) -> None:
        """Wait until the next full round is due; not at all if the last one took longer than the period."""
        while not self._requests.stop:
            if self._requests.take_reload():
                self._reload()
            self._log_switches()
            left = self._full_round_began + self._round_interval() - self._clock.monotonic()
            if left <= 0:
                return
            if left > min(_RECORDING, self._round_interval() / 2):
                self._collect_forecast()
            self._write_page()
            if self._open and self._clock.monotonic() >= self._settle_at:
                self._settle()
            if left > _CHECK_INTERVAL and self._early_round_is_due():
                self._round(starts_only=True)
                continue
            until_settling = self._settle_at - self._clock.monotonic() if self._open else _CHECK_INTERVAL
            self._clock.sleep(min(_CHECK_INTERVAL, left, max(until_settling, _SHORTEST_SLEEP)))
            self._keepalive.tick()

    @property
    def _runs_early_rounds(self) -> bool:
        """Only where jobs wait for rounds: in the other modes Slurm starts them."""
        return self._keepalive.mode is Mode.ENFORCE and self._context.settings.rounds.early_interval > 0

    def _early_round_is_due(self) -> bool:
        now = self._clock.monotonic()
        if not self._runs_early_rounds or self._failures or self._keepalive.on_standby:
            return False
        if now < self._early_after or now < self._next_probe:
            return False
        self._next_probe = now + PROBE_INTERVAL
        activity = self._context.backend.activity()
        return (activity not in ("", self._activity)) or self._clock.now() >= self._wake_at

    def _reload(self) -> None:
        """Read the settings again; if they are wrong the old ones stay in force."""
        self._systemd.reloading()
        try:
            context = self._load_context()
            keepalive = self._new_keepalive(context)
        except SynschedError as error:
            self._keep_settings(str(error))
        except Exception as error:  # as for a round
            self._keep_settings(format_trace(error))
        else:
            self._keep_settings("")
            self._log.reloaded(self._context.settings, context.settings)
            if context.settings.hook.heartbeat != self._context.settings.hook.heartbeat:
                self._keepalive.stop()
            if context.settings.storage != self._context.settings.storage:
                self._exporter.close()
                self._exporter = self._new_exporter(context)
            self._close_plans(Block(BlockCause.RELOADED, "the settings were read again"))
            self._context, self._keepalive = context, keepalive
            self._metrics.configure(context.settings, context.backend.name)
            self._check_rights()
        self._systemd.ready(self._mode_text())

    def _keep_settings(self, refused: str) -> None:
        """Tell why the earlier settings stay in force; empty if they do not."""
        if refused:
            self._log.event(f"the settings stay as they were: {refused}", Severity.WARNING, verb="reload")
        with suppress(BusyStoreError):  # then the log alone tells
            self._store.switches.record_settings(refused, self._clock.now())

    def _close_plans(self, why: Block) -> None:
        """Leave what is open to the next rounds."""

        def close() -> None:
            while self._open:
                opened = self._open.pop()
                opened.finish(why)
                opened.report(settled=True)

        self._guarded(close)

    def _log_switches(self) -> None:
        """Log that changes ended, or began again, by a pause or the file that disables them."""
        closed = self._keepalive.closed
        if closed is not None and closed != self._closed:
            self._log.event(f"nothing is changed: {closed}", verb="pause")
        elif closed is None and self._closed is not None:
            self._log.event("resumed: jobs are changed again", verb="resume")
        self._closed = closed

    def _release_all(self) -> int:
        """Give the jobs back to Slurm; returns how many of them were held."""
        if self._keepalive.on_standby:
            return 0  # the other scheduler starts what the hook holds
        patience = self._context.settings.rounds.settle_timeout
        try:
            released = release_all(self._context.backend, self._store, self._clock, patience, log=self._log)
        except SynschedError as error:
            self._log(f"what is held stays held: {error}; 'synsched release' gives it back")
            return 0
        except Exception as error:  # as for a round
            self._log(f"what is held stays held: {format_trace(error)}; 'synsched release' gives it back")
            return 0
        for warning in released.warnings:
            self._log(warning)
        return len(released.jobs)

    def _new_keepalive(self, context: SchedulerContext) -> Keepalive:
        return Keepalive(
            context.settings,
            self._store.switches,
            self._clock,
            self._systemd,
            self._log,
            beaten=self._metrics.heartbeat,
        )

    def _new_exporter(self, context: SchedulerContext) -> Exporter:
        storage = replace(context.settings.storage, path=str(self._store.database.path))
        return Exporter(storage, self._clock, self._log, serves=True)

    def _mode_text(self) -> str:
        return f"mode {self._keepalive.mode.value}"


def _rights_text(identity: Identity, lack: str) -> str:
    user = identity.user
    if lack == "unknown":
        why = f"the rights of {user} are unknown, since Slurm's accounting does not answer ({identity.unread})"
    elif lack:
        why = f"{user} has too few rights in Slurm: 'synsched doctor' shows which are missing"
    else:
        return f"jobs are managed again: {user} has the rights for it"
    return f"jobs are left to Slurm: {why}"


def wake_time(snapshot: Snapshot) -> float:
    """When something becomes possible without an event that `Backend.activity` shows, in unix seconds: a begin time
    passes, a reservation begins or ends, a completing job has given back its resources; infinity for nothing."""
    now = snapshot.time
    begins = (job.eligible_time or 0.0 for job in snapshot.jobs_in_state(JobState.PENDING))
    edges = (edge for reservation in snapshot.reservations for edge in (reservation.start, reservation.end))
    completing = snapshot.jobs_in_state(JobState.COMPLETING)
    soon = (now for job in completing if now - (job.end_time or now) < _COMPLETES_WITHIN)
    return min((*(at for at in (*begins, *edges) if at > now), *soon), default=inf)


def run_daemon(
    load_context: Callable[[], SchedulerContext],
    clock: Clock,
    environment: Mapping[str, str],
    open_log: Callable[[Settings], DaemonLog],
    *,
    keep_holds: bool = False,
    forecast: Sequence[str] = (),
    page: Sequence[str] = (),
) -> None:
    """Run rounds until SIGTERM or SIGINT. `open_log` makes the log from the settings, `forecast` is the command that
    forecasts, `page` the one that writes the page.

    Raises AlreadyRunningError, LockError, StoreError, HeartbeatError, and whatever `load_context` raises at the start.
    """
    context, requests, systemd = load_context(), SignalRequests(), SystemdNotifier(environment)
    path = Path(context.settings.storage.path)
    with (
        exclusive_lock(path),
        handle_signals(requests),
        closing(Store.open(path, clock.now(), check_interval=0.0)) as store,
    ):
        loop = DaemonLoop(
            context, load_context, store, clock,
            requests=requests, systemd=systemd, log=open_log(context.settings), forecast=forecast, page=page,
        )  # fmt: skip
        loop.run(keep_holds=keep_holds)
