"""The two ways to run: as a daemon, and one round at a time from cron. Never both at once over one database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.exporting import Exporter
from slurmsched.daemon.heartbeat import Heartbeat
from slurmsched.daemon.locking import AlreadyRunningError, LockError, Skips, sole
from slurmsched.daemon.loop import Loop
from slurmsched.daemon.pulse import Pulse
from slurmsched.daemon.scheduling import RoundReport, Site, one_round
from slurmsched.daemon.signals import Requests, heeding
from slurmsched.daemon.systemd import Systemd
from slurmsched.store.store import Store

__all__ = ["SkippedError", "once", "serve"]

_MOST_SKIPS: Final = 3
"""Rounds in a row that may be left to somebody else without a word."""


class SkippedError(LockError):
    """Somebody else has held the lock for several rounds of cron."""


def serve(
    assemble: Callable[[], Site],
    clock: Clock,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    keep_holds: bool = False,
) -> None:
    """Rounds until SIGTERM or SIGINT. `say` gets what an operator should read in the log, a line at a time.

    Raises AlreadyRunningError, LockError, StoreError, HeartbeatError, and whatever `assemble` raises at the start.
    """
    site, requests, systemd = assemble(), Requests(), Systemd(environment)
    path = Path(site.settings.storage.path)
    with sole(path), heeding(requests), closing(Store.open(path, clock.now(), checked_within=0.0)) as store:
        Loop(site, assemble, store, clock, requests=requests, systemd=systemd, say=say).run(keep_holds=keep_holds)


def once(assemble: Callable[[], Site], clock: Clock, say: Callable[[str], None]) -> RoundReport | None:
    """One round, and a sign of life after it; None while somebody else schedules, which is no error for cron at first.

    Raises SkippedError where that is the third time in a row, and LockError, StoreError, HeartbeatError, BackendError.
    """
    site = assemble()
    path = Path(site.settings.storage.path)
    skips = Skips.of(path)
    try:
        with sole(path), closing(Store.open(path, clock.now())) as store:
            skips.none()
            pulse = Pulse(site.settings, store.switches, clock, Systemd({}), say)
            report = one_round(site, store, clock, tick=pulse.tick, say=say)
            pulse.beat()
            Exporter(site.settings.storage, clock, say, serves=False).publish(report.snapshot)
            return report
    except AlreadyRunningError as error:
        count = skips.one_more()
        if count < _MOST_SKIPS:
            return None
        raise SkippedError(f"{count} rounds in a row were skipped: {error}{_last_beat(site, clock.now())}") from error


def _last_beat(site: Site, now: float) -> str:
    """Who gave the last sign of life, and when, for somebody who looks for what holds the lock."""
    beat = Heartbeat(Path(site.settings.hook.heartbeat)).last()
    if beat is None:
        return "; there is no heartbeat"
    who = f" by {beat.daemon.sentence}" if beat.daemon else ""
    return f"; the last heartbeat{who} is {int(now - beat.at)} s old"
