"""When jobs that wait are expected to start and to end, and what became of what had been told.

A job's first forecast is kept until it starts, and two that are 40 minutes apart, of which the older one was told about
an hour before. Everything here is written by this module alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurmsched.model import ExpectedTime, JobId, JobState, QueueForecast, Snapshot
from slurmsched.store.database import Database
from slurmsched.store.publication import MOST_FORECASTS
from slurmsched.store.rows import DatabaseRow, ForecastRow, number, text

MOST_STARTS: Final = 20_000
"""Starts that are compared with what had been told at most, the latest."""
_APART: Final = 2400.0
"""Seconds between two forecasts that are kept of a job."""
_AN_HOUR: Final = (1800.0, 5400.0)
"""Seconds before a start that count as an hour before."""
_MAX_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class _Told:
    """What was told of a job, to be compared with its start."""

    job: JobId
    which: str
    told: float
    row: DatabaseRow


class ForecastStore:
    """Forecasts of starts. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, forecast: QueueForecast, now: float) -> int:
        """Store a forecast of the jobs that still wait, in place of the last one; returns how many these are.

        Nothing is stored of jobs that no round has seen, and of owners who wanted to be forgotten since it was made.
        What has too few draws for a range is shown, and not compared with the start.
        """
        with self._database.transaction():
            waiting = {row["id"] for row in self._database.rows(_WAITING, {"at": forecast.at})}
            rows = [row for row in _rows(forecast, now) if row["job"] in waiting][:MOST_FORECASTS]
            told = [row for row in rows if not row["why"] and row["draws"] >= ForecastRow.ENOUGH_DRAWS]
            self._database.write("DELETE FROM start_forecasts WHERE which = 'last'")
            self._database.write(_ROTATE, {"before": forecast.at - _APART})
            self._database.write(
                "DELETE FROM start_forecasts WHERE which = 'next' AND at <= ?", (forecast.at - _APART,)
            )
            self._database.write_many(_INSERT, [{**row, "which": "last"} for row in rows])
            for which in ("first", "next"):
                self._database.write_many(_INSERT, [{**row, "which": which} for row in told])
        return len(rows)

    def compare(self, snapshot: Snapshot) -> int:
        """Note what had been told of the jobs that have started by now, and forget what was told of jobs that do not
        wait any more; returns how many starts were compared.

        A job that was never seen to run has not started, and what was told after the start does not count.
        """
        rows = self._database.rows(_LEFT)
        if not rows:
            return 0
        left = {row["job"] for row in rows}
        starts = self._starts(snapshot, left)
        told = self._database.unreadable_rows.parse_each("start_forecasts", "job", _told, rows)
        compared = [
            {**one.row, "started": started}
            for one in told
            if (started := starts.get(one.job)) is not None and _counts(one, started)
        ]
        with self._database.transaction():
            self._database.write_many(_COMPARED, compared)
            self._database.write_for_jobs("DELETE FROM start_forecasts WHERE job IN ({jobs})", left)
            last = self._database.rows(
                "SELECT started FROM told_starts ORDER BY started DESC LIMIT 1 OFFSET ?", (MOST_STARTS,)
            )
            if last:
                self._database.write("DELETE FROM told_starts WHERE started <= ?", (last[0]["started"],))
        return len({row["job"] for row in compared})

    def _starts(self, snapshot: Snapshot, jobs: set[JobId]) -> Mapping[JobId, float]:
        """When each of these jobs started last, as Slurm shows it, else as rounds have seen it."""
        query = "SELECT job, MAX(run_started) AS started FROM service WHERE job IN ({jobs}) GROUP BY job"
        rows = self._database.rows_of_jobs(query, jobs)
        seen = self._database.unreadable_rows.parse_each(
            "service", "job", lambda row: (text(row, "job"), number(row, "started")), rows
        )
        shown = (snapshot.jobs_by_id.get(job) for job in jobs)
        running = (job for job in shown if job is not None and job.state is not JobState.PENDING)
        return dict(seen) | {job.id: job.start_time for job in running if job.start_time is not None}


def _rows(forecast: QueueForecast, now: float) -> Iterator[dict[str, Any]]:
    common = {"at": forecast.at, "told": now, "until": forecast.until}
    for one in forecast.jobs:
        times = {**_times("start", one.start), **_times("end", one.end)}
        yield {**common, **times, "job": one.job, "draws": one.draws, "why": ""}
    nothing = {**_times("start", _NEVER), **_times("end", _NEVER)}
    for job, why in forecast.left_out.items():
        yield {**common, **nothing, "job": job, "draws": forecast.draws, "why": why[:_MAX_REASON] or "not known"}


_NEVER: Final = ExpectedTime(None, None, None)


def _times(side: str, time: ExpectedTime) -> dict[str, float | None]:
    return {f"{side}_low": time.low, f"{side}_median": time.median, f"{side}_high": time.high}


def _told(row: DatabaseRow) -> _Told:
    return _Told(text(row, "job"), text(row, "which"), number(row, "told"), row)


def _counts(one: _Told, started: float) -> bool:
    """Whether it was told in time: before the start, and about an hour before where it is to be that."""
    ahead, (shortest, longest) = started - one.told, _AN_HOUR
    return ahead > 0 if one.which == "first" else one.which == "hour" and shortest <= ahead <= longest


_WAITING: Final = (
    "SELECT id FROM jobs WHERE state = 'pending' AND NOT EXISTS"
    " (SELECT 1 FROM forgotten WHERE forgotten.owner = jobs.owner AND forgotten.at > :at)"
)
_LEFT: Final = (
    "SELECT f.job, f.which, f.told, f.until, f.start_low, f.start_median, f.start_high, COALESCE(j.owner, '') AS owner"
    " FROM start_forecasts f LEFT JOIN jobs j ON j.id = f.job WHERE COALESCE(j.state, '') != 'pending'"
    " ORDER BY f.job, f.which"
)
_COLUMNS: Final = (
    *("job", "which", "at", "told", "until", "draws", "start_low", "start_median", "start_high"),
    *("end_low", "end_median", "end_high", "why"),
)
_INSERT: Final = (
    f"INSERT OR IGNORE INTO start_forecasts ({', '.join(_COLUMNS)})"  # noqa: S608 our own names
    f" VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
)
_ROTATE: Final = (
    f"INSERT OR REPLACE INTO start_forecasts ({', '.join(_COLUMNS)}) SELECT "  # noqa: S608 our own names
    + ", ".join("'hour'" if name == "which" else name for name in _COLUMNS)
    + " FROM start_forecasts WHERE which = 'next' AND at <= :before"
)
_COMPARED: Final = (
    "INSERT OR IGNORE INTO told_starts (job, which, started, owner, told, until, low, median, high)"
    " VALUES (:job, :which, :started, :owner, :told, :until, :start_low, :start_median, :start_high)"
)
