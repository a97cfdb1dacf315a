"""Rows that cannot be read: each costs itself alone, and is told of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from slurmsched.model import SynschedError
from slurmsched.store.columns import Row
from slurmsched.store.errors import one_line

__all__ = ["UnreadableRow", "UnreadableRows"]

T = TypeVar("T")

_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row of table `place` by its key, and what is wrong with it."""

    place: str
    row: str
    problem: str

    @property
    def sentence(self) -> str:
        return f"row {self.row} of {self.place} cannot be read and is left out: {self.problem}"


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

    def each(self, place: str, key: str, form: Callable[[Row], T], rows: Iterable[Row]) -> tuple[T, ...]:
        """What `form` makes of each row of table `place`; a row of which it can make nothing is left out."""
        made = []
        for row in rows:
            try:
                made.append(form(row))
            except (ValueError, TypeError, LookupError, SynschedError) as error:
                self.add(place, row[key], error)
        return tuple(made)

    def add(self, place: str, key: object, error: Exception) -> None:
        """One more."""
        name, problem = one_line(key), one_line(error)
        if len(self._met) < _MOST:
            self._met[place, name] = UnreadableRow(place, name, problem)
