"""Lines of a table that know where they stand, so that a mistake can be named."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final, TypeVar

from slurmsched.traces.trace import TraceError

T = TypeVar("T")
_MAX_SHOWN: Final = 24
_MAX_NUMBER: Final = 1e15


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line: `place` is FILE:LINE, `fields` the text under each heading."""

    location: str
    fields: Mapping[str, str]

    def error(self, field: str, expected: str) -> TraceError:
        """The error that names this line, the field, and what is there instead."""
        text = self.fields.get(field, "")
        clean = "".join(c if c.isprintable() else "?" for c in text[:_MAX_SHOWN]) + (
            "..." if len(text) > _MAX_SHOWN else ""
        )
        return TraceError(f"{self.location}: {field}: expected {expected}, not '{clean}'")

    def text(self, field: str) -> str:
        """The field without blanks around it; empty where the table has no such column."""
        return self.fields.get(field, "").strip()

    def number(self, field: str, at_least: float = 0.0) -> float:
        """Raises TraceError."""
        return self._parse(field, float, at_least, f"a number from {at_least:g} on")

    def integer(self, field: str, at_least: int = 0) -> int:
        """Raises TraceError."""
        return self._parse(field, _parse_integer, at_least, f"a whole number from {at_least} on")

    def optional_number(self, field: str, at_least: float = 0.0) -> float | None:
        """None for an empty field. Raises TraceError."""
        return self.number(field, at_least) if self.text(field) else None

    def optional_integer(self, field: str, at_least: int = 0) -> int | None:
        """None for an empty field. Raises TraceError."""
        return self.integer(field, at_least) if self.text(field) else None

    def _parse(self, field: str, parse: Callable[[str], T], at_least: float, expected: str) -> T:
        try:
            value = parse(self.text(field))
        except ValueError:
            raise self.error(field, expected) from None
        if not isinstance(value, (int, float)) or not isfinite(value) or not at_least <= value <= _MAX_NUMBER:
            raise self.error(field, expected)
        return value


def _parse_integer(text: str) -> int:
    """`8`, and `8.0` as some tools write it."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def read_text(path: str | Path) -> str:
    """The whole file. Raises TraceError."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error


def csv_rows(text: str, name: str, required: Sequence[str] = ()) -> Iterator[TableRow]:
    """The lines of a CSV text below the headings, blank ones left out. Raises TraceError where a needed heading is
    missing."""
    reader = csv.reader(text.splitlines())
    try:
        yield from _under_headings(((reader.line_num, fields) for fields in reader), name, required)
    except csv.Error as error:
        raise TraceError(f"{name}:{reader.line_num}: {error}") from error


def pipe_separated_rows(text: str, name: str, required: Sequence[str] = ()) -> Iterator[TableRow]:
    """Likewise of a text in columns parted by `|`, where nothing is quoted: what is one too many belongs to the last
    column."""
    head = text.partition("\n")[0]
    count, ends = len(head.removesuffix("|").split("|")), head.endswith("|")
    rows = (line.removesuffix("|") if ends else line for line in text.splitlines())
    yield from _under_headings(
        ((at, row.split("|", count - 1)) for at, row in enumerate(rows, start=1)), name, required
    )


def _under_headings(rows: Iterable[tuple[int, list[str]]], name: str, required: Sequence[str]) -> Iterator[TableRow]:
    headings: list[str] = []
    for number, fields in rows:
        if not headings:
            headings = [heading.strip().lstrip("\ufeff") for heading in fields] or [""]
            if missing := [heading for heading in required if heading not in headings]:
                raise TraceError(f"{name}:1: expected a column {missing[0]}: needed are {', '.join(required)}")
        elif any(field.strip() for field in fields):
            if len(fields) != len(headings):
                there = f"{len(fields)} fields under {len(headings)} headings"
                raise TraceError(f"{name}:{number}: expected one field for each heading, there are {there}")
            yield TableRow(f"{name}:{number}", dict(zip(headings, fields, strict=True)))
    if not headings and required:
        raise TraceError(f"{name}:1: expected headings: {', '.join(required)}")
