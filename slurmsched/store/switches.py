"""Switches that people set, with who and why: for now there is one, `paused`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slurmsched.store.columns import Row, number, text
from slurmsched.store.database import Database

__all__ = ["Pause", "Switches"]

_PAUSED: Final = "paused"


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is changed until somebody resumes. `since` in unix seconds."""

    who: str
    why: str
    since: float

    @property
    def sentence(self) -> str:
        return f"paused by {self.who}" + (f": {self.why}" if self.why else "")


class Switches:
    """Each change is on disk when it returns. All raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self, who: str, why: str, at: float) -> None:
        """Set it; a pause that stands is replaced."""
        self._database.write(
            "INSERT OR REPLACE INTO switches (name, value, set_by, at) VALUES (?, ?, ?, ?)", (_PAUSED, why, who, at)
        )

    def resume(self) -> bool:
        """Take the pause back; whether there was one."""
        stood = self.paused() is not None
        self._database.write("DELETE FROM switches WHERE name = ?", (_PAUSED,))
        return stood

    def paused(self) -> Pause | None:
        """The pause that stands, None when there is none. One whose words cannot be read stands all the same."""
        rows = self._database.rows("SELECT name, value, set_by, at FROM switches WHERE name = ?", (_PAUSED,))
        if not rows:
            return None
        return next(iter(self._database.unreadable.each("switches", "name", _pause, rows)), _SOMEBODY)


def _pause(row: Row) -> Pause:
    return Pause(text(row, "set_by"), text(row, "value"), number(row, "at"))


_SOMEBODY: Final = Pause("somebody", "who and why cannot be read in the database", 0.0)
