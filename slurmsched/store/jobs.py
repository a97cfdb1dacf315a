"""The table `jobs`: updated by each poll, and repaired where a value is invalid (a bad disk, an edit by hand).

A row records what we changed about the job (hold, request, nice). So an unreadable row is repaired rather than skipped,
as other tables' rows are: nothing would release its hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from operator import itemgetter
from typing import Any, Final

from slurmsched.model import (
    Hints,
    Hold,
    Job,
    JobId,
    JobState,
    Request,
    SchedulerState,
    Snapshot,
    SynschedError,
    decode,
    encode,
    to_plain,
)
from slurmsched.model.reasons import pluralise
from slurmsched.rounds.specs import equivalent, held_by_owner, held_by_us, spec_of
from slurmsched.store.database import Database, as_row
from slurmsched.store.journal import JobEvent, JobEventKind
from slurmsched.store.rows import DatabaseRow, boolean, integer, number, optional_number, text

_RowsAsRead = dict[int, tuple[tuple[Any, ...], dict[str, Any]]]
"""Rows by their number in the table, with the values that were read of each."""


def repaired_rows(
    database: Database, condition: str, parameters: Sequence[Any], at: float, known: _RowsAsRead
) -> list[dict[str, Any]]:
    """The rows of `jobs` that meet `condition`, with invalid values replaced, in the database too.

    An invalid value becomes the one that does the least harm: marks count as set, so that our changes are given back; a
    time becomes `at`; a lost original request becomes the current one in Slurm. A row without a job id is skipped. All
    of these are added to `database.unreadable_rows`. A valid row with the same values as in `known` is the same object,
    and not checked again; `known` then holds the valid rows of this query. Raises StoreError.
    """
    rows, before = list[dict[str, Any]](), known.copy()
    known.clear()
    columns, found = database.values(f"SELECT {', '.join(_READ)} FROM jobs WHERE {condition}", parameters)  # noqa: S608 our own words
    for values in found:
        if (last := before.get(values[0])) is not None and last[0] == values:
            last[1]["last_seen"] = values[_LAST_SEEN]
            known[values[0]] = last
            rows.append(last[1])
            continue
        row = as_row(columns, values)
        row_id = row.pop("row")
        invalid = dict(_invalid_values(row))
        if "id" in invalid:
            database.unreadable_rows.add("jobs", row_id, invalid["id"])
            continue
        if invalid:
            changes = _replacements(invalid, at)
            names = ", ".join(f"{column} = :{column}" for column in changes)
            database.write(f"UPDATE jobs SET {names} WHERE rowid = :row", {**changes, "row": row_id})  # noqa: S608 our own columns
            database.unreadable_rows.add("jobs", row["id"], next(iter(invalid.values())))
            row.update(changes)
        else:
            known[row_id] = values, row
        rows.append(row)
    return rows


def _invalid_values(row: DatabaseRow) -> Iterator[tuple[str, Exception]]:
    for column, check in _COLUMN_CHECKS.items():
        try:
            check(row, column)
        except (ValueError, SynschedError) as error:
            yield column, error


def _replacements(invalid: dict[str, Exception], at: float) -> dict[str, Any]:
    changes = {column: at if column in _TIME_COLUMNS else _SAFE_VALUES[column] for column in invalid}
    if "owner" in invalid:
        changes["state"] = JobState.PENDING.value  # a finished row of another owner would belong to an older job
    if "original" in invalid:
        changes["reshaped"] = 0
    return changes


def _state(row: DatabaseRow, column: str) -> JobState:
    return JobState(text(row, column))


def _request(row: DatabaseRow, column: str) -> Request:
    return decoded_request(text(row, column))


@lru_cache(maxsize=4096)
def decoded_request(stored: str) -> Request:
    """The stored request; thousands of jobs have the same. Raises EncodingError."""
    return decode(Request, stored)


_COLUMN_CHECKS: Final[dict[str, Callable[[DatabaseRow, str], object]]] = {
    "id": text,
    "owner": text,
    "name": text,
    "first_seen": number,
    "last_seen": number,
    "state": _state,
    "original": _request,
    "original_nice": integer,
    "held_by_us": boolean,
    "reshaped": boolean,
    "boosted": boolean,
    "submitted": optional_number,
}
_READ: Final = ("rowid AS row", *_COLUMN_CHECKS, "summary", "script", "folder")
_LAST_SEEN: Final = _READ.index("last_seen")
_TIME_COLUMNS: Final = ("first_seen", "last_seen")
_SAFE_VALUES: Final[dict[str, object]] = {
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


_EMPTY_STATE: Final = SchedulerState()
_FINISHED: Final = JobState.FINISHED.value
_ACTIVE: Final = frozenset({JobState.RUNNING, JobState.SUSPENDED})

_INSERT: Final = (
    "INSERT INTO jobs"
    " (id, owner, name, first_seen, last_seen, state, original, original_nice, held_by_us, summary, submitted)"
    " VALUES (:id, :owner, :name, :at, :at, :state, :original, :nice, :held, :summary, :submitted)"
)
_UPDATE: Final = (
    "UPDATE jobs SET owner = :owner, last_seen = :at, state = :state, name = :name, summary = :summary,"
    " submitted = MIN(COALESCE(submitted, :submitted), :submitted),"
    " held_by_us = CASE WHEN :unheld THEN 0 ELSE MAX(held_by_us, :held) END,"
    " reshaped = reshaped AND NOT :as_submitted,"
    " original = CASE WHEN reshaped OR NOT :waits THEN original ELSE :original END,"
    " boosted = boosted AND original_nice != :nice,"
    " original_nice = CASE WHEN boosted THEN original_nice ELSE :nice END"
    " WHERE id = :id"
)
_SEEN: Final = "UPDATE jobs SET last_seen = ? WHERE id IN (SELECT value FROM json_each(?))"
_GONE: Final = "UPDATE jobs SET state = ?, last_seen = ?, target = NULL WHERE id = ?"
_POLLED: Final = "INSERT OR REPLACE INTO upkeep (name, at) VALUES ('polled', ?)"
_LASTING: Final = itemgetter(*(column for column in _COLUMN_CHECKS if column != "last_seen"), "summary")
_AS_SEEN: Final = itemgetter("owner", "state", "name", "summary")
_CAME_BACK: Final = "slurmctld came back with an older state, in which the job is under our hold again"
_LIFTED: Final = "was released by somebody else, though synsched held it"
_REQUEUED: Final = "was requeued by a person or by Slurm, not by synsched"
_OUR_REQUEUE_OF_THIS_RUN: Final = (
    "SELECT 1 FROM operations WHERE subject = :job AND verb = 'requeue' AND result != 'blocked' AND intended >="
    " (SELECT COALESCE(MAX(run_started), 0) FROM service WHERE job = :job) - :slack LIMIT 1"
)
_CLOCK_SLACK: Final = 5.0
"""Seconds that slurmctld's clock may be behind ours."""
_OUR_REQUEUE: Final = (
    "SELECT 1 FROM operations AS requeue WHERE subject = :job AND verb = 'requeue' AND result IN ('done', 'intended')"
    " AND intended <= :since AND :submitted <= ("
    "  SELECT MIN(intended) FROM operations WHERE subject = :job AND verb = 'release'"
    "  AND result IN ('done', 'undone') AND id > requeue.id)"
    " AND NOT EXISTS (SELECT 1 FROM service WHERE job = :job"
    "  AND run_started > requeue.intended AND run_started <= :submitted) LIMIT 1"
)
_MARKED_UNTIL: Final = (
    "SELECT id FROM jobs WHERE state = 'finished' AND (held_by_us OR reshaped OR boosted) AND last_seen < ?"
)
_CLEAR_MARKS: Final = "UPDATE jobs SET held_by_us = 0, reshaped = 0, boosted = 0 WHERE id = ?"
_DAY: Final = 86400.0
_INTEGER_LIMIT: Final = 1 << 63
_FORGET: Final = (
    "DELETE FROM jobs WHERE id = ?",
    "DELETE FROM service WHERE job = ?",
    "DELETE FROM reported WHERE job = ?",
    "DELETE FROM rates WHERE job = ?",
    "DELETE FROM start_forecasts WHERE job = ?",
    "DELETE FROM first_draws WHERE job = ?",
)


def update_jobs(
    database: Database, snapshot: Snapshot, managed: Collection[JobId], kept: JobRows | None = None
) -> tuple[JobEvent, ...]:
    """Bring the `jobs` table up to the snapshot; returns the events of what changed. Raises StoreError.

    A new managed job gets a row with its current request. While it is pending and we have not updated it, the stored
    original request follows its owner's changes; once we have, the stored one stays. A set-aside job keeps its row. A
    job that Slurm no longer knows is finished; its marks are cleared a day later, so one wrong poll loses no hold.
    """
    with database.transaction():
        kept = kept or JobRows()
        known = _known_rows(database, snapshot, managed, kept)
        older = _told_by_the_last_poll(known, kept.last_poll(database, known.values()), snapshot.time)
        arrays = frozenset(job for job, row in known.items() if row["held_by_us"] and row["state"] != _FINISHED)
        seen_before = [job for job in snapshot.jobs if job.id in known]
        unknown = (job for job in snapshot.jobs if job.id not in known)
        new = [job for job in unknown if job.id in managed or _has_array_hold(job, arrays)]
        absent = [job for job in known if job not in snapshot.jobs_by_id]
        gone = [job for job in absent if snapshot.is_gone(job)]
        long_gone = [job for job in gone if known[job]["last_seen"] < snapshot.time - _DAY]
        marked = database.rows(_MARKED_UNTIL, (snapshot.time - _DAY,))
        long_gone += [row["id"] for row in marked if snapshot.is_gone(row["id"])]
        unread = [job for job in absent if not snapshot.is_gone(job)]
        settled = kept.settled(seen_before, arrays, known)
        others = [job for job in seen_before if job.id not in settled]
        returned = frozenset(job.id for job in others if _hold_came_back(database, known[job.id], job))
        lifted = [job.id for job in others if _hold_was_lifted(database, known[job.id], job)]
        requeued = [job.id for job in others if _was_requeued_by_others(database, known[job.id], job)]
        database.write_many(_INSERT, [_job_columns(job, snapshot.time, arrays) for job in new])
        now = [_job_columns(job, snapshot.time, arrays, known[job.id]) for job in others]
        same = {of["id"] for of in now if _is_up_to_date(known[of["id"]], of)} | settled
        kept.keep({job: known[job] for job in same.difference(returned)}, others, arrays)
        database.write_many(_UPDATE, [of for of in now if of["id"] not in same])
        database.write(_SEEN, (snapshot.time, json.dumps([job for job in (*same, *unread) if job in older])))
        database.write_many("UPDATE jobs SET held_by_us = 1 WHERE id = ?", [(job,) for job in returned])
        database.write_many(_GONE, [(_FINISHED, known[job]["last_seen"], job) for job in gone])
        database.write(_POLLED, (snapshot.time,))
        database.write_many(_CLEAR_MARKS, [(job,) for job in long_gone])
    return (
        *(JobEvent(snapshot.time, job, JobEventKind.OVERRULED, _LIFTED) for job in lifted),
        *(JobEvent(snapshot.time, job, JobEventKind.REQUEUED, _REQUEUED) for job in requeued),
        *(JobEvent(snapshot.time, job, JobEventKind.UNDONE, _CAME_BACK) for job in sorted(returned)),
        *(event for job in others for event in _state_change_events(known[job.id], job, snapshot.time)),
        *(event for job in new for event in _first_seen_events(job, snapshot.time)),
        *(JobEvent(snapshot.time, job, JobEventKind.ENDED, "left the queue") for job in gone),
    )


def unstorable_jobs(
    database: Database, snapshot: Snapshot, managed: Collection[JobId], describe: Callable[[Exception], str]
) -> dict[JobId, str]:
    """The jobs that cannot be stored or whose row cannot be read, with the reason; `describe` formats an error.

    Called only after `update_jobs` failed. Raises StoreError.
    """
    with database.transaction():
        known = _known_rows(database, snapshot, managed, JobRows())
    failed: dict[JobId, str] = {}
    for job in snapshot.jobs:
        row = known.get(job.id)
        try:
            _check_storable(_job_columns(job, snapshot.time, (), row))
            if row is not None:
                list(_state_change_events(row, job, snapshot.time))
        except Exception as error:  # whatever it is, it concerns this job only
            failed[job.id] = f"its record cannot be read or written ({describe(error)})"
    return failed


def _check_storable(row: Mapping[str, Any]) -> None:
    """Raises UnicodeEncodeError or OverflowError for a value that SQLite cannot store."""
    for value in row.values():
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
            raise OverflowError("a number beyond 64 bits")


def _known_rows(
    database: Database, snapshot: Snapshot, managed: Collection[JobId], kept: JobRows
) -> dict[JobId, dict[str, Any]]:
    """The rows of unfinished jobs and, of jobs in the snapshot although their row is finished, those with a mark left
    and those that are managed. Rows whose job id was reused by a newer job are deleted. Of others no mark is looked
    for: all jobs that ended within a day may have one."""
    now = snapshot.jobs_by_id
    known = {row["id"]: row for row in kept.unfinished(database, snapshot.time)}
    others = json.dumps([job for job in now if job not in known])
    for row in repaired_rows(database, "id IN (SELECT value FROM json_each(?))", (others,), snapshot.time, {}):
        if row["id"] in managed or row["held_by_us"] or row["reshaped"] or row["boosted"]:
            known[row["id"]] = row
    reused = [job for job, row in known.items() if job in now and _is_of_older_job(row, now[job])]
    for job in reused:
        for statement in _FORGET:
            database.write(statement, (job,))
        del known[job]
    return known


def _is_of_older_job(row: Mapping[str, Any], job: Job) -> bool:
    """Whether the row belongs to an older job with the same id: it is finished, and the job has another owner or was
    submitted later and never restarted (a requeue renews the submit time too)."""
    later = job.submit_time > row["last_seen"] and job.restarts == 0
    return row["state"] == _FINISHED and bool(row["owner"] != job.user or later)


def _matches_original(job: Job, row: Mapping[str, Any]) -> bool:
    return bool(row["reshaped"]) and equivalent(spec_of(decoded_request(row["original"])), spec_of(job.current_request))


def _told_by_the_last_poll(known: Mapping[JobId, dict[str, Any]], polled: float | None, now: float) -> set[JobId]:
    """Set `last_seen` of all unfinished rows to the last poll, where it tells, and return the rows that are to say
    themselves that their jobs are seen: unfinished ones do so once a day, else each poll would write them all."""
    older, today = set[JobId](), int(now / _DAY)
    for job, row in known.items():
        if row["state"] == _FINISHED or int(row["last_seen"] / _DAY) != today:
            older.add(job)
        if polled is not None and row["state"] != _FINISHED:
            row["last_seen"] = polled
    return older


def _hold_was_lifted(database: Database, row: Mapping[str, Any], job: Job) -> bool:
    """Whether a job that was pending under our hold lost it or ran, without an operation of ours since."""
    ran = job.state in _ACTIVE or job.state is JobState.COMPLETING
    lifted = ran or (job.state is JobState.PENDING and job.hold is Hold.NONE)
    if not (row["held_by_us"] and row["state"] == JobState.PENDING.value and lifted):
        return False
    query = "SELECT 1 FROM operations WHERE subject = ? AND intended >= ? LIMIT 1"
    return not database.rows(query, (job.id, row["last_seen"]))


def _was_requeued_by_others(database: Database, row: Mapping[str, Any], job: Job) -> bool:
    """Whether a job that ran was requeued since it was last seen, without an operation of ours since that run began."""
    ran = row["state"] in (JobState.RUNNING.value, JobState.SUSPENDED.value, JobState.COMPLETING.value)
    runs_anew = job.state in _ACTIVE and job.restarts > 0 and (job.start_time or 0.0) > row["last_seen"]
    if not ran or not (job.state is JobState.PENDING or runs_anew):
        return False
    return not database.rows(_OUR_REQUEUE_OF_THIS_RUN, {"job": job.id, "slack": _CLOCK_SLACK})


def _hold_came_back(database: Database, row: Mapping[str, Any], job: Job) -> bool:
    """Whether a hold that we lifted is in force again, since slurmctld was killed and started from an older state.

    Only `requeuehold` makes a hold of this kind, and only on a job that runs: Slurm refuses it for one that waits, and
    submits the job anew at that moment (24.11). So the hold is ours exactly if the last submission was our REQUEUE:
    between its intent and our RELEASE, and no run is known to have begun in between. A hold that an administrator sets
    after our release is of another kind, or goes with a later submission.
    """
    if row["held_by_us"] or job.state is not JobState.PENDING or job.hold is not Hold.REQUEUED:
        return False
    since = job.submit_time + _CLOCK_SLACK
    return bool(database.rows(_OUR_REQUEUE, {"job": job.id, "since": since, "submitted": job.submit_time}))


def _has_array_hold(job: Job, arrays: Collection[JobId]) -> bool:
    """Whether a pending task is under the hold that we set on its whole array while its record was unreadable."""
    return job.array_job in arrays and job.state is JobState.PENDING and job.hold is Hold.ADMIN


def _job_columns(
    job: Job, at: float, arrays: Collection[JobId], row: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    waits = job.state is JobState.PENDING
    return {
        "waits": waits,
        "as_submitted": row is not None and _matches_original(job, row),
        "id": job.id,
        "owner": job.user,
        "name": job.name,
        "at": at,
        "state": job.state.value,
        "original": _encoded_request(job.current_request),
        "nice": job.nice,
        "submitted": job.submit_time,
        "held": waits and (held_by_us(job, _EMPTY_STATE) or _has_array_hold(job, arrays)),
        "unheld": (waits and (job.hold is Hold.NONE or held_by_owner(job))) or job.state in _ACTIVE,
        "summary": json.dumps(_summary(job), sort_keys=True, separators=(",", ":")),
    }


def _is_up_to_date(row: Mapping[str, Any], columns: Mapping[str, Any]) -> bool:
    """Whether `_UPDATE` with these columns would leave the row as it is, but for when the job was last seen."""
    return (
        _AS_SEEN(row) == _AS_SEEN(columns)
        and (inf if row["submitted"] is None else row["submitted"]) <= columns["submitted"]
        and row["held_by_us"] == (not columns["unheld"] and max(row["held_by_us"], columns["held"]))
        and not (row["reshaped"] and columns["as_submitted"])
        and (row["reshaped"] or not columns["waits"] or row["original"] == columns["original"])
        and (row["boosted"], row["original_nice"]) == (False, columns["nice"])
    )


class JobRows:
    """The rows of jobs as they are read and written, kept from poll to poll: what is stored of those of which nothing
    but the run time has changed; and the unfinished ones, where they were read while Slurm answered the poll."""

    def __init__(self) -> None:
        self.unchanged: Mapping[JobId, dict[str, Any]] = {}
        """The rows that the last poll left as they were."""
        self._polled: dict[JobId, tuple[Job, bool]] = {}
        """Jobs as they were last compared with their rows, and whether their arrays were under our hold as a whole."""
        self._read: _RowsAsRead = {}
        self._ahead: tuple[tuple[int, int], list[dict[str, Any]]] | None = None
        self._has_polled = False

    def read_ahead(self, database: Database, at: float) -> None:
        """Read the unfinished rows for the poll that comes next."""
        self._ahead = database.changes, self._unfinished(database, at)

    def unfinished(self, database: Database, at: float) -> list[dict[str, Any]]:
        """The unfinished rows: those read ahead, once, if nobody has written since."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == database.changes:
            return ahead[1]
        return self._unfinished(database, at)

    def _unfinished(self, database: Database, at: float) -> list[dict[str, Any]]:
        return repaired_rows(database, "state != 'finished'", (), at, self._read)

    def last_poll(self, database: Database, known: Iterable[Mapping[str, Any]]) -> float | None:
        """When the last poll was; None where only the rows tell: an older release, which ran since, writes them at each
        poll, and nothing else."""
        rows, first = database.rows("SELECT name, at FROM upkeep WHERE name = 'polled'"), not self._has_polled
        self._has_polled = True
        for polled in database.unreadable_rows.parse_each("upkeep", "name", lambda row: number(row, "at"), rows):
            later = (row["state"] != _FINISHED and row["last_seen"] > polled for row in known)
            return None if first and any(later) else polled
        return None

    def settled(
        self, jobs: Iterable[Job], arrays: Collection[JobId], rows: Mapping[str, Mapping[str, Any]]
    ) -> set[JobId]:
        """Those of these jobs of which nothing but the run time has changed, and nothing in their `rows`, since a poll
        that left the row as it was: so does this one, and nothing happened to them. All others are forgotten.

        A job under a hold that may be an old one of ours is never settled: operations tell what it is.
        """
        settled = {
            job.id: last
            for job in jobs
            if (last := self._polled.get(job.id)) is not None
            and (row := self.unchanged.get(job.id)) is not None
            and (row is (read := rows[job.id]) or _LASTING(row) == _LASTING(read))
            and last[1] == (job.array_job in arrays)
            and job.hold is not Hold.REQUEUED
            and not last[0].differs_but_in_run_time(job)
        }
        self._polled = settled
        return {*settled}

    def keep(self, unchanged: Mapping[JobId, dict[str, Any]], jobs: Iterable[Job], arrays: Collection[JobId]) -> None:
        """Remember the rows that a poll leaves as they were, and these jobs as the poll shows them."""
        self.unchanged = unchanged
        self._polled |= {job.id: (job, job.array_job in arrays) for job in jobs}


_encoded_request: Final[Callable[[Request], str]] = lru_cache(maxsize=4096)(encode)
"""The request as it is stored; thousands of jobs have the same."""


_plain_hints: Final[Callable[[Hints], object]] = lru_cache(maxsize=4096)(to_plain)
"""The hints as they are stored; thousands of jobs have the same."""


def _summary(job: Job) -> dict[str, object]:
    """The attributes of a job that `status` shows without asking Slurm."""
    return {
        "user": job.user,
        "account": job.account,
        "partition": ",".join(job.partitions),
        "gpus": job.gpus,
        "gpu_type": ",".join(sorted({allocation.gpu_type for allocation in job.allocations}))
        or job.original_request.gpu_type
        or "",
        "cpus": job.allocated.cpus or job.original_request.cpus,
        "memory": job.allocated.memory or job.original_request.memory * job.original_request.nodes,
        "nodes": job.nodes,
        "hints": _plain_hints(job.hints),
        "problems": job.hints.problems,
        "started": job.start_time if job.allocations else None,
        "time_limit": job.time_limit,
    }


def _first_seen_events(job: Job, at: float) -> Iterator[JobEvent]:
    yield JobEvent(at, job.id, JobEventKind.SEEN, f"first seen, {job.state.value}")
    yield from _hint_problem_events(job, at)


def _hint_problem_events(job: Job, at: float) -> Iterator[JobEvent]:
    for problem in job.hints.problems:
        yield JobEvent(at, job.id, JobEventKind.HINT, problem)


def _state_change_events(row: Mapping[str, Any], job: Job, at: float) -> Iterator[JobEvent]:
    before = JobState(row["state"])
    if job.state is JobState.RUNNING and before is not JobState.RUNNING:
        yield JobEvent(
            min(job.start_time or at, at),
            job.id,
            JobEventKind.STARTED,
            f"runs on {','.join(job.nodes) or 'its nodes'} with {pluralise(job.gpus, 'GPU')}",
        )
    if job.state is JobState.FINISHED and before is not JobState.FINISHED:
        yield JobEvent(min(job.end_time or at, at), job.id, JobEventKind.ENDED, f"ended: {job.state_text.lower()}")
