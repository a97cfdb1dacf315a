"""Operations on the virtual cluster: Slurm's answers, without Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from slurmsched.backends.protocol import BackendError, Identity
from slurmsched.backends.simulated.cluster import Cluster
from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.model import Hold, JobState, Operation, Outcome, Request, Result, Shape, Verb

__all__ = ["perform", "reshaped", "wording"]


class OvertakenError(BackendError):
    """The job is no longer in a state in which this makes sense."""


class RefusedError(BackendError):
    """Slurm would say no; the message is what it would say."""


def perform(cluster: Cluster, files: dict[str, str], identity: Identity, operation: Operation) -> Outcome:
    """Do one operation. `files` stands for the configuration files, by path."""
    commands = wording(operation)
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
                _JOB_VERBS[operation.verb](cluster, _job(cluster, operation), operation)
    except OvertakenError as overtaken:
        return Outcome(operation, Result.OVERTAKEN, commands, str(overtaken))
    except RefusedError as refused:
        return Outcome(operation, Result.REFUSED, commands, str(refused))
    return Outcome(operation, Result.DONE, commands)


def wording(operation: Operation) -> tuple[str, ...]:
    """The operation as one line, marked as what it is."""
    after = operation.after
    said = " ".join(f"{k}={v}" for k, v in _fields(after)) if isinstance(after, Shape) else after
    return (f"simulated {operation.verb} {operation.subject}" + ("" if said is None else f" {said}"),)


def reshaped(standing: Request, shape: Shape) -> Request:
    """What stands after a RESHAPE: CPUs are for the whole job there, per node in a shape."""
    return replace(
        standing,
        gpus=shape.gpus,
        gpu_type=shape.gpu_type,
        gpus_per_node=shape.gpus_per_node,
        nodes=shape.node_count,
        max_nodes=shape.max_nodes,
        tasks=shape.tasks,
        cpus=shape.cpus * shape.node_count,
        memory=shape.memory,
        pinned=frozenset(shape.nodes),
    )


def _fields(shape: Shape) -> list[tuple[str, object]]:
    return [
        ("nodes", ",".join(shape.nodes) or shape.node_count),
        ("gpus", shape.gpus if shape.gpu_type is None else f"{shape.gpu_type}:{shape.gpus}"),
        ("cpus", shape.cpus),
        ("memory", f"{shape.memory}M"),
        ("tasks", shape.tasks),
    ]


def _job(cluster: Cluster, operation: Operation) -> SimulatedJob:
    job = cluster.jobs.get(operation.subject)
    if job is None or job.state is JobState.FINISHED:
        raise OvertakenError(f"job {operation.subject} has ended" if job else f"no job {operation.subject}")
    return job


def _pending(job: SimulatedJob) -> None:
    if job.state is not JobState.PENDING:
        raise OvertakenError(f"job {job.id} is {job.state}, not pending")


def _hold(cluster: Cluster, job: SimulatedJob, _operation: Operation) -> None:
    _pending(job)
    if job.hold is Hold.NONE:
        job.hold = Hold.ADMIN
    cluster.life.touch(job)


def _release(cluster: Cluster, job: SimulatedJob, _operation: Operation) -> None:
    _pending(job)
    job.hold = Hold.NONE
    if job.begin_from_requeue:
        job.begin, job.begin_from_requeue = None, False
    cluster.life.touch(job)


def _reshape(cluster: Cluster, job: SimulatedJob, operation: Operation) -> None:
    _pending(job)
    shape = operation.after
    if not isinstance(shape, Shape):
        raise RefusedError("no shape given")
    if unknown := sorted(set(shape.nodes) - cluster.machines.keys()):
        raise RefusedError(f"Invalid node name specified: {', '.join(unknown)}")
    if shape.node_count < 1 or shape.cpus < 1 or shape.gpus < 0 or shape.memory < 0:
        raise RefusedError("Requested node configuration is not available")
    job.standing = reshaped(job.standing, shape)
    cluster.life.touch(job)


def _notify(cluster: Cluster, job: SimulatedJob, _operation: Operation) -> None:
    if job.state is not JobState.RUNNING:
        raise OvertakenError(f"job {job.id} is {job.state}, not running")
    cluster.life.signal(job, cluster.now)


def _requeue(cluster: Cluster, job: SimulatedJob, _operation: Operation) -> None:
    if job.state not in (JobState.RUNNING, JobState.SUSPENDED):
        raise OvertakenError(f"job {job.id} is {job.state}, not running")
    if not (job.submission.batch and job.submission.requeue):
        raise RefusedError("Requested operation is presently disabled")
    cluster.life.requeue(job, held=True, now=cluster.now)


def _prioritize(cluster: Cluster, job: SimulatedJob, operation: Operation) -> None:
    _pending(job)
    if not isinstance(operation.after, int):
        raise RefusedError("Invalid nice value")
    job.nice = operation.after
    cluster.life.touch(job)


def _note(_cluster: Cluster, job: SimulatedJob, operation: Operation) -> None:
    if job.admin_comment and not job.admin_comment.startswith("synsched"):
        raise RefusedError("AdminComment belongs to somebody else")
    job.admin_comment, job.view = _text(operation), None


def _weigh(cluster: Cluster, operation: Operation) -> None:
    machine = cluster.machines.get(operation.subject)
    if machine is None or not isinstance(operation.after, int):
        raise RefusedError("Invalid node name specified" if machine is None else "Invalid weight")
    machine.change(weight=operation.after)


def _text(operation: Operation) -> str:
    return "" if operation.after is None else str(operation.after)


_JOB_VERBS: Final[Mapping[Verb, Callable[[Cluster, SimulatedJob, Operation], None]]] = {
    Verb.HOLD: _hold,
    Verb.RELEASE: _release,
    Verb.RESHAPE: _reshape,
    Verb.NOTIFY: _notify,
    Verb.REQUEUE: _requeue,
    Verb.PRIORITIZE: _prioritize,
    Verb.NOTE: _note,
}
