"""One copy of a forked job, in rounds with the others (HadarE, section V-B).

training = ForkedTraining(save, load, steps=50_000, consolidate=average_state_dicts)
for seed in training:
    ...one step, on data drawn by the seed...

A round divides all steps that are left. It ends when they are done, or when the scheduler has said anew who does how
many; where it says nothing, after `slot` seconds. Then every copy saves, one of them counts the steps and puts the
parameters together, and all go on from these.

Copies begin a round beyond the mean, in the direction in which it has moved since the round before.

Copies that train side by side take fewer steps one after the other than one that is alone, and their mean moves less
far. Blockwise model-update filtering makes up for it by a momentum of the means of 1 - 1/N for N equal copies (K. Chen
and Q. Huo, ICASSP 2016), in Nesterov's form, in which DiLoCo has it too (A. Douillard et al., 2023). Copies that have
done shares p of the steps count as 1 / sum(p^2) equal ones. One copy alone has no momentum, and trains as ever.

What a job that is forked needs: imported by itself, since it needs numpy.

HadarE trains copies of one job on several nodes at once; after each round their parameters are put together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGUSR1, Signals
from typing import Any, Final, Protocol

from slurmsched.jobside.consolidation import CopyState, average, average_state_dicts
from slurmsched.jobside.environment import ArrayTask, read_array_task
from slurmsched.jobside.errors import TensorError, TrackerError
from slurmsched.jobside.forked_rounds import (
    Consolidate,
    ForkedJobTracker,
    ForkedRound,
    RoundBarrier,
    StepDivider,
    divide_steps,
)
from slurmsched.jobside.report import Report
from slurmsched.jobside.training import Training
from slurmsched.jobside.training_state import import_torch

__all__ = [
    "ArrayTask",
    "CopyState",
    "ForkedJobTracker",
    "ForkedRound",
    "ForkedTraining",
    "HasNamedParameters",
    "average",
    "average_state_dicts",
    "divide_steps",
    "look_ahead",
    "momentum",
]

# The names of the last release, for one more.
Copy, Fork, JobTracker, portions = CopyState, ForkedRound, ForkedJobTracker, divide_steps

_CHECK_SECONDS: Final = 0.25
"""Seconds between two looks for whether the round is over."""

_POLL_SECONDS: Final = 0.2
"""The same while nothing is to be done but wait."""

_TAKEOVER_SECONDS: Final = 60.0
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
        consolidate: Consolidate = average,
        every: float = 60.0,
        slot: float = 300.0,
        grace: float = 30.0,
        notice: Signals = SIGUSR1,
        patience: float = 300.0,
        begun: Callable[[ForkedRound], object] | None = None,
        task: ArrayTask | None = None,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        this_task = task or read_array_task(environment)
        if this_task is None or this_task.number not in this_task.tasks:
            raise TrackerError("a copy is a task of a job array: submit with --array=0-2, or pass the task")
        self._task, self._copy = this_task, this_task.tasks.index(this_task.number)
        self._tracker = ForkedJobTracker(Path(folder or f"rounds-{this_task.array or 'local'}"), steps, consolidate)
        self._save, self._load = save, load
        self._every, self._slot, self._grace = every, slot, grace
        self._notice, self._patience, self._begun = notice, patience, begun
        self._environment, self._clock = environment, clock
        self._divider = StepDivider(environment.get("SYNSCHED_SPOOL", ""), this_task)
        self._timed_steps, self._busy_seconds = 0, 0.0
        self.reached = 0.0
        """Where the whole job is, in steps: a schedule of the learning rate goes by it."""

    def __iter__(self) -> Iterator[int]:
        """A number for each step, which no other step of the job has. In the end the parameters of all are loaded."""
        forked_round = self._tracker.current() or self._advance(None)
        if len(forked_round.assigned) != len(self._task.tasks):
            raise TrackerError(
                f"{forked_round.folder} is the account of {len(forked_round.assigned)} copies:"
                " give each job its own folder"
            )
        while not forked_round.over:
            yield from self._run_round(forked_round)
            forked_round = self._tracker.current() or forked_round
        if forked_round.state is not None:
            self._load(forked_round.state)

    def _run_round(self, forked_round: ForkedRound) -> Iterator[int]:
        barrier = RoundBarrier(forked_round.folder)
        with self._round_training(forked_round) as training:
            barrier.join(self._copy)
            yield from self._run_steps(forked_round, barrier, training)
            self._save_and_mark_ready(training, barrier)
            since = self._clock()
            while not self._end_if_over(forked_round, barrier, self._clock() - since):
                self._poll(training)
            self._wait_for_next_round(forked_round, barrier, training)
            self._timed_steps, self._busy_seconds = (
                self._timed_steps + training.pace.done,
                self._busy_seconds + training.pace.busy,
            )

    def _run_steps(self, forked_round: ForkedRound, barrier: RoundBarrier, training: Training) -> Iterator[int]:
        """This copy's own, as far as the round lasts."""
        first = (forked_round.number * len(forked_round.assigned) + self._copy) << 32
        began = next_check = self._clock()
        while training.steps < forked_round.assigned[self._copy]:
            now = self._clock()
            if now >= next_check:
                if self._end_if_over(forked_round, barrier, now - began):
                    return
                next_check = now + _CHECK_SECONDS
            self.reached = forked_round.reached(self._copy, training.steps)
            yield first + training.steps
            training.step()

    def _round_training(self, forked_round: ForkedRound) -> Training:
        """This copy's part of a round, from where it was left, or from the parameters that all begin with."""
        before = self._timed_steps, self._busy_seconds

        def amend_report(report: Report) -> Report:
            steps, done = forked_round.done + report.steps, before[0] + report.done
            saved = report.saved if report.saved < 0 else forked_round.done + report.saved
            return replace(report, steps=steps, done=min(done, steps), busy=before[1] + report.busy, saved=saved)

        training = Training(
            self._save,
            self._load,
            folder=forked_round.checkpoints(self._copy),
            every=self._every,
            notice=self._notice,
            patience=self._patience,
            amend_report=amend_report,
            environment=self._environment,
            clock=self._clock,
        )
        if training.saved < 0 and forked_round.state is not None:
            self._load(forked_round.state)
            if self._begun is not None:
                self._begun(forked_round)
        return training

    def _end_if_over(self, forked_round: ForkedRound, barrier: RoundBarrier, elapsed: float) -> bool:
        """Whether the round ends: who finds a reason tells the others."""
        now = self._tracker.current()
        if barrier.end_requested or (now is not None and now.number != forked_round.number):
            return True
        dispatch, ready = self._divider.read_dispatch(), barrier.ready_rates()
        dispatched_again = dispatch is not None and dispatch.number > forked_round.dispatch_number
        idle = forked_round.assigned[self._copy] == 0 or self._copy in ready
        slot_over = elapsed >= self._slot and (dispatch is None or idle)
        all_ready = all(copy in ready for copy, steps in enumerate(forked_round.assigned) if steps)
        if not (dispatched_again or slot_over or all_ready):
            return False
        barrier.request_end()
        return True

    def _save_and_mark_ready(self, training: Training, barrier: RoundBarrier) -> None:
        """Saved, once: what is not saved when the round ends is not counted."""
        if self._copy in barrier.ready_rates():
            return
        if training.steps > max(training.saved, 0):
            training.try_save()
        barrier.mark_ready(self._copy, training.pace.rate)

    def _wait_for_next_round(self, forked_round: ForkedRound, barrier: RoundBarrier, training: Training) -> None:
        """Until there is another round: the first of those that are ready begins it, once all have come."""
        since = self._clock()
        while (self._tracker.current() or forked_round).number == forked_round.number:
            waited, ready, dispatch = self._clock() - since, barrier.ready_rates(), self._divider.read_dispatch()
            missing = [copy for copy in barrier.joined() - ready.keys() if self._divider.is_running(copy, dispatch)]
            is_first = self._copy == min(ready, default=self._copy)
            if (is_first and (not missing or waited > self._grace)) or waited > self._grace + _TAKEOVER_SECONDS:
                self._advance(forked_round)
            else:
                self._poll(training)

    def _advance(self, forked_round: ForkedRound | None) -> ForkedRound:
        rates, dispatch_number = self._divider.next_rates(forked_round)
        return self._tracker.advance(
            rates, expected_round=forked_round.number if forked_round else 0, dispatch_number=dispatch_number
        )

    @staticmethod
    def _poll(training: Training) -> None:
        training.handle_signals()
        time.sleep(_POLL_SECONDS)


class HasNamedParameters(Protocol):
    """A `torch.nn.Module`."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """What is trained, by the names that the state dict has; tensors of torch's, hence `Any`."""


def momentum(forked_round: ForkedRound) -> float:
    """The part of its last move by which a round begins beyond the mean; 0 where one copy did all steps, or none did
    any."""
    done = sum(forked_round.previous_steps)
    return 1 - sum((steps / done) ** 2 for steps in forked_round.previous_steps) if done else 0.0


def look_ahead(forked_round: ForkedRound, **models: HasNamedParameters) -> None:
    """Move the parameters of models that have just loaded `fork.state`, named as `torch_state` has them.

    Nothing else is moved: not the optimizer's state, nor the statistics of normalised batches. Parameters are read one
    at a time. Raises TensorError where the round before had others.
    """
    previous, coefficient = forked_round.previous_state, momentum(forked_round)
    if previous is None or not coefficient:
        return
    torch = import_torch()
    previous_parameters = torch.load(previous, map_location="cpu", mmap=True, weights_only=True)
    with torch.no_grad():
        for name, model in models.items():
            for key, parameter in model.named_parameters():
                if key not in previous_parameters.get(name, {}):
                    raise TensorError(f"{previous} has no {name}.{key}: use the names that torch_state has")
                parameter.add_(parameter - previous_parameters[name][key].to(parameter.device), alpha=coefficient)
