"""Progress of a plan: which operations are ready, whether the plan has settled, and what to undo. Pure.

Operations are identified by their index in `Plan.operations`. An operation depends on the earlier ones of its subject:
a RELEASE on its UPDATE, a REQUEUE on its NOTIFY. A job is preempted only while a start still needs it gone.

If a start does not happen it is undone: the job is held again, and the jobs requeued for it are started again. A start
is given time as long as Slurm's reason is one that time may remove, and undone at once if it is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobSpec,
    JobState,
    NodeAllocation,
    NodeState,
    OpenStart,
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
from slurmsched.rounds.plan_structure import PlanStructure
from slurmsched.rounds.refusals import LIMIT_REASONS
from slurmsched.rounds.specs import equivalent, held_by_owner, spec_of

_HAS_RESOURCES = frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})
_PREEMPTING = frozenset({Verb.NOTIFY, Verb.REQUEUE})

_LASTING_REASONS: Final = (
    *LIMIT_REASONS, "BadConstraints", "Nodes required for job are", "NodeDown", "FrontEndDown",
    "Partition", "Reservation", "Invalid", "Account", "MaxMem", "License", "JobArrayTaskLimit", "Dependency",
    "DeadLine", "JobHeld", "BurstBuffer",
)  # fmt: skip
"""Prefixes of Slurm's reasons that do not go away while a released job waits on nodes that are free."""
_REASONS_OF_HELD_JOBS: Final = ("JobHeld", "BadConstraints", "Dependency")
_REASON_AGE: Final = 1.0
"""Seconds after a release from which on a reason that Slurm shows of held jobs is one that it found since: its
scheduler runs once a second. Any other reason is younger than the release, since Slurm tries no job that is held."""
_REQUEUED: Final = 3.0
"""Seconds: a job that Slurm does not start for longer than that after it was requeued keeps no place."""
_LEFT_OUT: Final = 3.0
"""Seconds: a run of Slurm's scheduler that refuses a job with named nodes leaves these out for all later jobs."""
_ROUNDING: Final = 1e-6
"""Commands by which the sum of the parts of one, for the tasks of an array, may be wrong."""
_DISAGREEMENT: Final = 10.0
"""Seconds for which a job may wait for resources that are free as we see it, while no other job is completing there."""


@dataclass(frozen=True, slots=True)
class FinishedOperation:
    """How an operation ended, and when (unix seconds)."""

    result: Result
    at: float


@dataclass(frozen=True, slots=True)
class _Prospects:
    """Which operations can never be done, as far as that was asked, if starts still need the jobs in `served` gone."""

    served: frozenset[JobId]
    hopeless: dict[int, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanProgress:
    """A plan, its finished operations, and the cluster now. `now` is in unix seconds."""

    plan: Plan
    done: Mapping[int, FinishedOperation]
    snapshot: Snapshot
    now: float
    saved: frozenset[JobId] = frozenset()
    """Jobs that report a written checkpoint: the rest of their lead is not waited for."""
    fresh: bool = False
    """Whether nothing was executed since the snapshot was taken, so that it shows what became of earlier operations."""
    seen_at: float | None = None
    """When the snapshot was taken, by the clock of `now`; None if that is now."""
    structure: PlanStructure | None = None
    """That of the plan, where it is known already."""

    def ready(self, most: int | None = None) -> tuple[int, ...]:
        """Indices of the operations that may be executed now, as one batch, in order: the first that take `most`
        commands. An update that Slurm took back is among them again."""
        costs, ready, commands = self._structure.costs, list[int](), 0.0
        for index in range(len(self.plan.operations)):
            if most is not None and commands > most - _ROUNDING:
                break
            if index in self._lost_updates or (index not in self.done and self._is_ready(index)):
                ready.append(index)
                commands += costs[index]
        return tuple(ready)

    def postponable(self) -> dict[int, float]:
        """The operations that may be left to a later round, by index, each with the commands that it and what has to
        follow it take: holds, and the operations of starts that wait for no other job and of which nothing was done
        yet. Whatever was begun is finished: no job is preempted, or its request changed, for a start that is left.
        """
        structure = self._structure
        left = {index: structure.costs[index] for index in structure.holds if index not in self.done}
        for index in self.starts.values():
            operation = self.plan.operations[index]
            waits_for = operation.gone or operation.standing or operation.subject in self.requeues
            if not waits_for and index not in self.done and self.done.keys().isdisjoint(structure.dependencies[index]):
                start = *structure.dependencies[index], index
                left |= dict.fromkeys(start, structure.cost_of(start))
        return left

    def settled(self) -> bool:
        """Whether nothing is left to do and every job that was started runs or is gone."""
        return not self._has_unfinished() and not any(self.has_not_started(i) for i in self.starts.values())

    def left_to_slurm(self) -> int:
        """The number of released jobs that have not started, where nothing else is left: none of them had another job
        leave, and none waits for another to run. 0 where anything is left to do."""
        awaited = [i for i in self.starts.values() if self.has_not_started(i)]
        operations = [self.plan.operations[i] for i in awaited]
        moves = any(op.gone or op.standing or op.subject in self.requeues for op in operations)
        return 0 if moves or self._has_unfinished() else len(awaited)

    def _has_unfinished(self) -> bool:
        return any(i not in self.done and not self.is_hopeless(i) for i in range(len(self.plan.operations)))

    def is_hopeless(self, index: int) -> bool:
        """Whether it can never be done: it is not permitted, a dependency failed, or no start needs it any more."""
        return self._is_hopeless(index, self._prospects)

    def _is_hopeless(self, index: int, given: _Prospects) -> bool:
        if index not in given.hopeless:
            given.hopeless[index] = True  # starts that wait for each other never happen
            given.hopeless[index] = self._finds_hopeless(index, given)
        return given.hopeless[index]

    def _finds_hopeless(self, index: int, given: _Prospects) -> bool:
        operation, before = self.plan.operations[index], self._structure.dependencies[index]
        if not operation.permitted:
            return True
        if not self._gives_back(index) and any(self._blocks_dependents(i, given) for i in before):
            return True
        if operation.verb is Verb.NOTIFY and operation.subject not in self.requeues:
            return not self._runs(operation.subject)  # it is requeued in a later round
        if operation.verb in _PREEMPTING:
            return operation.subject not in given.served or not self._runs(operation.subject)
        if operation.verb is Verb.RELEASE:
            return not self._still_wanted(index, given)
        return False

    @cached_property
    def _prospects(self) -> _Prospects:
        """What can still happen.

        A start that also waits for a job to run again cannot happen without the job's own start, which cannot happen
        before the job has left: the job is served only if that follows from something else. But one that moves for
        another start alone is served unless something else speaks against it: it is no obstacle to that start.
        """
        room = {job for job in self._structure.beneficiaries if self._structure.only_makes_room(job)}
        while True:
            given = _Prospects(frozenset(room))
            while (served := self._served(given) | room) != given.served:
                given = _Prospects(frozenset(served))
            stays = room & self._served(given)
            if stays == room:
                return given
            room = stays

    def _served(self, given: _Prospects) -> set[JobId]:
        """The jobs that a start needs gone which can still happen if those in `given` are."""
        beneficiaries = self._structure.beneficiaries.items()
        return {job for job, starts in beneficiaries if any(self._still_wanted(index, given) for index in starts)}

    @property
    def starts(self) -> Mapping[JobId, int]:
        """The index of each job's RELEASE."""
        return self._structure.starts

    @property
    def requeues(self) -> Mapping[JobId, int]:
        """The index of each job's REQUEUE."""
        return self._structure.requeues

    def operations_of(self, subject: str) -> tuple[Operation, ...]:
        """The operations on this subject, in order."""
        return self._structure.by_subject.get(subject, ())

    def succeeded(self, index: int) -> bool:
        return index in self.done and self.done[index].result is Result.DONE

    def has_not_started(self, index: int) -> bool:
        """Whether the job of this RELEASE was released and is still pending; one that was given back may wait."""
        operation = self.plan.operations[index]
        job = self._job(operation.subject)
        awaited = self.succeeded(index) and operation.reason.code is not ReasonCode.GIVE_BACK
        return awaited and job is not None and job.state is JobState.PENDING

    def _gives_back(self, index: int) -> bool:
        """Whether it releases a job to Slurm: also where Slurm does not take the request as it was submitted."""
        operation = self.plan.operations[index]
        return operation.verb is Verb.RELEASE and operation.reason.code is ReasonCode.GIVE_BACK

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
        did = self.done.__contains__ if self._gives_back(index) else self.succeeded
        return (
            not self.is_hopeless(index)
            and all(did(i) and i not in self._lost_updates for i in self._structure.dependencies[index])
            and all(self.has_left(job) for job in operation.gone)
            and all(self._stands(job) for job in operation.standing)
            and self._lead_is_over(index)
        )

    @cached_property
    def _lost_updates(self) -> frozenset[int]:
        """Updates that were done and that the snapshot no longer shows, of jobs that are not released yet.

        Slurm 22.05 restores what a job asked for at the end of a backfill cycle that began before the update.
        """
        lost = set[int]()
        for index, operation in enumerate(self.plan.operations if self.fresh else ()):
            if operation.verb is not Verb.UPDATE or not self.succeeded(index):
                continue
            job, spec = _pending_job(self, operation.subject), operation.after
            waits = self.starts.get(operation.subject, -1) not in self.done
            if job is None or not waits or not isinstance(spec, JobSpec):
                continue
            if not equivalent(spec_of(job.current_request), spec):
                lost.add(index)
        return frozenset(lost)

    def _stands(self, job_id: JobId) -> bool:
        """Whether a job that the plan starts runs, or one that it restarts runs again or has ended.

        Where a new job has ended, the devices of those that wait for it are not certain any more.
        """
        if self._is_set_aside(job_id) or not self.has_left(job_id):
            return False
        ended = self._job(job_id) is None and job_id in self.requeues
        return self._runs(job_id) or ended

    def _lead_is_over(self, index: int) -> bool:
        if self.plan.operations[index].subject in self.saved:
            return True
        notified = (i for i in self._structure.dependencies[index] if self.plan.operations[i].verb is Verb.NOTIFY)
        return all(self.done[i].at + self.plan.operations[index].lead <= self.now for i in notified)

    def _went_wrong(self, index: int) -> bool:
        return not self.plan.operations[index].permitted or (index in self.done and not self.succeeded(index))

    def _blocks_dependents(self, index: int, given: _Prospects) -> bool:
        """Whether the operations that depend on it can never be done."""
        return self._went_wrong(index) or (index not in self.done and self._is_hopeless(index, given))

    def _could_not_be_requeued(self, job_id: JobId) -> bool:
        """Whether the job keeps its resources because it could not be requeued.

        This includes a job whose record can no longer be read and that was not requeued before.
        """
        index = self.requeues.get(job_id)
        if self._is_set_aside(job_id):
            return index is None or not self.succeeded(index)
        if index is None or not self._runs(job_id) or self.has_left(job_id):
            return False
        return self._went_wrong(index) or any(self._went_wrong(i) for i in self._structure.dependencies[index])

    def _still_wanted(self, index: int, given: _Prospects) -> bool:
        """Whether this start can still happen: its job is pending or moves, and its owner has not held it since; its
        nodes are up, its victims can leave."""
        operation = self.plan.operations[index]
        job = self._job(operation.subject)
        if job is None and operation.reason.code is ReasonCode.GIVE_BACK:
            return self._is_set_aside(operation.subject)  # it is released by its id alone
        if job is None or not (job.state is JobState.PENDING or job.id in operation.gone):
            return False
        wrong = held_by_owner(job) or any(self._went_wrong(i) for i in self._structure.dependencies[index])
        if wrong and not self._gives_back(index):
            return False
        if any(self._could_not_be_requeued(other) for other in operation.gone):
            return False
        restarts = (self.starts[other] for other in operation.standing if self._job(other) is not None)
        if any(self._blocks_dependents(restart, given) for restart in restarts):
            return False
        nodes = (self.snapshot.nodes_by_name.get(name) for name in self._structure.nodes_of[job.id])
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
    def _structure(self) -> PlanStructure:
        return self.structure or PlanStructure(self.plan)


def ready_operations(
    plan: Plan, done: Mapping[int, FinishedOperation], snapshot: Snapshot, now: float
) -> tuple[int, ...]:
    """Indices of the operations that may be executed now, in order. Ask again after each batch."""
    return PlanProgress(plan, done, snapshot, now).ready()


def is_settled(plan: Plan, done: Mapping[int, FinishedOperation], snapshot: Snapshot, now: float) -> bool:
    """Whether every operation is done or hopeless, and every job that was started runs or is gone."""
    return PlanProgress(plan, done, snapshot, now).settled()


def open_starts(progress: PlanProgress) -> dict[JobId, OpenStart]:
    """The starts that may still happen and have not: what they were promised must be given to nobody else."""
    jobs = progress.snapshot.jobs_by_id
    return {
        job: OpenStart(
            _with_shards(_pinned_spec(progress, index), jobs.get(job)),
            progress.plan.operations[index].gone,
        )
        for job, index in progress.starts.items()
        if (progress.has_not_started(index) if index in progress.done else not progress.is_hopeless(index))
    }


def undo_overdue_starts(progress: PlanProgress, timeout: float) -> Plan:
    """Return operations that undo each start that can no longer happen or did not happen within `timeout` seconds.

    Such a job is held again with its previous spec. A job that was requeued only for such starts is started again where
    it ran, if those resources are still free. The plan is empty if no start is overdue.
    """
    overdue = overdue_starts(progress, timeout)
    if not overdue:
        return Plan(())
    returns = tuple(_restart_victims(progress, overdue))
    returning = {operation.subject for operation in returns}
    held = [operation for index in overdue for operation in _hold_again(progress, index, returning)]
    return Plan((*held, *returns))


def overdue_starts(progress: PlanProgress, timeout: float) -> list[int]:
    """The indices of the starts that can no longer happen or did not happen within `timeout` seconds."""
    return [index for index in progress.starts.values() if _is_overdue(progress, index, timeout)]


def _is_overdue(progress: PlanProgress, index: int, timeout: float) -> bool:
    operation = progress.plan.operations[index]
    if progress.succeeded(index):
        job = progress.snapshot.jobs_by_id.get(operation.subject)
        waited = (progress.now if progress.seen_at is None else progress.seen_at) - progress.done[index].at
        return (
            job is not None and progress.has_not_started(index) and waited >= patience(job, progress.snapshot, timeout)
        )
    if index in progress.done or progress.is_hopeless(index):
        return True
    waited_for = [progress.requeues[job] for job in operation.gone if job in progress.requeues]
    waited_for += [progress.starts[job] for job in operation.standing if progress.starts[job] in progress.done]
    if not waited_for or any(i not in progress.done and not progress.is_hopeless(i) for i in waited_for):
        return False
    last = max((progress.done[i].at for i in waited_for if i in progress.done), default=progress.now)
    return progress.now - last >= timeout


def patience(job: Job, snapshot: Snapshot, timeout: float) -> float:
    """Seconds after its release for which a pinned job that is still pending is given time, at most `timeout`."""
    reason = job.reason.replace("_", " ")
    if reason.startswith("BeginTime") and (job.eligible_time or 0.0) > snapshot.time + _REQUEUED:
        return min(_REQUEUED, timeout)  # it ran and requeued itself: Slurm lets it wait for two minutes
    if reason.startswith("ReqNodeNotAvail"):
        return min(_LEFT_OUT, timeout)
    if reason.startswith(_LASTING_REASONS):
        return min(_REASON_AGE, timeout) if reason.startswith(_REASONS_OF_HELD_JOBS) else 0.0
    if not reason.startswith("Resources"):
        return timeout
    nodes = job.current_request.pinned
    completing = any(nodes.intersection(other.nodes) for other in snapshot.jobs_in_state(JobState.COMPLETING))
    return timeout if completing else min(_DISAGREEMENT, timeout)


def _hold_again(progress: PlanProgress, index: int, returning: Collection[JobId]) -> Iterator[Operation]:
    """Hold the job again, with its previous spec unless it returns to where it ran.

    It is also held where Slurm shows it as held: with BadConstraints Slurm sets its priority to 0, and a hold that
    nobody records would look like an administrator's. A hold by its owner stays as it is.
    """
    job = _pending_job(progress, progress.plan.operations[index].subject)
    if job is None:
        return
    why = Reason(ReasonCode.NOT_STARTED)
    if job.hold is Hold.NONE or (job.hold is not Hold.USER and progress.succeeded(index)):
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


def promised_allocations(job: Job) -> tuple[NodeAllocation, ...]:
    """The allocations of a pending job that is pinned to nodes, by its current request."""
    return _with_shards(spec_of(job.current_request), job)


def _with_shards(spec: JobSpec | None, job: Job | None) -> tuple[NodeAllocation, ...]:
    """The allocations of a pinned spec with its shards on each node; those of the job's request where it knows none."""
    allocations, asked = _allocations_of(spec), job.current_request.shards if job else 0
    shards = -(-((spec and spec.shards) or asked) // len(allocations)) if allocations else 0
    return tuple(replace(allocation, shards=shards) for allocation in allocations) if shards else allocations


def _operations_of(progress: PlanProgress, subject: str, verb: Verb) -> Iterator[Operation]:
    return (op for op in progress.operations_of(subject) if op.verb is verb)


def _allocations_of(spec: JobSpec | None) -> tuple[NodeAllocation, ...]:
    """The allocations of a pinned spec; with an uneven split each node is charged all GPUs of the job."""
    if spec is None:
        return ()
    gpus = spec.gpus if spec.gpus_per_node is None else spec.gpus_per_node
    size = Resources(gpus, spec.cpus, spec.memory)
    return tuple(NodeAllocation(node, size, spec.gpu_type or "") for node in spec.nodes)
