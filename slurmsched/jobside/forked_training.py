"""One copy of a forked job, in rounds with the others (HadarE, section V-B).

training = ForkedTraining(save, load, steps=50_000, consolidate=average_state_dicts)
for seed in training:
    ...one step, on data drawn by the seed...

A round divides all steps that are left. It ends when they are done, or when the scheduler has said anew who does how
many; where it says nothing, after `slot` seconds. Then every copy saves, one of them counts the steps and puts the
parameters together, and all go on from these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGUSR1, Signals
from typing import Final

from slurmsched.jobside.averaging import average
from slurmsched.jobside.dividing import Dividing
from slurmsched.jobside.errors import TrackerError
from slurmsched.jobside.meeting import Meeting
from slurmsched.jobside.report import Report
from slurmsched.jobside.surroundings import ArrayTask, array_task
from slurmsched.jobside.tracker import Average, Fork, JobTracker
from slurmsched.jobside.training import Training

__all__ = ["ForkedTraining"]

_LOOK: Final = 0.25
"""Seconds between two looks for whether the round is over."""

_NAP: Final = 0.2
"""The same while nothing is to be done but wait."""

_TAKEN_OVER: Final = 60.0
"""Seconds after which another copy ends the round than the one whose turn it is: it may be at work on it."""


class ForkedTraining:
    """The steps of this copy, one after the other, until those of the whole job are done.

    The copies are the tasks of a job array; `task` says which where Slurm does not. `steps` are those of the whole job,
    as in the hint `fork`. `folder` (`rounds-ARRAY` in the working directory) is seen by all copies. `save`, `load`,
    `notice` and `patience` are as for `Training` and `consolidate` as for `JobTracker`. `every`: seconds between
    checkpoints, the most a killed copy loses. `slot`: the length of a round where the scheduler names none. `grace`:
    seconds that the others wait for a copy to save; longer than a step. `begun` is told of each round after its
    parameters were loaded, so that it may look ahead.

    A copy is one process. Raises TrackerError, and what `Training` raises.
    """

    def __init__(
        self,
        save: Callable[[Path], object],
        load: Callable[[Path], object],
        *,
        steps: int,
        folder: Path | str | None = None,
        consolidate: Average = average,
        every: float = 60.0,
        slot: float = 300.0,
        grace: float = 30.0,
        notice: Signals = SIGUSR1,
        patience: float = 300.0,
        begun: Callable[[Fork], object] | None = None,
        task: ArrayTask | None = None,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        found = task or array_task(environment)
        if found is None or found.number not in found.tasks:
            raise TrackerError("a copy is a task of a job array: submit with --array=0-2, or pass the task")
        self._task, self._copy = found, found.tasks.index(found.number)
        self._tracker = JobTracker(Path(folder or f"rounds-{found.array or 'local'}"), steps, consolidate)
        self._save, self._load = save, load
        self._every, self._slot, self._grace = every, slot, grace
        self._notice, self._patience, self._begun = notice, patience, begun
        self._environment, self._clock = environment, clock
        self._dividing = Dividing(environment.get("SYNSCHED_SPOOL", ""), found)
        self._done, self._busy = 0, 0.0
        self.reached = 0.0
        """Where the whole job is, in steps: a schedule of the learning rate goes by it."""

    def __iter__(self) -> Iterator[int]:
        """A number for each step, which no other step of the job has. In the end the parameters of all are loaded."""
        fork = self._tracker.current() or self._next(None)
        if len(fork.given) != len(self._task.tasks):
            raise TrackerError(
                f"{fork.folder} is the account of {len(fork.given)} copies: give each job its own folder"
            )
        while not fork.over:
            yield from self._round(fork)
            fork = self._tracker.current() or fork
        if fork.state is not None:
            self._load(fork.state)

    def _round(self, fork: Fork) -> Iterator[int]:
        meeting = Meeting(fork.folder)
        with self._trained(fork) as training:
            meeting.join(self._copy)
            yield from self._steps(fork, meeting, training)
            self._is_ready(training, meeting)
            since = self._clock()
            while not self._is_over(fork, meeting, self._clock() - since):
                self._wait(training)
            self._meet(fork, meeting, training)
            self._done, self._busy = self._done + training.pace.done, self._busy + training.pace.busy

    def _steps(self, fork: Fork, meeting: Meeting, training: Training) -> Iterator[int]:
        """This copy's own, as far as the round lasts."""
        first = (fork.number * len(fork.given) + self._copy) << 32
        began = next_look = self._clock()
        while training.steps < fork.given[self._copy]:
            now = self._clock()
            if now >= next_look:
                if self._is_over(fork, meeting, now - began):
                    return
                next_look = now + _LOOK
            self.reached = fork.reached(self._copy, training.steps)
            yield first + training.steps
            training.step()

    def _trained(self, fork: Fork) -> Training:
        """This copy's part of a round, from where it was left, or from the parameters that all begin with."""
        before = self._done, self._busy

        def telling(report: Report) -> Report:
            steps, done = fork.done + report.steps, before[0] + report.done
            saved = report.saved if report.saved < 0 else fork.done + report.saved
            return replace(report, steps=steps, done=min(done, steps), busy=before[1] + report.busy, saved=saved)

        training = Training(
            self._save,
            self._load,
            folder=fork.checkpoints(self._copy),
            every=self._every,
            notice=self._notice,
            patience=self._patience,
            telling=telling,
            environment=self._environment,
            clock=self._clock,
        )
        if training.saved < 0 and fork.state is not None:
            self._load(fork.state)
            if self._begun is not None:
                self._begun(fork)
        return training

    def _is_over(self, fork: Fork, meeting: Meeting, lasted: float) -> bool:
        """Whether the round ends: who finds a reason tells the others."""
        now = self._tracker.current()
        if meeting.ending or (now is not None and now.number != fork.number):
            return True
        word, ready = self._dividing.word(), meeting.rates()
        anew = word is not None and word.number > fork.word
        idle = fork.given[self._copy] == 0 or self._copy in ready
        alone = lasted >= self._slot and (word is None or idle)
        through = all(copy in ready for copy, steps in enumerate(fork.given) if steps)
        if not (anew or alone or through):
            return False
        meeting.end()
        return True

    def _is_ready(self, training: Training, meeting: Meeting) -> None:
        """Saved, once: what is not saved when the round ends is not counted."""
        if self._copy in meeting.rates():
            return
        if training.steps > max(training.saved, 0):
            training.save_or_tell()
        meeting.ready(self._copy, training.pace.rate)

    def _meet(self, fork: Fork, meeting: Meeting, training: Training) -> None:
        """Until there is another round: the first of those that are ready begins it, once all have come."""
        since = self._clock()
        while (self._tracker.current() or fork).number == fork.number:
            waited, ready, word = self._clock() - since, meeting.rates(), self._dividing.word()
            missing = [copy for copy in meeting.joined() - ready.keys() if self._dividing.runs(copy, word)]
            mine = self._copy == min(ready, default=self._copy)
            if (mine and (not missing or waited > self._grace)) or waited > self._grace + _TAKEN_OVER:
                self._next(fork)
            else:
                self._wait(training)

    def _next(self, fork: Fork | None) -> Fork:
        rates, word = self._dividing.after(fork)
        return self._tracker.advance(rates, ending=fork.number if fork else 0, word=word)

    @staticmethod
    def _wait(training: Training) -> None:
        training.heed()
        time.sleep(_NAP)
