"""Keeps the heartbeat file fresh while rounds succeed, and notifies systemd (sd_notify(3))."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.gate import Gate
from slurmsched.daemon.heartbeat import PAUSED, STOPPED, HeartbeatError, HeartbeatFile, ProcessIdentity
from slurmsched.model import Block
from slurmsched.policies.policies import schedules_shards
from slurmsched.rounds.scope import PartitionTotals
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.errors import StoreError
from slurmsched.store.store import Switches
from slurmsched.template_files import render


class SystemdNotifier:
    """Sends to the datagram socket of `NOTIFY_SOCKET`; does nothing without one (a terminal, cron)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """Tell that the daemon started or finished reloading."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, status: str) -> None:
        """Set the line of `systemctl status`, and reset systemd's watchdog."""
        self._send(f"WATCHDOG=1\nSTATUS={_line(status)}")

    def keep_alive(self) -> None:
        """Reset systemd's watchdog."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Tell that the settings are being read again, until `ready` is sent."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell that the daemon is stopping."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(message.encode(), self._address)


def _line(text: str) -> str:
    return " ".join(text.split())


_INTERVAL: Final = 10.0
"""Seconds between two heartbeats."""


_PARTITION: Final = re.compile(r"[^\s=,]{1,128}")
_MAX_TOTALS: Final = 48_000
"""Characters for the totals of partitions, of the 65,536 that the hook reads; the hook judges no other partition."""


def totals_line(totals: Mapping[str, PartitionTotals]) -> str:
    """Return the totals as the hook reads them: `largest = NAME=nodes,CPUs,most CPUs,most MiB,TYPE:most:GPUs,...`."""
    words, length = [], 0
    for name, of in totals.items():
        gpus = "".join(f",{kind}:{most}:{total}" for kind, (most, total) in of.gpus.items() if ":" not in kind)
        word = f"{name}={of.nodes},{of.cpus},{of.node_cpus},{of.node_memory}{gpus}"
        length += len(word) + 1
        if _PARTITION.fullmatch(name) and length <= _MAX_TOTALS and not set(gpus) & set(" \t\r\n="):
            words.append(word)
    return f"largest = {' '.join(words)}\n"


class Keepalive:
    """Writes the heartbeat of one daemon under one set of settings.

    A daemon that cannot schedule writes none: with `healthy` False the heartbeat becomes stale, the hook leaves new
    jobs to Slurm and the watchdog gives the others back. The fresh heartbeat of another process is not overwritten:
    this daemon stands by, and takes over once the other heartbeat is stale. `mode` is the mode in force, `totals` the
    line on partitions. `beaten` is called with the time of each heartbeat (unix seconds; None on standby), the mode in
    force, and what keeps rounds from changing anything.
    """

    def __init__(
        self,
        settings: Settings,
        switches: Switches,
        clock: Clock,
        systemd: SystemdNotifier,
        log: Callable[[str], None],
        *,
        beaten: Callable[[float | None, Mode, Block | None], None] = lambda _at, _mode, _closed: None,
    ) -> None:
        self.healthy = True
        self._beaten = beaten
        self.mode = settings.rounds.mode
        self.totals = ""
        self.closed: str | None = None
        """Why nothing may be changed, as of the last heartbeat; None if it may."""
        self._heartbeat = HeartbeatFile(Path(settings.hook.heartbeat))
        self._rounds = settings.rounds
        self._hook_settings = render(
            "hook.conf",
            settings=settings,
            parts=schedules_shards(settings.policy.system, settings.policy.parts),
            file="the settings in force",
            uids=(os.geteuid(),),
        )
        self._gate = Gate(settings, switches, clock)
        self._clock = clock
        self._systemd = systemd
        self._log = log
        self._last = clock.monotonic()
        self._last_logged = ""
        self._on_standby = False

    @property
    def on_standby(self) -> bool:
        """Whether another process wrote the heartbeat that was read last."""
        return self._on_standby

    def renew(self) -> None:
        """Write the heartbeat now. Raises HeartbeatError, StoreError."""
        self._last = self._clock.monotonic()
        yields, closed, now = self._yields_to_rival(), self._gate.closed_reason(), self._clock.now()
        if yields:
            self._beaten(None, self.mode, closed)
            return
        self.closed = closed.sentence if closed is not None else None
        mode = self.mode.value if closed is None else PAUSED
        self._heartbeat.write(
            now, mode, self._rounds.period, self._hook_settings + self.totals, ProcessIdentity.current()
        )
        self._beaten(now, self.mode, closed)

    def tick(self) -> None:
        """Write the heartbeat if it is due; to be called often."""
        self._systemd.keep_alive()
        if self.healthy and self._clock.monotonic() - self._last >= _INTERVAL:
            self.try_renew()

    def try_renew(self) -> None:
        """Write the heartbeat now; a failure is logged once and ends no round."""
        try:
            self.renew()
            self._last_logged = ""
        except HeartbeatError as error:
            if str(error) != self._last_logged:
                self._log(str(error))
            self._last_logged = str(error)
        except StoreError:
            return  # the round gets the same error and reports it

    def stop(self) -> None:
        """Write a last heartbeat that says that no daemon schedules from now on."""
        if self._yields_to_rival():
            return
        with suppress(HeartbeatError):  # a heartbeat that cannot be written becomes stale
            self._heartbeat.write(self._clock.now(), STOPPED, self._rounds.period, daemon=ProcessIdentity.current())

    def _yields_to_rival(self) -> bool:
        rival = self._gate.rival()
        if (rival is not None) != self._on_standby:
            self._on_standby = rival is not None
            takes_over = "the other scheduler's heartbeat is stale: this daemon takes over"
            self._log(takes_over if rival is None else f"nothing is changed: {rival}")
        return self._on_standby
