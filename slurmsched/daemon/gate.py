"""What may be changed now: the mode, the pause switch and the disable file, asked again before each batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slurmsched.model import Code, Operation, Verb
from slurmsched.settings.definition import Mode, Settings
from slurmsched.store.switches import Switches

__all__ = ["Gate"]

_ALLOWED: Final[Mapping[Mode, frozenset[Verb]]] = {
    Mode.OBSERVE: frozenset(),
    Mode.ADVISE: frozenset({Verb.NOTE}),
    Mode.PRIORITIZE: frozenset({Verb.NOTE, Verb.PRIORITIZE}),
    Mode.ENFORCE: frozenset(Verb),
}


class Gate:
    """Who may pass. What gives something of ours back passes in every mode, but no pause."""

    def __init__(self, settings: Settings, switches: Switches) -> None:
        self._mode = settings.rounds.mode
        self._disable_file = Path(settings.hook.disable_file)
        self._switches = switches

    def closed(self) -> str | None:
        """Why nothing at all may be changed now; None while the gate is open. Raises StoreError."""
        pause = self._switches.paused()
        return pause.sentence if pause is not None else self._disabled()

    def bars(self, operation: Operation) -> str | None:
        """Why this operation may not be done even while the gate is open."""
        if not operation.permitted:
            return f"we may not {operation.verb.value}: see 'synsched doctor' for the rights it needs"
        if operation.reason.code is Code.GIVE_BACK or operation.verb in _ALLOWED[self._mode]:
            return None
        return f"the mode is {self._mode.value}"

    def _disabled(self) -> str | None:
        try:
            self._disable_file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return f"cannot tell whether {self._disable_file} exists: {error.strerror}"
        return f"{self._disable_file} exists"
