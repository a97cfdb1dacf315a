"""Rows of the database: checked access to values, the rows as read-only users see them, and unreadable rows.

Values are checked because SQLite lets any column hold any type, and a disk may damage it. Text that is not UTF-8
arrives as bytes (see `decode_text`). Times are unix seconds, durations seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeVar

from slurmsched.model import (
    AccountedRun,
    ExpectedTime,
    IdleGpus,
    JobId,
    JobState,
    MeasuredRate,
    Operation,
    Reason,
    Request,
    Result,
    RunEnd,
    StartRanges,
    SynschedError,
    Target,
    Verb,
    decode,
)
from slurmsched.store.errors import printable_line

T = TypeVar("T")

DatabaseRow = Mapping[str, Any]
"""Values by column; SQLite types each value by itself, hence `Any`."""


def decode_text(stored: bytes) -> str | bytes:
    """Stored text, left as bytes if it is not UTF-8; for `text_factory` of a connection."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def text(row: DatabaseRow, column: str) -> str:
    """A text. Raises ValueError."""
    value = row[column]
    if not isinstance(value, str):
        raise _unexpected(column, value, "text")
    return value


def number(row: DatabaseRow, column: str) -> float:
    """A finite number. Raises ValueError."""
    value = row[column]
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _unexpected(column, value, "a number")
    return value


def integer(row: DatabaseRow, column: str) -> int:
    """An integer. Raises ValueError."""
    value = row[column]
    if not isinstance(value, int):
        raise _unexpected(column, value, "a whole number")
    return value


def boolean(row: DatabaseRow, column: str) -> bool:
    """A stored 0 or 1. Raises ValueError."""
    value = row[column]
    if value not in (0, 1) or not isinstance(value, int):
        raise _unexpected(column, value, "0 or 1")
    return bool(value)


def optional_number(row: DatabaseRow, column: str) -> float | None:
    """A finite number, or None for NULL. Raises ValueError."""
    return None if row[column] is None else number(row, column)


def decoded_value(cls: type[T], row: DatabaseRow, column: str) -> T:
    """A value that was stored with `encode`. Raises ValueError, EncodingError."""
    return decode(cls, text(row, column))


def json_value(row: DatabaseRow, column: str) -> Any:
    """A value stored as JSON. Raises ValueError."""
    try:
        return json.loads(text(row, column))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{column} is not JSON ({error})") from error


def json_object(row: DatabaseRow, column: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    value = json_value(row, column)
    if not isinstance(value, dict):
        raise _unexpected(column, value, "a JSON object")
    return value


def _unexpected(column: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{column} is {type(value).__name__}, not {wanted}")


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round. `finished` is None while it runs and after its process was killed; `error` is empty on success."""

    id: int
    started: float
    finished: float | None
    mode: str
    system: str
    ordering: str
    nodes: int
    jobs: int
    managed: int
    running: int
    waiting: int
    observe_s: float | None
    decide_s: float | None
    plan_s: float | None
    apply_s: float | None
    reads: int
    writes: int
    error: str


@dataclass(frozen=True, slots=True)
class UseRow:
    """What a round that began `at` saw: GPUs of the cluster, in use and on nodes that take no jobs; managed jobs that
    ran and that waited."""

    at: float
    gpus: float
    used: float
    down: float
    running: float
    waiting: float


def parse_use(row: DatabaseRow) -> UseRow:
    """A row of `rounds`. Raises ValueError."""
    columns = ("started", "gpus", "gpus_used", "gpus_down", "running", "waiting")
    return UseRow(*(number(row, column) for column in columns))


@dataclass(frozen=True, slots=True)
class JobRow:
    """One managed job as of the last round that saw it. `sentence` is the reason why it runs or waits.

    `original` is the request as submitted. `held_by_us`, `reshaped` and `boosted` mark our changes to hold, request and
    nice. `target` is the last round's decision, None while the job waits. `summary` holds attributes for display.
    """

    id: JobId
    owner: str
    name: str
    first_seen: float
    last_seen: float
    state: JobState
    original: Request
    held_by_us: bool
    reshaped: bool
    boosted: bool
    rank: int | None
    rank_key: str
    reason: Mapping[str, object]
    sentence: str
    target: Target | None
    summary: Mapping[str, object]


NOT_TOLD: Final = 0.0
"""The end of a job in a published forecast, for others than its owner."""


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """When a waiting job is expected to start and to end, by the round `at` and so many `draws` of how long jobs run;
    `until` was looked ahead. `why` nothing is told, empty if something is. The end is None for others than the owner
    of the job: with the start it tells how long the owner's jobs run."""

    ENOUGH_DRAWS: ClassVar[int] = 9
    """Draws from which on 80 % of further ones are expected within the range of these."""

    job: JobId
    at: float
    until: float
    draws: int
    start: ExpectedTime
    end: ExpectedTime | None
    why: str


def parse_forecast(row: DatabaseRow) -> ForecastRow:
    """A row of `start_forecasts`. Raises ValueError."""
    start, end = (
        ExpectedTime(*(optional_number(row, f"{side}_{name}") for name in ("low", "median", "high")))
        for side in ("start", "end")
    )
    at, until = number(row, "at"), number(row, "until")
    told = end if end.high != NOT_TOLD else None
    return ForecastRow(text(row, "job"), at, until, integer(row, "draws"), start, told, text(row, "why"))


@dataclass(frozen=True, slots=True)
class StartCalibration:
    """How starts turned out against what had been told of them `which`: first, or about an hour before.

    Of so many `starts` a part was `within` the 80 % range, to a minute; the median error is in seconds.
    """

    which: str
    starts: int
    within: float
    error: float


def parse_start_ranges(row: DatabaseRow) -> StartRanges:
    """A row of `start_ranges`. Raises ValueError."""
    below, above = number(row, "below"), number(row, "above")
    counted, covered = integer(row, "counted"), integer(row, "covered")
    if not all(StartRanges.LEAST <= factor <= StartRanges.MOST for factor in (below, above)):
        raise ValueError("a factor is out of bounds")
    if not 0 <= covered <= counted:
        raise ValueError("more are covered than were counted")
    return StartRanges(below, above, counted, covered, number(row, "at"))


_MINUTE: Final = 60.0


def was_in_range(started: float, told: ExpectedTime, until: float) -> bool:
    """Whether a job started within the range told, to a minute."""
    after_low = started >= (until if told.low is None else told.low) - _MINUTE
    return after_low and (told.high is None or started <= told.high + _MINUTE)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of a job; `round` is None outside a round."""

    at: float
    round: int | None
    job: JobId
    kind: str
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation of the journal with its result."""

    id: int
    round: int
    position: int
    verb: Verb
    subject: str
    reason: Reason
    sentence: str
    undo: Operation | None
    result: Result
    commands: tuple[str, ...]
    detail: str
    intended: float
    finished: float | None


@dataclass(frozen=True, slots=True)
class RateRow:
    """A job's measured rate with one allocation, and the hints that select its profile."""

    job: JobId
    owner: str
    model: str
    task: str
    point: MeasuredRate


@dataclass(frozen=True, slots=True)
class RejectedReportRow:
    """A job or user (`job 12 of mallory`) whose reports were rejected, why, and the last time it occurred."""

    subject: str
    sentence: str
    at: float


@dataclass(frozen=True, slots=True)
class SetAsideRow:
    """A job excluded from decisions, since when and why. `owner` is empty if it is not certain. `readable` says that
    the job's record could be read, so that it was the decision that failed."""

    job: JobId
    owner: str
    reason: str
    since: float
    readable: bool

    @property
    def sentence(self) -> str:
        of = f" of {self.owner}" if self.owner else ""
        return f"job {self.job}{of} is set aside: {self.reason}"


SETTINGS_SWITCH: Final = "settings"
"""The switch that says that the settings file was refused when it was read last, with the mistake as its value."""


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """A switch that is set: by whom, when, and with which value."""

    name: str
    value: str
    set_by: str
    at: float


def parse_run(row: DatabaseRow) -> AccountedRun:
    """A run that has ended, from the table `finished_runs`. Raises ValueError."""
    return AccountedRun(
        job=text(row, "job"),
        owner=text(row, "owner"),
        name=text(row, "name"),
        ended=number(row, "ended"),
        seconds=number(row, "seconds"),
        end=RunEnd(text(row, "end")),
        gpus=integer(row, "gpus"),
        cpus=integer(row, "cpus"),
        memory=integer(row, "memory"),
        nodes=integer(row, "nodes"),
        gpu_type=text(row, "gpu_type"),
        time_limit=None if row["time_limit"] is None else integer(row, "time_limit"),
        array_job=text(row, "array_job"),
        folder=text(row, "folder"),
        script=text(row, "script"),
        model=text(row, "model"),
        cpu_seconds=optional_number(row, "cpu_seconds"),
        gathered=boolean(row, "gathered"),
        peak_memory=None if row["peak_memory"] is None else integer(row, "peak_memory"),
        gpu_use=optional_number(row, "gpu_use"),
        peak_gpu_use=optional_number(row, "peak_gpu_use"),
        gpu_memory=None if row["gpu_memory"] is None else integer(row, "gpu_memory"),
        idle_gpus=None if row["idle_gpus"] is None else integer(row, "idle_gpus"),
        gpu_source=text(row, "gpu_source") if "gpu_source" in row else "",  # an older release has no such column
    )


@dataclass(frozen=True, slots=True)
class ExporterRow:
    """What came of asking Prometheus for an exporter's series: `asked` last (unix seconds), failed `failures` times in
    a row with `problem`; it has `told` of so many runs, the last time at `last_told`."""

    exporter: str
    asked: float = 0.0
    failures: int = 0
    problem: str = ""
    told: int = 0
    last_told: float = 0.0

    def after(self, told: int, now: float) -> ExporterRow:
        """Returns the row after an answer that told of so many runs."""
        return ExporterRow(self.exporter, now, told=self.told + told, last_told=now if told else self.last_told)

    def failed(self, problem: str, now: float) -> ExporterRow:
        """Returns the row after a question that failed."""
        return replace(self, asked=now, failures=self.failures + 1, problem=problem)


def parse_exporter(row: DatabaseRow) -> ExporterRow:
    """A row of `telemetry`. Raises ValueError."""
    return ExporterRow(
        text(row, "exporter"),
        number(row, "asked"),
        integer(row, "failures"),
        text(row, "problem"),
        integer(row, "told"),
        number(row, "last_told"),
    )


def parse_idle(row: DatabaseRow) -> IdleGpus:
    """A row of `idle_gpus`. Raises ValueError."""
    return IdleGpus(
        text(row, "job"),
        text(row, "owner"),
        integer(row, "gpus"),
        integer(row, "idle"),
        number(row, "since"),
        number(row, "at"),
        boolean(row, "agreed"),
    )


def parse_origin(row: DatabaseRow) -> tuple[str, str]:
    """The script and the folder of a job in a row of `jobs`; empty where it has none."""
    return str(row["script"] or ""), str(row["folder"] or "")


def parse_rate(row: DatabaseRow) -> MeasuredRate:
    """The measured rate (steps per second) in a row of `rates`. Raises ValueError."""
    return MeasuredRate(
        gpu_type=text(row, "gpu_type"),
        gpus=integer(row, "gpus"),
        nodes=integer(row, "nodes"),
        cpus=number(row, "cpus"),
        memory=number(row, "memory"),
        fair_cpus=number(row, "fair_cpus"),
        fair_memory=number(row, "fair_memory"),
        rate=number(row, "rate"),
        at=number(row, "at"),
    )


_MAX_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row of `table` by its key, and what is wrong with it."""

    table: str
    row: str
    problem: str

    @property
    def sentence(self) -> str:
        return f"row {self.row} of {self.table} cannot be read and is left out: {self.problem}"


@dataclass(slots=True)
class UnreadableRows:
    """The unreadable rows since the last `take`, each once, a thousand at most."""

    _rows: dict[tuple[str, str], UnreadableRow] = field(default_factory=dict)

    def __iter__(self) -> Iterator[UnreadableRow]:
        return iter(tuple(self._rows.values()))

    def take(self) -> tuple[UnreadableRow, ...]:
        """Return the collected rows and clear the collection."""
        rows = tuple(self._rows.values())
        self._rows.clear()
        return rows

    def parse_each(
        self, table: str, key: str, parse: Callable[[DatabaseRow], T], rows: Iterable[DatabaseRow]
    ) -> tuple[T, ...]:
        """Each row of `table` parsed; a row for which `parse` raises is added here by its column `key` and left out."""
        parsed = []
        for row in rows:
            try:
                parsed.append(parse(row))
            except (ValueError, TypeError, LookupError, SynschedError) as error:
                self.add(table, row[key], error)
        return tuple(parsed)

    def add(self, table: str, key: object, error: Exception) -> None:
        """Add an unreadable row; beyond the maximum it is dropped."""
        name, problem = printable_line(key), printable_line(error)
        if len(self._rows) < _MAX_ROWS:
            self._rows[table, name] = UnreadableRow(table, name, problem)
