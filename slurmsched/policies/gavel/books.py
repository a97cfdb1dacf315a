"""What every job was promised and what it has had since: the priorities of Gavel's rounds (section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurmsched.policies.gavel.problem import Floats, Ints, Mask

__all__ = ["RESET", "Books", "Entry"]

Entry = tuple[str, ...]
"""A job, or two that share GPUs, by id."""

RESET: Final = 1920.0
"""Seconds that shares hold at least, though jobs come and end: Gavel's `minimum_time_between_allocation_resets`."""

_NEVER_RAN: Final = 1e9
"""Times its share: the priority of who has had nothing at all."""


@dataclass(slots=True)
class Books:
    """By entry and GPU type, since shares were last computed: parts of time promised (`share`, NaN for who came later),
    seconds had (`received`), and from before that, seconds promised and not had (`deficit`).

    `total` are the seconds that all entries have had, also those that left since. `credit` seconds are counted as had
    by everybody from the start, so that nothing is divided by zero. `since`: when shares were computed.
    """

    types: tuple[str, ...]
    credit: float
    entries: tuple[Entry, ...] = ()
    share: Floats = field(init=False)
    received: Floats = field(init=False)
    deficit: Floats = field(init=False)
    total: Floats = field(init=False)
    since: float = 0.0
    _row: dict[Entry, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shape = (len(self.entries), len(self.types))
        self.share, self.received, self.deficit = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape)
        self.total = np.zeros(len(self.types))
        self._row = {entry: row for row, entry in enumerate(self.entries)}

    def keep(self, entries: Sequence[Entry]) -> None:
        """From now on these entries, in this order. Who is new has the credit and no share."""
        wanted = tuple(entries)
        if wanted == self.entries:
            return
        old: Ints = np.array([self._row.get(entry, -1) for entry in wanted], dtype=np.int64)
        known = old >= 0
        self.share = self._carried(self.share, old, known, np.nan)
        self.deficit = self._carried(self.deficit, old, known, 0.0)
        self.received = self._carried(self.received, old, known, self.credit)
        self.entries, self._row = wanted, {entry: row for row, entry in enumerate(wanted)}

    def add(self, entry: Entry, gpu_type: str, seconds: float) -> None:
        """These seconds were had on this type, by an entry that may have left."""
        column = self.types.index(gpu_type)
        self.total[column] += seconds
        if entry in self._row:
            self.received[self._row[entry], column] += seconds

    def settle(self, now: float) -> None:
        """Book what was promised and not had as deficit, and count anew from now."""
        self.deficit += np.nan_to_num(self.share) * (now - self.since) - (self.received - self.credit)
        self.received = np.full_like(self.received, self.credit)
        self.total = self.received.sum(axis=0)
        self.since = now

    def promise(self, shares: Mapping[Entry, Floats]) -> None:
        """New shares, of every entry that has any; the others are promised nothing."""
        nothing = np.zeros(len(self.types))
        self.share = np.array([shares.get(entry, nothing) for entry in self.entries]).reshape(self.deficit.shape)

    def priorities(self, runs: Mask) -> Floats:
        """Share over the part of all time that was had; 0 where `runs` is not set, and without a share."""
        share = np.nan_to_num(self.share)
        with np.errstate(divide="ignore", invalid="ignore"):
            had = np.where(self.total > 0, self.received / self.total, 0.0)
            priority = np.where(had > 0, share / had, share * _NEVER_RAN)
        priority[~runs] = 0.0
        found: Floats = priority
        return found

    def shareless(self) -> Iterable[Entry]:
        """Who came after shares were computed."""
        return (entry for entry, share in zip(self.entries, self.share, strict=True) if np.isnan(share).any())

    @staticmethod
    def _carried(was: Floats, old: Ints, known: Mask, new: float) -> Floats:
        found: Floats = np.full((len(old), was.shape[1]), new)
        found[known] = was[old[known]]
        return found
