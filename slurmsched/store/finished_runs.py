"""Runs that have ended: what is learnt of each owner's work, how far accounting was read, and forgetting.

An owner's runs count for the owner's own jobs. Everything here is written by this module alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from slurmsched.backends.protocol import JobOrigin
from slurmsched.knowledge.lengths import FirstForecast, JobLengths, unfinished_jobs
from slurmsched.knowledge.usage import MAX_AGE, MAX_OF_A_KIND, kinds_of_use, measured_use
from slurmsched.knowledge.work import Kind, Work, WorkKind
from slurmsched.model import AccountedRun, ExpectedLength, Job, JobId, MeasuredUse, Snapshot, work_of
from slurmsched.store.database import Database
from slurmsched.store.rows import (
    DatabaseRow,
    ExporterRow,
    integer,
    json_object,
    number,
    optional_number,
    parse_exporter,
    parse_origin,
    parse_run,
    text,
)

_DAY: Final = 86400.0
_MAX_RUNS: Final = 300_000
"""Runs that are kept at most, the latest."""
Kinds = tuple[tuple[WorkKind, Kind], ...]
_USE_KEPT: Final = 3600.0
"""Seconds for which what follows from runs is not worked out again."""

FIRST_SPAN: Final = 3600.0
_SHORTEST_SPAN, _LONGEST_SPAN = 60.0, _DAY
_FIRST_HISTORY: Final = 14 * _DAY
"""Seconds of history that are read when there is none."""
_OVERLAP: Final = 600.0
"""Seconds that are read again, since slurmctld tells slurmdbd of an end later: up to `_AGAIN_EVERY` later."""
_AGAIN_EVERY: Final = 300.0
"""Seconds in which one question reads so much again: where thousands end, that takes seconds."""
_SHORT_OVERLAP: Final = 60.0
"""Seconds that the other questions read again."""
_PAGE: Final = 5_000
"""Runs that one question may bring before the next asks for a shorter time."""
_FIRST_PAUSE, _LONGEST_PAUSE = 300.0, 3600.0
"""Seconds before accounting is asked again after a failure: at first, and doubled up to this."""


@dataclass(frozen=True, slots=True)
class AccountingCursor:
    """How far accounting has been read: everything that ended up to `reached` (unix seconds).

    `span` is the window of the next question in seconds. It was last `asked` then, and has failed `failures` times in a
    row with `problem`.
    """

    reached: float
    span: float = FIRST_SPAN
    asked: float = 0.0
    failures: int = 0
    problem: str = ""

    @classmethod
    def first(cls, now: float) -> AccountingCursor:
        return cls(now - _FIRST_HISTORY)

    def with_clock(self, now: float) -> AccountingCursor:
        """Return the cursor after a clock that was wrong and is right again. Where it was ahead, what ended in the last
        day is read anew, and learning does not stop until that time has come; where it was behind, nothing is asked for
        that is too old to tell anything."""
        ahead = self.reached > now + _OVERLAP
        behind = self.reached < now - MAX_AGE
        return replace(self, reached=now - (_DAY if ahead else _FIRST_HISTORY)) if ahead or behind else self

    def window(self, now: float) -> tuple[float, float] | None:
        """Return the times between which to ask now; None while it waits after a failure, or if the clock was set
        back."""
        if pauses(self.asked, self.failures, now):
            return None
        again = self.failures > 0 or now // _AGAIN_EVERY != self.asked // _AGAIN_EVERY
        since = self.reached - (_OVERLAP if again else _SHORT_OVERLAP)
        return (since, min(self.reached + self.span, now)) if now > self.reached else None

    def after(self, runs: Sequence[AccountedRun], now: float) -> tuple[AccountingCursor, Sequence[AccountedRun]]:
        """Return the cursor after an answer with these runs, in the order of their ends, and those of a page.

        A page with too many that were not read before is cut, and the next window is shorter; runs that ended in one
        second stay together.
        """
        until = min(self.reached + self.span, now)
        new = [run for run in runs if run.ended >= self.reached]
        if len(new) <= _PAGE:
            longer = min(2 * self.span, _LONGEST_SPAN) if len(new) < _PAGE // 2 else self.span
            return AccountingCursor(until, longer, now), runs
        last = new[_PAGE - 1].ended
        kept = [run for run in new if run.ended <= last]
        shorter = max(self.span / 2, _SHORTEST_SPAN)
        return AccountingCursor(min(max(last, self.reached + 1.0), until), shorter, now), kept

    def failed(self, problem: str, now: float) -> AccountingCursor:
        """Return the cursor after a question that failed; the next one is shorter."""
        shorter = max(self.span / 2, _SHORTEST_SPAN)
        return replace(self, span=shorter, asked=now, failures=self.failures + 1, problem=problem)


def pauses(asked: float, failures: int, now: float) -> bool:
    """Whether nothing is asked after so many failures in a row; a clock that was set back ends the pause."""
    return failures > 0 and 0 <= now - asked < min(_FIRST_PAUSE * 2 ** min(failures - 1, 10), _LONGEST_PAUSE)


class FinishedRuns:
    """What accounting told of runs. All methods raise StoreError.

    What follows for jobs is kept for an hour, or until runs are added or deleted: it is asked for in every round.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._use: dict[Kinds, MeasuredUse | None] = {}
        self._use_since = 0.0
        self._lengths: JobLengths | None = None
        self._lengths_since = 0.0
        self._lengths_forgotten: Mapping[str, float] = {}
        self._use_forgotten: Mapping[str, float] = {}

    def cursor(self, now: float) -> AccountingCursor:
        """How far accounting has been read; two weeks before `now` if that is not known."""
        rows = self._database.rows("SELECT id, reached, span, asked, failures, problem FROM accounting")
        known = self._database.unreadable_rows.parse_each("accounting", "id", _cursor, rows)
        return known[0].with_clock(now) if known else AccountingCursor.first(now)

    def record(self, cursor: AccountingCursor, runs: Iterable[AccountedRun] = (), only_type: str = "") -> None:
        """Store these runs and how far accounting has been read.

        What the runs lack is taken from what rounds saw of their jobs; `only_type` is the type of all GPUs of the
        cluster, if they have one. A run that is known is replaced, as slurmdbd learns of its steps a little later; what
        was measured of it stays. Runs of owners who wanted to be forgotten since they ended are left out.
        """
        with self._database.transaction():
            self._database.write("INSERT OR REPLACE INTO accounting VALUES (1, :reached, :span, :asked, :failures, "
                                 ":problem)", asdict(cursor))  # fmt: skip
            forgotten = self.forgotten()
            wanted = [run for run in runs if run.ended > forgotten.get(run.owner, 0.0)]
            seen, known = self._seen(run.job for run in wanted), self._known(run.job for run in wanted)
            complete = [_completed(run, seen.get(run.job), only_type) for run in wanted]
            complete = [_with_measured(run, known.get((run.job, run.ended))) for run in complete]
            new = [run for run in complete if known.get((run.job, run.ended)) != run]
            self._database.write_many(_INSERT, [_columns(run) for run in new])
        if new:
            self._use.clear()
        if self._lengths is not None:
            for run in sorted((run for run in new if (run.job, run.ended) not in known), key=lambda run: run.ended):
                self._lengths.ended(run)

    def without_gpu_use(self, runs: Iterable[AccountedRun]) -> tuple[AccountedRun, ...]:
        """Those of these runs of which nobody told yet how busy their GPUs were."""
        lacking = [run for run in runs if run.gpu_use is None]
        known = self._known(run.job for run in lacking)
        measured = {key for key, run in known.items() if run.gpu_use is not None}
        return tuple(run for run in lacking if (run.job, run.ended) not in measured)

    def exporters(self) -> Mapping[str, ExporterRow]:
        """What came of asking for each exporter's series, by its name."""
        rows = self._database.rows("SELECT exporter, asked, failures, problem, told, last_told FROM telemetry")
        known = self._database.unreadable_rows.parse_each("telemetry", "exporter", parse_exporter, rows)
        return {record.exporter: record for record in known}

    def record_exporters(self, records: Iterable[ExporterRow]) -> None:
        """Store what came of asking them."""
        self._database.write_many(
            "INSERT OR REPLACE INTO telemetry VALUES (:exporter, :asked, :failures, :problem, :told, :last_told)",
            [asdict(record) for record in records],
        )

    def unknown_origins(self, jobs: Iterable[JobId]) -> tuple[JobId, ...]:
        """Those of these jobs whose script and folder have not been asked for."""
        query = "SELECT id FROM jobs WHERE script IS NULL AND id IN ({jobs})"
        return tuple(str(row["id"]) for row in self._database.rows_of_jobs(query, jobs))

    def record_origins(self, origins: Mapping[JobId, JobOrigin]) -> None:
        """Store the script and the folder of each of these jobs."""
        rows = [(origin.script, origin.folder, job) for job, origin in origins.items()]
        self._database.write_many("UPDATE jobs SET script = ?, folder = ? WHERE id = ?", rows)

    def use_of(
        self, waiting: Iterable[Job], now: float, origins: Mapping[JobId, tuple[str, str]] | None = None
    ) -> Mapping[JobId, MeasuredUse]:
        """What runs of the same owner's same work used, by job; the closest kind that tells anything counts. `origins`
        are the jobs' scripts and folders, if they have been read."""
        jobs = tuple(waiting)
        origins = self._origins(job.id for job in jobs) if origins is None else origins
        forgotten = self.forgotten()
        if not 0 <= now - self._use_since < _USE_KEPT or forgotten.items() - self._use_forgotten.items():
            self._use_forgotten = forgotten
            self._use.clear()
            self._use_since = now
        alike: defaultdict[Work, list[Job]] = defaultdict(list)
        for job in jobs:
            alike[Work.of_job(job, *origins.get(job.id, ()))].append(job)
        kinds_of = {work: kinds_of_use(work) for work in alike}
        runs = self._by_kind([job for work, kinds in kinds_of.items() if kinds not in self._use for job in alike[work]])
        for kinds in kinds_of.values():
            if kinds not in self._use:
                self._use[kinds] = measured_use(kinds, runs, now)
        known = ((self._use[kinds_of[work]], same) for work, same in alike.items())
        return {job.id: use for use, same in known if use is not None for job in same}

    def lengths_of(
        self,
        snapshot: Snapshot,
        service: Mapping[JobId, float],
        steps: Mapping[JobId, int],
        origins: Mapping[JobId, tuple[str, str]] | None = None,
    ) -> Mapping[JobId, ExpectedLength]:
        """How long jobs that wait or run still run, as earlier runs of their owners tell; others are missing. `origins`
        are the jobs' scripts and folders, if they have been read."""
        lengths = self._up_to_date_lengths(snapshot.time)
        origins = self._origins(snapshot.jobs_by_id) if origins is None else origins
        known = lengths.of(unfinished_jobs(snapshot, service, steps, origins), snapshot.time)
        return {job: length for job, length in known.items() if length.runs}

    def record_forecasts(self) -> None:
        """Store what was forecast of jobs that have not run yet: it is compared with what they take, also by a daemon
        that was started in between. Nothing is stored of owners who wanted to be forgotten since these lengths were
        known, during the round: the next one forecasts anew."""
        if self._lengths is not None and self._lengths.new:
            new, self._lengths.new = self._lengths.new, []
            forgotten = self.forgotten()
            changed = {owner for owner, at in forgotten.items() if self._lengths_forgotten.get(owner) != at}
            new = [one for one in new if one.owner not in changed]
            self._database.write_many(
                "UPDATE jobs SET likely_from = ?, likely_to = ?, hinted = ? WHERE id = ? AND owner = ?",
                [(*one.likely, one.hint, one.job, one.owner) for one in new],
            )

    @property
    def length_forecasts(self) -> tuple[int, int]:
        """Of how many kept runs the length was forecast, and of how many it was within the range; 0 while lengths are
        not asked for."""
        return (self._lengths.history.ranges, self._lengths.history.ranges_right) if self._lengths else (0, 0)

    def _up_to_date_lengths(self, now: float) -> JobLengths:
        """What is kept of finished runs; it is read again daily, and once an owner wanted to be forgotten."""
        forgotten = self.forgotten()
        old = not 0 <= now - self._lengths_since < _DAY or forgotten.items() - self._lengths_forgotten.items()
        if self._lengths is None or old:
            query = "SELECT id, owner, likely_from, likely_to, hinted FROM jobs WHERE likely_from IS NOT NULL"
            rows, lengths = self._database.rows(query), JobLengths()
            lengths.recall(self._database.unreadable_rows.parse_each("jobs", "id", _first_forecast, rows))
            for run in self.runs(0.0):
                lengths.ended(run)
            self._lengths, self._lengths_since, self._lengths_forgotten = lengths, now, forgotten
        return self._lengths

    def _origins(self, jobs: Iterable[JobId]) -> Mapping[JobId, tuple[str, str]]:
        """The script and the folder of each of these jobs that was asked for."""
        query = "SELECT id, script, folder FROM jobs WHERE script IS NOT NULL AND id IN ({jobs})"
        rows = self._database.rows_of_jobs(query, jobs)
        return {row["id"]: parse_origin(row) for row in rows}

    def runs(self, since: float, most: int = _MAX_RUNS) -> tuple[AccountedRun, ...]:
        """The runs that ended at `since` (unix seconds) or later, the earliest first, `most` at most.

        They are read in pages: no writer waits for all of them where another process reads.
        """
        known, after, job = list[AccountedRun](), since, ""
        while len(known) < most:
            page = self._database.rows(_RUNS, (after, job, min(_RUNS_AT_ONCE, most - len(known))))
            known += self._database.unreadable_rows.parse_each("finished_runs", "job", parse_run, page)
            if not page:
                break
            after, job = page[-1]["ended"], page[-1]["job"]
        return tuple(known)

    def prune(self, oldest: float) -> None:
        """Delete the runs that ended before `oldest`, and all but the latest 300,000."""
        self._database.write("DELETE FROM finished_runs WHERE ended < ?", (oldest,))
        self._database.write("DELETE FROM forgotten WHERE at < ?", (oldest,))
        last = self._database.rows(
            "SELECT ended FROM finished_runs ORDER BY ended DESC LIMIT 1 OFFSET ?", (_MAX_RUNS,)
        )  # an index answers
        if last:
            self._database.write("DELETE FROM finished_runs WHERE ended <= ?", (last[0]["ended"],))

    def forget(self, user: str, at: float) -> Mapping[str, int]:
        """Delete what was learnt of this user up to `at`, for good; returns how many rows of each kind there were."""
        deleted = dict[str, int]()
        with self._database.transaction():
            for what, table, condition in _LEARNT:
                found = f"FROM {table} WHERE {condition}"
                (count,) = self._database.rows(f"SELECT count(*) AS n {found}", {"user": user})
                deleted[what] = deleted.get(what, 0) + int(count["n"])
                self._database.write(f"DELETE {found}", {"user": user})
            self._database.write(_FORGET_JOBS, (user,))
            self._database.write("INSERT OR REPLACE INTO forgotten (owner, at) VALUES (?, ?)", (user, at))
        self._use.clear()
        return deleted

    def forgotten(self) -> Mapping[str, float]:
        """When users wanted to be forgotten last, in unix seconds."""
        rows = self._database.rows("SELECT owner, at FROM forgotten")
        known = self._database.unreadable_rows.parse_each(
            "forgotten", "owner", lambda row: (text(row, "owner"), number(row, "at")), rows
        )
        return dict(known)

    def _seen(self, jobs: Iterable[JobId]) -> Mapping[JobId, DatabaseRow]:
        """What rounds saw of these jobs."""
        query = "SELECT id, owner, script, folder, summary FROM jobs WHERE id IN ({jobs})"
        return {row["id"]: row for row in self._database.rows_of_jobs(query, jobs)}

    def _known(self, jobs: Iterable[JobId]) -> Mapping[tuple[JobId, float], AccountedRun]:
        """The stored runs of these jobs."""
        rows = self._database.rows_of_jobs("SELECT * FROM finished_runs WHERE job IN ({jobs})", jobs)
        runs = self._database.unreadable_rows.parse_each("finished_runs", "job", parse_run, rows)
        return {(run.job, run.ended): run for run in runs}

    def _by_kind(self, jobs: Sequence[Job]) -> Mapping[Kind, Sequence[AccountedRun]]:
        """The latest runs of the works and models of these jobs, by each kind that they belong to."""
        wanted = {("work", job.user, job.work) for job in jobs if job.work}
        wanted |= {("model", job.user, job.hints.model) for job in jobs if job.hints.model}
        rows = dict[tuple[JobId, float], DatabaseRow]()
        for column, owner, name in sorted(wanted):
            latest = self._database.rows(_LATEST[column], (owner, name, MAX_OF_A_KIND))
            rows.update(((row["job"], row["ended"]), row) for row in latest)
        kinds: defaultdict[Kind, list[AccountedRun]] = defaultdict(list)
        for run in self._database.unreadable_rows.parse_each("finished_runs", "job", parse_run, rows.values()):
            for _, key in kinds_of_use(Work.of_run(run)):
                kinds[key].append(run)
        return kinds


def _completed(run: AccountedRun, row: DatabaseRow | None, only_type: str) -> AccountedRun:
    """The run with what rounds saw of its job, where accounting does not have it."""
    run = run if run.gpu_type or not only_type else replace(run, gpu_type=only_type)
    if row is None or row["owner"] != run.owner:
        return run
    try:
        summary = json_object(row, "summary")
    except ValueError:
        summary = {}
    hints = summary.get("hints")
    model = hints.get("model") if isinstance(hints, dict) else None
    kind = str(summary.get("gpu_type") or "")
    return replace(
        run,
        script=run.script or str(row["script"] or ""),
        folder=run.folder or str(row["folder"] or ""),
        model=run.model or str(model or ""),
        gpu_type=run.gpu_type or (kind if "," not in kind else ""),
    )


def _with_measured(run: AccountedRun, known: AccountedRun | None) -> AccountedRun:
    """The run with what others than accounting had told of it before."""
    if known is None or known.gpu_use is None or run.gpu_use is not None:
        return run
    run = replace(
        run,
        gpu_use=known.gpu_use,
        gpu_source=known.gpu_source,
        idle_gpus=known.idle_gpus,
        gpu_memory=max(run.gpu_memory or 0, known.gpu_memory or 0) or None,
    )
    if run.gathered or not known.gathered:
        return run
    return replace(run, cpu_seconds=known.cpu_seconds, gathered=True)


def _columns(run: AccountedRun) -> dict[str, object]:
    return {**asdict(run), "end": run.end.value, "work": work_of(run.name)}


def _cursor(row: DatabaseRow) -> AccountingCursor:
    return AccountingCursor(
        number(row, "reached"),
        number(row, "span"),
        number(row, "asked"),
        integer(row, "failures"),
        text(row, "problem"),
    )


def _first_forecast(row: DatabaseRow) -> FirstForecast:
    likely = number(row, "likely_from"), number(row, "likely_to")
    return FirstForecast(text(row, "id"), text(row, "owner"), likely, optional_number(row, "hinted"))


def _names() -> Iterator[str]:
    yield from (field.name for field in fields(AccountedRun))
    yield "work"


_FORGET_JOBS: Final = (
    "UPDATE jobs SET script = NULL, folder = NULL, likely_from = NULL, likely_to = NULL, hinted = NULL WHERE owner = ?"
)
_RUNS: Final = "SELECT * FROM finished_runs WHERE (ended, job) > (?, ?) ORDER BY ended, job LIMIT ?"
_RUNS_AT_ONCE: Final = 1_000
_VALUES: Final = ", ".join(f":{name}" for name in _names())
_INSERT: Final = f"INSERT OR REPLACE INTO finished_runs ({', '.join(_names())}) VALUES ({_VALUES})"  # noqa: S608
_LATEST: Final = {
    column: f"SELECT * FROM finished_runs WHERE owner = ? AND {column} = ? AND {column} != ''"  # noqa: S608 our own names
    " ORDER BY ended DESC LIMIT ?"
    for column in ("work", "model")
}
_OF_JOBS: Final = "job IN (SELECT id FROM jobs WHERE owner = :user)"
_COMPLAINTS: Final = (
    "subject = 'user ' || :user OR (subject LIKE 'job %' AND substr(subject, instr(subject, ' of ')) = ' of ' || :user)"
)
_OF_FAMILY: Final = "substr({column}, 1, length(:user) + 1) = :user || ' '"
_LEARNT: Final = (
    ("finished runs", "finished_runs", "owner = :user"),
    ("reports", "reported", _OF_JOBS),
    ("rates of jobs", "rates", _OF_JOBS),
    ("rates of families", "family_rates", _OF_FAMILY.format(column="family")),
    (
        "rates beside others",
        "pair_rates",
        f"{_OF_FAMILY.format(column='family')} OR {_OF_FAMILY.format(column='other')}",
    ),
    ("pairs out of memory", "out_of_memory", "owner = :user OR other_owner = :user"),
    ("complaints", "complaints", _COMPLAINTS),
    ("forecasts of starts", "start_forecasts", _OF_JOBS),
    ("forecasts of starts", "first_draws", _OF_JOBS),
    ("forecasts of starts", "told_starts", "owner = :user"),
    ("idle GPUs", "idle_gpus", "owner = :user"),
)
"""What is learnt of a user: in which words, in which table, and which rows."""
