"""The Backend protocol over a virtual cluster and clock; operations are answered as Slurm answers them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from slurmsched.backends.protocol import (
    BackendError,
    CallCounts,
    FinishedPage,
    Identity,
    JobOrigin,
    Privilege,
    UnreachableError,
)
from slurmsched.backends.simulated.cluster import VirtualCluster
from slurmsched.backends.simulated.events import NO_FAULTS, Event, FaultPlan, VirtualClock
from slurmsched.backends.simulated.job import SimulatedJob, Submission, UsageInterval
from slurmsched.model import (
    AccountedRun,
    Hold,
    JobId,
    JobSpec,
    JobState,
    Operation,
    Outcome,
    Request,
    Result,
    RunEnd,
    Snapshot,
    Verb,
    parse_hints,
)

_RUN_ENDS: Final = {
    "COMPLETED": RunEnd.COMPLETED,
    "FAILED": RunEnd.FAILED,
    "TIMEOUT": RunEnd.TIMED_OUT,
    "CANCELLED": RunEnd.CANCELLED,
    "NODE_FAIL": RunEnd.CANCELLED,
}
"""How runs end that are not requeued, by the state of their jobs."""


class OvertakenError(BackendError):
    """The job has left the state in which the operation is possible."""


class RefusedError(BackendError):
    """Slurm would refuse the operation; the message is Slurm's."""


def perform_operation(
    cluster: VirtualCluster, files: dict[str, str], identity: Identity, operation: Operation
) -> Outcome:
    """Carries out one operation. `files` are the configuration files' texts by path."""
    commands = describe_operation(operation)
    if not operation.permitted:
        return Outcome(operation, Result.BLOCKED, detail="not permitted to this identity")
    if not identity.may(operation.verb):
        return Outcome(operation, Result.REFUSED, commands, f"{identity.user}: Access/permission denied")
    try:
        match operation.verb:
            case Verb.WEIGH:
                _weigh(cluster, operation)
            case Verb.CONFIGURE:
                files[operation.subject] = _text(operation)
            case _:
                _JOB_VERBS[operation.verb](cluster, _find_job(cluster, operation), operation)
    except OvertakenError as error:
        return Outcome(operation, Result.OVERTAKEN, commands, str(error))
    except RefusedError as error:
        return Outcome(operation, Result.REFUSED, commands, str(error))
    return Outcome(operation, Result.DONE, commands)


def describe_operation(operation: Operation) -> tuple[str, ...]:
    """The operation in one line that begins with `simulated`."""
    after = operation.after
    value = " ".join(f"{key}={field}" for key, field in _spec_fields(after)) if isinstance(after, JobSpec) else after
    return (f"simulated {operation.verb} {operation.subject}" + ("" if value is None else f" {value}"),)


def updated_request(current: Request, spec: JobSpec) -> Request:
    """The request after an UPDATE. A request counts CPUs of the whole job, a job spec CPUs per node and per task."""
    uneven = spec.gpus_per_node is None and spec.cpus_per_task > 0
    return replace(
        current,
        gpus=spec.gpus,
        gpu_type=spec.gpu_type,
        gpus_per_node=spec.gpus_per_node,
        nodes=spec.node_count,
        max_nodes=spec.max_nodes,
        tasks=spec.tasks,
        cpus=spec.cpus_per_task * max(spec.tasks, spec.node_count) if uneven else spec.cpus * spec.node_count,
        memory=spec.memory,
        shards=spec.shards or current.shards,
        pinned=frozenset(spec.nodes),
    )


def _spec_fields(spec: JobSpec) -> list[tuple[str, object]]:
    return [
        ("nodes", ",".join(spec.nodes) or spec.node_count),
        ("gpus", spec.gpus if spec.gpu_type is None else f"{spec.gpu_type}:{spec.gpus}"),
        ("cpus", spec.cpus),
        ("memory", f"{spec.memory}M"),
        ("tasks", spec.tasks),
    ]


def _find_job(cluster: VirtualCluster, operation: Operation) -> SimulatedJob:
    job = cluster.jobs.get(operation.subject)
    if job is None or job.state is JobState.FINISHED:
        raise OvertakenError(f"job {operation.subject} has ended" if job else f"no job {operation.subject}")
    return job


def _require_pending(job: SimulatedJob) -> None:
    if job.state is not JobState.PENDING:
        raise OvertakenError(f"job {job.id} is {job.state}, not pending")


def _hold(cluster: VirtualCluster, job: SimulatedJob, _operation: Operation) -> None:
    _require_pending(job)
    if job.hold is Hold.NONE:
        job.hold = Hold.ADMIN
    cluster.lifecycle.mark_changed(job)


def _release(cluster: VirtualCluster, job: SimulatedJob, _operation: Operation) -> None:
    _require_pending(job)
    job.hold = Hold.NONE
    if job.begin_from_requeue:
        job.begin, job.begin_from_requeue = None, False
    cluster.lifecycle.mark_changed(job)


def _update(cluster: VirtualCluster, job: SimulatedJob, operation: Operation) -> None:
    _require_pending(job)
    spec = operation.after
    if not isinstance(spec, JobSpec):
        raise RefusedError("no job spec given")
    if unknown := sorted(set(spec.nodes) - cluster.nodes.keys()):
        raise RefusedError(f"Invalid node name specified: {', '.join(unknown)}")
    if spec.node_count < 1 or spec.cpus < 1 or spec.gpus < 0 or spec.memory < 0:
        raise RefusedError("Requested node configuration is not available")
    job.current_request = updated_request(job.current_request, spec)
    cluster.lifecycle.mark_changed(job)


def _notify(cluster: VirtualCluster, job: SimulatedJob, _operation: Operation) -> None:
    if job.state is not JobState.RUNNING:
        raise OvertakenError(f"job {job.id} is {job.state}, not running")
    cluster.lifecycle.signal(job, cluster.now)


def _requeue(cluster: VirtualCluster, job: SimulatedJob, _operation: Operation) -> None:
    if job.state not in (JobState.RUNNING, JobState.SUSPENDED):
        raise OvertakenError(f"job {job.id} is {job.state}, not running")
    if not (job.submission.batch and job.submission.requeue):
        raise RefusedError("Requested operation is presently disabled")
    cluster.lifecycle.requeue(job, held=True, now=cluster.now)


def _prioritize(cluster: VirtualCluster, job: SimulatedJob, operation: Operation) -> None:
    _require_pending(job)
    if not isinstance(operation.after, int):
        raise RefusedError("Invalid nice value")
    job.nice = operation.after
    cluster.lifecycle.mark_changed(job)


def _note(_cluster: VirtualCluster, job: SimulatedJob, operation: Operation) -> None:
    if job.admin_comment and not job.admin_comment.startswith("synsched"):
        raise RefusedError("AdminComment was written by another program")
    job.admin_comment, job.last_view = _text(operation), None


def _weigh(cluster: VirtualCluster, operation: Operation) -> None:
    node = cluster.nodes.get(operation.subject)
    if node is None or not isinstance(operation.after, int):
        raise RefusedError("Invalid node name specified" if node is None else "Invalid weight")
    node.update(weight=operation.after)


def _text(operation: Operation) -> str:
    return "" if operation.after is None else str(operation.after)


_JOB_VERBS: Final[Mapping[Verb, Callable[[VirtualCluster, SimulatedJob, Operation], None]]] = {
    Verb.HOLD: _hold,
    Verb.RELEASE: _release,
    Verb.UPDATE: _update,
    Verb.NOTIFY: _notify,
    Verb.REQUEUE: _requeue,
    Verb.PRIORITIZE: _prioritize,
    Verb.NOTE: _note,
}


_NO_ANSWER = "the simulated slurmctld does not answer: wait and try again"


class SimulatedBackend:
    """Reads and changes a `VirtualCluster`, which advances to the clock's time at every call.

    A released job starts at once if it fits, before the next poll. `files` are the configuration files written.
    """

    name = "simulated"
    remarks: tuple[str, ...] = ()
    operation_seconds = 0.0

    def __init__(
        self,
        cluster: VirtualCluster,
        clock: VirtualClock,
        identity: Identity | None = None,
        faults: FaultPlan = NO_FAULTS,
    ) -> None:
        self.cluster = cluster
        self.clock = clock
        self.calls = CallCounts()
        self.files: dict[str, str] = {}
        self._identity = identity or Identity("slurm", Privilege.SLURM_USER)
        self._faults = faults
        self._executions = 0
        for at, fault in faults.timed:
            cluster.events.push(Event(at, fault.kind, fault.subject))

    def observe(self) -> Snapshot:
        """Polls the cluster at the clock's time. Raises UnreachableError as the fault plan says."""
        self.calls.polls += 1
        self.calls.reads += 2
        if self.calls.polls in self._faults.unanswered_polls:
            raise UnreachableError(_NO_ANSWER)
        self.cluster.advance(self.clock.now())
        return self.cluster.snapshot()

    def activity(self) -> str:
        """What happened on the cluster so far, in numbers; our own changes count too, as they do in Slurm."""
        self.cluster.advance(self.clock.now())
        return f"{self.cluster.changes} events, {len(self.cluster.jobs)} jobs, {self.calls.writes} changes"

    def finished_runs(self, since: float, until: float) -> FinishedPage:
        """The runs that ended between these times, once their resources are free; nobody measured what they used."""
        ended = self.cluster.lifecycle.usage_intervals
        first = bisect_left(ended, since, key=lambda run: run.end)
        last = bisect_right(ended, until, key=lambda run: run.end)
        return FinishedPage(tuple(self._accounted_run(run) for run in ended[first:last]))

    def _accounted_run(self, run: UsageInterval) -> AccountedRun:
        job = self.cluster.lifecycle.ended.get(run.job) or self.cluster.jobs[run.job]
        submission, nodes = job.submission, self.cluster.nodes
        gpu_types = {nodes[node].configured.gpus[index].type for node, index in run.devices}
        return AccountedRun(
            run.job,
            submission.user,
            submission.name,
            run.end,
            max(0.0, run.end - self.cluster.lifecycle.delays.completing - run.start),
            _RUN_ENDS.get(run.next_state, RunEnd.REQUEUED),
            gpus=int(run.gpus),
            cpus=run.cpus,
            memory=run.memory,
            nodes=len(run.nodes),
            gpu_type=next(iter(gpu_types)) if len(gpu_types) == 1 else "",
            time_limit=submission.time_limit,
            array_job=job.array_job,
            folder=submission.folder,
            script=submission.script,
            model=parse_hints(submission.comment).model or "",
        )

    def origins(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobOrigin]:
        """The script and folder with which each of these jobs was submitted, if with any."""
        submitted = {job: self.cluster.jobs[job].submission for job in jobs if job in self.cluster.jobs}
        found = {job: JobOrigin(one.script, one.folder) for job, one in submitted.items()}
        return dict.fromkeys(jobs, JobOrigin()) | found

    def identity(self) -> Identity:
        """The identity given at construction; SlurmUser by default."""
        return self._identity

    def commands(self, operation: Operation) -> tuple[str, ...]:
        """The operation in one line that begins with `simulated`."""
        return describe_operation(operation)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Carries out the operations in order at the clock's time.

        Raises UnreachableError for an execution that the fault plan interrupts.
        """
        self.cluster.advance(self.clock.now())
        self._executions += 1
        for fault in self._faults.before_execution.get(self._executions, ()):
            self.cluster.events.push(Event(self.cluster.now, fault.kind, fault.subject))
        self.cluster.advance(self.clock.now())
        limit = self._faults.interrupted_executions.get(self._executions, len(operations))
        outcomes = tuple(self._perform(operation) for operation in operations[:limit])
        self.cluster.schedule()
        if limit < len(operations):
            raise UnreachableError(_NO_ANSWER)
        self.calls.reads += 1
        return outcomes

    def submit(self, submission: Submission, *, tasks: int = 0) -> JobId:
        """Submits a job, with `tasks` an array, at the clock's time. Returns its number."""
        self.cluster.advance(self.clock.now())
        job = self.cluster.submit(submission, tasks=tasks)
        self.cluster.schedule()
        return job

    def _perform(self, operation: Operation) -> Outcome:
        self.calls.writes += 1
        return perform_operation(self.cluster, self.files, self._identity, operation)
