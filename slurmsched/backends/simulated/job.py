"""A job of the virtual cluster, from submission to the end of Slurm's memory of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from slurmsched.backends.simulated.work import Work
from slurmsched.model import Hold, Job, JobId, JobState, Request, Share, parse_hints

__all__ = ["HIGHEST_PRIORITY", "SimulatedJob", "Submission"]

HIGHEST_PRIORITY = 1_000_000_000
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
    work: Work
    standing: Request
    hold: Hold
    nice: int
    begin: float | None
    state: JobState = JobState.PENDING
    state_text: str = "PENDING"
    reason: str = "None"
    shares: tuple[Share, ...] = ()
    start_time: float | None = None
    end_time: float | None = None
    paused: float = 0.0
    """Seconds of the current run in which it was suspended."""
    paused_since: float | None = None
    restarts: int = 0
    run: int = 0
    leaving: str = ""
    """While it completes: the state that comes then."""
    held_after: bool = False
    cpus_left: bool = False
    """It is, or was when it ended, suspended: its CPUs are not held."""
    begin_from_requeue: bool = False
    admin_comment: str = ""
    array_job: str = ""
    throttle: int | None = None
    dependency: str = ""
    view: Job | None = field(default=None, repr=False)
    """As last shown; None once anything changed."""

    @property
    def priority(self) -> int:
        """0 while held, as Slurm has it."""
        return 0 if self.hold is not Hold.NONE else max(1, HIGHEST_PRIORITY - self.number - self.nice)

    @property
    def latest_end(self) -> float:
        """When its time limit ends the current run, infinite without one."""
        limit = self.submission.time_limit
        return inf if limit is None or self.start_time is None else self.start_time + self.paused + limit

    def run_time(self, now: float) -> float:
        """Seconds of the current or last run, suspensions left out."""
        if self.start_time is None:
            return 0.0
        until = min(t for t in (now, self.end_time, self.paused_since) if t is not None)
        return max(0.0, until - self.start_time - self.paused)

    def seen(self, now: float) -> Job:
        """The job as one poll at `now` sees it."""
        if self.view is None:
            self.view = self._view(now)
        elif self.state in (JobState.RUNNING, JobState.SUSPENDED):
            self.view = self.view.after(self.run_time(now))
        return self.view

    def _view(self, now: float) -> Job:
        given = self.submission
        limit_end = None if self.latest_end == inf else self.latest_end
        return Job(
            id=self.id,
            user=given.user,
            request=self.standing,
            standing=self.standing,
            state=self.state,
            state_text=self.state_text,
            name=given.name,
            account=given.account,
            partitions=given.partitions,
            qos=given.qos,
            reason=self.reason,
            hold=self.hold,
            shares=self.shares,
            submit_time=self.submit_time,
            eligible_time=self.begin if self.begin is not None else self.submit_time,
            start_time=self.start_time,
            end_time=self.end_time if self.end_time is not None else limit_end,
            run_time=self.run_time(now),
            time_limit=given.time_limit,
            priority=self.priority,
            nice=self.nice,
            batch=given.batch,
            requeue=given.requeue,
            restarts=self.restarts,
            dependency=self.dependency,
            reservation=given.reservation,
            array_job=self.array_job,
            throttle=self.throttle,
            comment=given.comment,
            admin_comment=self.admin_comment,
            hints=parse_hints(given.comment),
        )
