"""How many operations a round sends to the cluster at once, and when it begins no more. Tasks of an array that are held
together count as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from slurmsched.model import BlockCause, Outcome, Verb
from slurmsched.model.reasons import pluralise

SMALL_BATCH: Final = 100
"""Operations: about a second of slurmctld's time. Pauses and stops take effect between batches."""
_LARGE_BATCH: Final = 1000
_JOBS_PER_OPERATION: Final = 25
BATCH_SECONDS: Final = 15.0
"""Seconds that a batch takes at most, by the pace of the one before, or of the limit that slurmctld sets."""
_LEAST_SECONDS: Final = 3.0
"""Seconds that a batch may take, however little of the round's time is left."""
_LEAST_FOR_STARTS: Final = 1 / 3
"""The part of `apply_timeout` that a round has for its starts, however long it took to plan them."""
_FIRST_END: Final = 2.0
"""A round ends, after its last change, in so many times the seconds of its first look: 1.1 to 1.7 measured on 12,500
nodes with 600 to 1,300 changes, 2.2 in a first round while slurmctld's own scheduler had 20,000 jobs to try."""
_END_MARGIN: Final = 1.1
_LAST: Final = 3
"""Batches by which the time of the next one is judged."""


def batch_size(jobs: int, operation_seconds: float = 0.0) -> int:
    """Most operations per batch where so many jobs are known and each operation takes so many seconds at least.

    What a batch did is read back at once, for which slurmctld lists all jobs: with tens of thousands of them, small
    batches would spend the round on that. Where the rate of changes is limited a batch ends soon all the same.
    """
    size = min(max(SMALL_BATCH, jobs // _JOBS_PER_OPERATION), _LARGE_BATCH)
    return max(1, min(size, int(BATCH_SECONDS / operation_seconds))) if operation_seconds else size


@dataclass(slots=True)
class BatchPace:
    """How long batches take in a round: each as long as it takes to be read back, which hangs on all jobs of the
    cluster, and so much more for each command as in the slowest large batch: starts are updated quickly and released
    slowly, while slurmctld's own scheduler runs."""

    _batches: list[tuple[float, float]] = field(default_factory=list)
    """The commands of each batch, and its seconds."""

    def learn(self, commands: float, seconds: float) -> None:
        """Take note of a batch."""
        self._batches.append((max(commands, 1.0), max(seconds, 0.0)))

    @property
    def least(self) -> float:
        """Seconds of a batch, however small it is: of the shortest of the last, as it grows with the jobs that have
        started; 0 before there were two."""
        return min(seconds for _, seconds in self._batches[-_LAST:]) if len(self._batches) > 1 else 0.0

    @property
    def each(self) -> float:
        """Seconds of a command beyond that; 0 before the first batch."""
        large, least = [batch for batch in self._batches if batch[0] >= SMALL_BATCH / 2], self.least
        return max((max(seconds - least, 0.0) / commands for commands, seconds in large or self._batches), default=0.0)

    def left(self, seconds: float) -> float:
        """The seconds of these that are left for commands: starts take two batches."""
        return seconds - 2 * self.least

    def next_size(self, done: float, most: int, left: float) -> int:
        """Most operations of the next batch, after one of `done`: as many as take no longer than a batch may, so that a
        slurmctld that is slow is not sent more at once, and no longer than half of the seconds that are `left`, since
        it may become slower; and hardly more than twice as many."""
        longest = min(BATCH_SECONDS, max(left / 2, _LEAST_SECONDS))
        in_time = int((longest - min(self.least, longest / 2)) / self.each) if self.each > 0 else most
        return max(1, min(most, max(int(2 * done), SMALL_BATCH), in_time))


def begun_in_time(ready: Sequence[int], begins: Mapping[int, float], left: float, each: float) -> tuple[int, ...]:
    """The ready operations but those that begin what cannot be finished in the seconds that are `left`.

    `begins` are operations that begin something, each with the commands that it takes: two for an update, which a
    release follows in a later batch. A command takes `each` seconds, by the batches before; 0 where there was none.
    Others are done, however little time is left, and take one command each.
    """
    commands = left / each if each and left > 0 else inf if left > 0 else 0.0
    commands -= sum(index not in begins for index in ready)
    kept: list[int] = []
    for index in ready:
        if index in begins:
            commands -= begins[index]
            if commands < 0:
                continue
        kept.append(index)
    return tuple(kept)


def end_of_starts(began: float, now: float, timeout: float, last_look: float) -> float:
    """When the time of a round that `began` then is over but for a last look at the cluster, and not before a part of
    it was for what begins `now`: reading and deciding may have taken long."""
    return max(began + timeout - last_look, now + _LEAST_FOR_STARTS * timeout)


def left_over(outcomes: Iterable[Outcome]) -> str:
    """How much was not begun since the time was over: `7 starts and 1 hold are left`; empty for nothing."""
    late = [outcome.operation.verb for outcome in outcomes if outcome.cause is BlockCause.OUT_OF_TIME]
    counts = {"start": late.count(Verb.RELEASE), "hold": late.count(Verb.HOLD)}
    said = " and ".join(pluralise(count, what) for what, count in counts.items() if count)
    return f"{said} {'is' if sum(counts.values()) == 1 else 'are'} left" if said else ""


@dataclass(slots=True)
class RoundEnd:
    """How long rounds go on after their last change, to poll and record what became of it, learnt from those whose time
    did not suffice."""

    seconds: float | None = None
    """Of those: the longest lately; None if there was none."""

    def expected(self, first_look: float) -> float:
        """Seconds from the last change to the end of a round that polled and recorded in so many seconds at its
        beginning."""
        return _FIRST_END * first_look if self.seconds is None else _END_MARGIN * self.seconds

    def learn(self, first_look: float, took: float) -> None:
        """Take note of a round that was cut short and took so many seconds from its last change to its end, of which no
        more counts than four times its first look."""
        took = min(took, 2 * _FIRST_END * first_look)
        self.seconds = took if self.seconds is None else max(took, (self.seconds + took) / 2)
