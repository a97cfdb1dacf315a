"""What jobs report, validated: the last report of each, measured rates, rejected reports, who ran out of memory; and
which of their GPUs are idle, as others tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from slurmsched.knowledge.knowledge import OUT_OF_MEMORY_SECONDS
from slurmsched.model import IdleGpus, JobId, MeasuredRate, OutOfMemory, PairRate, Target
from slurmsched.store.database import Database
from slurmsched.store.rows import DatabaseRow, decoded_value, integer, number, parse_idle, parse_rate, text

_HALF_LIFE: Final = 3600.0
"""Seconds of work after which older measurements count half: data and colocated jobs change."""

_DAY: Final = 86400.0

_REJECTED_KEPT: Final = _DAY
"""Seconds after its last occurrence for which a rejected report is kept."""

_MAX_OUT_OF_MEMORY: Final = 100
"""How many of these, the latest, count of each owner of the job that ran out of it."""


@dataclass(frozen=True, slots=True)
class LastReport:
    """A job's last report, at `at` (unix seconds): it is at step `steps`. In this run (`run`, its number of restarts)
    `timed_steps` of them took `timed_seconds` seconds. `restart_seconds` is how long the last restart took that was
    measured, from the start to the first step."""

    job: JobId
    run: int
    at: float
    steps: int
    timed_steps: int
    timed_seconds: float
    restart_seconds: float | None = None
    beside: JobId | None = None
    """The job with which it shared its GPUs then, empty if it had them to itself, None if that is not known."""


@dataclass(frozen=True, slots=True)
class RateSample:
    """`steps` in `seconds`, measured with the allocation in `measured`, whose rate is not used, by a job of `family`
    (`Job.family`)."""

    job: JobId
    measured: MeasuredRate
    steps: int
    seconds: float
    family: str = ""


@dataclass(frozen=True, slots=True)
class PairSample:
    """`steps` in `seconds`, measured up to `at` by a job of a family on `gpus` GPUs that it shared with one job of the
    family `other`, or with nobody if that is empty."""

    family: str
    other: str
    gpu_type: str
    gpus: int
    cpus: float
    steps: int
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class RejectedReport:
    """Why reports were rejected, and whose (`subject`): `job 12 of mallory`."""

    subject: str
    sentence: str


class Measurements:
    """Reports by job: a job's report changes only its own rows and those of its family, whose owner is the same. All
    methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last_reports(self, jobs: Iterable[JobId]) -> Mapping[JobId, LastReport]:
        """The last report of each of these jobs that has one."""
        rows = self._database.rows_of_jobs(
            "SELECT job, run, at, steps, done, busy, restart_seconds, beside FROM reported WHERE job IN ({jobs})", jobs
        )
        return {
            report.job: report
            for report in self._database.unreadable_rows.parse_each("reported", "job", _last_report, rows)
        }

    def rates(self, jobs: Iterable[JobId]) -> Mapping[JobId, tuple[MeasuredRate, ...]]:
        """The measured rates of each of these jobs, one per allocation, latest first."""
        return self._rates("rates", "job", jobs)

    def family_rates(self, families: Iterable[str]) -> Mapping[str, tuple[MeasuredRate, ...]]:
        """The measured rates over all jobs of each of these families, one per allocation, latest first."""
        return self._rates("family_rates", "family", families)

    def pair_rates(self, families: Iterable[str]) -> tuple[PairRate, ...]:
        """What jobs of these families measured on shared GPUs, and alone."""
        rows = self._database.rows_of_jobs(_SELECT_PAIRS, families)
        return self._database.unreadable_rows.parse_each("pair_rates", "family", _pair_rate, rows)

    def idle_gpus(self) -> Mapping[JobId, IdleGpus]:
        """The running jobs with GPUs that are idle for long, as they were last told."""
        rows = self._database.rows("SELECT * FROM idle_gpus")
        known = self._database.unreadable_rows.parse_each("idle_gpus", "job", parse_idle, rows)
        return {idle.job: idle for idle in known}

    def record_idle(self, idle: Iterable[IdleGpus]) -> None:
        """Store these jobs with idle GPUs in place of all others."""
        with self._database.transaction():
            self._database.write("DELETE FROM idle_gpus")
            self._database.write_many(_INSERT_IDLE, map(asdict, idle))

    def partners_of(self, jobs: Iterable[JobId]) -> Mapping[JobId, JobId]:
        """The job beside which each of these jobs was to have its GPU by the last decision; only those with one."""
        rows = self._database.rows_of_jobs(_SELECT_BESIDE, jobs)

        def parse(row: DatabaseRow) -> tuple[JobId, Target]:
            return text(row, "id"), decoded_value(Target, row, "target")

        targets = self._database.unreadable_rows.parse_each("jobs", "id", parse, rows)
        return {job: target.beside[0] for job, target in targets if len(target.beside) == 1}

    def out_of_memory(self, at: float) -> tuple[OutOfMemory, ...]:
        """The pairs of which one ran out of memory and that still count at this time."""
        rows = self._database.rows(
            "SELECT * FROM out_of_memory WHERE at > ? ORDER BY at DESC", (at - OUT_OF_MEMORY_SECONDS,)
        )
        return self._database.unreadable_rows.parse_each("out_of_memory", "model", _out_of_memory, rows)

    def record_out_of_memory(self, pairs: Iterable[OutOfMemory]) -> None:
        """Remember these pairs, of each owner only the latest."""
        rows = [asdict(pair) for pair in pairs]
        if rows:
            with self._database.transaction():
                self._database.write_many(_INSERT_OUT_OF_MEMORY, rows)
                self._database.write(_LIMIT_OUT_OF_MEMORY, (_MAX_OUT_OF_MEMORY,))

    def _rates(self, table: str, of: str, keys: Iterable[str]) -> Mapping[str, tuple[MeasuredRate, ...]]:
        def parse(row: DatabaseRow) -> tuple[str, MeasuredRate]:
            return text(row, of), parse_rate(row)

        rates: defaultdict[str, list[MeasuredRate]] = defaultdict(list)
        rows = self._database.rows_of_jobs(_SELECT.format(table=table, of=of), keys)
        for key, measured in self._database.unreadable_rows.parse_each(table, of, parse, rows):
            rates[key].append(measured)
        return {key: tuple(points) for key, points in rates.items()}

    def record(
        self,
        reports: Iterable[LastReport],
        samples: Iterable[RateSample],
        rejected: Iterable[RejectedReport],
        at: float,
        pairs: Iterable[PairSample] = (),
    ) -> None:
        """Store what a round has read; a rejection is kept for a day after it last occurred."""
        with self._database.transaction():
            self._database.write_many(
                _INSERT_REPORT,
                [
                    (r.job, r.run, r.at, r.steps, r.timed_steps, r.timed_seconds, r.restart_seconds, r.beside)
                    for r in reports
                ],
            )
            self._database.write_many(_ADD_PAIR, [{**asdict(pair), "kept": _kept(pair.seconds)} for pair in pairs])
            columns = [_sample_columns(sample) for sample in samples]
            self._database.write_many(_ADD_SAMPLE, columns)
            self._database.write_many(_ADD_FAMILY_SAMPLE, [sample for sample in columns if sample["family"]])
            self._database.write_many(
                "INSERT OR REPLACE INTO complaints (subject, sentence, at) VALUES (?, ?, ?)",
                [(rejection.subject, rejection.sentence, at) for rejection in rejected],
            )
            self._database.write("DELETE FROM complaints WHERE at < ?", (at - _REJECTED_KEPT,))


_INSERT_OUT_OF_MEMORY: Final = (
    "INSERT OR REPLACE INTO out_of_memory (owner, model, other_owner, other_model, at)"
    " VALUES (:owner, :model, :other_owner, :other_model, :at)"
)
_LIMIT_OUT_OF_MEMORY: Final = (
    "DELETE FROM out_of_memory WHERE (owner, model, other_owner, other_model) IN ("
    " SELECT owner, model, other_owner, other_model FROM ("
    "  SELECT *, row_number() OVER (PARTITION BY owner ORDER BY at DESC) AS number FROM out_of_memory"
    " ) WHERE number > ?)"
)
_INSERT_REPORT: Final = (
    "INSERT OR REPLACE INTO reported (job, run, at, steps, done, busy, restart_seconds, beside)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD: Final = (
    "INSERT INTO {table}"
    " ({of}, gpu_type, gpus, nodes, cpus, memory, fair_cpus, fair_memory, steps, seconds, at)"
    " VALUES (:{of}, :gpu_type, :gpus, :nodes, :cpus, :memory, :fair_cpus, :fair_memory, :steps, :seconds, :at)"
    " ON CONFLICT ({of}, gpu_type, gpus, nodes, cpus, memory) DO UPDATE SET"
    " steps = steps * :kept + excluded.steps, seconds = seconds * :kept + excluded.seconds, at = excluded.at"
)
_ADD_PAIR: Final = (
    "INSERT INTO pair_rates (family, other, gpu_type, gpus, cpus, steps, seconds, at)"
    " VALUES (:family, :other, :gpu_type, :gpus, :cpus, :steps, :seconds, :at)"
    " ON CONFLICT (family, other, gpu_type, gpus, cpus) DO UPDATE SET"
    " steps = steps * :kept + excluded.steps, seconds = seconds * :kept + excluded.seconds, at = excluded.at"
)
_ADD_SAMPLE: Final = _ADD.format(table="rates", of="job")
_ADD_FAMILY_SAMPLE: Final = _ADD.format(table="family_rates", of="family")
_SELECT: Final = (
    "SELECT {of}, gpu_type, gpus, nodes, cpus, memory, fair_cpus, fair_memory, steps / seconds AS rate, at"
    " FROM {table} WHERE {of} IN ({{jobs}}) AND seconds > 0 AND steps > 0 ORDER BY at DESC, rowid"
)
_SELECT_BESIDE: Final = (  # as `encode` writes it: the targets of all jobs that ended are not decoded in each round
    """SELECT id, target FROM jobs WHERE id IN ({jobs}) AND target LIKE '%"beside":["%'"""
)
_SELECT_PAIRS: Final = (  # a rate of less than ten seconds of work is not one yet
    "SELECT family, other, gpu_type, gpus, cpus, steps / seconds AS rate, at FROM pair_rates"
    " WHERE family IN ({jobs}) AND seconds >= 10"
)


def _kept(seconds: float) -> float:
    """The part of older measurements that counts beside one of so many seconds."""
    return float(0.5 ** (seconds / _HALF_LIFE))


def _pair_rate(row: DatabaseRow) -> PairRate:
    return PairRate(
        text(row, "family"),
        text(row, "other"),
        text(row, "gpu_type"),
        integer(row, "gpus"),
        number(row, "cpus"),
        number(row, "rate"),
        number(row, "at"),
    )


_INSERT_IDLE: Final = (
    "INSERT INTO idle_gpus (job, owner, gpus, idle, since, at, agreed)"
    " VALUES (:job, :owner, :gpus, :idle, :since, :at, :agreed)"
)


def _last_report(row: DatabaseRow) -> LastReport:
    return LastReport(
        job=text(row, "job"),
        run=integer(row, "run"),
        at=number(row, "at"),
        steps=integer(row, "steps"),
        timed_steps=integer(row, "done"),
        timed_seconds=number(row, "busy"),
        restart_seconds=None if row["restart_seconds"] is None else number(row, "restart_seconds"),
        beside=None if row["beside"] is None else text(row, "beside"),
    )


def _out_of_memory(row: DatabaseRow) -> OutOfMemory:
    owner, model = text(row, "owner"), text(row, "model")
    return OutOfMemory(owner, model, text(row, "other_owner"), text(row, "other_model"), number(row, "at"))


def _sample_columns(sample: RateSample) -> dict[str, object]:
    point = sample.measured
    return {
        "job": sample.job,
        "family": sample.family,
        "gpu_type": point.gpu_type,
        "gpus": point.gpus,
        "nodes": point.nodes,
        "cpus": point.cpus,
        "memory": point.memory,
        "fair_cpus": point.fair_cpus,
        "fair_memory": point.fair_memory,
        "steps": sample.steps,
        "seconds": sample.seconds,
        "at": point.at,
        "kept": _kept(sample.seconds),
    }
