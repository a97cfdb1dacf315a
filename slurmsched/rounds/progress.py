"""Progress of a plan: which operations are ready, whether the plan has settled, and what to undo. Pure.

Operations are identified by their index in `Plan.operations`. An operation depends on the earlier ones of its subject:
a RELEASE on its UPDATE, a REQUEUE on its NOTIFY. A job is preempted only while a start still needs it gone.

If a start does not happen it is undone: the job is held again, and the jobs requeued for it are started again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobSpec,
    JobState,
    NodeAllocation,
    NodeState,
    Operation,
    Plan,
    Reason,
    ReasonCode,
    Resources,
    Result,
    Snapshot,
    Verb,
)
from slurmsched.rounds.feasibility import PlannedResources
from slurmsched.rounds.specs import equivalent, spec_of

_HAS_RESOURCES = frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})
_PREEMPTING = frozenset({Verb.NOTIFY, Verb.REQUEUE})


@dataclass(frozen=True, slots=True)
class FinishedOperation:
    """How an operation ended, and when (unix seconds)."""

    result: Result
    at: float


@dataclass(frozen=True)
class PlanProgress:
    """A plan, its finished operations, and the cluster now. `now` is in unix seconds."""

    plan: Plan
    done: Mapping[int, FinishedOperation]
    snapshot: Snapshot
    now: float
    saved: frozenset[JobId] = frozenset()
    """Jobs that report a written checkpoint: the rest of their lead is not waited for."""

    def ready(self) -> tuple[int, ...]:
        """Indices of the operations that may be executed now, as one batch, in order."""
        return tuple(
            index for index in range(len(self.plan.operations)) if index not in self.done and self._is_ready(index)
        )

    def settled(self) -> bool:
        """Whether nothing is left to do and every job that was started runs or is gone."""
        unfinished = (i for i in range(len(self.plan.operations)) if i not in self.done and not self.is_hopeless(i))
        return next(unfinished, None) is None and not any(self.has_not_started(i) for i in self.starts.values())

    def is_hopeless(self, index: int) -> bool:
        """Whether it can never be done: it is not permitted, a dependency failed, or no start needs it any more."""
        operation = self.plan.operations[index]
        if not operation.permitted or any(self._blocks_dependents(i) for i in self._dependencies[index]):
            return True
        if operation.verb is Verb.NOTIFY and operation.subject not in self.requeues:
            return not self._runs(operation.subject)  # it is requeued in a later round
        if operation.verb in _PREEMPTING:
            serves = any(self._still_wanted(i) for i in self._beneficiaries.get(operation.subject, ()))
            return not serves or not self._runs(operation.subject)
        if operation.verb is Verb.RELEASE:
            return not self._still_wanted(index)
        return False

    @cached_property
    def starts(self) -> dict[JobId, int]:
        """The index of each job's RELEASE."""
        return {op.subject: i for i, op in enumerate(self.plan.operations) if op.verb is Verb.RELEASE}

    @cached_property
    def requeues(self) -> dict[JobId, int]:
        """The index of each job's REQUEUE."""
        return {op.subject: i for i, op in enumerate(self.plan.operations) if op.verb is Verb.REQUEUE}

    def succeeded(self, index: int) -> bool:
        return index in self.done and self.done[index].result is Result.DONE

    def has_not_started(self, index: int) -> bool:
        """Whether the job of this RELEASE was released and is still pending."""
        job = self._job(self.plan.operations[index].subject)
        return self.succeeded(index) and job is not None and job.state is JobState.PENDING

    def has_left(self, job_id: JobId) -> bool:
        """Whether the job has released the resources that it had when the plan was made."""
        job = self._job(job_id)
        if self._is_set_aside(job_id):
            return False
        if job is None or job.state not in _HAS_RESOURCES:
            return True
        # A moved job that runs again has left in between: its RELEASE waits for that.
        return job_id in self.starts and self.succeeded(self.starts[job_id])

    def _is_ready(self, index: int) -> bool:
        operation = self.plan.operations[index]
        return (
            not self.is_hopeless(index)
            and all(self.succeeded(i) for i in self._dependencies[index])
            and all(self.has_left(job) for job in operation.gone)
            and self._lead_is_over(index)
        )

    def _lead_is_over(self, index: int) -> bool:
        if self.plan.operations[index].subject in self.saved:
            return True
        notified = (i for i in self._dependencies[index] if self.plan.operations[i].verb is Verb.NOTIFY)
        return all(self.done[i].at + self.plan.operations[index].lead <= self.now for i in notified)

    def _went_wrong(self, index: int) -> bool:
        return not self.plan.operations[index].permitted or (index in self.done and not self.succeeded(index))

    def _blocks_dependents(self, index: int) -> bool:
        """Whether the operations that depend on it can never be done."""
        return self._went_wrong(index) or (index not in self.done and self.is_hopeless(index))

    def _could_not_be_requeued(self, job_id: JobId) -> bool:
        """Whether the job keeps its resources because it could not be requeued.

        This includes a job whose record can no longer be read and that was not requeued before.
        """
        index = self.requeues.get(job_id)
        if self._is_set_aside(job_id):
            return index is None or not self.succeeded(index)
        if index is None or not self._runs(job_id) or self.has_left(job_id):
            return False
        return self._went_wrong(index) or any(self._went_wrong(i) for i in self._dependencies[index])

    def _still_wanted(self, index: int) -> bool:
        """Whether this start can still happen: its job is pending or moves, its nodes are up, its victims can leave."""
        operation = self.plan.operations[index]
        job = self._job(operation.subject)
        if job is None and operation.reason.code is ReasonCode.GIVE_BACK:
            return self._is_set_aside(operation.subject)  # it is released by its id alone
        if job is None or not (job.state is JobState.PENDING or job.id in operation.gone):
            return False
        if any(self._went_wrong(i) for i in self._dependencies[index]) or any(
            self._could_not_be_requeued(other) for other in operation.gone
        ):
            return False
        nodes = (self.snapshot.nodes_by_name.get(name) for name in self._nodes_of[job.id])
        return all(node is not None and node.state is NodeState.UP for node in nodes)

    def _is_set_aside(self, job_id: JobId) -> bool:
        """Whether the job exists but is set aside, so that its state is unknown."""
        return job_id not in self.snapshot.jobs_by_id and not self.snapshot.is_gone(job_id)

    def _runs(self, job_id: JobId) -> bool:
        job = self._job(job_id)
        return job is not None and job.state in (JobState.RUNNING, JobState.SUSPENDED)

    def _job(self, job_id: JobId) -> Job | None:
        job = self.snapshot.jobs_by_id.get(job_id)
        return None if job is None or job.state is JobState.FINISHED else job

    @cached_property
    def _dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each operation the indices of the earlier ones of its subject."""
        by_subject: dict[str, list[int]] = {}
        before = []
        for index, operation in enumerate(self.plan.operations):
            earlier = by_subject.setdefault(operation.subject, [])
            before.append(tuple(earlier))
            earlier.append(index)
        return tuple(before)

    @cached_property
    def _beneficiaries(self) -> dict[JobId, tuple[int, ...]]:
        """For each preempted job the indices of the starts that need it gone."""
        starts: dict[JobId, tuple[int, ...]] = dict.fromkeys(self.requeues, ())
        for index in self.starts.values():
            for job in self.plan.operations[index].gone:
                starts[job] = (*starts.get(job, ()), index)
        return starts

    @cached_property
    def _nodes_of(self) -> dict[JobId, tuple[str, ...]]:
        """The nodes to which this plan pins each started job; empty if it does not."""
        nodes: dict[JobId, tuple[str, ...]] = dict.fromkeys(self.starts, ())
        nodes.update((op.subject, _pin(op)) for op in self.plan.operations if op.verb is Verb.UPDATE)
        return nodes


def ready_operations(
    plan: Plan, done: Mapping[int, FinishedOperation], snapshot: Snapshot, now: float
) -> tuple[int, ...]:
    """Indices of the operations that may be executed now, in order. Ask again after each batch."""
    return PlanProgress(plan, done, snapshot, now).ready()


def is_settled(plan: Plan, done: Mapping[int, FinishedOperation], snapshot: Snapshot, now: float) -> bool:
    """Whether every operation is done or hopeless, and every job that was started runs or is gone."""
    return PlanProgress(plan, done, snapshot, now).settled()


def _pin(operation: Operation) -> tuple[str, ...]:
    return operation.after.nodes if isinstance(operation.after, JobSpec) else ()


def undo_overdue_starts(progress: PlanProgress, timeout: float) -> Plan:
    """Return operations that undo each start that can no longer happen or did not happen within `timeout` seconds.

    Such a job is held again with its previous spec. A job that was requeued only for such starts is started again where
    it ran, if those resources are still free. The plan is empty if no start is overdue.
    """
    overdue = [index for index in progress.starts.values() if _is_overdue(progress, index, timeout)]
    returns = tuple(_restart_victims(progress, overdue))
    returning = {operation.subject for operation in returns}
    held = [operation for index in overdue for operation in _hold_again(progress, index, returning)]
    return Plan((*held, *returns))


def _is_overdue(progress: PlanProgress, index: int, timeout: float) -> bool:
    if progress.succeeded(index):
        return progress.has_not_started(index) and progress.now - progress.done[index].at >= timeout
    if index in progress.done or progress.is_hopeless(index):
        return True
    waited_for = [progress.requeues[job] for job in progress.plan.operations[index].gone if job in progress.requeues]
    if not waited_for or any(i not in progress.done and not progress.is_hopeless(i) for i in waited_for):
        return False
    last = max((progress.done[i].at for i in waited_for if i in progress.done), default=progress.now)
    return progress.now - last >= timeout


def _hold_again(progress: PlanProgress, index: int, returning: Collection[JobId]) -> Iterator[Operation]:
    """Hold the job again, with its previous spec unless it returns to where it ran."""
    job = _pending_job(progress, progress.plan.operations[index].subject)
    if job is None:
        return
    why = Reason(ReasonCode.NOT_STARTED)
    if job.hold is Hold.NONE:
        yield Operation(Verb.HOLD, job.id, why, job.hold.value, Hold.ADMIN.value)
    spec = next((op.before for op in _operations_of(progress, job.id, Verb.UPDATE)), None)
    if job.id not in returning and isinstance(spec, JobSpec) and not equivalent(spec, spec_of(job.current_request)):
        yield Operation(Verb.UPDATE, job.id, why, spec_of(job.current_request), spec)


def _restart_victims(progress: PlanProgress, overdue: Sequence[int]) -> Iterator[Operation]:
    """Start the victims of overdue starts where they ran, if those resources are free and no start needs them."""
    resources, released = PlannedResources(progress.snapshot), set(overdue)
    for index in progress.starts.values():
        if index not in released and not _has_ended(progress, index):
            resources.allocate(_allocations_of(_pinned_spec(progress, index)), lambda _: None)
    displaced = dict.fromkeys(job for index in overdue for job in progress.plan.operations[index].gone)
    for job_id in displaced:
        job, former = _pending_job(progress, job_id), _former_spec(progress, job_id)
        if job is None or former is None or _may_still_start(progress, job_id, released):
            continue
        if resources.allocate(_allocations_of(former), lambda _: None) is None:
            continue
        why = Reason(ReasonCode.RETURNS, {"nodes": ",".join(former.nodes)})
        if not equivalent(former, spec_of(job.current_request)):
            yield Operation(Verb.UPDATE, job.id, why, spec_of(job.current_request), former)
        yield Operation(Verb.RELEASE, job.id, why, Hold.REQUEUED.value, Hold.NONE.value)


def _pending_job(progress: PlanProgress, job_id: JobId) -> Job | None:
    job = progress.snapshot.jobs_by_id.get(job_id)
    return job if job is not None and job.state is JobState.PENDING else None


def _has_ended(progress: PlanProgress, index: int) -> bool:
    """Whether this start needs no resources any more: its job runs or is gone."""
    return progress.succeeded(index) and not progress.has_not_started(index)


def _may_still_start(progress: PlanProgress, job_id: JobId, overdue: set[int]) -> bool:
    """Whether the plan also starts a requeued job and that start may still happen."""
    return job_id in progress.starts and progress.starts[job_id] not in overdue


def _former_spec(progress: PlanProgress, job_id: JobId) -> JobSpec | None:
    """The spec that a requeued job ran with; None if it was not requeued or its GPUs differ between nodes."""
    index = progress.requeues.get(job_id)
    if index is None or not progress.succeeded(index):
        return None
    before = progress.plan.operations[index].before
    return before if isinstance(before, JobSpec) and before.gpus_per_node is not None else None


def _pinned_spec(progress: PlanProgress, index: int) -> JobSpec | None:
    """The spec that a started job is pinned to, by its UPDATE or by its current request."""
    subject = progress.plan.operations[index].subject
    spec = next((op.after for op in _operations_of(progress, subject, Verb.UPDATE)), None)
    if isinstance(spec, JobSpec):
        return spec
    job = progress.snapshot.jobs_by_id.get(subject)
    return None if job is None else spec_of(job.current_request)


def _operations_of(progress: PlanProgress, subject: str, verb: Verb) -> Iterator[Operation]:
    return (op for op in progress.plan.operations if op.subject == subject and op.verb is verb)


def _allocations_of(spec: JobSpec | None) -> tuple[NodeAllocation, ...]:
    """The allocations of a pinned spec; with an uneven split each node is charged all GPUs of the job."""
    if spec is None:
        return ()
    gpus = spec.gpus if spec.gpus_per_node is None else spec.gpus_per_node
    size = Resources(gpus, spec.cpus, spec.memory)
    return tuple(NodeAllocation(node, size, spec.gpu_type or "") for node in spec.nodes)
