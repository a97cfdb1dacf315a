"""Where the copies of a forked job meet at the end of a round: small files in its folder, which stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Final

__all__ = ["Meeting"]

_ENDING: Final = "ending"
_READY: Final = re.compile(r"ready-(\d{1,9})\Z")
_JOINED: Final = re.compile(r"joined-(\d{1,9})\Z")


class Meeting:
    """One round's. A folder that is gone is a round that is long over: nothing is there, and nothing is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def ending(self) -> bool:
        """Whether somebody wants the round to end."""
        return (self._folder / _ENDING).exists()

    def end(self) -> None:
        """All shall save what they have done, and come."""
        self._write(_ENDING, "")

    def join(self, copy: int) -> None:
        """This copy takes part, and is waited for."""
        self._write(f"joined-{copy}", "")

    def ready(self, copy: int, rate: float) -> None:
        """It has saved its last step of this round, and did so many a second; 0 where it does not know."""
        self._write(f"ready-{copy}", repr(rate))

    def joined(self) -> frozenset[int]:
        """Who takes part."""
        return frozenset(int(match[1]) for name in self._names() if (match := _JOINED.match(name)))

    def rates(self) -> Mapping[int, float]:
        """Who is ready, and its steps per second."""
        found = {int(match[1]): name for name in self._names() if (match := _READY.match(name))}
        return {copy: self._rate(name) for copy, name in found.items()}

    def _names(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []

    def _rate(self, name: str) -> float:
        with suppress(OSError, ValueError):
            rate = float((self._folder / name).read_text(encoding="utf-8"))
            return rate if isfinite(rate) and rate > 0 else 0.0
        return 0.0

    def _write(self, name: str, text: str) -> None:
        with suppress(OSError):
            (self._folder / name).write_text(text, encoding="utf-8")
