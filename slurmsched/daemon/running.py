"""The two ways to run: as a daemon, and one round at a time from cron. Never both at once over one database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.locking import AlreadyRunningError, sole
from slurmsched.daemon.loop import Loop
from slurmsched.daemon.pulse import Pulse
from slurmsched.daemon.scheduling import RoundReport, Site, one_round
from slurmsched.daemon.signals import Requests, heeding
from slurmsched.daemon.systemd import Systemd
from slurmsched.store.store import Store

__all__ = ["once", "serve"]


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
    """One round, and a sign of life after it; None while somebody else schedules, which is no error for cron.

    Raises LockError, StoreError, HeartbeatError, BackendError.
    """
    site = assemble()
    path = Path(site.settings.storage.path)
    try:
        with sole(path), closing(Store.open(path, clock.now())) as store:
            pulse = Pulse(site.settings, store.switches, clock, Systemd({}), say)
            report = one_round(site, store, clock, tick=pulse.tick, say=say)
            pulse.beat()
            return report
    except AlreadyRunningError:
        return None
