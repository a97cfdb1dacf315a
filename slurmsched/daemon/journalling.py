"""What applying a plan needs of a journal and of a gate; the store's and the settings' own are those of the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from slurmsched.model import Operation, Outcome, Result
from slurmsched.store.journal import Entry

__all__ = ["Gating", "Journalling"]


class Journalling(Protocol):
    """Where every operation is before the cluster hears of it. All raise StoreError."""

    def intend(self, round_id: int, numbered: Iterable[tuple[int, Operation]], at: float, /) -> tuple[Entry, ...]:
        """These operations, each with its place in the plan, are about to be done together."""

    def forgo(
        self, round_id: int, numbered: Iterable[tuple[int, Operation]], became: Result, detail: str, at: float, /
    ) -> None:
        """These were planned and are not done."""

    def record(self, became: Sequence[tuple[Entry, Outcome]], at: float, /) -> None:
        """What the cluster showed of each."""

    def mark_undone(self, entry: Entry, detail: str, /) -> None:
        """It was done and has been taken back since."""


class Gating(Protocol):
    """Whether anything may be changed now, asked before each batch."""

    def closed(self) -> str | None:
        """Why nothing at all may be changed; None while the gate is open."""

    def bars(self, operation: Operation, /) -> str | None:
        """Why this operation may not be done even while the gate is open."""
