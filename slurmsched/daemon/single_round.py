"""One round of a process that ends with it, such as that of a cron line: `synsched run --once`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.exporter import Exporter
from slurmsched.daemon.gate import mode_in_force
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.daemon.keepalive import Keepalive, SystemdNotifier, totals_line
from slurmsched.daemon.lock import AlreadyRunningError, LockError, SkipCounter, exclusive_lock
from slurmsched.daemon.log import DaemonLog
from slurmsched.daemon.metrics_exposition import MetricsExporter
from slurmsched.daemon.scheduler import RoundReport, SchedulerContext, current_identity, schedule_round
from slurmsched.rounds.scope import partition_totals
from slurmsched.settings.definition import Settings
from slurmsched.store.store import Store

_MAX_SKIPS: Final = 3
"""Rounds skipped in a row from which on it is an error."""


class RoundsSkippedError(LockError):
    """Several rounds in a row were skipped because another process held the lock."""


def run_once(
    load_context: Callable[[], SchedulerContext], clock: Clock, open_log: Callable[[Settings], DaemonLog]
) -> RoundReport | None:
    """Run one round and write the heartbeat after it; None if it was skipped because another process schedules.

    Raises RoundsSkippedError from the third skip in a row on, LockError, StoreError, HeartbeatError, BackendError.
    """
    context = load_context()
    path, log = Path(context.settings.storage.path), open_log(context.settings)
    skips = SkipCounter.beside(path)
    try:
        with exclusive_lock(path), closing(Store.open(path, clock.now())) as store:
            skips.reset()
            metrics = MetricsExporter(context.settings, store, clock, log, serves=False)
            metrics.configure(context.settings, context.backend.name)
            keepalive = Keepalive(
                context.settings, store.switches, clock, SystemdNotifier({}), log, beaten=metrics.heartbeat
            )
            keepalive.mode = mode_in_force(context.settings, current_identity(context.backend))
            try:
                report = schedule_round(context, store, clock, tick=keepalive.tick, log=log)
            except Exception:
                metrics.round_failed(context.backend.calls, starts_only=False)
                raise
            keepalive.totals = totals_line(partition_totals(report.snapshot))
            keepalive.renew()
            metrics.round_ended(report, context.backend.calls)
            Exporter(context.settings.storage, clock, log, serves=False).publish(report.snapshot)
            return report
    except AlreadyRunningError as error:
        count = skips.increment()
        if count < _MAX_SKIPS:
            return None
        raise RoundsSkippedError(
            f"{count} rounds in a row were skipped: {error}{_last_heartbeat(context, clock.now())}"
        ) from error


def _last_heartbeat(context: SchedulerContext, now: float) -> str:
    """The age and the sender of the last heartbeat, to help find the process that holds the lock."""
    beat = HeartbeatFile(Path(context.settings.hook.heartbeat)).read()
    if beat is None:
        return "; there is no heartbeat"
    who = f" by {beat.daemon.sentence}" if beat.daemon else ""
    return f"; the last heartbeat{who} is {int(now - beat.at)} s old"
