"""Databases that are locked, full or read-only, as SQLite itself answers then: no error is made up."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from slurmsched.endurance.faults import SoakFault
from slurmsched.store.errors import StoreError
from slurmsched.store.store import Store

_MOST_PAGES: Final = 1_073_741_823
_PATIENCE: Final = 2
"""Milliseconds that a locked database is waited for, in place of seconds: the clock of the soak stands still then."""

_SYMPTOMS: Final = {
    SoakFault.FULL: ("PRAGMA max_page_count = 1", f"PRAGMA max_page_count = {_MOST_PAGES}"),
    SoakFault.READ_ONLY: ("PRAGMA query_only = ON", ""),
}
"""What makes SQLite answer so, and what ends it; a connection that was read-only stays so, until the next process. The
least number of pages is that which the file has."""


class DatabaseSickness:
    """What is wrong with the database at `path`, whichever process has it open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ill: dict[SoakFault, int] = {}
        self._store: Store | None = None
        self._other: sqlite3.Connection | None = None

    def treat(self, store: Store) -> None:
        """A process has opened the database."""
        self._store = store
        self._tell(f"PRAGMA busy_timeout = {_PATIENCE}")
        for kind in self._ill:
            self._tell(*_SYMPTOMS.get(kind, ())[:1])

    def forget(self) -> None:
        """The process has gone."""
        self._store = None

    def begin(self, kind: SoakFault) -> None:
        self._ill[kind] = self._ill.get(kind, 0) + 1
        if kind is SoakFault.LOCKED:
            self._lock()
        else:
            self._tell(_SYMPTOMS[kind][0])

    def end(self, kind: SoakFault) -> None:
        self._ill[kind] -= 1
        if self._ill[kind]:
            return
        del self._ill[kind]
        if kind is SoakFault.LOCKED:
            self._unlock()
        else:
            self._tell(_SYMPTOMS[kind][1])

    def _tell(self, *pragmas: str) -> None:
        """Set these on the connection: outside of transactions, which would wait for whoever locks the database."""
        for pragma in filter(None, pragmas):
            with suppress(StoreError):
                if self._store is not None:
                    self._store.database.rows(pragma)

    def _lock(self) -> None:
        """Another process writes for a long time."""
        if self._other is None and self._path.exists():
            connection = sqlite3.connect(self._path, timeout=1.0, isolation_level=None)
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error:
                connection.close()
            else:
                self._other = connection

    def _unlock(self) -> None:
        if self._other is not None:
            self._other.execute("ROLLBACK")
            self._other.close()
            self._other = None
