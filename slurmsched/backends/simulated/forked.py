"""Forked jobs on the virtual cluster: the copies do what `jobside.forking` makes of them, in rounds of their own.

A round divides the steps that are left among the copies: as the scheduler's dispatch says, else by the rates that the
copies have measured, else equally. It ends when all of its steps are done, when there is a new dispatch, or after
`SLOT` seconds without one; a copy without a step waits as long for the others. At the end each copy finishes the step
it is at and saves. Steps that are not saved when the next round begins are divided again, so each step is done once.

The files of a live job are attributes here: a `SimulatedForkedJob` is the folder of rounds that the copies share, and
`dispatch` is its file in the spool. What is left out: the quarter of a second in which copies notice something, and
steps that take longer than the copies wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Final

from slurmsched.backends.simulated.events import Event, EventQueue, SimulatedEventKind
from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.jobside.dispatch import Dispatch
from slurmsched.jobside.forked_rounds import divide_steps, rates_of_next_round
from slurmsched.jobside.report import Report, Stage
from slurmsched.model import JobId, JobState

SLOT: Final = 300.0
"""Seconds of a round without a dispatch, the default of `ForkedTraining`."""

GRACE: Final = 30.0
"""Seconds for which copies wait for one that does not run, the default of `ForkedTraining`."""

CHECKPOINT_EVERY: Final = 60.0
"""Seconds between a copy's own checkpoints, the default of `ForkedTraining`."""

_TIME_RESOLUTION: Final = 1e-5
"""Seconds: a little more than the resolution of unix time as a double."""

_PART_OF_A_STEP: Final = 1e-3
"""What a copy may lack of a step that counts as done: more than the resolution of unix time makes of it."""


@dataclass(slots=True)
class JobCopy:
    """One copy: a task of the array. Steps `assigned` and `saved` are those of the current round.

    `counted` are its steps of all earlier rounds. `up_from` is when the process of the current run is up, `since` when
    it began with its steps of the round, or was through with them (unix seconds). `joined` and `ready` are what it
    wrote into the folder of the round. The run's work is paused while the copy waits.
    """

    job: SimulatedJob
    counted: int = 0
    assigned: int = 0
    saved: int = 0
    up_from: float = 0.0
    since: float = 0.0
    joined: bool = False
    ready: bool = False
    ready_rate: float = 0.0
    """Steps per second in this round as of when it was ready, 0.0 if it has done none."""
    timed_steps: int = 0
    """Steps that this run did in earlier rounds, less those that an earlier run did in its first one."""

    def is_up(self, now: float) -> bool:
        """Whether its process runs and has loaded what it needs."""
        return self.job.state is JobState.RUNNING and self.up_from <= now


@dataclass(slots=True)
class SimulatedForkedJob:
    """A job of `total` steps, each of `step_work` seconds at the GPU-proportional share; `done` before this round.

    `exchange` are the seconds in which the parameters of the copies are averaged and loaded, after rounds with steps.
    """

    array: JobId
    total: int
    step_work: float
    events: EventQueue
    exchange: float = 0.0
    copies: dict[JobId, JobCopy] = field(default_factory=dict)
    done: int = 0
    number: int = 0
    """The round under way, from 1; 0 before the first."""
    dispatch: Dispatch | None = None
    _used_dispatch: int = 0
    _end_requested: bool = False
    _waits_until: float | None = None
    """Until then the copies that are ready wait for those that run no more; None until all others are ready."""
    _advances_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether all steps are done: a copy that starts then ends at once."""
        return self.done >= self.total

    def ends_with(self, job: SimulatedJob) -> bool:
        """Whether the job as a whole ends with this copy: it saw the end, or no copy is left."""
        saw_the_end = self.over and job.state_text in ("COMPLETED", "FAILED")
        return saw_the_end or all(copy.job.state is JobState.FINISHED for copy in self.copies.values())

    def add(self, job: SimulatedJob) -> None:
        """Adds a task of the array."""
        self.copies[job.id] = JobCopy(job)

    def started(self, job: SimulatedJob, now: float) -> None:
        """A copy's run has begun: it joins the round once its process is up."""
        copy, run = self.copies[job.id], job.work.run
        copy.up_from, copy.timed_steps = (now if run is None else run.productive_from), -copy.saved
        self._set_to_work(copy, copy.assigned, now)
        self._meet_at(copy.up_from)

    def stopped(self, job: SimulatedJob, now: float) -> None:
        """A copy's run has ended: of its steps those in its checkpoint are left."""
        copy = self.copies[job.id]
        copy.saved = max(copy.saved, min(copy.assigned, self._steps_in(job.work.checkpointed) - copy.counted))
        job.work.checkpointed = (copy.counted + copy.saved) * self.step_work
        copy.joined = copy.joined or copy.up_from <= now
        self._meet_at(now)

    def reached(self, job: SimulatedJob, now: float) -> None:
        """A copy has done its last step of the round, and waits for the others."""
        copy, run = self.copies[job.id], job.work.run
        if copy.ready or run is None or run.finish_time(job.work.total) > now + _TIME_RESOLUTION:
            return
        self._save(copy, now)
        self.meet(now)

    def receive(self, dispatch: Dispatch, now: float) -> None:
        """The scheduler says anew who does how many steps."""
        self.dispatch = dispatch
        self._meet_at(dispatch.valid_until)
        self.meet(now)

    def meet(self, now: float) -> None:
        """Whatever has changed, the copies that are up see it: begin the first round, end a round, begin the next."""
        up = [copy for copy in self.copies.values() if copy.is_up(now)]
        if self.over or not up:
            return
        if not self.number:
            self._begin_round(now)
        for copy in up:
            copy.joined = True
            if not copy.ready and copy.saved >= copy.assigned:
                self._wait(copy, copy.since)
        self._end_requested = self._end_requested or self._should_end(up, now)
        if not self._end_requested:
            return
        for copy in up:
            self._finish_step(copy, now)
        if self._advances_at is None and all(copy.ready for copy in up):
            self._advances_at = self._next_round_time(now)
        if self._advances_at is not None and self._advances_at <= now:
            self._begin_round(now)

    def report(self, job: SimulatedJob, now: float) -> Report | None:
        """What a copy that is up reports to the scheduler; None before it has done a step in this run."""
        copy, run = self.copies[job.id], job.work.run
        if run is None or not copy.is_up(now):
            return None
        steps = self._steps_now(copy, now)
        timed = copy.timed_steps + steps
        rate = run.rate / self.step_work
        return (
            Report(job.id, job.restarts, Stage.RUNNING, now, self.done + steps, timed, timed / rate, rate)
            if timed
            else None
        )

    def _meet_at(self, time: float) -> None:
        self.events.push(Event(time, SimulatedEventKind.COPIES_MEET, self.array))

    def _push(self, time: float, kind: SimulatedEventKind, job: SimulatedJob) -> None:
        self.events.push(Event(time, kind, job.id, job.run_number))

    def _steps_in(self, work: float) -> int:
        return floor(work / self.step_work + _PART_OF_A_STEP)

    def _steps_now(self, copy: JobCopy, now: float) -> int:
        """The steps of this round that a running copy has done."""
        run = copy.job.work.run
        done = 0 if run is None else self._steps_in(run.work_done(now)) - copy.counted
        return max(0, min(copy.assigned, done))

    def _set_to_work(self, copy: JobCopy, steps: int, now: float) -> None:
        """A running copy does its steps of the round up to `steps`, from where it is, or waits if it has none."""
        work, run = copy.job.work, copy.job.work.run
        if run is None:
            return
        work.total = (copy.counted + steps) * self.step_work
        copy.since = max(now, copy.up_from)
        run.restart_at(copy.since, work.checkpointed)
        if copy.saved >= steps:
            run.pause(copy.since)
        if copy.saved < steps or self.over:
            self._push(run.finish_time(work.total), SimulatedEventKind.WORK_DONE, copy.job)
        self._meet_at(copy.since + SLOT)

    def _save(self, copy: JobCopy, now: float) -> None:
        copy.saved = self._steps_in(copy.job.work.total) - copy.counted
        copy.job.work.complete()
        self._wait(copy, now)

    def _wait(self, copy: JobCopy, since: float) -> None:
        run = copy.job.work.run
        copy.ready, copy.since = True, since
        copy.ready_rate = run.rate / self.step_work if run is not None and copy.saved else 0.0
        if run is not None:
            run.pause(since)
        self._meet_at(since + SLOT)

    def _valid_dispatch(self, now: float) -> Dispatch | None:
        return self.dispatch if self.dispatch is not None and now < self.dispatch.valid_until else None

    def _should_end(self, up: Sequence[JobCopy], now: float) -> bool:
        """`ForkedTraining._end_if_over`."""
        dispatch = self._valid_dispatch(now)
        if dispatch is not None and dispatch.number > self._used_dispatch:
            return True
        if all(copy.ready for copy in self.copies.values() if copy.assigned):
            return True
        return any(copy.since + SLOT <= now and (dispatch is None or copy.ready) for copy in up)

    def _finish_step(self, copy: JobCopy, now: float) -> None:
        """The round ends: a copy finishes the step it is at, and saves."""
        work, run = copy.job.work, copy.job.work.run
        if copy.ready or run is None:
            return
        at = run.work_done(now) / self.step_work - copy.counted
        steps = min(copy.assigned, max(copy.saved, ceil(at - _PART_OF_A_STEP)))
        total = (copy.counted + steps) * self.step_work
        if run.finish_time(total) <= now:
            work.total = total
            self._save(copy, now)
        elif total < work.total:
            work.total = total
            self._push(run.finish_time(total), SimulatedEventKind.WORK_DONE, copy.job)

    def _next_round_time(self, now: float) -> float | None:
        """When the next round begins, all copies that are up being ready; None while others are waited for.

        A copy that has joined and runs no more is waited for, unless the dispatch says that it does not run.
        """
        dispatch = self._valid_dispatch(now)
        missing = any(
            copy.joined and not copy.ready and (dispatch is None or _task(copy.job) in dispatch.steps)
            for copy in self.copies.values()
        )
        self._waits_until = now + GRACE if self._waits_until is None else self._waits_until
        if missing and now < self._waits_until:
            self._meet_at(self._waits_until)
            return None
        at = now + (self.exchange if any(copy.saved for copy in self.copies.values()) else 0.0)
        self._meet_at(at)
        return at

    def _begin_round(self, now: float) -> None:
        """Counts what is saved, and divides what is left (`ForkedJobTracker.advance`)."""
        copies = list(self.copies.values())
        rates, dispatch_number = rates_of_next_round(
            [_task(copy.job) for copy in copies],
            self._valid_dispatch(now),
            self._used_dispatch,
            {index: copy.ready_rate for index, copy in enumerate(copies) if copy.ready},
        )
        for copy in self.copies.values():
            self.done += copy.saved
            copy.counted += copy.saved
            copy.timed_steps += copy.saved
            copy.job.work.checkpointed = copy.counted * self.step_work
        assigned = divide_steps(self.total - self.done, rates)
        self.number, self._used_dispatch = self.number + 1, dispatch_number
        self._end_requested, self._waits_until, self._advances_at = False, None, None
        for copy, steps in zip(self.copies.values(), assigned, strict=True):
            copy.assigned, copy.saved, copy.joined, copy.ready = steps, 0, False, False
            if copy.job.state is JobState.RUNNING:
                self._set_to_work(copy, steps, now)
        self._meet_at(now)


def _task(job: SimulatedJob) -> int:
    return int(job.id.rpartition("_")[2])
