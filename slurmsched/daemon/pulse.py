"""When a sign of life is given, and which: as long as rounds succeed, and saying what mode they really run in."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.gate import Gate
from slurmsched.daemon.heartbeat import PAUSED, STOPPED, Heartbeat, HeartbeatError
from slurmsched.daemon.instance import Instance
from slurmsched.daemon.systemd import Systemd
from slurmsched.policies.systems import PARTS
from slurmsched.rendering import render
from slurmsched.settings.definition import Settings
from slurmsched.store.errors import StoreError
from slurmsched.store.switches import Switches

__all__ = ["Pulse"]

_EVERY: Final = 10.0
"""Seconds between two signs of life."""


class Pulse:
    """The heartbeat of one daemon under one set of settings.

    Who cannot schedule gives no sign of life, although it lives: with `well` False the file grows old, the hook leaves
    new jobs to Slurm and the watchdog gives back the others. Where another process gives it already, ours is not
    written over it: one of the two then stands back, and takes over once the other is silent.
    """

    def __init__(
        self, settings: Settings, switches: Switches, clock: Clock, systemd: Systemd, say: Callable[[str], None]
    ) -> None:
        self.well = True
        self._heartbeat = Heartbeat(Path(settings.hook.heartbeat))
        self._rounds = settings.rounds
        self._in_force = render(
            "hook.conf",
            settings=settings,
            parts=settings.policy.system in PARTS,
            file="the settings in force",
            uids=(os.geteuid(),),
        )
        self._gate = Gate(settings, switches, clock)
        self._clock = clock
        self._systemd = systemd
        self._say = say
        self._last = clock.monotonic()
        self._said = ""
        self._stands_back = False

    @property
    def stands_back(self) -> bool:
        """Whether another process gave the last sign of life that we looked for."""
        return self._stands_back

    def beat(self) -> None:
        """One sign of life, now. Raises HeartbeatError, StoreError."""
        self._last = self._clock.monotonic()
        if self._gives_way():
            return
        mode = self._rounds.mode.value if self._gate.closed() is None else PAUSED
        self._heartbeat.beat(self._clock.now(), mode, self._rounds.period, self._in_force, Instance.own())

    def tick(self) -> None:
        """Called often: a sign of life when one is due."""
        self._systemd.alive()
        if self.well and self._clock.monotonic() - self._last >= _EVERY:
            self.renew()

    def renew(self) -> None:
        """One sign of life, now. A failure is said once, and rounds go on."""
        try:
            self.beat()
            self._said = ""
        except HeartbeatError as error:
            if str(error) != self._said:
                self._say(str(error))
            self._said = str(error)
        except StoreError:
            return  # the round itself meets the same error and tells it

    def stop(self) -> None:
        """The last sign: nobody schedules from here on."""
        if self._gives_way():
            return
        with suppress(HeartbeatError):  # a heartbeat that cannot be written grows old by itself
            self._heartbeat.beat(self._clock.now(), STOPPED, self._rounds.period, daemon=Instance.own())

    def _gives_way(self) -> bool:
        rival = self._gate.rival()
        if (rival is not None) != self._stands_back:
            self._stands_back = rival is not None
            self._say(f"nothing is changed: {rival}" if rival else "the other scheduler is silent: we take over")
        return self._stands_back
