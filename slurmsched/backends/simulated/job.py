"""How a simulated job gets on: work, speed, checkpoints and what a restart costs.

Work is counted in seconds at the GPU-proportional share, on the type that the job's duration is of. An allocation never
changes while a run lasts; its speed does when somebody comes to or leaves a GPU that it uses. So the moment a job
finishes is exact and lies where it falls between rounds.

A job of the virtual cluster, from submission to the end of Slurm's memory of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Hold, Job, JobId, JobState, Node, NodeAllocation, Request, parse_hints

Speed = Callable[[Job, Sequence[NodeAllocation], Sequence[Job]], float]
"""Work per second of a job on these shares, while those other jobs use the same GPUs; above 0."""

MIN_SPEED: Final = 1e-9
"""The speed of a job where it cannot run: it holds its GPUs, and never ends."""


def proportional_speed(_job: Job, _allocations: Sequence[NodeAllocation], _partners: Sequence[Job]) -> float:
    """Neither place nor company makes a difference."""
    return 1.0


def profiled_speed(knowledge: Knowledge, nodes: Iterable[Node]) -> Speed:
    """Jobs run as fast as their profiles say; 1.0 where nothing is known."""
    by_name = {node.name: node for node in nodes}
    return lambda job, shares, partners: max(MIN_SPEED, knowledge.speed(job, shares, by_name, partners))


@dataclass(frozen=True, slots=True)
class UsageInterval:
    """One run in the accounts: the job had `gpus`, parts of one counted as such, from `start` to `end`, resources held
    while completing included.

    `kept` seconds of it did work that was not lost to an end without a checkpoint, nor spent on restarting. `rate` is
    the work done per second while it did any.
    """

    job: JobId
    start: float
    end: float
    gpus: float
    useful_seconds: float
    cpus: int = 0
    memory: int = 0
    nodes: tuple[str, ...] = ()
    rate: float = 1.0

    @property
    def gpu_seconds(self) -> float:
        return self.gpus * (self.end - self.start)


@dataclass(slots=True)
class JobRun:
    """The current run. `rate` is work per second; nothing is done before `productive`, when it has restarted.

    `began` is the work done before the run. Since the speed last changed, at `productive`, `done_before` had been done,
    in `worked` seconds of this run.
    """

    start: float
    rate: float
    productive_from: float
    initial_work: float
    done_before: float = 0.0
    seconds_before: float = 0.0
    paused_at: float | None = None
    """Since when the job is suspended."""

    def __post_init__(self) -> None:
        self.done_before = self.initial_work

    def _productive_seconds(self, now: float) -> float:
        until = now if self.paused_at is None else self.paused_at
        return max(0.0, until - self.productive_from)

    def work_done(self, now: float) -> float:
        """Work done in all, checkpointed or not."""
        return self.done_before + self.rate * self._productive_seconds(now)

    def finish_time(self, total: float) -> float:
        """When `total` work will be done."""
        return self.productive_from + max(0.0, total - self.done_before) / self.rate

    def average_rate(self, now: float) -> float:
        """Work per second of this run, of the seconds in which any was done."""
        seconds = self.seconds_before + self._productive_seconds(now)
        return (self.work_done(now) - self.initial_work) / seconds if self.seconds_before and seconds else self.rate

    def set_rate(self, now: float, rate: float) -> None:
        """From now on it is this fast."""
        self.done_before, self.seconds_before = self.work_done(now), self.seconds_before + self._productive_seconds(now)
        self.productive_from, self.rate = (
            max(self.productive_from, now if self.paused_at is None else self.paused_at),
            rate,
        )

    def pause(self, now: float) -> None:
        self.paused_at = now

    def resume(self, now: float) -> None:
        """Goes on where it was paused; every later moment of the run shifts by the pause."""
        if self.paused_at is not None:
            self.productive_from += now - self.paused_at
            self.paused_at = None


@dataclass(slots=True)
class JobWork:
    """A job's work over all its runs. `saved` is what the last checkpoint holds.

    `every` is the productive time between the checkpoints the job writes of its own accord, None for a job that
    writes one only when it is signalled.
    """

    total: float
    checkpoint_interval: float | None = None
    checkpointed: float = 0.0
    run: JobRun | None = None

    def begin_run(self, now: float, rate: float, overhead: float) -> JobRun:
        """A run from the last checkpoint, `overhead` seconds of which pass before any work is done."""
        self.run = JobRun(now, rate, now + overhead, self.checkpointed)
        return self.run

    def checkpoint(self, now: float) -> None:
        """What is done by now survives the end of the run."""
        if self.run is not None:
            self.checkpointed = min(self.total, max(self.checkpointed, self.run.work_done(now)))

    def complete(self) -> None:
        """All of it is done and nothing can be lost any more."""
        self.checkpointed = self.total

    def end_run(self, now: float) -> float:
        """The run ends, finished or not; what no checkpoint holds is lost. The seconds of work it kept."""
        kept, self.checkpointed, self.run = self.useful_seconds(now), self._surviving_work(now), None
        return kept

    def useful_seconds(self, now: float) -> float:
        """The seconds of work the current run would keep if it ended now."""
        run = self.run
        return 0.0 if run is None else max(0.0, self._surviving_work(now) - run.initial_work) / run.average_rate(now)

    def _surviving_work(self, now: float) -> float:
        """The work that would survive if the run ended now."""
        run = self.run
        if run is None or not self.checkpoint_interval:
            return self.checkpointed
        step = self.checkpoint_interval * run.average_rate(now)
        return max(self.checkpointed, run.initial_work + step * ((run.work_done(now) - run.initial_work) // step))

    @property
    def finished(self) -> bool:
        return self.checkpointed >= self.total


MAX_PRIORITY = 1_000_000_000
"""The first job's priority; each later one has one less, so that order is submission less `nice`."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a user hands to sbatch, and what only the simulation knows: how much `work` it is.

    `work` and `checkpoint_every` are seconds at the GPU-proportional share; `checkpoint_time` is how long the job takes
    to write a checkpoint once it is signalled; `checkpoint_every` None: it writes none unasked. Times in unix seconds.
    """

    user: str
    request: Request
    work: float
    time_limit: int | None = None
    partitions: tuple[str, ...] = ("gpu",)
    name: str = ""
    account: str = ""
    qos: str = ""
    comment: str = ""
    nice: int = 0
    begin: float | None = None
    dependency: str = ""
    reservation: str = ""
    batch: bool = True
    requeue: bool = True
    held: bool = False
    checkpoint_time: float = 10.0
    checkpoint_every: float | None = None
    fails: bool = False
    """It ends as FAILED once its work is done."""


@dataclass(slots=True)
class SimulatedJob:
    """The mutable record behind one `Job`. `run` numbers its runs and pauses, so that events of an earlier one are
    void. `begin_from_requeue` is set while `begin` is the delay Slurm imposes after a requeue."""

    id: JobId
    number: int
    submission: Submission
    submit_time: float
    work: JobWork
    current_request: Request
    hold: Hold
    nice: int
    begin: float | None
    state: JobState = JobState.PENDING
    state_text: str = "PENDING"
    reason: str = "None"
    allocations: tuple[NodeAllocation, ...] = ()
    start_time: float | None = None
    end_time: float | None = None
    suspended_seconds: float = 0.0
    """Seconds of the current run in which it was suspended."""
    suspended_since: float | None = None
    restarts: int = 0
    run_number: int = 0
    next_state: str = ""
    """While it completes: the state that comes then."""
    requeue_held: bool = False
    cpus_released: bool = False
    """It is, or was when it ended, suspended: its CPUs are not held."""
    begin_from_requeue: bool = False
    admin_comment: str = ""
    array_job: str = ""
    throttle: int | None = None
    dependency: str = ""
    last_view: Job | None = field(default=None, repr=False)
    """As last shown; None once anything changed."""

    @property
    def priority(self) -> int:
        """0 while held, as Slurm has it."""
        return 0 if self.hold is not Hold.NONE else max(1, MAX_PRIORITY - self.number - self.nice)

    @property
    def latest_end(self) -> float:
        """When its time limit ends the current run, infinite without one."""
        limit = self.submission.time_limit
        return inf if limit is None or self.start_time is None else self.start_time + self.suspended_seconds + limit

    def run_time(self, now: float) -> float:
        """Seconds of the current or last run, suspensions left out."""
        if self.start_time is None:
            return 0.0
        until = min(t for t in (now, self.end_time, self.suspended_since) if t is not None)
        return max(0.0, until - self.start_time - self.suspended_seconds)

    def view_at(self, now: float) -> Job:
        """The job as one poll at `now` sees it."""
        if self.last_view is None:
            self.last_view = self._view(now)
        elif self.state in (JobState.RUNNING, JobState.SUSPENDED):
            self.last_view = self.last_view.with_run_time(self.run_time(now))
        return self.last_view

    def _view(self, now: float) -> Job:
        submission = self.submission
        limit_end = None if self.latest_end == inf else self.latest_end
        return Job(
            id=self.id,
            user=submission.user,
            original_request=self.current_request,
            current_request=self.current_request,
            state=self.state,
            state_text=self.state_text,
            name=submission.name,
            account=submission.account,
            partitions=submission.partitions,
            qos=submission.qos,
            reason=self.reason,
            hold=self.hold,
            allocations=self.allocations,
            submit_time=self.submit_time,
            eligible_time=self.begin if self.begin is not None else self.submit_time,
            start_time=self.start_time,
            end_time=self.end_time if self.end_time is not None else limit_end,
            run_time=self.run_time(now),
            time_limit=submission.time_limit,
            priority=self.priority,
            nice=self.nice,
            batch=submission.batch,
            requeue=submission.requeue,
            restarts=self.restarts,
            dependency=self.dependency,
            reservation=submission.reservation,
            array_job=self.array_job,
            throttle=self.throttle,
            comment=submission.comment,
            admin_comment=self.admin_comment,
            hints=parse_hints(submission.comment),
        )
