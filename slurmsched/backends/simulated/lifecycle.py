"""State changes of jobs on the virtual cluster: start, signal, suspend, requeue, end; and which jobs share GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Final

from slurmsched.backends.simulated.events import Event, EventQueue, SimulatedEventKind
from slurmsched.backends.simulated.forked import SimulatedForkedJob
from slurmsched.backends.simulated.job import SimulatedJob, Speed, UsageInterval
from slurmsched.backends.simulated.nodes import SimulatedNode
from slurmsched.model import Hold, JobId, JobState, NodeAllocation, Resources


@dataclass(slots=True)
class SharedDevices:
    """The jobs on each GPU that is shared in shards."""

    _jobs_by_device: defaultdict[tuple[str, int], dict[JobId, SimulatedJob]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(self, job: SimulatedJob, allocations: Sequence[NodeAllocation]) -> Sequence[SimulatedJob]:
        """Adds a job that starts on these allocations. Returns the jobs that share its GPUs."""
        sharers = self.sharers(job, allocations)
        for device in _shared_devices(allocations):
            self._jobs_by_device[device][job.id] = job
        return sharers

    def remove(self, job: SimulatedJob) -> Sequence[SimulatedJob]:
        """Removes a job from its GPUs. Returns the jobs that shared them."""
        sharers = self.sharers(job, job.allocations)
        for device in _shared_devices(job.allocations):
            del self._jobs_by_device[device][job.id]
        return sharers

    def sharers(self, job: SimulatedJob, allocations: Sequence[NodeAllocation]) -> Sequence[SimulatedJob]:
        """The other jobs on these GPUs, without duplicates."""
        others = {
            other.id: other
            for device in _shared_devices(allocations)
            for other in self._jobs_by_device[device].values()
            if other is not job
        }
        return tuple(others.values())


def _shared_devices(allocations: Sequence[NodeAllocation]) -> Iterable[tuple[str, int]]:
    return ((allocation.node, index) for allocation in allocations if allocation.shards for index in allocation.indices)


_ROUNDING: Final = 1e-9
_TIME_RESOLUTION: Final = 1e-5
"""Seconds: a little more than the resolution of unix time as a double."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of the virtual cluster in seconds. Defaults are Slurm's where Slurm has one.

    `launch`: from the round that starts a run until it runs. `restart`: from the start of a run after the first until
    it does work. `completing`: from the end of a run until its resources are free. `requeue`: begin time after a
    requeue. `min_job_age`: how long a finished job is shown.
    `quantum`: if not 0, a job whose work is done ends at the next multiple of it after `origin` (unix seconds).
    `exchange`: at the end of a round of a forked job, until its copies have averaged and loaded their parameters.
    """

    launch: float = 0.0
    restart: float = 60.0
    completing: float = 5.0
    requeue: float = 120.0
    min_job_age: float = 300.0
    quantum: float = 0.0
    origin: float = 0.0
    exchange: float = 0.0

    def end_time(self, finish: float) -> float:
        """The time at which a job ends whose work is done at `finish`."""
        if not self.quantum:
            return finish
        return self.origin + self.quantum * ceil((finish - self.origin) / self.quantum - _ROUNDING)


@dataclass(slots=True)
class Lifecycle:
    """Changes the states of jobs, allocates and releases resources on nodes, and pushes the events that follow.

    `usage_intervals` are the runs that have ended, `ended` the finished jobs. `changed` is set whenever Slurm's
    scheduler has to run again. `forked` are the forked jobs by array, and `ended_forked` the copy that was the first
    to end of those that are over, or the last of those whose copies all ended before.
    """

    events: EventQueue
    nodes: Mapping[str, SimulatedNode]
    speed: Speed
    delays: Delays
    usage_intervals: list[UsageInterval] = field(default_factory=list)
    ended: dict[JobId, SimulatedJob] = field(default_factory=dict)
    sharers: SharedDevices = field(default_factory=SharedDevices)
    changed: bool = False
    forked: dict[JobId, SimulatedForkedJob] = field(default_factory=dict)
    ended_forked: dict[JobId, SimulatedJob] = field(default_factory=dict)

    def start(self, job: SimulatedJob, allocations: tuple[NodeAllocation, ...], now: float) -> None:
        """Starts a pending job on these allocations. Raises ValueError unless they are free."""
        for allocation in allocations:
            self.nodes[allocation.node].allocate(allocation)
        sharers = self.sharers.add(job, allocations)
        began = now + self.delays.launch
        job.work.begin_run(began, self._rate(job, allocations, now), self.delays.restart if job.restarts else 0.0)
        job.run_number += 1
        job.state, job.state_text, job.reason = JobState.RUNNING, "RUNNING", "None"
        job.allocations, job.start_time, job.end_time = allocations, began, None
        job.begin, job.begin_from_requeue, job.suspended_seconds, job.last_view = None, False, 0.0, None
        if (forked := self.forked.get(job.array_job)) is not None:
            if job.latest_end < inf:
                self.events.push(Event(job.latest_end, SimulatedEventKind.TIME_LIMIT, job.id, job.run_number))
            forked.started(job, now)
            return
        self.schedule_end(job)
        self._update_rates(sharers, now)

    def _rate(self, job: SimulatedJob, allocations: tuple[NodeAllocation, ...], now: float) -> float:
        partners = [other.view_at(now) for other in self.sharers.sharers(job, allocations)]
        rate = self.speed(job.view_at(now), allocations, partners)
        if rate <= 0:
            raise ValueError(f"job {job.id} has speed {rate:g}: a speed must be above 0")
        return rate

    def _update_rates(self, sharers: Iterable[SimulatedJob], now: float) -> None:
        """Updates the speed of these jobs after a job has started or ended on their GPUs."""
        for job in sharers:
            run = job.work.run
            rate = self._rate(job, job.allocations, now)
            if run is not None and rate != run.rate:
                run.set_rate(now, rate)
                if job.state is JobState.RUNNING:
                    self.schedule_end(job)

    def schedule_end(self, job: SimulatedJob) -> None:
        """Pushes the end of a running job by its work or its time limit."""
        if job.work.run is None:
            return
        finish = self.delays.end_time(job.work.run.finish_time(job.work.total))
        if job.latest_end < finish:
            self.events.push(Event(job.latest_end, SimulatedEventKind.TIME_LIMIT, job.id, job.run_number))
        else:
            self.events.push(Event(finish, SimulatedEventKind.WORK_DONE, job.id, job.run_number))

    def finish(self, job: SimulatedJob, now: float) -> None:
        """Ends a job whose work is done. Does nothing if the job has become slower since the event was pushed.

        A copy of a forked job has then done its part of a round, and ends only when the whole job has.
        """
        if (forked := self.forked.get(job.array_job)) is not None:
            if not forked.over:
                forked.reached(job, now)
                return
            if (end := self.delays.end_time(now)) > now + _TIME_RESOLUTION:
                self.events.push(Event(end, SimulatedEventKind.WORK_DONE, job.id, job.run_number))
                return
        if job.work.run is not None and job.work.run.finish_time(job.work.total) > now + _TIME_RESOLUTION:
            return
        job.work.complete()
        self.begin_completing(job, "FAILED" if job.submission.fails else "COMPLETED", now)

    def begin_completing(self, job: SimulatedJob, next_state: str, now: float) -> None:
        """Ends the run. The resources stay allocated until the job is in `next_state`."""
        self.usage_intervals.append(replace(self.usage(job, now), next_state=next_state))
        job.work.end_run(now)
        job.run_number += 1
        job.state, job.state_text, job.next_state, job.end_time = JobState.COMPLETING, "COMPLETING", next_state, now
        if job.suspended_since is not None:
            job.suspended_seconds += now - job.suspended_since
            job.suspended_since = None
        if (forked := self.forked.get(job.array_job)) is not None:
            forked.stopped(job, now)
        freed = now + self.delays.completing
        self.events.push(Event(freed, SimulatedEventKind.RESOURCES_FREED, job.id, job.run_number))
        job.last_view = None

    def usage(self, job: SimulatedJob, now: float) -> UsageInterval:
        """The usage of the current run if it ended now."""
        start = now if job.start_time is None else min(now, job.start_time)
        held = sum((allocation.resources for allocation in job.allocations), Resources())
        return UsageInterval(
            job=job.id,
            start=start,
            end=now + self.delays.completing,
            gpus=self.gpus_of(job),
            useful_seconds=job.work.useful_seconds(now),
            cpus=held.cpus,
            memory=held.memory,
            nodes=tuple(allocation.node for allocation in job.allocations),
            rate=1.0 if job.work.run is None else job.work.run.average_rate(now),
            devices=tuple((allocation.node, index) for allocation in job.allocations for index in allocation.indices),
        )

    def gpus_of(self, job: SimulatedJob) -> float:
        """The number of GPUs allocated to the job, with shards as a fraction."""
        return sum(allocation.resources.gpus + self._gpu_fraction(allocation) for allocation in job.allocations)

    def _gpu_fraction(self, allocation: NodeAllocation) -> float:
        """The fraction of a GPU that the allocation's shards are."""
        devices = self.nodes[allocation.node].configured.gpus
        return (
            sum(allocation.shards / devices[index].shards for index in allocation.indices) if allocation.shards else 0.0
        )

    def free_resources(self, job: SimulatedJob, now: float) -> None:
        """Releases the resources of a completing job, which then is pending again or finished."""
        if job.cpus_released:
            self._change_cpus(job, 1)
            job.cpus_released = False
        for allocation in job.allocations:
            self.nodes[allocation.node].release(allocation)
        sharers = self.sharers.remove(job)
        job.allocations = ()
        self.mark_changed(job)
        self._update_rates(sharers, now)
        if job.next_state == "PENDING":
            self._return_to_queue(job, now)
        else:
            self._finish(job, job.next_state, now)

    def _return_to_queue(self, job: SimulatedJob, now: float) -> None:
        job.state, job.state_text, job.next_state = JobState.PENDING, "PENDING", ""
        job.hold = Hold.REQUEUED if job.requeue_held else Hold.NONE
        job.begin, job.begin_from_requeue = now + self.delays.requeue, True
        job.start_time = job.end_time = None
        job.restarts += 1
        self.events.push(Event(job.begin, SimulatedEventKind.ELIGIBLE, job.id))

    def _finish(self, job: SimulatedJob, state_text: str, now: float) -> None:
        job.state, job.state_text, job.next_state = JobState.FINISHED, state_text, ""
        job.hold, job.reason = Hold.NONE, "None"
        self.mark_changed(job)
        self.ended[job.id] = job
        if (forked := self.forked.get(job.array_job)) is not None and forked.ends_with(job):
            self.ended_forked.setdefault(job.array_job, job)
        self.events.push(Event(now + self.delays.min_job_age, SimulatedEventKind.PURGED, job.id))

    def requeue(self, job: SimulatedJob, held: bool, now: float) -> None:
        """Ends the run and returns the job to the queue; work since the last checkpoint is lost."""
        job.requeue_held = held
        self.begin_completing(job, "PENDING", now)

    def cancel(self, job: SimulatedJob, now: float) -> None:
        """Cancels a job in any state, like scancel."""
        match job.state:
            case JobState.RUNNING | JobState.SUSPENDED:
                self.begin_completing(job, "CANCELLED", now)
            case JobState.COMPLETING if job.next_state == "PENDING":
                job.next_state = "CANCELLED"
            case JobState.PENDING:
                job.end_time = now
                self._finish(job, "CANCELLED", now)

    def signal(self, job: SimulatedJob, now: float) -> None:
        """Sends the checkpoint signal: the job writes a checkpoint in `checkpoint_time` seconds, and works on."""
        written = now + job.submission.checkpoint_time
        if written <= now:
            job.work.checkpoint(now)
            return
        self.events.push(Event(written, SimulatedEventKind.CHECKPOINTED, job.id, job.run_number))

    def suspend(self, job: SimulatedJob, now: float) -> None:
        """Suspends a job: its CPUs are free, GPUs and memory stay allocated (measured on 24.11).

        Raises ValueError unless the job is running, and for a copy of a forked job.
        """
        if job.state is not JobState.RUNNING or job.work.run is None or job.array_job in self.forked:
            raise ValueError(f"job {job.id} is not running")
        job.work.run.pause(now)
        job.run_number += 1
        job.state, job.state_text, job.suspended_since, job.cpus_released = JobState.SUSPENDED, "SUSPENDED", now, True
        self._change_cpus(job, -1)
        self.mark_changed(job)

    def resume(self, job: SimulatedJob, now: float) -> None:
        """Resumes a job. Raises ValueError unless suspended, and if its CPUs are allocated (Slurm would share them)."""
        if job.suspended_since is None or job.work.run is None:
            raise ValueError(f"job {job.id} is not suspended")
        if any(self.nodes[allocation.node].free_cpus < allocation.resources.cpus for allocation in job.allocations):
            raise ValueError(f"job {job.id} cannot resume: its CPUs are allocated to other jobs")
        self._change_cpus(job, 1)
        job.work.run.resume(now)
        job.suspended_seconds += now - job.suspended_since
        job.state, job.state_text, job.suspended_since, job.cpus_released = JobState.RUNNING, "RUNNING", None, False
        job.last_view = None
        self.schedule_end(job)

    def _change_cpus(self, job: SimulatedJob, sign: int) -> None:
        for allocation in job.allocations:
            self.nodes[allocation.node].take_cpus(sign * allocation.resources.cpus)

    def mark_changed(self, job: SimulatedJob) -> None:
        """Drops the job's cached view and requests a scheduler run."""
        job.last_view, self.changed = None, True
