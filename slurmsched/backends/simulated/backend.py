"""The Backend protocol over a virtual cluster and a virtual clock, with Slurm's answers to each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from slurmsched.backends.protocol import BackendError, CallCounts, Identity, Privilege, UnreachableError
from slurmsched.backends.simulated.cluster import VirtualCluster
from slurmsched.backends.simulated.events import NO_FAULTS, Event, FaultPlan, VirtualClock
from slurmsched.backends.simulated.job import SimulatedJob, Submission
from slurmsched.model import Hold, JobId, JobSpec, JobState, Operation, Outcome, Request, Result, Snapshot, Verb


class OvertakenError(BackendError):
    """The job is no longer in a state in which this makes sense."""


class RefusedError(BackendError):
    """Slurm would say no; the message is what it would say."""


def perform_operation(
    cluster: VirtualCluster, files: dict[str, str], identity: Identity, operation: Operation
) -> Outcome:
    """Do one operation. `files` stands for the configuration files, by path."""
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
    except OvertakenError as overtaken:
        return Outcome(operation, Result.OVERTAKEN, commands, str(overtaken))
    except RefusedError as refused:
        return Outcome(operation, Result.REFUSED, commands, str(refused))
    return Outcome(operation, Result.DONE, commands)


def describe_operation(operation: Operation) -> tuple[str, ...]:
    """The operation as one line, marked as what it is."""
    after = operation.after
    value = " ".join(f"{k}={v}" for k, v in _spec_fields(after)) if isinstance(after, JobSpec) else after
    return (f"simulated {operation.verb} {operation.subject}" + ("" if value is None else f" {value}"),)


def updated_request(current: Request, spec: JobSpec) -> Request:
    """What stands after a RESHAPE: CPUs are for the whole job there, per node in a shape."""
    return replace(
        current,
        gpus=spec.gpus,
        gpu_type=spec.gpu_type,
        gpus_per_node=spec.gpus_per_node,
        nodes=spec.node_count,
        max_nodes=spec.max_nodes,
        tasks=spec.tasks,
        cpus=spec.cpus * spec.node_count,
        memory=spec.memory,
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
        raise RefusedError("no shape given")
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
        raise RefusedError("AdminComment belongs to somebody else")
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
    """Reads and changes a `Cluster`, which catches up with the clock whenever it is asked.

    What is released starts at once if it fits, before the next poll; `files` are the configuration files written.
    """

    name = "simulated"
    remarks: tuple[str, ...] = ()

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
        for at, disturbance in faults.timed:
            cluster.events.push(Event(at, disturbance.kind, disturbance.subject))

    def observe(self) -> Snapshot:
        """One poll at the clock's time. Raises UnreachableError for a poll that is to stay unanswered."""
        self.calls.polls += 1
        self.calls.reads += 2
        if self.calls.polls in self._faults.unanswered_polls:
            raise UnreachableError(_NO_ANSWER)
        self.cluster.advance(self.clock.now())
        return self.cluster.snapshot()

    def identity(self) -> Identity:
        """As given at construction: SlurmUser by default."""
        return self._identity

    def commands(self, operation: Operation) -> tuple[str, ...]:
        """What is done, in one line that begins with `simulated`."""
        return describe_operation(operation)

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        """Do these in order at the clock's time. Raises UnreachableError for an execution that is to be broken off."""
        self.cluster.advance(self.clock.now())
        self._executions += 1
        for disturbance in self._faults.before_execution.get(self._executions, ()):
            self.cluster.events.push(Event(self.cluster.now, disturbance.kind, disturbance.subject))
        self.cluster.advance(self.clock.now())
        answered = self._faults.interrupted_executions.get(self._executions, len(operations))
        outcomes = tuple(self._perform(operation) for operation in operations[:answered])
        self.cluster.schedule()
        if answered < len(operations):
            raise UnreachableError(_NO_ANSWER)
        self.calls.reads += 1
        return outcomes

    def submit(self, submission: Submission, *, tasks: int = 0) -> JobId:
        """Like sbatch at the clock's time, with `tasks` as an array; the cluster's hook sees it."""
        self.cluster.advance(self.clock.now())
        job = self.cluster.submit(submission, tasks=tasks)
        self.cluster.schedule()
        return job

    def _perform(self, operation: Operation) -> Outcome:
        self.calls.writes += 1
        return perform_operation(self.cluster, self.files, self._identity, operation)
