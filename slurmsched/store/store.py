"""The daemon's database: one file, one attribute per concern; and the switches that administrators set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.store.database import Database
from slurmsched.store.finished_runs import FinishedRuns
from slurmsched.store.journal import ActivityCounts, Journal
from slurmsched.store.maintenance import CHECK_INTERVAL, check_integrity, migrate
from slurmsched.store.measurements import Measurements
from slurmsched.store.rows import SETTINGS_SWITCH, DatabaseRow, number, text
from slurmsched.store.set_aside import SetAsideStore
from slurmsched.store.start_forecasts import ForecastStore
from slurmsched.store.state import StateStore

_PAUSED: Final = "paused"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause: rounds change nothing until `synsched resume`. `since` in unix seconds."""

    who: str
    why: str
    since: float

    @property
    def sentence(self) -> str:
        return f"paused by {self.who}" + (f": {self.why}" if self.why else "")


class Switches:
    """Switches in the database. Changes are on disk when a method returns; all raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self, who: str, why: str, at: float) -> None:
        """Pause, replacing an existing pause if there is a reason; `at` in unix seconds."""
        self._database.write(
            "INSERT INTO switches (name, value, set_by, at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value, set_by = excluded.set_by, at = excluded.at"
            " WHERE excluded.value != ''",
            (_PAUSED, why, who, at),
        )

    def resume(self) -> bool:
        """Remove the pause; returns whether there was one."""
        was_paused = self.current_pause() is not None
        self._database.write("DELETE FROM switches WHERE name = ?", (_PAUSED,))
        return was_paused

    def record_settings(self, refused: str, at: float) -> None:
        """Record why the settings file was refused when it was read last, with earlier settings still in force; empty
        where it was not."""
        if refused:
            statement = "INSERT OR REPLACE INTO switches (name, value, set_by, at) VALUES (?, ?, 'a reload', ?)"
            self._database.write(statement, (SETTINGS_SWITCH, refused, at))
        else:
            self._database.write("DELETE FROM switches WHERE name = ?", (SETTINGS_SWITCH,))

    def current_pause(self) -> Pause | None:
        """The pause in force, or None. A pause whose row cannot be read is in force too."""
        rows = self._database.rows("SELECT name, value, set_by, at FROM switches WHERE name = ?", (_PAUSED,))
        if not rows:
            return None
        return next(
            iter(self._database.unreadable_rows.parse_each("switches", "name", _pause, rows)), _UNREADABLE_PAUSE
        )


def _pause(row: DatabaseRow) -> Pause:
    return Pause(text(row, "set_by"), text(row, "value"), number(row, "at"))


_UNREADABLE_PAUSE: Final = Pause("an unknown user", "the reason in the database is unreadable", 0.0)


@dataclass(frozen=True, slots=True)
class Store:
    """The open database with its schema up to date. All methods of its parts raise StoreError."""

    database: Database
    journal: Journal
    state: StateStore
    switches: Switches
    measurements: Measurements
    set_aside: SetAsideStore
    finished_runs: FinishedRuns
    start_forecasts: ForecastStore
    counts: ActivityCounts

    @classmethod
    def open(cls, path: Path, at: float, check_interval: float = CHECK_INTERVAL) -> Store:
        """Open the database at `path`, created or migrated if needed, as of `at` (unix seconds).

        It is checked for damage unless that was done less than `check_interval` seconds ago. Raises StoreError.
        """
        return cls._from_database(Database.open(path), at, check_interval)

    @classmethod
    def in_memory(cls, at: float = 0.0) -> Store:
        """A store in memory, for simulated clusters."""
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
        finished_runs, counts = FinishedRuns(database), ActivityCounts()
        return cls(
            database,
            Journal(database, counts),
            StateStore(database, finished_runs, counts),
            Switches(database),
            Measurements(database),
            SetAsideStore(database),
            finished_runs,
            ForecastStore(database),
            counts,
        )

    def close(self) -> None:
        """Close the database; further use raises."""
        self.database.close()
