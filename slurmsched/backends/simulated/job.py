"""Simulated jobs: submission and its hook, work, speed, checkpoints and restart overhead.

Work is measured in seconds at the GPU-proportional share, on the GPU type of the job's duration. During a run the
allocation never changes; the speed changes when a job starts or ends on a shared GPU. Finish times are therefore exact
and not rounded to rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Hold, Job, JobId, JobState, Node, NodeAllocation, Request, parse_hints
from slurmsched.model.hints import is_hint_word
from slurmsched.settings.definition import ManageSettings

Speed = Callable[[Job, Sequence[NodeAllocation], Sequence[Job]], float]
"""The work per second of a job on these allocations while other jobs share its GPUs; above 0."""

MIN_SPEED: Final = 1e-9
"""The speed of a job on GPUs that it cannot use: it holds them and never ends."""


def proportional_speed(_job: Job, _allocations: Sequence[NodeAllocation], _partners: Sequence[Job]) -> float:
    """1.0, whatever the nodes and the jobs that share the GPUs."""
    return 1.0


def profiled_speed(knowledge: Knowledge, nodes: Iterable[Node]) -> Speed:
    """A speed function from the jobs' profiles; 1.0 for jobs without one."""
    by_name = {node.name: node for node in nodes}
    return lambda job, allocations, partners: max(MIN_SPEED, knowledge.speed(job, allocations, by_name, partners))


@dataclass(frozen=True, slots=True)
class UsageInterval:
    """The usage of one run: the job held `gpus` (which may be a fraction) from `start` to the end of completing.

    In `useful_seconds` it did work that was not lost with an end without a checkpoint; restarts are not counted.
    `rate` is the work per second while it did any. `devices` are its GPUs, whole or shared, each a node and an index.
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
    devices: tuple[tuple[str, int], ...] = ()
    next_state: str = ""
    """What the job was after the run; empty while it runs."""

    @property
    def gpu_seconds(self) -> float:
        return self.gpus * (self.end - self.start)


@dataclass(slots=True)
class JobRun:
    """The current run. `rate` is work per second, from `productive_from` on, when the restart overhead is over.

    `initial_work` is the work done before the run. `productive_from` moves to each change of speed: `done_before` is
    the total work done by then, `seconds_before` the productive seconds of this run by then.
    """

    start: float
    rate: float
    productive_from: float
    initial_work: float
    done_before: float = 0.0
    seconds_before: float = 0.0
    paused_at: float | None = None
    """The time at which the job was suspended, None if it is not."""

    def __post_init__(self) -> None:
        self.done_before = self.initial_work

    def _productive_seconds(self, now: float) -> float:
        until = now if self.paused_at is None else self.paused_at
        return max(0.0, until - self.productive_from)

    def work_done(self, now: float) -> float:
        """The total work done, checkpointed or not."""
        return self.done_before + self.rate * self._productive_seconds(now)

    def finish_time(self, total: float) -> float:
        """The time at which `total` work will be done."""
        return self.productive_from + max(0.0, total - self.done_before) / self.rate

    def average_rate(self, now: float) -> float:
        """The work per productive second of this run."""
        seconds = self.seconds_before + self._productive_seconds(now)
        return (self.work_done(now) - self.initial_work) / seconds if self.seconds_before and seconds else self.rate

    def set_rate(self, now: float, rate: float) -> None:
        """Changes the speed from `now` on."""
        self.done_before, self.seconds_before = self.work_done(now), self.seconds_before + self._productive_seconds(now)
        self.productive_from, self.rate = (
            max(self.productive_from, now if self.paused_at is None else self.paused_at),
            rate,
        )

    def restart_at(self, time: float, done: float) -> None:
        """Continues at `time` with this total work done; whether it was paused does not matter."""
        self.productive_from, self.done_before, self.paused_at = time, done, None

    def pause(self, now: float) -> None:
        self.paused_at = now

    def resume(self, now: float) -> None:
        """Continues the run; the restart overhead that is left shifts by the pause."""
        if self.paused_at is not None:
            self.productive_from += now - self.paused_at
            self.paused_at = None


@dataclass(slots=True)
class JobWork:
    """A job's work over all its runs. `checkpointed` is the work in the last checkpoint.

    `checkpoint_interval` is the productive seconds between the job's own checkpoints, None for a job that writes one
    only when it is signalled.
    """

    total: float
    checkpoint_interval: float | None = None
    checkpointed: float = 0.0
    run: JobRun | None = None

    def begin_run(self, now: float, rate: float, overhead: float) -> JobRun:
        """Starts a run from the last checkpoint; `overhead` seconds pass before it does any work."""
        self.run = JobRun(now, rate, now + overhead, self.checkpointed)
        return self.run

    def checkpoint(self, now: float) -> None:
        """Saves the work done by now."""
        if self.run is not None:
            self.checkpointed = min(self.total, max(self.checkpointed, self.run.work_done(now)))

    def complete(self) -> None:
        """Marks all work as done and saved."""
        self.checkpointed = self.total

    def end_run(self, now: float) -> float:
        """Ends the run; work since the last checkpoint is lost. Returns the useful seconds of the run."""
        useful, self.checkpointed, self.run = self.useful_seconds(now), self._surviving_work(now), None
        return useful

    def useful_seconds(self, now: float) -> float:
        """The productive seconds of the current run whose work would survive if it ended now."""
        run = self.run
        return 0.0 if run is None else max(0.0, self._surviving_work(now) - run.initial_work) / run.average_rate(now)

    def _surviving_work(self, now: float) -> float:
        """The total work that would survive if the run ended now."""
        run = self.run
        if run is None or not self.checkpoint_interval:
            return self.checkpointed
        step = self.checkpoint_interval * run.average_rate(now)
        return max(self.checkpointed, run.initial_work + step * ((run.work_done(now) - run.initial_work) // step))

    @property
    def finished(self) -> bool:
        return self.checkpointed >= self.total


MAX_PRIORITY = 1_000_000_000
"""The priority of job 0; each job has its number and its nice less, so that earlier jobs come first."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a user submits with sbatch, and the job's `work`, which only the simulation knows.

    `work` and `checkpoint_every` are seconds at the GPU-proportional share; a job with `checkpoint_every` None writes a
    checkpoint only when signalled, in `checkpoint_time` seconds. `time_limit` is in seconds, `begin` in unix seconds.
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
    """Whether the job ends as FAILED when its work is done."""
    steps: int = 0
    """Steps that `work` is for a forked job, whose copies are the tasks of the array; 0 for any other job."""
    script: str = ""
    """A digest of its script; empty where nobody can tell, as is the folder."""
    folder: str = ""


_HELD_BY_HOOK: Final = "held=hook"
_LONGEST_COMMENT: Final = 1000
"""Characters of what the hook makes of a comment."""


@dataclass(frozen=True, slots=True)
class JobSubmitHook:
    """hooks/job_submit.lua: holds managed jobs at submission. It holds no job unless `is_heartbeat_fresh(now)`, nor one
    whose comment is so long that its mark could not be read.

    With `parts` it also holds jobs that request shards, and jobs without GPUs.
    """

    manage: ManageSettings
    is_heartbeat_fresh: Callable[[float], bool]
    parts: bool = False

    def __call__(self, submission: Submission, now: float) -> Submission:
        """The submission that Slurm accepts: unchanged, or held with `held=hook` in its hints."""
        if submission.held or not self.is_heartbeat_fresh(now) or not self._manages(submission):
            return submission
        words = submission.comment.split()
        hint_index = next((index for index, word in enumerate(words) if is_hint_word(word)), None)
        if hint_index is None:
            words.insert(0, f"synsched:{_HELD_BY_HOOK}")
        elif _HELD_BY_HOOK not in words[hint_index]:
            words[hint_index] += f",{_HELD_BY_HOOK}"
        comment = " ".join(words)
        if not parse_hints(comment).held_by_hook or len(comment) > _LONGEST_COMMENT:
            return submission  # nobody would read the mark, and the job would be held for ever
        return replace(submission, held=True, comment=comment)

    def _manages(self, submission: Submission) -> bool:
        whole_gpus = submission.request.gpus > 0 and not submission.request.shards
        if not submission.batch or not (whole_gpus or self.parts):
            return False
        partitions = set(submission.partitions)
        if partitions and partitions <= set(self.manage.never_partitions):
            return False
        return (
            bool(partitions & set(self.manage.partitions))
            or submission.qos in self.manage.qos
            or (self.manage.opt_in and parse_hints(submission.comment).opts_in)
        )


@dataclass(slots=True)
class SimulatedJob:
    """The mutable state of one job. `run_number` changes with each start, suspension and end, which makes events of
    earlier runs void. `begin_from_requeue` is set while `begin` is the delay that Slurm sets after a requeue."""

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
    """Seconds of the current run in which the job was suspended."""
    suspended_since: float | None = None
    restarts: int = 0
    run_number: int = 0
    next_state: str = ""
    """While the job completes: the state that follows."""
    requeue_held: bool = False
    cpus_released: bool = False
    """Whether its CPUs are free because it is suspended, or was when it ended."""
    begin_from_requeue: bool = False
    admin_comment: str = ""
    array_job: str = ""
    throttle: int | None = None
    dependency: str = ""
    base_priority: int | None = None
    """Its priority without its nice value; None for that by its number."""
    last_view: Job | None = field(default=None, repr=False)
    """The cached view; None after a change."""

    @property
    def priority(self) -> int:
        """The priority; 0 while held, as in Slurm."""
        base = MAX_PRIORITY - self.number if self.base_priority is None else self.base_priority
        return 0 if self.hold is not Hold.NONE else max(1, base - self.nice)

    @property
    def waits_for_first_round(self) -> bool:
        """Whether it has never run, and nothing but the hook's hold keeps it from starting once it fits."""
        hook = self.hold is Hold.USER and _HELD_BY_HOOK in self.submission.comment
        others = self.begin is not None or self.dependency or self.throttle is not None or self.submission.reservation
        return hook and not others and not self.restarts

    @property
    def latest_end(self) -> float:
        """The time at which the time limit ends the current run; infinite without a limit."""
        limit = self.submission.time_limit
        return inf if limit is None or self.start_time is None else self.start_time + self.suspended_seconds + limit

    def run_time(self, now: float) -> float:
        """Seconds of the current or last run without suspensions."""
        if self.start_time is None:
            return 0.0
        until = min(t for t in (now, self.end_time, self.suspended_since) if t is not None)
        return max(0.0, until - self.start_time - self.suspended_seconds)

    def view_at(self, now: float) -> Job:
        """The job as a poll at `now` shows it."""
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
