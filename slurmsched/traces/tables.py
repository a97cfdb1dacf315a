"""Reads tables as rows that know their location, for error messages."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Final, TypeVar

from slurmsched.model.reasons import pluralise
from slurmsched.traces.trace import TraceError

T = TypeVar("T")
_MAX_SHOWN: Final = 24
_MAX_NUMBER: Final = 1e15
NO_VALUE: Final = frozenset({"", "Unknown", "None", "N/A"})
"""What Slurm prints for a value that there is none of."""
DELIMITERS: Final = {",": "','", ";": "';'", "\t": "a tab", "|": "'|'"}
"""What separates columns, and how a sentence names it."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: `location` is FILE:LINE, `fields` is the text by heading."""

    location: str
    fields: Mapping[str, str]

    def error(self, field: str, expected: str) -> TraceError:
        """Returns the error that names this row, the field, what was expected and what it holds."""
        text = self.fields.get(field, "")
        clean = "".join(c if c.isprintable() else "?" for c in text[:_MAX_SHOWN]) + (
            "..." if len(text) > _MAX_SHOWN else ""
        )
        return TraceError(f"{self.location}: {field}: expected {expected}, not '{clean}'")

    def text(self, field: str) -> str:
        """Returns the stripped field; empty if the table has no such column."""
        return self.fields.get(field, "").strip()

    def number(self, field: str, at_least: float = 0.0) -> float:
        """Returns the field as a number. Raises TraceError."""
        return self._parse(field, float, at_least, f"a number of at least {at_least:g}")

    def integer(self, field: str, at_least: int = 0) -> int:
        """Returns the field as a whole number. Raises TraceError."""
        return self._parse(field, _parse_integer, at_least, f"a whole number of at least {at_least}")

    def optional_number(self, field: str, at_least: float = 0.0) -> float | None:
        """Returns the field as a number; None if it is empty. Raises TraceError."""
        return self.number(field, at_least) if self.text(field) else None

    def optional_integer(self, field: str, at_least: int = 0) -> int | None:
        """Returns the field as a whole number; None if it is empty. Raises TraceError."""
        return self.integer(field, at_least) if self.text(field) else None

    def time(self, field: str) -> float | None:
        """Returns a date with its time, or unix seconds, as unix seconds; None if there is none. A date without a zone
        is read as UTC, since only differences matter. Raises TraceError."""
        text = self.text(field)
        if text in NO_VALUE:
            return None
        if text.isdecimal():
            return self.number(field)
        try:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise self.error(field, "a time such as 2026-01-31T12:00:00") from None

    @property
    def number_of_line(self) -> str:
        """The row's line in its file, which names a row that has no other name."""
        return self.location.rpartition(":")[2]

    def _parse(self, field: str, parse: Callable[[str], T], at_least: float, expected: str) -> T:
        try:
            value = parse(self.text(field))
        except ValueError:
            raise self.error(field, expected) from None
        if not isinstance(value, (int, float)) or not isfinite(value) or not at_least <= value <= _MAX_NUMBER:
            raise self.error(field, expected)
        return value


def _parse_integer(text: str) -> int:
    """Returns `8`, or `8.0` as some tools write it, as a whole number. Raises ValueError."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def read_text(path: str | Path) -> str:
    """Returns the text of a file. Raises TraceError."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error


def csv_rows(text: str, name: str, required: Sequence[str] = ()) -> Iterator[TableRow]:
    """Yields the rows of a CSV text without blank ones. Raises TraceError, also if a required heading is missing."""
    reader = csv.reader(text.splitlines())
    try:
        yield from _under_headings(((reader.line_num, fields) for fields in reader), name, required, ",")
    except csv.Error as error:
        raise TraceError(f"{name}:{reader.line_num}: {error}") from error


def pipe_separated_rows(text: str, name: str, required: Sequence[str] = ()) -> Iterator[TableRow]:
    """Yields the rows of a text with columns separated by `|` and no quoting: the last column may contain `|`. Raises
    TraceError."""
    head = text.partition("\n")[0].removesuffix("\r")
    count, ends = len(head.removesuffix("|").split("|")), head.endswith("|")
    lines = (line.removesuffix("\r") for line in text.split("\n"))  # owners' names may hold other ends of lines
    rows = (line.removesuffix("|") if ends else line for line in lines)
    yield from _under_headings(
        ((at, row.split("|", count - 1)) for at, row in enumerate(rows, start=1)), name, required, "|"
    )


def columns_in(head: str) -> tuple[str, tuple[str, ...]]:
    """Returns how the most frequent delimiter in a line of headings is named, empty if there is none, and the headings
    that it separates."""
    delimiter = max(DELIMITERS, key=head.count)
    if delimiter not in head:
        return "", (head.strip(),)
    return DELIMITERS[delimiter], tuple(heading.strip().strip('"') for heading in head.split(delimiter))


def _under_headings(
    rows: Iterable[tuple[int, list[str]]], name: str, required: Sequence[str], delimiter: str
) -> Iterator[TableRow]:
    headings: list[str] = []
    for number, fields in rows:
        if not headings:
            headings = [heading.strip().lstrip("\ufeff") for heading in fields] or [""]
            if missing := [heading for heading in required if heading not in headings]:
                found, _ = columns_in(delimiter.join(headings))
                needed, otherwise = DELIMITERS[delimiter], f", not by {found}" if found else ""
                raise TraceError(
                    f"{name}:{number}: expected a column {missing[0]}: required are {', '.join(required)}"
                    + (f", separated by {needed}{otherwise}" if found != needed else "")
                )
        elif any(field.strip() for field in fields):
            if len(fields) != len(headings):
                counts = f"{pluralise(len(fields), 'field')} under {pluralise(len(headings), 'heading')}"
                raise TraceError(f"{name}:{number}: expected one field for each heading, not {counts}")
            yield TableRow(f"{name}:{number}", dict(zip(headings, fields, strict=True)))
    if not headings and required:
        raise TraceError(f"{name}:1: expected headings: {', '.join(required)}")
