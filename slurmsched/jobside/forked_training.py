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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGUSR1, Signals
from typing import Final

from slurmsched.jobside.averaging import average
from slurmsched.jobside.dispatch import Dispatch, read_dispatch
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
    seconds that the others wait for a copy to save; longer than a step.

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
        self._notice, self._patience = notice, patience
        self._environment, self._clock = environment, clock
        self._done, self._busy = 0, 0.0

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
        meeting, given = Meeting(fork.folder), fork.given[self._copy]
        first = (fork.number * len(fork.given) + self._copy) << 32
        with self._trained(fork) as training:
            meeting.join(self._copy)
            began = self._clock()
            next_look = began
            while True:
                if training.steps < given:
                    now = self._clock()
                    if now >= next_look:
                        next_look = now + _LOOK
                        if self._is_over(fork, meeting, now - began):
                            break
                    yield first + training.steps
                    training.step()
                    if training.steps == given:
                        began = self._clock()  # from here on it waits for the others
                else:
                    self._is_ready(training, meeting)
                    if self._is_over(fork, meeting, self._clock() - began):
                        break
                    self._wait(training)
            self._is_ready(training, meeting)
            self._meet(fork, meeting, training)
            self._done, self._busy = self._done + training.pace.done, self._busy + training.pace.busy

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
        return training

    def _is_over(self, fork: Fork, meeting: Meeting, lasted: float) -> bool:
        """Whether the round ends: who finds a reason tells the others."""
        now = self._tracker.current()
        if meeting.ending or (now is not None and now.number != fork.number):
            return True
        word, ready = self._word(), meeting.rates()
        working = {copy for copy, steps in enumerate(fork.given) if steps}
        anew = word is not None and word.number > fork.word
        alone = lasted >= self._slot and (word is None or fork.given[self._copy] == 0 or self._copy in ready)
        if not (anew or alone or working <= ready.keys()):
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
            waited, ready, word = self._clock() - since, meeting.rates(), self._word()
            missing = meeting.joined() - ready.keys()
            if word is not None:
                missing = frozenset(copy for copy in missing if self._task.tasks[copy] in word.steps)
            mine = self._copy == min(ready, default=self._copy)
            if (mine and (not missing or waited > self._grace)) or waited > self._grace + _TAKEN_OVER:
                self._next(fork)
            else:
                self._wait(training)

    def _wait(self, training: Training) -> None:
        training.heed()
        time.sleep(_NAP)

    def _next(self, fork: Fork | None) -> Fork:
        """Divide what is left: as the scheduler says, else by what the copies that are there did a second."""
        word, number = self._word(), fork.word if fork else 0
        said = self._said(word) if word is not None and word.number > number else None
        rates = said or (self._measured(Meeting(fork.folder)) if fork else None) or [1.0] * len(self._task.tasks)
        known = max(number, word.number if word is not None else 0)
        return self._tracker.advance(rates, ending=fork.number if fork else 0, word=known)

    def _word(self) -> Dispatch | None:
        spool = self._environment.get("SYNSCHED_SPOOL", "")
        return read_dispatch(Path(spool), self._task.array, time.time()) if spool and self._task.array else None

    def _said(self, word: Dispatch) -> Sequence[float] | None:
        steps = [float(word.steps.get(task, 0)) for task in self._task.tasks]
        return steps if any(steps) else None

    def _measured(self, meeting: Meeting) -> Sequence[float] | None:
        """Who is not there gets nothing; who has not measured itself counts as the others do on average."""
        rates = {copy: rate for copy, rate in meeting.rates().items() if copy < len(self._task.tasks)}
        known = [rate for rate in rates.values() if rate]
        if not rates:
            return None
        usual = sum(known) / len(known) if known else 1.0
        return [(rates[copy] or usual) if copy in rates else 0.0 for copy in range(len(self._task.tasks))]
