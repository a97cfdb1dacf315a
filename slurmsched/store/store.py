"""The database as the daemon uses it: one file, one part per concern."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurmsched.store.checking import DAILY, check
from slurmsched.store.database import Database
from slurmsched.store.journal import Journal
from slurmsched.store.measurements import Measurements
from slurmsched.store.migrations import migrate
from slurmsched.store.remembering import Remembering
from slurmsched.store.set_aside import SetAsideJobs
from slurmsched.store.switches import Switches

__all__ = ["Store"]


@dataclass(frozen=True, slots=True)
class Store:
    """Opened and up to date. Everything in it raises StoreError."""

    database: Database
    journal: Journal
    remembering: Remembering
    switches: Switches
    measurements: Measurements
    set_aside: SetAsideJobs

    @classmethod
    def open(cls, path: Path, at: float, checked_within: float = DAILY) -> Store:
        """The database at `path`, begun or brought up to date as of `at` (unix seconds).

        It is checked for damage unless that was done in the last `checked_within` seconds. Raises StoreError.
        """
        return cls._over(Database.open(path), at, checked_within)

    @classmethod
    def in_memory(cls, at: float = 0.0) -> Store:
        """One that is gone with the process, for simulated clusters."""
        return cls._over(Database.in_memory(), at)

    @classmethod
    def _over(cls, database: Database, at: float, checked_within: float | None = None) -> Store:
        try:
            if checked_within is not None:
                check(database, at, checked_within)
            migrate(database, at)
        except BaseException:
            database.close()
            raise
        return cls(
            database,
            Journal(database),
            Remembering(database),
            Switches(database),
            Measurements(database),
            SetAsideJobs(database),
        )

    def close(self) -> None:
        """Further use is an error."""
        self.database.close()
