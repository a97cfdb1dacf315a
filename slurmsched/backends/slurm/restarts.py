"""From when on a job that was requeued may be started again.

Slurm ends a run with a message that bears slurmctld's time in whole seconds, and a node then refuses to launch the job
by a credential that is not younger, in whole seconds too (slurmd: `already killed, do not launch`): the job fails with
exit code 1 before the first line of its script. Slurm itself lets a requeued job wait for minutes; who clears this wait
has to let a second pass. Of restarts within one second all failed on 22.05 and 24.11, and none on 26.05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from slurmsched.model import JobId, JobState, Snapshot

_DELAY: Final = 1.1
"""Seconds: a whole one of slurmctld's clock, also while that is being corrected."""


class RestartDelays:
    """Knows since when each restarted job has been seen to wait. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: Mapping[JobId, tuple[int, float]] = {}

    def see(self, snapshot: Snapshot) -> None:
        """Take in a poll that has just been read: the last run of a job that waits in it ended before now."""
        now, known = self._monotonic(), self._waiting
        self._waiting = {
            job.id: of if (of := known.get(job.id)) is not None and of[0] == job.restarts else (job.restarts, now)
            for job in snapshot.jobs_in_state(JobState.PENDING)
            if job.restarts
        }

    def seconds_left(self, released: Iterable[JobId]) -> float:
        """Seconds until all of these jobs may be started; 0 for at once."""
        since = max((self._waiting[job][1] for job in released if job in self._waiting), default=None)
        return 0.0 if since is None else max(0.0, since + _DELAY - self._monotonic())
