"""Checks how much of a decision is feasible: which jobs start, which are requeued first, which have to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from slurmsched.model import (
    MILLI_PER_GPU,
    Decision,
    Job,
    JobId,
    JobSpec,
    JobState,
    Node,
    NodeAllocation,
    Reason,
    ReasonCode,
    Snapshot,
    Target,
)
from slurmsched.policies.stages import Situation
from slurmsched.rounds.scope import eligible_nodes
from slurmsched.rounds.specs import pinned_spec

Amounts = Counter[str]
"""Amounts of CPUs, memory (MiB), GPUs by type and shards by device, under the keys below."""

_CPUS: Final = "cpus"
_MEMORY: Final = "memory"
_GPUS: Final = "gpus:"
_SHARDS: Final = "shards:"
"""Followed by a GPU's index: the free shards of that GPU."""


@dataclass(slots=True)
class _Part:
    """Resources on one node. The jobs in `occupants` all have to leave first; it is empty for what is free now."""

    occupants: tuple[JobId, ...]
    amounts: Amounts


class PlannedResources:
    """Resources that are free or will be released, allocated so that each allocation is met once its occupants left."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = snapshot.nodes_by_name
        self._released_shards: dict[tuple[str, int], list[tuple[JobId, int]]] = {}
        self._parts = {node.name: [_Part((), _free_amounts(node))] for node in snapshot.nodes}

    def release(self, job: JobId, allocations: Iterable[NodeAllocation]) -> None:
        """Let the resources of a job that may be requeued be allocated to starts that wait for it to leave."""
        for share in allocations:
            if share.node in self._parts:
                self._parts[share.node].append(_Part((job,), _allocated_amounts(share, self._nodes[share.node])))
                self._restore_whole_gpus(job, share)

    def _restore_whole_gpus(self, job: JobId, allocation: NodeAllocation) -> None:
        """Add a whole GPU once all jobs that share it in shards may leave."""
        node = self._nodes[allocation.node]
        for gpu in (gpu for gpu in node.gpus if allocation.shards and gpu.index in allocation.indices):
            leaving = self._released_shards.setdefault((node.name, gpu.index), [])
            leaving.append((job, allocation.shards))
            if MILLI_PER_GPU * sum(shards for _, shards in leaving) // gpu.shards >= gpu.used:
                occupants = tuple(occupant for occupant, _ in leaving)
                self._parts[node.name].append(_Part(occupants, Counter({_GPUS + gpu.type: 1})))

    def allocate(
        self, allocations: Sequence[NodeAllocation], victim_rank: Callable[[JobId], int | None]
    ) -> tuple[tuple[JobId, ...], Callable[[], None]] | None:
        """Take the resources, first from what is free now, then from jobs of lowest `victim_rank` (None: never).

        Returns the jobs that have to leave first and a function that undoes the allocation; None, with nothing
        taken, if it does not fit.
        """
        drawn: list[tuple[_Part, str, int]] = []

        def undo() -> None:
            for part, kind, amount in drawn:
                part.amounts[kind] += amount

        for share in allocations:
            if not self._draw(share, victim_rank, drawn):
                undo()
                return None
        occupants = dict.fromkeys(occupant for part, _, _ in drawn for occupant in part.occupants)
        return tuple(occupants), undo

    def _draw(
        self,
        allocation: NodeAllocation,
        victim_rank: Callable[[JobId], int | None],
        drawn: list[tuple[_Part, str, int]],
    ) -> bool:
        if allocation.node not in self._parts:
            return False
        ranked_parts = [
            (_highest_victim_rank(part.occupants, victim_rank), index, part)
            for index, part in enumerate(self._parts[allocation.node])
        ]
        parts = [part for rank, _, part in sorted((r, p, q) for r, p, q in ranked_parts if r is not None)]
        if allocation.shards and not self._draw_shards(allocation, drawn):
            return False
        for kinds, wanted in _needed_amounts(allocation, self._nodes[allocation.node]):
            needed = wanted
            for part in parts:
                for kind in kinds:
                    amount = min(needed, part.amounts[kind])
                    if amount > 0:
                        part.amounts[kind] -= amount
                        drawn.append((part, kind, amount))
                        needed -= amount
            if needed:
                return False
        return True

    def _draw_shards(self, allocation: NodeAllocation, drawn: list[tuple[_Part, str, int]]) -> bool:
        """Draw the shards from their planned GPU: one that is partly free, or idle and then cut into shards."""
        free, node = self._parts[allocation.node][0], self._nodes[allocation.node]
        for index in allocation.indices:
            kind, device = f"{_SHARDS}{index}", next((gpu for gpu in node.gpus if gpu.index == index), None)
            if device is None:
                return False
            if kind not in free.amounts and free.amounts[_GPUS + device.type] > 0:
                drawn += [(free, _GPUS + device.type, 1), (free, kind, -device.shards)]
                free.amounts[_GPUS + device.type] -= 1
                free.amounts[kind] += device.shards
            if free.amounts[kind] < allocation.shards:
                return False
            free.amounts[kind] -= allocation.shards
            drawn.append((free, kind, allocation.shards))
        return True


def _highest_victim_rank(occupants: Iterable[JobId], victim_rank: Callable[[JobId], int | None]) -> int | None:
    """The highest rank among them; -1 for free resources, None if one of them may never leave."""
    ranks = [victim_rank(occupant) for occupant in occupants]
    return None if None in ranks else max((rank for rank in ranks if rank is not None), default=-1)


def _free_amounts(node: Node) -> Amounts:
    free = Counter({_CPUS: max(node.free.cpus, 0), _MEMORY: max(node.free.memory, 0)})
    free.update(_GPUS + gpu.type for gpu in node.gpus if gpu.idle)
    free.update(
        {
            f"{_SHARDS}{g.index}": (MILLI_PER_GPU - g.used) * g.shards // MILLI_PER_GPU
            for g in node.gpus
            if g.shards and g.used
        }
    )
    return free


def _allocated_amounts(allocation: NodeAllocation, node: Node) -> Amounts:
    """What a running job's allocation releases; the types of its GPUs are looked up by index where they are missing."""
    amounts = Counter({_CPUS: allocation.resources.cpus, _MEMORY: allocation.resources.memory})
    types = {gpu.index: gpu.type for gpu in node.gpus}
    if allocation.shards:
        amounts.update({f"{_SHARDS}{index}": allocation.shards for index in allocation.indices})
        return amounts
    if allocation.gpu_type or len(allocation.indices) != allocation.resources.gpus:
        amounts[_GPUS + (allocation.gpu_type or _only_type(node))] += allocation.resources.gpus
    else:
        amounts.update(_GPUS + types.get(index, "") for index in allocation.indices)
    return amounts


def _needed_amounts(allocation: NodeAllocation, node: Node) -> tuple[tuple[tuple[str, ...], int], ...]:
    """The amounts of an allocation, scarcest first; GPUs without a type may be of any type."""
    types = (allocation.gpu_type,) if allocation.gpu_type else tuple(sorted(node.gpu_types))
    return (
        (tuple(_GPUS + gpu_type for gpu_type in types), allocation.resources.gpus),
        ((_CPUS,), allocation.resources.cpus),
        ((_MEMORY,), allocation.resources.memory),
    )


def _only_type(node: Node) -> str:
    return next(iter(node.gpu_types)) if len(node.gpu_types) == 1 else ""


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A job that gets its target once the jobs in `gone` have left, itself included if it is moved."""

    job: Job
    target: Target
    spec: JobSpec
    gone: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class FeasibilityCheck:
    """What can be done of a decision: `starts` in its order, those on free resources first, and jobs to requeue.

    `deferred` are targets left for a later round. `notified` are jobs that are only told to write their checkpoint,
    each with the jobs that it gives way to in a later round.
    """

    starts: tuple[PlannedStart, ...]
    requeued: tuple[JobId, ...]
    deferred: Mapping[JobId, Reason]
    notified: Mapping[JobId, tuple[JobId, ...]] = field(default_factory=dict)


def check_feasible(situation: Situation, decision: Decision) -> FeasibilityCheck:
    """Return what can be done of the decision without overcommitting a node or moving a non-preemptible job."""
    jobs = {job.id: situation.snapshot.jobs_by_id.get(job.id, job) for job in situation.jobs}
    ranks = _ranks(decision)
    starts = [
        PlannedStart(
            jobs[target.job],
            target,
            pinned_spec(target.allocations, jobs[target.job].original_request, situation.snapshot.nodes_by_name),
        )
        for target in sorted(decision.targets.values(), key=lambda target: ranks.get(target.job, len(ranks)))
        if target.job in jobs and not _keeps_allocation(jobs[target.job], target)
    ]
    moves = frozenset(start.job.id for start in starts if start.job.state is JobState.RUNNING)
    check = _FeasibilityPass(situation, decision, jobs, moves).check(starts)
    if moves and check.deferred:
        check = _FeasibilityPass(situation, decision, jobs, frozenset()).check(starts)
    return check


def _ranks(decision: Decision) -> dict[JobId, int]:
    return {ranked.job: rank for rank, ranked in enumerate(decision.order)}


def _keeps_allocation(job: Job, target: Target) -> bool:
    """Whether a running job already has its target; Slurm chooses the devices, so they are not compared."""
    return job.state is JobState.RUNNING and _allocation_key(job.allocations) == _allocation_key(target.allocations)


def _allocation_key(allocations: tuple[NodeAllocation, ...]) -> list[tuple[str, int, int, int]]:
    return sorted((s.node, s.resources.gpus, s.resources.cpus, s.resources.memory) for s in allocations)


class _FeasibilityPass:
    """One pass over the starts; `moves` are the running jobs that it may move."""

    def __init__(
        self, situation: Situation, decision: Decision, jobs: Mapping[JobId, Job], moves: Collection[JobId]
    ) -> None:
        self._situation, self._decision, self._moves = situation, decision, moves
        ranks = _ranks(decision)
        self._resources = PlannedResources(situation.snapshot)
        self._requeued: dict[JobId, None] = {}
        self._deferred: dict[JobId, Reason] = {}
        self._movable = frozenset(job.id for job in jobs.values() if self._may_be_requeued(job))
        for job in sorted(self._movable, key=lambda job: (-ranks.get(job, len(ranks)), job)):
            self._resources.release(job, jobs[job].allocations)  # among equals the last in the order gives way first

    def check(self, starts: list[PlannedStart]) -> FeasibilityCheck:
        allowed = [start for start in starts if self._is_allowed(start)]
        moved = [start for start in allowed if start.job.id in self._moves]
        waiting = [start for start in allowed if start.job.id not in self._moves]
        at_once = list(self._feasible_starts(waiting, lambda _: lambda _: None))
        started = {start.job.id for start in at_once}
        rest = moved + [start for start in waiting if start.job.id not in started]
        later = list(self._feasible_starts(rest, self._victim_rank))
        planned = started | {start.job.id for start in later}
        for start in rest:
            if start.job.id not in planned:
                self._deferred.setdefault(start.job.id, Reason(ReasonCode.NO_ROOM, {"gpus": start.spec.gpus}))
        return FeasibilityCheck((*at_once, *later), tuple(self._requeued), self._deferred)

    def _may_be_requeued(self, job: Job) -> bool:
        if job.state is not JobState.RUNNING or job.id in self._situation.non_preemptible:
            return False
        return job.id in self._moves or (job.id in self._decision.victims and job.id not in self._decision.targets)

    def _is_allowed(self, start: PlannedStart) -> bool:
        job, situation = start.job, self._situation
        if job.state is JobState.RUNNING and job.id not in self._movable:
            self._deferred[job.id] = situation.non_preemptible.get(
                job.id, Reason(ReasonCode.NO_ROOM, {"gpus": start.spec.gpus})
            )
            return False
        if not set(start.spec.nodes) <= eligible_nodes(job, situation.snapshot, situation.open_nodes):
            self._deferred[job.id] = Reason(ReasonCode.NO_ROOM, {"gpus": start.spec.gpus})
            return False
        return True

    def _feasible_starts(
        self, starts: list[PlannedStart], victim_rank: Callable[[PlannedStart], Callable[[JobId], int | None]]
    ) -> Iterator[PlannedStart]:
        for start in starts:
            allocated = self._resources.allocate(_charged_allocations(start), victim_rank(start))
            if allocated is None:
                continue
            occupants, undo = allocated
            gone = dict.fromkeys((start.job.id, *occupants) if start.job.id in self._moves else occupants)
            if len(self._requeued.keys() | gone.keys()) > self._situation.max_moves:
                undo()
                self._deferred[start.job.id] = Reason(ReasonCode.MOVES_SPENT, {"limit": self._situation.max_moves})
                continue
            self._requeued |= gone
            yield replace(start, gone=tuple(gone))

    def _victim_rank(self, start: PlannedStart) -> Callable[[JobId], int | None]:
        """Rank victims for a start: the job itself, then jobs that leave anyway, then its victims in the decision."""

        def rank_of(job: JobId) -> int:
            if job == start.job.id:
                return 0
            if job in self._requeued:
                return 1
            return 2 if self._decision.victims.get(job) == start.job.id else 3

        return rank_of


def _charged_allocations(start: PlannedStart) -> tuple[NodeAllocation, ...]:
    """The allocations as Slurm charges them: with the same memory on every node."""
    return tuple(
        replace(share, resources=replace(share.resources, memory=start.spec.memory))
        for share in start.target.allocations
    )
