"""Values of a row, each checked: SQLite lets any column hold anything, and a disk may have changed it since.

Text that is no UTF-8 arrives as bytes (see `text_of`), so it is told from text here.

What the database holds, as those who only look at it see it. Times are unix seconds, durations seconds.

Rows that cannot be read: each costs itself alone, and is told of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from slurmsched.model import (
    JobId,
    JobState,
    MeasuredRate,
    Operation,
    Reason,
    Request,
    Result,
    SynschedError,
    Target,
    Verb,
    decode,
)
from slurmsched.store.errors import printable_line

T = TypeVar("T")

DatabaseRow = Mapping[str, Any]
"""A row by column; SQLite types its values row by row, hence `Any`."""


def decode_text(stored: bytes) -> str | bytes:
    """Stored text, as bytes where it is no UTF-8; for `text_factory` of a connection."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def text(row: DatabaseRow, column: str) -> str:
    """Raises ValueError."""
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
    """Raises ValueError."""
    value = row[column]
    if not isinstance(value, int):
        raise _unexpected(column, value, "a whole number")
    return value


def boolean(row: DatabaseRow, column: str) -> bool:
    """0 or 1. Raises ValueError."""
    value = row[column]
    if value not in (0, 1) or not isinstance(value, int):
        raise _unexpected(column, value, "0 or 1")
    return bool(value)


def optional_number(row: DatabaseRow, column: str) -> float | None:
    """A finite number, or None where there is none. Raises ValueError."""
    return None if row[column] is None else number(row, column)


def decoded_value(cls: type[T], row: DatabaseRow, column: str) -> T:
    """What `encode` wrote. Raises ValueError, EncodingError."""
    return decode(cls, text(row, column))


def json_value(row: DatabaseRow, column: str) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(text(row, column))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{column} is no JSON ({error})") from error


def json_object(row: DatabaseRow, column: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    found = json_value(row, column)
    if not isinstance(found, dict):
        raise _unexpected(column, found, "a JSON object")
    return found


def _unexpected(column: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{column} is {type(value).__name__}, not {wanted}")


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round. `finished` is None while it is under way, and of one that was killed."""

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
class JobRow:
    """One managed job as of the last round that saw it. `sentence` says why it runs or waits.

    `target` is what the last round decided for it, None while it waits. `summary` is what was stored for people.
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


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened to a job."""

    at: float
    round: int | None
    job: JobId
    kind: str
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation of the journal, with what became of it."""

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
    """How fast a job was with one allocation, and the hints that name its profile."""

    job: JobId
    owner: str
    model: str
    task: str
    point: MeasuredRate


@dataclass(frozen=True, slots=True)
class RejectedReportRow:
    """A job or a user, as `job 12 of mallory`, whose reports were not believed, and why; `at` the last time."""

    subject: str
    sentence: str
    at: float


@dataclass(frozen=True, slots=True)
class SetAsideRow:
    """A job that nothing is decided about, since when and why. `owner` is empty where it is not known beyond doubt;
    `readable` says that its record could be read, and that deciding about it failed."""

    job: JobId
    owner: str
    reason: str
    since: float
    readable: bool

    @property
    def sentence(self) -> str:
        of = f" of {self.owner}" if self.owner else ""
        return f"job {self.job}{of} is set aside: {self.reason}"


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """A switch that somebody set: who, when, and their words."""

    name: str
    value: str
    set_by: str
    at: float


def parse_rate(row: DatabaseRow) -> MeasuredRate:
    """A row of `rates` with its `rate` in steps per second. Raises ValueError."""
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
    """A row of table `place` by its key, and what is wrong with it."""

    table: str
    row: str
    problem: str

    @property
    def sentence(self) -> str:
        return f"row {self.row} of {self.table} cannot be read and is left out: {self.problem}"


@dataclass(slots=True)
class UnreadableRows:
    """Those that were met since they were last taken, each once and a thousand at most."""

    _met: dict[tuple[str, str], UnreadableRow] = field(default_factory=dict)

    def __iter__(self) -> Iterator[UnreadableRow]:
        return iter(tuple(self._met.values()))

    def take(self) -> tuple[UnreadableRow, ...]:
        """Those that were met, which are then forgotten."""
        met = tuple(self._met.values())
        self._met.clear()
        return met

    def parse_each(
        self, table: str, key: str, parse: Callable[[DatabaseRow], T], rows: Iterable[DatabaseRow]
    ) -> tuple[T, ...]:
        """What `form` makes of each row of table `place`; a row of which it can make nothing is left out."""
        parsed = []
        for row in rows:
            try:
                parsed.append(parse(row))
            except (ValueError, TypeError, LookupError, SynschedError) as error:
                self.add(table, row[key], error)
        return tuple(parsed)

    def add(self, table: str, key: object, error: Exception) -> None:
        """One more."""
        name, problem = printable_line(key), printable_line(error)
        if len(self._met) < _MAX_ROWS:
            self._met[table, name] = UnreadableRow(table, name, problem)
