"""The life of a job on the virtual cluster: it starts, is signalled, suspended, requeued, and ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from slurmsched.backends.simulated.agenda import Agenda, Event, Happening
from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.backends.simulated.machine import Machine
from slurmsched.backends.simulated.sharing import Sharing
from slurmsched.backends.simulated.work import Interval, Speed
from slurmsched.model import Hold, JobId, JobState, Resources, Share

__all__ = ["Delays", "Lifecycle"]

_ROUNDING: Final = 1e-9
_SAME_MOMENT: Final = 1e-5
"""Seconds: what unix time as a double can tell apart, and a little more."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds that things take. Defaults are Slurm's own where it has one.

    `restart`: from the start of a run that is not the first until it does work again. `completing`: processes are ended
    and resources still held. `requeue`: begin time after a requeue. `remember`: a finished job is shown (MinJobAge).
    `quantum`: where it is not 0, a job that has done its work ends only at the next multiple of it after `origin`.
    """

    restart: float = 60.0
    completing: float = 5.0
    requeue: float = 120.0
    remember: float = 300.0
    quantum: float = 0.0
    origin: float = 0.0

    def end(self, finish: float) -> float:
        """When a job ends that has done its work by `finish`."""
        if not self.quantum:
            return finish
        return self.origin + self.quantum * ceil((finish - self.origin) / self.quantum - _ROUNDING)


@dataclass(slots=True)
class Lifecycle:
    """Moves jobs from state to state, keeps the machines' ledgers and puts what follows on the agenda.

    `intervals` are the runs that are over, `ended` the jobs that are. `changed` is set whenever Slurm's scheduler would
    look at its queue again.
    """

    agenda: Agenda
    machines: Mapping[str, Machine]
    speed: Speed
    delays: Delays
    intervals: list[Interval] = field(default_factory=list)
    ended: dict[JobId, SimulatedJob] = field(default_factory=dict)
    sharing: Sharing = field(default_factory=Sharing)
    changed: bool = False

    def start(self, job: SimulatedJob, shares: tuple[Share, ...], now: float) -> None:
        """The pending job runs on these shares, which must be free."""
        for share in shares:
            self.machines[share.node].claim(share)
        company = self.sharing.enter(job, shares)
        run = job.work.begin(now, self._rate(job, shares, now), self.delays.restart if job.restarts else 0.0)
        job.run += 1
        job.state, job.state_text, job.reason = JobState.RUNNING, "RUNNING", "None"
        job.shares, job.start_time, job.end_time = shares, now, None
        job.begin, job.begin_from_requeue, job.paused, job.view = None, False, 0.0, None
        self._expect_end(job, self.delays.end(run.finish(job.work.total)))
        self._reconsider(company, now)

    def _rate(self, job: SimulatedJob, shares: tuple[Share, ...], now: float) -> float:
        partners = [other.seen(now) for other in self.sharing.company(job, shares)]
        rate = self.speed(job.seen(now), shares, partners)
        if rate <= 0:
            raise ValueError(f"job {job.id} has speed {rate:g}: a job's speed is above 0")
        return rate

    def _reconsider(self, company: Iterable[SimulatedJob], now: float) -> None:
        """Somebody has come to their GPUs, or left them."""
        for job in company:
            run = job.work.run
            rate = self._rate(job, job.shares, now)
            if run is not None and rate != run.rate:
                run.change(now, rate)
                if job.state is JobState.RUNNING:
                    self._expect_end(job, self.delays.end(run.finish(job.work.total)))

    def _expect_end(self, job: SimulatedJob, finish: float) -> None:
        if job.latest_end < finish:
            self.agenda.enter(Event(job.latest_end, Happening.TIME_LIMIT, job.id, job.run))
        else:
            self.agenda.enter(Event(finish, Happening.FINISHES, job.id, job.run))

    def finish(self, job: SimulatedJob, now: float) -> None:
        """All its work is done, or all that it will ever do; not yet where it has become slower meanwhile."""
        if job.work.run is not None and job.work.run.finish(job.work.total) > now + _SAME_MOMENT:
            return
        job.work.complete()
        self.leave(job, "FAILED" if job.submission.fails else "COMPLETED", now)

    def leave(self, job: SimulatedJob, then: str, now: float) -> None:
        """The run ends; the resources are held until the job is done completing and `then` is its state."""
        self.intervals.append(self.interval(job, now))
        job.work.stop(now)
        job.run += 1
        job.state, job.state_text, job.leaving, job.end_time = JobState.COMPLETING, "COMPLETING", then, now
        if job.paused_since is not None:
            job.paused += now - job.paused_since
            job.paused_since = None
        free = now + self.delays.completing
        self.agenda.enter(Event(free, Happening.VACATES, job.id, job.run))
        job.view = None

    def interval(self, job: SimulatedJob, now: float) -> Interval:
        """The current run in the accounts, if it ended now."""
        start = now if job.start_time is None else job.start_time
        held = sum((share.resources for share in job.shares), Resources())
        return Interval(
            job=job.id,
            start=start,
            end=now + self.delays.completing,
            gpus=self.gpus_of(job),
            kept=job.work.kept(now),
            cpus=held.cpus,
            memory=held.memory,
            nodes=tuple(share.node for share in job.shares),
            rate=1.0 if job.work.run is None else job.work.run.average(now),
        )

    def gpus_of(self, job: SimulatedJob) -> float:
        """GPUs that it has, parts of one counted as such."""
        return sum(share.resources.gpus + self._part(share) for share in job.shares)

    def _part(self, share: Share) -> float:
        """The part of a GPU that its shards are."""
        devices = self.machines[share.node].facts.gpus
        return sum(share.shards / devices[index].shards for index in share.indices) if share.shards else 0.0

    def vacate(self, job: SimulatedJob, now: float) -> None:
        """The completing job gives its resources back, and waits again or is finished."""
        if job.cpus_left:
            self._take_cpus(job, 1)
            job.cpus_left = False
        for share in job.shares:
            self.machines[share.node].refund(share)
        company = self.sharing.leave(job)
        job.shares = ()
        self.touch(job)
        self._reconsider(company, now)
        if job.leaving == "PENDING":
            self._wait_again(job, now)
        else:
            self._end(job, job.leaving, now)

    def _wait_again(self, job: SimulatedJob, now: float) -> None:
        job.state, job.state_text, job.leaving = JobState.PENDING, "PENDING", ""
        job.hold = Hold.REQUEUED if job.held_after else Hold.NONE
        job.begin, job.begin_from_requeue = now + self.delays.requeue, True
        job.start_time = job.end_time = None
        job.restarts += 1
        self.agenda.enter(Event(job.begin, Happening.BEGINS, job.id))

    def _end(self, job: SimulatedJob, state_text: str, now: float) -> None:
        job.state, job.state_text, job.leaving = JobState.FINISHED, state_text, ""
        job.hold, job.reason = Hold.NONE, "None"
        self.touch(job)
        self.ended[job.id] = job
        self.agenda.enter(Event(now + self.delays.remember, Happening.FORGOTTEN, job.id))

    def requeue(self, job: SimulatedJob, held: bool, now: float) -> None:
        """End the run and put the job back into the queue; what no checkpoint holds is lost."""
        job.held_after = held
        self.leave(job, "PENDING", now)

    def cancel(self, job: SimulatedJob, now: float) -> None:
        """Like scancel, in whatever state the job is."""
        match job.state:
            case JobState.RUNNING | JobState.SUSPENDED:
                self.leave(job, "CANCELLED", now)
            case JobState.COMPLETING if job.leaving == "PENDING":
                job.leaving = "CANCELLED"
            case JobState.PENDING:
                job.end_time = now
                self._end(job, "CANCELLED", now)

    def signal(self, job: SimulatedJob, now: float) -> None:
        """The checkpoint signal: the job writes one, which takes its own time, and works on."""
        written = now + job.submission.checkpoint_time
        if written <= now:
            job.work.checkpoint(now)
            return
        self.agenda.enter(Event(written, Happening.CHECKPOINTED, job.id, job.run))

    def suspend(self, job: SimulatedJob, now: float) -> None:
        """CPUs are freed, GPUs and memory kept (measured on 24.11). Raises ValueError unless it runs."""
        if job.state is not JobState.RUNNING or job.work.run is None:
            raise ValueError(f"job {job.id} does not run")
        job.work.run.pause(now)
        job.run += 1
        job.state, job.state_text, job.paused_since, job.cpus_left = JobState.SUSPENDED, "SUSPENDED", now, True
        self._take_cpus(job, -1)
        self.touch(job)

    def resume(self, job: SimulatedJob, now: float) -> None:
        """Raises ValueError unless suspended, and while its CPUs are somebody else's (Slurm would share them)."""
        if job.paused_since is None or job.work.run is None:
            raise ValueError(f"job {job.id} is not suspended")
        if any(self.machines[share.node].cpus < share.resources.cpus for share in job.shares):
            raise ValueError(f"job {job.id} cannot resume: its CPUs are taken")
        self._take_cpus(job, 1)
        job.work.run.resume(now)
        job.paused += now - job.paused_since
        job.state, job.state_text, job.paused_since, job.cpus_left = JobState.RUNNING, "RUNNING", None, False
        job.view = None
        self._expect_end(job, self.delays.end(job.work.run.finish(job.work.total)))

    def _take_cpus(self, job: SimulatedJob, times: int) -> None:
        for share in job.shares:
            self.machines[share.node].cpus_taken(times * share.resources.cpus)

    def touch(self, job: SimulatedJob) -> None:
        """Something about the job is new: it is seen anew, and the queue is looked at."""
        job.view, self.changed = None, True
