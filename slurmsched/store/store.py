"""The database as the daemon uses it: one file, one part per concern; and the switches that people set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.store.database import Database
from slurmsched.store.journal import Journal
from slurmsched.store.maintenance import CHECK_INTERVAL, check_integrity, migrate
from slurmsched.store.measurements import Measurements
from slurmsched.store.rows import DatabaseRow, number, text
from slurmsched.store.set_aside import SetAsideStore
from slurmsched.store.state import StateStore

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
        stood = self.current_pause() is not None
        self._database.write("DELETE FROM switches WHERE name = ?", (_PAUSED,))
        return stood

    def current_pause(self) -> Pause | None:
        """The pause that stands, None when there is none. One whose words cannot be read stands all the same."""
        rows = self._database.rows("SELECT name, value, set_by, at FROM switches WHERE name = ?", (_PAUSED,))
        if not rows:
            return None
        return next(
            iter(self._database.unreadable_rows.parse_each("switches", "name", _pause, rows)), _UNREADABLE_PAUSE
        )


def _pause(row: DatabaseRow) -> Pause:
    return Pause(text(row, "set_by"), text(row, "value"), number(row, "at"))


_UNREADABLE_PAUSE: Final = Pause("somebody", "who and why cannot be read in the database", 0.0)


@dataclass(frozen=True, slots=True)
class Store:
    """Opened and up to date. Everything in it raises StoreError."""

    database: Database
    journal: Journal
    state: StateStore
    switches: Switches
    measurements: Measurements
    set_aside: SetAsideStore

    @classmethod
    def open(cls, path: Path, at: float, check_interval: float = CHECK_INTERVAL) -> Store:
        """The database at `path`, begun or brought up to date as of `at` (unix seconds).

        It is checked for damage unless that was done in the last `checked_within` seconds. Raises StoreError.
        """
        return cls._from_database(Database.open(path), at, check_interval)

    @classmethod
    def in_memory(cls, at: float = 0.0) -> Store:
        """One that is gone with the process, for simulated clusters."""
        return cls._from_database(Database.in_memory(), at)

    @classmethod
    def _from_database(cls, database: Database, at: float, check_interval: float | None = None) -> Store:
        try:
            if check_interval is not None:
                check_integrity(database, at, check_interval)
            migrate(database, at)
        except BaseException:
            database.close()
            raise
        return cls(
            database,
            Journal(database),
            StateStore(database),
            Switches(database),
            Measurements(database),
            SetAsideStore(database),
        )

    def close(self) -> None:
        """Further use is an error."""
        self.database.close()
