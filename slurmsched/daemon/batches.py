"""How many operations a round sends to the cluster at once. Tasks of an array that are held together count as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

SMALL_BATCH: Final = 100
"""Operations: about a second of slurmctld's time. Pauses and stops take effect between batches."""
_LARGE_BATCH: Final = 1000
_JOBS_PER_OPERATION: Final = 25
BATCH_SECONDS: Final = 15.0
"""Seconds that a batch takes at most, by the pace of the one before, or of the limit that slurmctld sets."""


def batch_size(jobs: int, operation_seconds: float = 0.0) -> int:
    """Most operations per batch where so many jobs are known and each operation takes so many seconds at least.

    What a batch did is read back at once, for which slurmctld lists all jobs: with tens of thousands of them, small
    batches would spend the round on that. Where the rate of changes is limited a batch ends soon all the same.
    """
    size = min(max(SMALL_BATCH, jobs // _JOBS_PER_OPERATION), _LARGE_BATCH)
    return max(1, min(size, int(BATCH_SECONDS / operation_seconds))) if operation_seconds else size


def next_batch_size(done: float, seconds: float, most: int) -> int:
    """Most operations of the next batch, after one of `done` operations that took so many seconds: as many as take no
    longer than a batch may, so that a slurmctld that is slow is not sent more at once, and hardly more than twice as
    many."""
    in_time = int(BATCH_SECONDS * done / seconds) if seconds > 0 else most
    return max(1, min(most, max(int(2 * done), SMALL_BATCH), in_time))


def begun_in_time(ready: Sequence[int], begins: Mapping[int, float], left: float, each: float) -> tuple[int, ...]:
    """The ready operations but those that begin what cannot be finished in the seconds that are `left`.

    `begins` are operations that begin something, each with the commands that it takes: two for an update, which a
    release follows in a later batch. A command takes `each` seconds, as in the mean of the batches before; 0 where
    there was none. Others are done, however little time is left, and take one command each.
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
