"""The virtual cluster: nodes, jobs and Slurm's scheduler, driven by an event queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from slurmsched.backends.simulated.events import Event, EventQueue, SimulatedEventKind
from slurmsched.backends.simulated.forked import CHECKPOINT_EVERY, SimulatedForkedJob
from slurmsched.backends.simulated.job import JobWork, SimulatedJob, Speed, Submission, proportional_speed
from slurmsched.backends.simulated.lifecycle import Delays, Lifecycle
from slurmsched.backends.simulated.nodes import SimulatedNode
from slurmsched.backends.simulated.scheduler import (
    BackfillCandidate,
    EligibleNodes,
    WaitConditions,
    default_partitions,
    free_array_slots,
    future_releases,
    pending_reason,
    schedule_queue,
)
from slurmsched.jobside.dispatch import Dispatch
from slurmsched.jobside.report import Report
from slurmsched.model import Hold, JobId, JobState, Node, NodeState, Partition, Reservation, Snapshot

_PRIORITY_THEN_NUMBER: Final = itemgetter(0, 1)
_NODE_STATES: Final = {
    SimulatedEventKind.NODE_DOWN: NodeState.DOWN,
    SimulatedEventKind.NODE_DRAINED: NodeState.DRAINED,
    SimulatedEventKind.NODE_UP: NodeState.UP,
}


def _unchanged(submission: Submission, _now: float) -> Submission:
    return submission


class VirtualCluster:
    """Nodes and jobs at `now` (unix seconds). Future events are in `events`; `advance` processes them.

    `hook` changes each submission as the job_submit plugin does. The same calls in the same order give the same bytes.
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
        hook: Callable[[Submission, float], Submission] = _unchanged,
        name: str = "simulated",
    ) -> None:
        self.now = start
        self.name = name
        self.nodes = {node.name: SimulatedNode(node) for node in nodes}
        self.partitions = tuple(partitions) or default_partitions(node.configured for node in self.nodes.values())
        self.reservations = tuple(reservations)
        self.jobs: dict[JobId, SimulatedJob] = {}
        self.events = EventQueue()
        self.lifecycle = Lifecycle(self.events, self.nodes, speed, delays or Delays())
        self._hook = hook
        self._submitted: dict[JobId, tuple[Submission, str, int | None]] = {}
        self._last_number = 0
        self.refused: dict[JobId, str] = {}
        """Jobs that Slurm does not start whatever is free, each with the reason that it shows."""
        self.widens_shards = True
        """Whether it is as Slurm since 23.11 (`Snapshot.widens_shards`)."""
        self._usable: Sequence[str] = ()
        self._known_candidates: dict[JobId, BackfillCandidate] = {}
        self._kinds: dict[object, int] = {}
        self.changes = 0
        """Counts the events processed: unchanged if a poll would show only that time has passed."""
        for edge in sorted({edge for r in self.reservations for edge in (r.start, r.end) if edge >= start}):
            self.events.push(Event(edge, SimulatedEventKind.ELIGIBLE))

    def submit(
        self, submission: Submission, at: float | None = None, *, tasks: int = 0, throttle: int | None = None
    ) -> JobId:
        """Submits a job now or at unix second `at`, and returns its number.

        With `tasks` it is an array `ID_1`, `ID_2` ... of which `throttle` tasks may run at once; they are the copies of
        one forked job if the submission has `steps`.
        """
        self._last_number += 1
        number = str(self._last_number)
        if submission.steps and tasks:
            self.lifecycle.forked[number] = SimulatedForkedJob(
                number,
                submission.steps,
                submission.work / submission.steps,
                self.events,
                self.lifecycle.delays.exchange,
            )
        for job_id in [f"{number}_{task}" for task in range(1, tasks + 1)] or [number]:
            self._submitted[job_id] = (submission, number if tasks else "", throttle)
            if at is not None and at > self.now:
                self.events.push(Event(at, SimulatedEventKind.SUBMITTED, job_id))
            else:
                self._add_job(job_id)
        return number

    def _add_job(self, job_id: JobId) -> None:
        submission, array, throttle = self._submitted.pop(job_id)
        submission, forked = self._hook(submission, self.now), self.lifecycle.forked.get(array)
        job = self.jobs[job_id] = SimulatedJob(
            id=job_id,
            number=int(array or job_id),
            submission=submission,
            submit_time=self.now,
            work=JobWork(submission.work, submission.checkpoint_every if forked is None else CHECKPOINT_EVERY),
            current_request=submission.request,
            hold=Hold.USER if submission.held else Hold.NONE,
            nice=submission.nice,
            begin=submission.begin,
            array_job=array,
            throttle=throttle,
            dependency=submission.dependency,
        )
        if forked is not None:
            forked.add(job)
        if submission.begin is not None:
            self.events.push(Event(submission.begin, SimulatedEventKind.ELIGIBLE, job_id))
        self.lifecycle.changed = True

    @property
    def unfinished(self) -> bool:
        """Whether any job is not finished, or not submitted yet."""
        return bool(self._submitted) or any(job.state is not JobState.FINISHED for job in self.jobs.values())

    @property
    def waiting(self) -> list[SimulatedJob]:
        """The pending jobs, held ones too."""
        return [job for job in self.jobs.values() if job.state is JobState.PENDING]

    def advance(self, until: float) -> None:
        """Processes all events due by `until` and sets the time to it. Slurm's scheduler runs after each change."""
        self.schedule()
        while (event := self.events.pop_due(until)) is not None:
            self.now = max(self.now, event.time)
            self._handle(event)
            next_time = self.events.next_time
            if next_time is None or next_time > self.now:
                self.schedule()
        self.now = max(self.now, until)

    def _handle(self, event: Event) -> None:
        job = self.jobs.get(event.subject)
        self.changes += 1
        match event.kind:
            case SimulatedEventKind.NODE_DOWN | SimulatedEventKind.NODE_DRAINED | SimulatedEventKind.NODE_UP:
                self.set_node(event.subject, _NODE_STATES[event.kind])
            case SimulatedEventKind.SUBMITTED:
                self._add_job(event.subject)
            case SimulatedEventKind.ELIGIBLE:
                self.lifecycle.changed = True
            case SimulatedEventKind.COPIES_MEET:
                self.lifecycle.forked[event.subject].meet(self.now)
            case _ if job is not None and event.run_number in (None, job.run_number):
                self._handle_job_event(job, event.kind)

    def _handle_job_event(self, job: SimulatedJob, kind: SimulatedEventKind) -> None:
        match kind:
            case SimulatedEventKind.WORK_DONE:
                self.lifecycle.finish(job, self.now)
            case SimulatedEventKind.TIME_LIMIT:
                self.lifecycle.begin_completing(job, "TIMEOUT", self.now)
            case SimulatedEventKind.CHECKPOINTED:
                job.work.checkpoint(self.now)
            case SimulatedEventKind.RESOURCES_FREED:
                self.lifecycle.free_resources(job, self.now)
            case SimulatedEventKind.CANCELLED:
                self.lifecycle.cancel(job, self.now)
            case SimulatedEventKind.PURGED:
                del self.jobs[job.id]
                self._known_candidates.pop(job.id, None)

    def set_node(self, name: str, state: NodeState, reason: str = "") -> None:
        """Sets a node's state. Jobs on a node that goes down are requeued if they allow it, else they end."""
        self.nodes[name].update(state=state, reason=reason)
        self.lifecycle.changed = True
        if state is not NodeState.DOWN:
            return
        for job in list(self.jobs.values()):
            if job.state in (JobState.RUNNING, JobState.SUSPENDED) and any(
                allocation.node == name for allocation in job.allocations
            ):
                if job.submission.requeue and job.submission.batch:
                    self.lifecycle.requeue(job, held=False, now=self.now)
                else:
                    self.lifecycle.begin_completing(job, "NODE_FAIL", self.now)

    def schedule(self) -> None:
        """Runs Slurm's own scheduler if anything has changed since its last run."""
        if not self.lifecycle.changed:
            return
        self.lifecycle.changed = False
        jobs, queue = self.jobs.values(), self._queue()
        if not queue:
            return
        started = dict(
            schedule_queue(
                queue,
                lambda: future_releases(jobs, self.lifecycle.delays.completing, self.now),
                self.nodes,
                self.now,
                free_array_slots(jobs),
            )
        )
        for job_id, allocations in started.items():
            self.lifecycle.start(self.jobs[job_id], allocations, self.now)
        reason = "Resources"
        for candidate in queue:
            if candidate.job not in started:
                _set_reason(self.jobs[candidate.job], reason)
                reason = "Priority"

    def _queue(self) -> list[BackfillCandidate]:
        """Pending jobs that wait for resources only, highest priority first. Sets the reason of all others."""
        queue: list[tuple[int, int, SimulatedJob]] = []
        dependencies: WaitConditions | None = None
        for job in self.waiting:
            if job.dependency:
                dependencies = dependencies or WaitConditions(self.jobs, self.lifecycle.ended)
                job.dependency, job.last_view = dependencies.unmet(job.dependency), None
            if reason := pending_reason(job, self.now) or self.refused.get(job.id):
                _set_reason(job, reason)
            else:
                queue.append((-job.priority, job.number, job))
        if not queue:
            return []
        queue.sort(key=_PRIORITY_THEN_NUMBER)
        return self._candidates(job for _, _, job in queue)

    def _candidates(self, queue: Iterable[SimulatedJob]) -> list[BackfillCandidate]:
        """Each job with its nodes. These are known from the last time, unless nodes or its request have changed."""
        eligible = EligibleNodes(self.nodes, self.partitions, self.reservations, self.now)
        if self.reservations or self._usable != eligible.usable:
            self._usable, self._known_candidates, self._kinds = eligible.usable, {}, {}
        found = list[BackfillCandidate]()
        for job in queue:
            known = self._known_candidates.get(job.id)
            if known is None or known.request is not job.current_request:
                request, lists = job.current_request, eligible.for_job(job)
                kind = self._kinds.setdefault((request, lists), len(self._kinds))
                array = job.array_job if job.throttle else ""
                known = BackfillCandidate(job.id, request, lists, job.submission.time_limit, array, kind)
                self._known_candidates[job.id] = known
            found.append(known)
        return found

    def start_all_waiting(self) -> bool:
        """Releases all pending jobs if the hook holds each of them and all fit on what is free; Slurm starts them then.
        Otherwise changes nothing and returns False."""
        waiting = self.waiting
        if not waiting or any(not job.waits_for_first_round for job in waiting):
            return False
        candidates = self._candidates(waiting)
        fitting = sum(1 for _ in schedule_queue(candidates, list, self.nodes, self.now, {}))
        if fitting < len(waiting):
            return False
        for job in waiting:
            job.hold, job.last_view = Hold.NONE, None
        self.lifecycle.changed = True
        self.schedule()
        return True

    def dispatch(self, dispatches: Iterable[Dispatch]) -> None:
        """Tells the copies of forked jobs how many steps each does, as the files in the spool do."""
        for dispatch in dispatches:
            if (forked := self.lifecycle.forked.get(dispatch.job)) is not None:
                forked.receive(dispatch, self.now)

    def reports(self) -> Mapping[JobId, Report]:
        """What the running copies of forked jobs report now."""
        unfinished = [forked for forked in self.lifecycle.forked.values() if not forked.over]
        copies = ((copy, forked) for forked in unfinished for copy in forked.copies.values())
        reports = (forked.report(copy.job, self.now) for copy, forked in copies if copy.is_up(self.now))
        return {report.job: report for report in reports if report is not None}

    def snapshot(self) -> Snapshot:
        """The cluster as one poll shows it."""
        return Snapshot(
            time=self.now,
            nodes=tuple(node.view() for node in self.nodes.values()),
            jobs=tuple(job.view_at(self.now) for job in self.jobs.values()),
            partitions=self.partitions,
            reservations=self.reservations,
            cluster=self.name,
            release="simulated",
            widens_shards=self.widens_shards,
        )


def _set_reason(job: SimulatedJob, reason: str) -> None:
    if job.reason != reason:
        job.reason, job.last_view = reason, None
