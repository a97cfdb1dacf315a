"""The virtual cluster: nodes, jobs and Slurm's scheduler, driven by events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from slurmsched.backends.simulated.agenda import Agenda, Event, Happening
from slurmsched.backends.simulated.eligibility import Places, default_partitions, dependency_left, obstacle
from slurmsched.backends.simulated.job import SimulatedJob, Submission
from slurmsched.backends.simulated.lifecycle import Delays, Lifecycle
from slurmsched.backends.simulated.machine import Machine
from slurmsched.backends.simulated.occupancy import endings, free_slots
from slurmsched.backends.simulated.queueing import Candidate, starts
from slurmsched.backends.simulated.work import Speed, Work, proportional_speed
from slurmsched.model import Hold, JobId, JobState, Node, NodeState, Partition, Reservation, Snapshot

__all__ = ["Cluster"]

_NODE_STATES: Final = {
    Happening.NODE_DOWN: NodeState.DOWN,
    Happening.NODE_DRAINED: NodeState.DRAINED,
    Happening.NODE_UP: NodeState.UP,
}


def _as_submitted(submission: Submission, _now: float) -> Submission:
    return submission


class Cluster:
    """Nodes and jobs at `now`. Everything that will happen is on the agenda; `advance` makes it happen.

    `hook` sees each submission as job_submit does. The same calls in the same order give the same bytes.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        partitions: Iterable[Partition] = (),
        reservations: Iterable[Reservation] = (),
        *,
        start: float = 0.0,
        speed: Speed = proportional_speed,
        delays: Delays | None = None,
        hook: Callable[[Submission, float], Submission] = _as_submitted,
        name: str = "simulated",
    ) -> None:
        self.now = start
        self.name = name
        self.machines = {node.name: Machine(node) for node in nodes}
        self.partitions = tuple(partitions) or default_partitions(m.facts for m in self.machines.values())
        self.reservations = tuple(reservations)
        self.jobs: dict[JobId, SimulatedJob] = {}
        self.agenda = Agenda()
        self.life = Lifecycle(self.agenda, self.machines, speed, delays or Delays())
        self._hook = hook
        self._coming: dict[JobId, tuple[Submission, str, int | None]] = {}
        self._numbers = 0
        self.changes = 0
        """Grows with everything that a poll would show, the passing of time aside."""
        for edge in sorted({edge for r in self.reservations for edge in (r.start, r.end) if edge >= start}):
            self.agenda.enter(Event(edge, Happening.BEGINS))

    def submit(
        self, submission: Submission, at: float | None = None, *, tasks: int = 0, throttle: int | None = None
    ) -> JobId:
        """Like sbatch, now or at a later time; returns the job's number. With `tasks` it is an array `ID_1`, `ID_2` ...
        of which `throttle` may run at once."""
        self._numbers += 1
        number = str(self._numbers)
        for job_id in [f"{number}_{task}" for task in range(1, tasks + 1)] or [number]:
            self._coming[job_id] = (submission, number if tasks else "", throttle)
            if at is not None and at > self.now:
                self.agenda.enter(Event(at, Happening.SUBMITTED, job_id))
            else:
                self._enter(job_id)
        return number

    def _enter(self, job_id: JobId) -> None:
        submission, array, throttle = self._coming.pop(job_id)
        submission = self._hook(submission, self.now)
        self.jobs[job_id] = SimulatedJob(
            id=job_id,
            number=int(array or job_id),
            submission=submission,
            submit_time=self.now,
            work=Work(submission.work, submission.checkpoint_every),
            standing=submission.request,
            hold=Hold.USER if submission.held else Hold.NONE,
            nice=submission.nice,
            begin=submission.begin,
            array_job=array,
            throttle=throttle,
            dependency=submission.dependency,
        )
        if submission.begin is not None:
            self.agenda.enter(Event(submission.begin, Happening.BEGINS, job_id))
        self.life.changed = True

    @property
    def unfinished(self) -> bool:
        """Whether jobs are still to come, waiting or running."""
        return bool(self._coming) or any(job.state is not JobState.FINISHED for job in self.jobs.values())

    def advance(self, until: float) -> None:
        """Let everything happen that is due by `until`, and be there. Slurm's scheduler runs after each change."""
        self.schedule()
        while (event := self.agenda.take(until)) is not None:
            self.now = max(self.now, event.at)
            self._happen(event)
            following = self.agenda.next_time
            if following is None or following > self.now:
                self.schedule()
        self.now = max(self.now, until)

    def _happen(self, event: Event) -> None:
        job = self.jobs.get(event.subject)
        self.changes += 1
        match event.kind:
            case Happening.NODE_DOWN | Happening.NODE_DRAINED | Happening.NODE_UP:
                self.set_node(event.subject, _NODE_STATES[event.kind])
            case Happening.SUBMITTED:
                self._enter(event.subject)
            case Happening.BEGINS:
                self.life.changed = True
            case _ if job is not None and event.run in (None, job.run):
                self._happen_to(job, event.kind)

    def _happen_to(self, job: SimulatedJob, kind: Happening) -> None:
        match kind:
            case Happening.FINISHES:
                self.life.finish(job, self.now)
            case Happening.TIME_LIMIT:
                self.life.leave(job, "TIMEOUT", self.now)
            case Happening.CHECKPOINTED:
                job.work.checkpoint(self.now)
            case Happening.VACATES:
                self.life.vacate(job, self.now)
            case Happening.CANCELLED:
                self.life.cancel(job, self.now)
            case Happening.FORGOTTEN:
                del self.jobs[job.id]

    def set_node(self, name: str, state: NodeState, reason: str = "") -> None:
        """Up, drained or down. Jobs on a node that goes down are requeued where they may be, else they end."""
        self.machines[name].change(state=state, reason=reason)
        self.life.changed = True
        if state is not NodeState.DOWN:
            return
        for job in list(self.jobs.values()):
            if job.state in (JobState.RUNNING, JobState.SUSPENDED) and any(s.node == name for s in job.shares):
                if job.submission.requeue and job.submission.batch:
                    self.life.requeue(job, held=False, now=self.now)
                else:
                    self.life.leave(job, "NODE_FAIL", self.now)

    def schedule(self) -> None:
        """Slurm's own scheduler starts what may and fits, if anything has changed since it last looked."""
        if not self.life.changed:
            return
        self.life.changed = False
        jobs = self.jobs.values()
        queue, running = self._queue(), endings(jobs, self.life.delays.completing, self.now)
        started = dict(starts(queue, running, self.machines, self.now, free_slots(jobs)))
        for job_id, shares in started.items():
            self.life.start(self.jobs[job_id], shares, self.now)
        reason = "Resources"
        for waiting in queue:
            if waiting.job not in started:
                _because(self.jobs[waiting.job], reason)
                reason = "Priority"

    def _queue(self) -> list[Candidate]:
        """Pending jobs that only room keeps waiting, highest priority first; the others learn their reason."""
        queue = []
        where = Places(self.machines, self.partitions, self.reservations, self.now)
        for job in self.jobs.values():
            if job.state is not JobState.PENDING:
                continue
            if job.dependency:
                job.dependency, job.view = dependency_left(job.dependency, self.jobs, self.life.ended), None
            if reason := obstacle(job, self.now):
                _because(job, reason)
            else:
                queue.append(job)
        queue.sort(key=lambda job: (-job.priority, job.number))
        return [
            Candidate(
                job.id, job.standing, where.of(job), job.submission.time_limit, job.array_job if job.throttle else ""
            )
            for job in queue
        ]

    def snapshot(self) -> Snapshot:
        """One poll."""
        return Snapshot(
            time=self.now,
            nodes=tuple(machine.view() for machine in self.machines.values()),
            jobs=tuple(job.seen(self.now) for job in self.jobs.values()),
            partitions=self.partitions,
            reservations=self.reservations,
            cluster=self.name,
            release="simulated",
        )


def _because(job: SimulatedJob, reason: str) -> None:
    if job.reason != reason:
        job.reason, job.view = reason, None
