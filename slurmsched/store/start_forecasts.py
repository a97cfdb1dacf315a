"""When jobs that wait are expected to start and to end, and what became of what had been told.

A job's first forecast is kept until it starts, and two that are 40 minutes apart, of which the older one was told about
an hour before. What becomes of the first corrects the ranges of later ones. Everything here is written by this module
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurmsched.model import ExpectedTime, Hold, JobId, JobState, QueueForecast, Snapshot, StartRanges
from slurmsched.store.database import Database
from slurmsched.store.publication import MOST_FORECASTS
from slurmsched.store.rows import (
    DatabaseRow,
    ForecastRow,
    number,
    optional_number,
    parse_start_ranges,
    text,
    was_in_range,
)

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


@dataclass(frozen=True, slots=True)
class _FirstDraw:
    """The first forecast of a job, as it was drawn and as it was told."""

    job: JobId
    at: float
    told: float
    until: float
    drawn: ExpectedTime
    range: ExpectedTime
    waits: bool


class ForecastStore:
    """Forecasts of starts. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, forecast: QueueForecast, now: float) -> int:
        """Store a forecast of the jobs that still wait, in place of the last one; returns how many these are. Ranges of
        starts are those of the draws, corrected by what became of earlier ones.

        Nothing is stored of jobs that no round has seen, and of owners who wanted to be forgotten since it was made.
        What has too few draws for a range is shown, and not compared with the start.
        """
        with self._database.transaction():
            waiting = {row["id"] for row in self._database.rows(_WAITING, {"at": forecast.at})}
            ranged = self.ranges().applied(forecast)
            rows = [row for row in _rows(ranged, now) if row["job"] in waiting][:MOST_FORECASTS]
            told = [row for row in rows if not row["why"] and row["draws"] >= ForecastRow.ENOUGH_DRAWS]
            self._database.write("DELETE FROM start_forecasts WHERE which = 'last'")
            self._database.write(_ROTATE, {"before": forecast.at - _APART})
            self._database.write(
                "DELETE FROM start_forecasts WHERE which = 'next' AND at <= ?", (forecast.at - _APART,)
            )
            self._database.write_many(_INSERT, [{**row, "which": "last"} for row in rows])
            for which in ("first", "next"):
                self._database.write_many(_INSERT, [{**row, "which": which} for row in told])
            drawn = {one.job: one.start for one in forecast.jobs}
            self._database.write_many(_INSERT_DRAW, [_draw(row, drawn[row["job"]]) for row in told])
        return len(rows)

    def ranges(self) -> StartRanges:
        """Returns by how much ranges are widened or narrowed now."""
        rows = self._database.rows("SELECT * FROM start_ranges")
        known = self._database.unreadable_rows.parse_each("start_ranges", "id", parse_start_ranges, rows)
        return known[0] if known else StartRanges()

    def compare(self, snapshot: Snapshot) -> int:
        """Note what had been told of the jobs that have started by now, correct the ranges of later forecasts by it,
        and forget what was told of jobs that do not wait any more; returns how many starts were compared.

        A job that was never seen to run has not started, and what was told after the start does not count.
        """
        self._correct_ranges(snapshot)
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

    def _correct_ranges(self, snapshot: Snapshot) -> None:
        """Let each first forecast correct the ranges once, when it is known what became of it: of a job that has
        started, and of one that still waits after the range. One that was cancelled before tells nothing.
        """
        self._forget_held(snapshot)
        ranges = self.ranges()
        if 0 <= snapshot.time - ranges.at < StartRanges.EVERY:
            return
        rows = self._database.rows(_DUE, {"now": snapshot.time})
        if not rows:
            return
        due = self._database.unreadable_rows.parse_each("first_draws", "job", _first_draw, rows)
        starts = self._starts(snapshot, {one.job for one in due})
        outcomes, covered = dict[JobId, tuple[bool, bool]](), 0
        for one in due:
            started = starts.get(one.job, 0.0) > one.told  # one that waits again after a run has started too
            if not started and not one.waits:
                continue
            time = starts[one.job] if started else snapshot.time
            outside = ranges.is_outside(one.drawn, one.at, one.until, time, started=started)
            if outside is not None:
                outcomes[one.job] = outside
                covered += started and was_in_range(time, one.range, one.until)
        counted = list(outcomes)
        ranges = ranges.after(list(outcomes.values()), covered, snapshot.time) if outcomes else ranges
        over = {row["job"] for row in rows if row["state"] != JobState.PENDING.value} - {*counted}
        with self._database.transaction():
            self._database.write_for_jobs("UPDATE first_draws SET counted = 1 WHERE job IN ({jobs})", counted)
            self._database.write_for_jobs("DELETE FROM first_draws WHERE job IN ({jobs})", over)
            self._database.write(_FORGET_ENDED)
            if counted:
                factors = (ranges.below, ranges.above, ranges.counted, ranges.covered, ranges.at)
                self._database.write("INSERT OR REPLACE INTO start_ranges VALUES (1, ?, ?, ?, ?, ?)", factors)

    def _forget_held(self, snapshot: Snapshot) -> None:
        """Let no job tell anything that others hold: whoever does may make ranges neither wide nor narrow by it."""
        open_jobs = {row["job"] for row in self._database.rows(_NOT_OURS)}
        held = [job.id for job in snapshot.jobs_in_state(JobState.PENDING) if job.hold is not Hold.NONE]
        if of_others := open_jobs & {*held}:
            self._database.write_for_jobs("DELETE FROM first_draws WHERE job IN ({jobs})", of_others)

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


def _draw(row: Mapping[str, Any], drawn: ExpectedTime) -> dict[str, Any]:
    told = {"told_low": row["start_low"], "told_high": row["start_high"]}
    times = {"low": drawn.low, "median": drawn.median, "high": drawn.high}
    return {**{name: row[name] for name in ("job", "at", "told", "until")}, **times, **told}


def _first_draw(row: DatabaseRow) -> _FirstDraw:
    low, median, high, told_low, told_high = (
        optional_number(row, name) for name in ("low", "median", "high", "told_low", "told_high")
    )
    at, told_at, until = (number(row, name) for name in ("at", "told", "until"))
    drawn, told = ExpectedTime(low, median, high), ExpectedTime(told_low, median, told_high)
    return _FirstDraw(text(row, "job"), at, told_at, until, drawn, told, text(row, "state") == JobState.PENDING.value)


def _counts(one: _Told, started: float) -> bool:
    """Whether it was told in time: before the start, and about an hour before where it is to be that."""
    ahead, (shortest, longest) = started - one.told, _AN_HOUR
    return ahead > 0 if one.which == "first" else one.which == "hour" and shortest <= ahead <= longest


_WAITING: Final = (
    "SELECT id FROM jobs WHERE state = 'pending' AND state != 'finished' AND NOT EXISTS"  # as the index has it
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
_INSERT_DRAW: Final = (
    "INSERT OR IGNORE INTO first_draws (job, at, told, until, low, median, high, told_low, told_high)"
    " VALUES (:job, :at, :told, :until, :low, :median, :high, :told_low, :told_high)"
)
_DUE: Final = (
    "SELECT d.*, COALESCE(j.state, '') AS state FROM first_draws d LEFT JOIN jobs j ON j.id = d.job"
    " WHERE d.counted = 0 AND (d.told_high < :now OR COALESCE(j.state, '') != 'pending')"
)
_NOT_OURS: Final = (
    "SELECT d.job FROM jobs j CROSS JOIN first_draws d ON j.id = d.job"  # of those that wait, not of all forecasts
    " WHERE j.state = 'pending' AND j.state != 'finished' AND NOT j.held_by_us AND d.counted = 0"
)
_FORGET_ENDED: Final = (
    "DELETE FROM first_draws WHERE counted = 1 AND job NOT IN (SELECT id FROM jobs WHERE state != 'finished')"
)
