"""The books between two rounds of a live cluster, JSON-safe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from cattrs import BaseValidationError, Converter

from slurmsched.model import JobId
from slurmsched.policies.gavel.books import Books
from slurmsched.policies.gavel.problem import Floats

__all__ = ["Remembered"]


@dataclass(frozen=True, slots=True)
class _Account:
    """One job's, by type; `share` is missing where it came after shares were computed."""

    received: tuple[float, ...]
    deficit: tuple[float, ...]
    share: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """`at`: when the last round was; `since`: when shares were computed. Unix seconds; the rest as in `Books`."""

    types: tuple[str, ...] = ()
    at: float = 0.0
    since: float = 0.0
    total: tuple[float, ...] = ()
    jobs: Mapping[JobId, _Account] = field(default_factory=dict)

    @classmethod
    def read(cls, state: object) -> Remembered:
        """What `said` gave; nothing at all where it is of another form."""
        try:
            found = Converter().structure(state, cls)
        except (BaseValidationError, TypeError, ValueError):
            return cls()
        accounts = [(one.received, one.deficit, one.share or one.received) for one in found.jobs.values()]
        sizes = {len(found.total), *(len(amounts) for account in accounts for amounts in account)}
        return found if sizes == {len(found.types)} else cls()

    @classmethod
    def of(cls, books: Books, at: float) -> Remembered:
        rows = zip(books.entries, books.received, books.deficit, books.share, strict=True)
        accounts = {
            entry[0]: _Account(_list(had), _list(short), None if np.isnan(share).any() else _list(share))
            for entry, had, short, share in rows
        }
        return cls(books.types, at, books.since, _list(books.total), accounts)

    def said(self) -> dict[str, object]:
        """As JSON has it."""
        found = Converter().unstructure(self)
        return {str(key): value for key, value in found.items()}

    def books(self, types: tuple[str, ...], credit: float) -> Books:
        """The books anew; empty where the cluster has other types now."""
        if types != self.types:
            return Books(types, credit)
        books = Books(types, credit, tuple((job,) for job in self.jobs))
        books.since, books.total = self.since, np.array(self.total)
        for row, account in enumerate(self.jobs.values()):
            books.received[row], books.deficit[row] = account.received, account.deficit
            if account.share is not None:
                books.share[row] = account.share
        return books


def _list(amounts: Floats) -> tuple[float, ...]:
    return tuple(float(amount) for amount in amounts)
