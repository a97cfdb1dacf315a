"""How the operations of a plan hang together, computed once for a plan of tens of thousands of them. Pure.

Operations are identified by their index in `Plan.operations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from slurmsched.model import JobId, JobSpec, Operation, Plan, ReasonCode, Verb

_OF_ARRAYS: Final = frozenset({Verb.HOLD, Verb.RELEASE})
"""What is done to tasks of an array in one command."""


@dataclass(frozen=True)
class PlanStructure:
    """What a plan's progress looks up again and again, and that does not change as the plan is applied."""

    plan: Plan

    @cached_property
    def starts(self) -> Mapping[JobId, int]:
        """The index of each job's RELEASE."""
        return {op.subject: i for i, op in enumerate(self.plan.operations) if op.verb is Verb.RELEASE}

    @cached_property
    def requeues(self) -> Mapping[JobId, int]:
        """The index of each job's REQUEUE."""
        return {op.subject: i for i, op in enumerate(self.plan.operations) if op.verb is Verb.REQUEUE}

    @cached_property
    def by_subject(self) -> Mapping[str, tuple[Operation, ...]]:
        """The operations on each subject, in order."""
        grouped: dict[str, list[Operation]] = {}
        for operation in self.plan.operations:
            grouped.setdefault(operation.subject, []).append(operation)
        return {subject: tuple(operations) for subject, operations in grouped.items()}

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each operation the indices of the earlier ones of its subject."""
        by_subject: dict[str, list[int]] = {}
        before = []
        for index, operation in enumerate(self.plan.operations):
            earlier = by_subject.setdefault(operation.subject, [])
            before.append(tuple(earlier))
            earlier.append(index)
        return tuple(before)

    @cached_property
    def costs(self) -> tuple[float, ...]:
        """For each operation how many commands it takes, on average: tasks of one array are held together, and released
        together where nothing else is done to them before."""
        arrays = [
            (operation.verb, operation.subject.partition("_")[0])
            if operation.verb in _OF_ARRAYS and "_" in operation.subject and not before
            else None
            for operation, before in zip(self.plan.operations, self.dependencies, strict=True)
        ]
        tasks = Counter(array for array in arrays if array is not None)
        return tuple([1.0 if array is None else 1 / tasks[array] for array in arrays])

    def cost_of(self, indices: Iterable[int]) -> float:
        """How many commands these operations take."""
        return sum(self.costs[index] for index in indices)

    @cached_property
    def holds(self) -> tuple[int, ...]:
        """The index of each HOLD."""
        return tuple([i for i, op in enumerate(self.plan.operations) if op.verb is Verb.HOLD])

    @cached_property
    def beneficiaries(self) -> Mapping[JobId, tuple[int, ...]]:
        """For each preempted job the indices of the starts that need it gone; not its own, where it only makes room."""
        starts: dict[JobId, list[int]] = {job: [] for job in self.requeues}
        for index in self.starts.values():
            start = self.plan.operations[index]
            for job in start.gone:
                if job != start.subject or not self.only_makes_room(job):
                    starts.setdefault(job, []).append(index)
        return {job: tuple(indices) for job, indices in starts.items()}

    def only_makes_room(self, job: JobId) -> bool:
        """Returns whether the job moves for another one, and not for itself."""
        requeue = self.requeues.get(job)
        return requeue is not None and self.plan.operations[requeue].reason.code is ReasonCode.MAKES_ROOM

    @cached_property
    def nodes_of(self) -> Mapping[JobId, tuple[str, ...]]:
        """The nodes to which this plan pins each started job; empty if it does not."""
        nodes: dict[JobId, tuple[str, ...]] = dict.fromkeys(self.starts, ())
        nodes.update((op.subject, _pin(op)) for op in self.plan.operations if op.verb is Verb.UPDATE)
        return nodes


def _pin(operation: Operation) -> tuple[str, ...]:
    return operation.after.nodes if isinstance(operation.after, JobSpec) else ()
