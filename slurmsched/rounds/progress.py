"""How far a plan has come: what may be done now, whether all has settled, what to take back. Pure.

Operations are named by their place in `Plan.operations`. An operation depends on the earlier ones of its subject: a
RELEASE on its RESHAPE, a REQUEUE on its NOTIFY. A preemption is done only while it still helps somebody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from slurmsched.model import Code, Job, JobId, JobState, NodeState, Operation, Plan, Result, Shape, Snapshot, Verb

__all__ = ["Done", "Progress", "ready", "settled"]

_HAS_RESOURCES = frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})
_PREEMPTING = frozenset({Verb.NOTIFY, Verb.REQUEUE})


@dataclass(frozen=True, slots=True)
class Done:
    """How an operation ended, and when (unix seconds)."""

    result: Result
    at: float


@dataclass(frozen=True)
class Progress:
    """A plan, what of it is done, and the cluster now."""

    plan: Plan
    done: Mapping[int, Done]
    snapshot: Snapshot
    now: float
    saved: frozenset[JobId] = frozenset()
    """Jobs that say that they have written their checkpoint: their lead need not be waited for."""

    def ready(self) -> tuple[int, ...]:
        """What may be executed now, as one batch, in order."""
        return tuple(
            index for index in range(len(self.plan.operations)) if index not in self.done and self._may_go(index)
        )

    def settled(self) -> bool:
        """Nothing is left to do, and every job that was started runs or is gone."""
        open_ones = (i for i in range(len(self.plan.operations)) if i not in self.done and not self.hopeless(i))
        return next(open_ones, None) is None and not any(self.has_not_started(i) for i in self.starts.values())

    def hopeless(self, index: int) -> bool:
        """Whether it can never be done: not permitted, what it depends on went wrong, or nobody needs it any more."""
        operation = self.plan.operations[index]
        if not operation.permitted or any(self._breaks(i) for i in self._before[index]):
            return True
        if operation.verb is Verb.NOTIFY and operation.subject not in self.requeues:
            return not self._runs(operation.subject)  # it is requeued in a later round
        if operation.verb in _PREEMPTING:
            serves = any(self._still_wanted(i) for i in self._served.get(operation.subject, ()))
            return not serves or not self._runs(operation.subject)
        if operation.verb is Verb.RELEASE:
            return not self._still_wanted(index)
        return False

    @cached_property
    def starts(self) -> dict[JobId, int]:
        """The place of each job's RELEASE."""
        return {op.subject: i for i, op in enumerate(self.plan.operations) if op.verb is Verb.RELEASE}

    @cached_property
    def requeues(self) -> dict[JobId, int]:
        """The place of each job's REQUEUE."""
        return {op.subject: i for i, op in enumerate(self.plan.operations) if op.verb is Verb.REQUEUE}

    def succeeded(self, index: int) -> bool:
        return index in self.done and self.done[index].result is Result.DONE

    def has_not_started(self, index: int) -> bool:
        """Whether the job of this RELEASE was let go and has not got its resources."""
        job = self._job(self.plan.operations[index].subject)
        return self.succeeded(index) and job is not None and job.state is JobState.PENDING

    def has_left(self, job_id: JobId) -> bool:
        """Whether the job has given back what it had when the plan was made."""
        job = self._job(job_id)
        if self._is_unread(job_id):
            return False
        if job is None or job.state not in _HAS_RESOURCES:
            return True
        # A moved job that runs again was away in between: it is released only once it had left.
        return job_id in self.starts and self.succeeded(self.starts[job_id])

    def _may_go(self, index: int) -> bool:
        operation = self.plan.operations[index]
        return (
            not self.hopeless(index)
            and all(self.succeeded(i) for i in self._before[index])
            and all(self.has_left(job) for job in operation.gone)
            and self._lead_is_over(index)
        )

    def _lead_is_over(self, index: int) -> bool:
        if self.plan.operations[index].subject in self.saved:
            return True
        notified = (i for i in self._before[index] if self.plan.operations[i].verb is Verb.NOTIFY)
        return all(self.done[i].at + self.plan.operations[index].lead <= self.now for i in notified)

    def _went_wrong(self, index: int) -> bool:
        return not self.plan.operations[index].permitted or (index in self.done and not self.succeeded(index))

    def _breaks(self, index: int) -> bool:
        """Whether what depends on this can never be done."""
        return self._went_wrong(index) or (index not in self.done and self.hopeless(index))

    def _stays(self, job_id: JobId) -> bool:
        """Whether the job keeps its resources because it could not be requeued.

        So does one that cannot be read any more and was not requeued before: it is no victim until it can be.
        """
        index = self.requeues.get(job_id)
        if self._is_unread(job_id):
            return index is None or not self.succeeded(index)
        if index is None or not self._runs(job_id) or self.has_left(job_id):
            return False
        return self._went_wrong(index) or any(self._went_wrong(i) for i in self._before[index])

    def _still_wanted(self, index: int) -> bool:
        """Whether this start can still happen: its job waits or is about to move, its nodes are up, nobody refused."""
        operation = self.plan.operations[index]
        job = self._job(operation.subject)
        if job is None and operation.reason.code is Code.GIVE_BACK:
            return self._is_unread(operation.subject)  # it is let go by its number alone
        if job is None or not (job.state is JobState.PENDING or job.id in operation.gone):
            return False
        if any(self._went_wrong(i) for i in self._before[index]) or any(self._stays(other) for other in operation.gone):
            return False
        nodes = (self.snapshot.node.get(name) for name in self._nodes_of[job.id])
        return all(node is not None and node.state is NodeState.UP for node in nodes)

    def _is_unread(self, job_id: JobId) -> bool:
        """Whether the job is there and set aside, so that nothing is known of where it stands."""
        return job_id not in self.snapshot.job and not self.snapshot.is_gone(job_id)

    def _runs(self, job_id: JobId) -> bool:
        job = self._job(job_id)
        return job is not None and job.state in (JobState.RUNNING, JobState.SUSPENDED)

    def _job(self, job_id: JobId) -> Job | None:
        job = self.snapshot.job.get(job_id)
        return None if job is None or job.state is JobState.FINISHED else job

    @cached_property
    def _before(self) -> tuple[tuple[int, ...], ...]:
        """For each operation the earlier ones of its subject."""
        by_subject: dict[str, list[int]] = {}
        before = []
        for index, operation in enumerate(self.plan.operations):
            earlier = by_subject.setdefault(operation.subject, [])
            before.append(tuple(earlier))
            earlier.append(index)
        return tuple(before)

    @cached_property
    def _served(self) -> dict[JobId, tuple[int, ...]]:
        """For each preempted job the starts that need it gone."""
        served: dict[JobId, tuple[int, ...]] = dict.fromkeys(self.requeues, ())
        for index in self.starts.values():
            for job in self.plan.operations[index].gone:
                served[job] = (*served.get(job, ()), index)
        return served

    @cached_property
    def _nodes_of(self) -> dict[JobId, tuple[str, ...]]:
        """Where each started job is to run, as far as this plan pins it."""
        nodes: dict[JobId, tuple[str, ...]] = dict.fromkeys(self.starts, ())
        nodes.update((op.subject, _pin(op)) for op in self.plan.operations if op.verb is Verb.RESHAPE)
        return nodes


def ready(plan: Plan, done: Mapping[int, Done], snapshot: Snapshot, now: float) -> tuple[int, ...]:
    """The places of the operations that may be executed now, in order. Ask again after each batch."""
    return Progress(plan, done, snapshot, now).ready()


def settled(plan: Plan, done: Mapping[int, Done], snapshot: Snapshot, now: float) -> bool:
    """Whether the plan is through: everything done or hopeless, and all that was started runs."""
    return Progress(plan, done, snapshot, now).settled()


def _pin(operation: Operation) -> tuple[str, ...]:
    return operation.after.nodes if isinstance(operation.after, Shape) else ()
