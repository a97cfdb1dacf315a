"""The signals that end a lease."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from slurmsched.jobside.errors import JobsideError

__all__ = ["Notice"]

_Handler = Callable[[int, FrameType | None], object] | int | None


class Notice:
    """What signals have said so far. A handler only notes; what follows is done between two steps.

    `lease_over`: the scheduler asked for a checkpoint (the signal that the hint `ckpt=` names), and requeues soon.
    `leaving`: SIGTERM, as a requeue, a cancellation and the time limit send it: whoever stays is killed. Where the
    checkpoint signal is SIGTERM itself, the second one means that.
    """

    def __init__(self, checkpoint: signal.Signals) -> None:
        self.rung = False
        """Something was said that nobody has heeded."""
        self.lease_over = False
        self.leaving = False
        self._checkpoint = checkpoint
        self._before: dict[signal.Signals, _Handler] = {}

    def listen(self) -> None:
        """Heed them from now on. Raises JobsideError outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            raise JobsideError("make the Training in the main thread: nobody else may receive signals")
        for number in dict.fromkeys((self._checkpoint, signal.SIGTERM)):
            self._before[number] = signal.signal(number, self._received)

    def withdraw(self) -> None:
        """Leave the signals to whoever heeded them before."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def go_on(self) -> None:
        """Nobody came to requeue us: the lease holds on."""
        self.lease_over = self.rung = False

    def _received(self, number: int, _: FrameType | None) -> None:
        if number == self._checkpoint and not self.lease_over:
            self.lease_over = True
        elif number == signal.SIGTERM:
            self.leaving = True
        self.rung = True
