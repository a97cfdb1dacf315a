"""What a run says of itself: now and then in the background, and at once where the scheduler waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurmsched.jobside.pace import Pace
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.reporter import Reporter
from slurmsched.jobside.surroundings import Surroundings, peak_memory

__all__ = ["Telling"]


class Telling:
    """The word of a job of so many `ranks`. With an empty `spool` nothing is said.

    `standing` tells the job's steps and the step of its last checkpoint; `change` has the last word on a report.
    """

    def __init__(
        self,
        spool: str,
        where: Surroundings,
        *,
        ranks: int,
        pace: Pace,
        standing: Callable[[], tuple[int, int]],
        change: Callable[[Report], Report],
    ) -> None:
        self._where, self._ranks, self._pace = where, ranks, pace
        self._standing = standing
        self._stage = Stage.RUNNING
        self._reporter = Reporter.of(spool, where.job, lambda: change(self._report()))

    def start(self) -> None:
        """Register with the first report."""
        if self._reporter is not None:
            self._reporter.start()

    def say(self, stage: Stage) -> None:
        """This is where the job is from here on."""
        self._stage = stage
        if self._reporter is not None:
            self._reporter.now()

    def stop(self) -> None:
        """No more reports. That of a job that runs is taken away; others are still to be read."""
        if self._reporter is not None:
            self._reporter.stop(clear=self._stage is Stage.RUNNING)

    def _report(self) -> Report:
        where, pace, (steps, saved) = self._where, self._pace, self._standing()
        return Report(
            job=where.job,
            run=where.run,
            stage=self._stage,
            at=time.time(),
            steps=steps,
            done=pace.done,
            busy=pace.busy,
            rate=pace.rate,
            saved=saved,
            node=where.node,
            gpus=where.gpus,
            cpus=where.cpus,
            memory=peak_memory(),
            ranks=self._ranks,
        )
