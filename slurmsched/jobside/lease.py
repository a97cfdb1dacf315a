"""The signals that end a lease.

What to do after a step: go on, save, yield the resources or end. The same on all ranks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from enum import IntEnum
from types import FrameType
from typing import Final

from slurmsched.jobside.environment import AllReduceMax
from slurmsched.jobside.errors import JobsideError

_Handler = Callable[[int, FrameType | None], object] | int | None


class SignalHandler:
    """What signals have said so far. A handler only notes; what follows is done between two steps.

    `lease_over`: the scheduler asked for a checkpoint (the signal that the hint `ckpt=` names), and requeues soon.
    `leaving`: SIGTERM, as a requeue, a cancellation and the time limit send it: whoever stays is killed. Where the
    checkpoint signal is SIGTERM itself, the second one means that.
    """

    def __init__(self, checkpoint_signal: signal.Signals) -> None:
        self.pending = False
        """Something was said that nobody has heeded."""
        self.checkpoint_requested = False
        self.terminating = False
        self._checkpoint_signal = checkpoint_signal
        self._previous_handlers: dict[signal.Signals, _Handler] = {}

    def install(self) -> None:
        """Heed them from now on. Raises JobsideError outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            raise JobsideError("make the Training in the main thread: nobody else may receive signals")
        for number in dict.fromkeys((self._checkpoint_signal, signal.SIGTERM)):
            self._previous_handlers[number] = signal.signal(number, self._handle)

    def uninstall(self) -> None:
        """Leave the signals to whoever heeded them before."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous_handlers.clear()

    def clear_checkpoint_request(self) -> None:
        """Nobody came to requeue us: the lease holds on."""
        self.checkpoint_requested = self.pending = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == self._checkpoint_signal and not self.checkpoint_requested:
            self.checkpoint_requested = True
        elif number == signal.SIGTERM:
            self.terminating = True
        self.pending = True


_CHECK_SECONDS: Final = 0.25
"""Seconds between two looks of a rank that is alone; a signal is heeded after the very step."""
_DISTRIBUTED_CHECK_SECONDS: Final = 1.0
"""The same where ranks have to talk about it."""
_MAX_CHECK_STEPS: Final = 32
"""Steps between two looks where ranks talk: bounds what a job loses that becomes slow all of a sudden."""


class LeaseAction(IntEnum):
    """What one rank wants, weakest first; the strongest of any rank is done by all."""

    CONTINUE = 0
    SAVE = 1
    YIELD = 2
    """Save and wait for the requeue."""
    EXIT = 3
    """Save and leave at once."""


class Lease:
    """Asks, at steps that are the same on all ranks, what signals and time have brought.

    A rank may not act on a signal alone: others are a step ahead or behind, and wait for it in the next collective
    operation for ever. `every` is the time between two checkpoints in seconds, None for none but at the lease's end.
    `limit` are seconds of work after which a profiling run ends.
    """

    def __init__(
        self,
        signals: SignalHandler,
        all_reduce_max: AllReduceMax,
        *,
        distributed: bool,
        checkpoint_interval: float | None,
        time_limit: float | None,
    ):
        self._signals = signals
        self._all_reduce_max = all_reduce_max
        self._checkpoint_interval = checkpoint_interval
        self._time_limit = time_limit
        self._distributed = distributed
        self._last_checkpoint = 0.0
        self._check_steps = 1
        self.next_check = 0
        """The count of steps at which to look."""

    def begin(self, steps: int, now: float) -> None:
        """The run begins after so many steps; times are of a steady clock, in seconds."""
        self._last_checkpoint = now
        self.next_check = steps + 1

    def record_checkpoint(self, now: float) -> None:
        """A checkpoint was written."""
        self._last_checkpoint = now

    def check(self, steps: int, now: float, *, step_seconds: float, busy: float) -> LeaseAction:
        """What all ranks do now, `step_seconds` being what a step takes of late."""
        action, check_steps = self._all_reduce_max(
            (self._local_action(now, busy), -self._steps_to_next_check(step_seconds))
        )
        self._check_steps = -check_steps
        self.next_check = steps + self._check_steps
        return LeaseAction(action)

    def _local_action(self, now: float, busy: float) -> LeaseAction:
        if self._signals.terminating or (self._time_limit is not None and busy >= self._time_limit):
            return LeaseAction.EXIT
        if self._signals.checkpoint_requested:
            return LeaseAction.YIELD
        due = self._checkpoint_interval is not None and now - self._last_checkpoint >= self._checkpoint_interval
        return LeaseAction.SAVE if due else LeaseAction.CONTINUE

    def _steps_to_next_check(self, step_seconds: float) -> int:
        """Steps to the next look: more only by and by, since a first step says little of the others."""
        seconds = _DISTRIBUTED_CHECK_SECONDS if self._distributed else _CHECK_SECONDS
        steps = int(seconds / step_seconds) if step_seconds > 0 else _MAX_CHECK_STEPS
        maximum = min(2 * self._check_steps, _MAX_CHECK_STEPS) if self._distributed else 2 * self._check_steps
        return max(1, min(steps, maximum))
