"""Rounds in time: one after another, from start to start, until somebody says stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.exporting import Exporter
from slurmsched.daemon.failing import RoundFailedError, kind_and_place, traced
from slurmsched.daemon.pulse import Pulse
from slurmsched.daemon.releasing import release_all
from slurmsched.daemon.scheduling import RoundReport, Site, one_round
from slurmsched.daemon.signals import Requests
from slurmsched.daemon.systemd import Systemd
from slurmsched.model import Result, Snapshot, SynschedError
from slurmsched.store.errors import BusyStoreError, StoreError
from slurmsched.store.store import Store

__all__ = ["Loop"]

_SLICE: Final = 1.0
"""Seconds after which a resting loop looks whether it was asked for something."""

_REMARKS: Final = 100
"""So many different remarks on rounds are remembered, and not told again."""

_FIRST_RETRY: Final = 10.0
"""Seconds until the next try after a failed round; doubled with each further one, up to the period."""


class Loop:
    """The daemon. `assemble` reads the settings and connects anew, for a reload.

    At an ordinary stop everything of ours is given back to Slurm. `keep_holds` leaves it as it is, for a restart: what
    is held then waits for the next start, or for the watchdog once the heartbeat is stale.
    """

    def __init__(
        self,
        site: Site,
        assemble: Callable[[], Site],
        store: Store,
        clock: Clock,
        *,
        requests: Requests,
        systemd: Systemd,
        say: Callable[[str], None],
    ) -> None:
        self._site = site
        self._assemble = assemble
        self._store = store
        self._clock = clock
        self._requests = requests
        self._systemd = systemd
        self._say = say
        self._pulse = self._pulse_of(site)
        self._exporter = self._exporter_of(site)
        self._failures = 0
        self._trouble = ""
        self._remarks: set[str] = set()

    def run(self, *, keep_holds: bool = False) -> None:
        """Until a stop is asked for. Raises HeartbeatError at the start, and StoreError: without a journal nothing is
        changed.
        """
        self._pulse.beat()
        self._systemd.ready(self._in_words())
        try:
            while not self._requests.stop:
                began = self._clock.monotonic()
                self._round()
                self._rest(began)
        except BaseException:
            self._pulse.stop()
            raise
        finally:
            self._exporter.close()
        self._systemd.stopping()
        if not keep_holds:
            self._pulse.stop()
            self._give_back()

    def _round(self) -> None:
        try:
            report = one_round(
                self._site,
                self._store,
                self._clock,
                tick=self._pulse.tick,
                stopping=lambda: self._requests.stop,
                say=self._remark,
            )
            self._succeeded(report)
            self._publish(report.snapshot)
        except SynschedError as error:
            if isinstance(error, StoreError) and not isinstance(error, BusyStoreError):
                raise
            self._failed(error)
            self._publish(None)
        except Exception as error:  # no single round may end the daemon, for then everybody's jobs wait
            self._remark(traced(error))
            self._failed(RoundFailedError(f"the round failed: {kind_and_place(error)}"))
            self._publish(None)

    def _publish(self, snapshot: Snapshot | None) -> None:
        """What users read; that it cannot be published ends nothing."""
        try:
            self._exporter.publish(snapshot)
        except Exception as error:  # as for a round
            self._remark(f"nothing new is published: {traced(error)}")

    def _remark(self, line: str) -> None:
        """What went wrong in a round, for the log; the same is told once in a while."""
        if line not in self._remarks:
            if len(self._remarks) >= _REMARKS:
                self._remarks.clear()
            self._remarks.add(line)
            self._say(line)

    def _failed(self, error: SynschedError) -> None:
        """Back off; the same trouble is told once."""
        self._failures += 1
        self._pulse.well = False
        if str(error) != self._trouble:
            self._say(f"{error}; the next round is tried in {self._wait():.0f} s")
        self._trouble = str(error)
        self._systemd.status(f"{self._in_words()}; {self._failures} rounds failed: {error}")

    def _succeeded(self, report: RoundReport) -> None:
        if self._failures:
            self._say(f"rounds go on after {self._failures} that failed")
        self._failures, self._trouble, self._pulse.well = 0, "", True
        self._pulse.renew()
        done = sum(outcome.result is Result.DONE for outcome in report.outcomes)
        tally = report.tally
        self._systemd.status(
            f"{self._in_words()}; round {report.id}: {tally.running} run, {tally.waiting} wait, {done} changes"
        )

    def _wait(self) -> float:
        """Seconds from the start of one round to the next."""
        period = self._site.settings.rounds.period
        return period if not self._failures else min(period, _FIRST_RETRY * 2.0 ** min(self._failures - 1, 10))

    def _rest(self, began: float) -> None:
        """Until the next round is due; a round that took longer than the period is followed at once."""
        while not self._requests.stop:
            if self._requests.take_reload():
                self._reload()
            left = began + self._wait() - self._clock.monotonic()
            if left <= 0:
                return
            self._clock.sleep(min(_SLICE, left))
            self._pulse.tick()

    def _reload(self) -> None:
        """The settings as they are now; where they are wrong the old ones stay in force."""
        self._systemd.reloading()
        try:
            site = self._assemble()
            pulse = self._pulse_of(site)
        except SynschedError as error:
            self._say(f"the settings stay as they were: {error}")
        except Exception as error:  # as for a round
            self._say(f"the settings stay as they were: {traced(error)}")
        else:
            self._say(self._changed_to(site))
            if site.settings.hook.heartbeat != self._site.settings.hook.heartbeat:
                self._pulse.stop()
            if site.settings.storage != self._site.settings.storage:
                self._exporter.close()
                self._exporter = self._exporter_of(site)
            self._site, self._pulse = site, pulse
        self._systemd.ready(self._in_words())

    def _changed_to(self, site: Site) -> str:
        said = "the settings were read again"
        if site.settings.storage.path != self._site.settings.storage.path:
            said += f"; {site.settings.storage.path} is used after a restart"
        return said

    def _give_back(self) -> None:
        if self._pulse.stands_back:
            return  # what the hook holds is the other's to start
        patience = self._site.settings.rounds.settle_timeout
        try:
            released = release_all(self._site.backend, self._store, self._clock, patience)
        except SynschedError as error:
            self._say(f"what is held stays held: {error}; 'synsched release' gives it back")
            return
        except Exception as error:  # as for a round
            self._say(f"what is held stays held: {traced(error)}; 'synsched release' gives it back")
            return
        for warning in released.warnings:
            self._say(warning)
        if released.jobs:
            self._say(f"stopped; {len(released.jobs)} jobs were given back to Slurm")

    def _pulse_of(self, site: Site) -> Pulse:
        return Pulse(site.settings, self._store.switches, self._clock, self._systemd, self._say)

    def _exporter_of(self, site: Site) -> Exporter:
        storage = replace(site.settings.storage, path=str(self._store.database.path))
        return Exporter(storage, self._clock, self._say, serves=True)

    def _in_words(self) -> str:
        return f"mode {self._site.settings.rounds.mode.value}"
