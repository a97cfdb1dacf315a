"""Whether the file is whole, looked at before a process trusts it."""

from __future__ import annotations

import re
from time import monotonic
from typing import Final

from slurmsched.store.columns import number
from slurmsched.store.database import Database
from slurmsched.store.errors import BrokenStoreError, InterruptedStoreError

__all__ = ["DAILY", "check", "first_damage"]

DAILY: Final = 86400.0
"""Seconds after which a process that ends after one round checks again."""

_PATIENCE: Final = 5.0
"""Seconds. SQLite goes through about 500 MB in two; on a slower disk `synsched doctor` does the rest."""

_UPKEEP: Final = "upkeep"

_EACH: Final = 10_000
"""Steps of SQLite's machine between two looks at the time: about a millisecond."""


def check(database: Database, at: float, every: float = DAILY) -> bool:
    """Check the file unless that was done less than `every` seconds before `at`; whether it was gone through whole.

    Ends after five seconds. A new database has nothing to check. Raises BrokenStoreError with the first damage found,
    StoreError.
    """
    tables = database.tables
    if not tables:
        return True
    if _UPKEEP in tables:
        rows = database.rows("SELECT name, at FROM upkeep WHERE name = 'checked'")
        checked = database.unreadable.each(_UPKEEP, "name", lambda row: number(row, "at"), rows)
        if checked and abs(at - checked[0]) < every:
            return True
    damage = first_damage(database, monotonic() + _PATIENCE)
    if damage:
        raise BrokenStoreError(f"{database.path} is damaged: move it away, a new one is begun ({damage})")
    if _UPKEEP in tables:
        database.write("INSERT OR REPLACE INTO upkeep (name, at) VALUES ('checked', ?)", (at,))
    return damage is not None


def first_damage(database: Database, end: float) -> str | None:
    """The first damage in one line, empty where there is none, None where it was still looked for at `end` (monotonic).

    A value that does not belong where it is costs its row alone, and is no damage of the file. Raises StoreError.
    """
    with database.until(lambda: monotonic() >= end, _EACH):
        try:
            found = [" ".join(str(row["quick_check"]).split()) for row in database.rows("PRAGMA quick_check(100)")]
        except InterruptedStoreError:
            return None
    return next((said for said in found if said != "ok" and not _OF_A_ROW.search(said)), "")


_OF_A_ROW: Final = re.compile(r"\b(?:NULL|NUMERIC|TEXT) value in |\bnon-\w+ value in ")
