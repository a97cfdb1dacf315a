"""Reports in the background: a file system that hangs keeps no step waiting.

How fast the steps of this run go.

What a run says of itself: now and then in the background, and at once where the scheduler waits for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final

from slurmsched.jobside.environment import SlurmEnvironment, peak_memory
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool, is_job_id

REPORT_INTERVAL: Final = 10.0
"""Seconds between two reports."""


class ReportLoop:
    """Writes what `compose` says now and then. Without a spool that can be written the job trains on all the same."""

    def __init__(self, spool: Spool, compose: Callable[[], Report], interval: float = REPORT_INTERVAL) -> None:
        self._spool = spool
        self._compose = compose
        self._interval = interval
        self._stopped = Event()
        self._warned = False
        self._process = os.getpid()
        self._thread = Thread(target=self._run, name="synsched reports", daemon=True)

    @classmethod
    def for_job(cls, root: str, job: str, compose: Callable[[], Report]) -> ReportLoop | None:
        """A reporter for this job; None where there is no spool, or no job."""
        return cls(Spool(Path(root), job), compose) if root and is_job_id(job) else None

    def start(self) -> None:
        """Register with the first report, and go on from there."""
        self._thread.start()

    def write_now(self) -> None:
        """One report at once, because something has changed that the scheduler waits for."""
        try:
            self._spool.write(self._compose())
        except OSError as error:
            if not self._warned:
                print(f"synsched: no reports: {error}", file=sys.stderr)  # noqa: T201 - into the job's own output
            self._warned = True

    def stop(self, *, clear: bool, last: bool = False) -> None:
        """No more reports; `clear` takes the last one away, `last` writes one more. Nothing in a process that was
        forked from the job's."""
        if os.getpid() != self._process or self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join(timeout=1.0)
        if last:
            self.write_now()
        elif clear:
            try:
                self._spool.clear()
            except OSError:
                return  # it grows old, and a later job of the owner's clears it away

    def _run(self) -> None:
        self.write_now()
        while not self._stopped.wait(self._interval):
            self.write_now()


_HALF_LIFE: Final = 30.0
"""Seconds of work after which half of the latest rate is new."""


@dataclass(slots=True)
class Pace:
    """Steps over the seconds that were spent on them; what passes between `pause` and `resume` does not count.

    Times are of any steady clock, in seconds. What is done before the first look warms everything up, and does not
    count either.
    """

    done: int = 0
    busy: float = 0.0
    rate: float = 0.0
    _since: float | None = None
    _warmed_up: bool = False

    def resume(self, now: float) -> None:
        """Work begins, or goes on."""
        self._since = now

    def pause(self) -> None:
        """Something else than steps is done from here on."""
        self._since = None

    def record_steps(self, steps: int, now: float) -> None:
        """So many steps have been done since the last look."""
        since, self._since = self._since, now
        if not self._warmed_up or since is None:
            self._warmed_up = True
            return
        spent = now - since
        self.done += steps
        self.busy += spent
        if spent > 0:
            weight = 0.5 ** (spent / _HALF_LIFE) if self.rate else 0.0
            self.rate = weight * self.rate + (1 - weight) * steps / spent


class JobReporter:
    """The word of a job of so many `ranks`. With an empty `spool` nothing is said.

    `standing` tells the job's steps and the step of its last checkpoint; `change` has the last word on a report.
    """

    def __init__(
        self,
        spool: str,
        environment: SlurmEnvironment,
        *,
        ranks: int,
        pace: Pace,
        progress: Callable[[], tuple[int, int]],
        amend: Callable[[Report], Report],
    ) -> None:
        self._environment, self._ranks, self._pace = environment, ranks, pace
        self._progress = progress
        self._stage = Stage.RUNNING
        self._loop = ReportLoop.for_job(spool, environment.job, lambda: amend(self._compose()))

    def start(self) -> None:
        """Register with the first report."""
        if self._loop is not None:
            self._loop.start()

    def report_stage(self, stage: Stage) -> None:
        """This is where the job is from here on."""
        self._stage = stage
        if self._loop is not None:
            self._loop.write_now()

    def stop(self, last: Stage | None = None) -> None:
        """No more reports after one of this stage, if it is given. That of a job that runs is taken away; others are
        still to be read."""
        self._stage = last or self._stage
        if self._loop is not None:
            self._loop.stop(clear=self._stage is Stage.RUNNING, last=last is not None)

    def _compose(self) -> Report:
        environment, pace, (steps, saved) = self._environment, self._pace, self._progress()
        return Report(
            job=environment.job,
            run=environment.run,
            stage=self._stage,
            at=time.time(),
            steps=steps,
            done=pace.done,
            busy=pace.busy,
            rate=pace.rate,
            saved=saved,
            node=environment.node,
            gpus=environment.gpus,
            cpus=environment.cpus,
            memory=peak_memory(),
            ranks=self._ranks,
        )
