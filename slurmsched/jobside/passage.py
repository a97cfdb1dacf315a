"""The way through the data: which epoch, which batch, and how to come back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from slurmsched.jobside.randomness import Randomness, capture, restore
from slurmsched.jobside.saving import Position

__all__ = ["Passage"]

T = TypeVar("T")


class Passage:
    """Batches in the order in which an undisturbed run would meet them.

    An epoch that was left half-way begins with the random generators as they were when it began, so that a loader
    shuffles as it did; the batches done are read and dropped; then the generators are as they were after the last.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._batch = 0
        self._at_start: Randomness | None = None
        self._left: Randomness | None = None

    def position(self) -> Position:
        """Where we are now."""
        return Position(self.epoch, self._batch, capture(), self._at_start or {})

    def resume(self, position: Position) -> None:
        """Be there from now on."""
        self.epoch, self._batch = position.epoch, position.batch
        self._at_start, self._left = position.at_start or None, position.now
        restore(position.now)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs up to `count` that are not over."""
        while self.epoch < count:
            before = self.epoch
            yield before
            if self.epoch == before:  # whoever goes through the data by himself
                self.epoch += 1

    def batches(self, loader: Iterable[T], step: Callable[[], None]) -> Iterator[T]:
        """The batches of this epoch that are not done; `step` is called after each."""
        set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if self._at_start is None:
            self._at_start = capture()
        else:
            restore(self._at_start)
        try:
            batches = iter(loader)
            for _ in range(self._batch):
                next(batches, None)
            if self._left is not None:
                restore(self._left)
            self._left = None
            for batch in batches:
                yield batch
                self._batch += 1
                step()
        finally:  # also where the loop was left early: that was the epoch then
            self.epoch += 1
            self._batch, self._at_start = 0, None
