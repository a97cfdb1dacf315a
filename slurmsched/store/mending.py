"""Rows of jobs in which a value is not what it should be, because of a bad disk or a hand: each value mended by itself.

A job's row says what of it is ours, so it cannot be left out as others are: its hold would be nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from slurmsched.model import JobState, Request, SynschedError, encode
from slurmsched.store.columns import Row, decoded, flag, maybe, number, text, whole
from slurmsched.store.database import Database

__all__ = ["mended"]


def mended(database: Database, where: str, parameters: Sequence[Any], at: float) -> list[dict[str, Any]]:
    """The rows of `jobs` that meet the condition `where`, each value as it should be, in the database too.

    What cannot be read becomes what does least harm: a claim counts as ours, so that it is given back; a time is `at`;
    where the original request is lost, what stands in Slurm counts as such. A row without a job's number is left out.
    Both are told of. Raises StoreError.
    """
    rows = []
    for row in database.rows(f"SELECT rowid AS row, * FROM jobs WHERE {where}", parameters):  # noqa: S608 our own words
        number_of_row = row.pop("row")
        wrong = dict(_wrong(row))
        if "id" in wrong:
            database.unreadable.add("jobs", number_of_row, wrong["id"])
            continue
        if wrong:
            changes = _instead(wrong, at)
            names = ", ".join(f"{column} = :{column}" for column in changes)
            database.write(f"UPDATE jobs SET {names} WHERE rowid = :row", {**changes, "row": number_of_row})  # noqa: S608 our own columns
            database.unreadable.add("jobs", row["id"], next(iter(wrong.values())))
            row.update(changes)
        rows.append(row)
    return rows


def _wrong(row: Row) -> Iterator[tuple[str, Exception]]:
    for column, check in _CHECKS.items():
        try:
            check(row, column)
        except (ValueError, SynschedError) as error:
            yield column, error


def _instead(wrong: dict[str, Exception], at: float) -> dict[str, Any]:
    changes = {column: at if column in _TIMES else _LEAST_HARM[column] for column in wrong}
    if "owner" in wrong:
        changes["state"] = JobState.PENDING.value  # an ended row of another owner would be of an older job
    if "original" in wrong:
        changes["reshaped"] = 0
    return changes


def _state(row: Row, column: str) -> JobState:
    return JobState(text(row, column))


def _request(row: Row, column: str) -> Request:
    return decoded(Request, row, column)


_CHECKS: Final[dict[str, Callable[[Row, str], object]]] = {
    "id": text,
    "owner": text,
    "name": text,
    "first_seen": number,
    "last_seen": number,
    "state": _state,
    "original": _request,
    "original_nice": whole,
    "held_by_us": flag,
    "reshaped": flag,
    "boosted": flag,
    "submitted": maybe,
}
_TIMES: Final = ("first_seen", "last_seen")
_LEAST_HARM: Final[dict[str, object]] = {
    "owner": "",
    "name": "",
    "state": JobState.PENDING.value,
    "original": encode(Request()),
    "original_nice": 0,
    "held_by_us": 1,
    "reshaped": 1,
    "boosted": 1,
    "submitted": None,
}
