"""What may be changed now, by the mode, our rights, the pause switch, the disable file and other schedulers.

It is asked again before each batch of operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slurmsched.backends.protocol import Identity
from slurmsched.daemon.clock import Clock, RealClock
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.model import Block, BlockCause, Operation, ReasonCode, Verb
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.store import Switches

_ALLOWED: Final[Mapping[Mode, frozenset[Verb]]] = {
    Mode.OBSERVE: frozenset(),
    Mode.ADVISE: frozenset({Verb.NOTE}),
    Mode.PRIORITIZE: frozenset({Verb.NOTE, Verb.PRIORITIZE}),
    Mode.ENFORCE: frozenset(Verb),
}


def mode_in_force(settings: Settings, identity: Identity | None) -> Mode:
    """The mode of the settings; OBSERVE instead of ENFORCE while it is not known that the identity may start jobs.

    In ENFORCE the submit hook would hold them for nobody. None is an identity that could not be asked for.
    """
    mode = settings.rounds.mode
    schedules = identity is not None and identity.may_schedule
    return mode if schedules or mode is not Mode.ENFORCE else Mode.OBSERVE


class Gate:
    """Decides which operations are allowed. Giving a job back is allowed in every mode, but not during a pause."""

    def __init__(self, settings: Settings, switches: Switches, clock: Clock | None = None) -> None:
        self._mode = settings.rounds.mode
        self._heartbeat = HeartbeatFile(Path(settings.hook.heartbeat))
        self._stale_after = settings.hook.stale_after
        self._clock = clock or RealClock()
        self._disable_file = Path(settings.hook.disable_file)
        self._switches = switches

    def closed_reason(self) -> Block | None:
        """Why nothing may be changed now; None while the gate is open. Raises StoreError."""
        pause = self._switches.current_pause()
        if pause is not None:
            return Block(BlockCause.PAUSED, pause.sentence)
        if disabled := self._disabled_reason():
            return Block(BlockCause.DISABLED, disabled)
        rival = self.rival()
        return None if rival is None else Block(BlockCause.OTHER_SCHEDULER, rival)

    def rival(self) -> str | None:
        """Which other process schedules this cluster, by its fresh heartbeat, as a sentence; None if none does."""
        beat, now = self._heartbeat.read(), self._clock.now()
        other = beat.rival(now, self._stale_after) if beat else None
        if beat is None or other is None:
            return None
        age = max(int(now - beat.at), 0)
        return f"{other.sentence} schedules this cluster too ({self._heartbeat.path} is {age} s old): stop one of them"

    def block_reason(self, operation: Operation) -> Block | None:
        """Why this operation may not be done even while the gate is open."""
        if not operation.permitted:
            missing = f"no permission to {operation.verb.value}: 'synsched doctor' shows which rights are missing"
            return Block(BlockCause.NO_PERMISSION, missing)
        if operation.reason.code is ReasonCode.GIVE_BACK or operation.verb in _ALLOWED[self._mode]:
            return None
        return Block(BlockCause.MODE, f"the mode is {self._mode.value}")

    def _disabled_reason(self) -> str | None:
        try:
            self._disable_file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return f"cannot tell whether {self._disable_file} exists: {error.strerror}"
        return f"{self._disable_file} exists"
