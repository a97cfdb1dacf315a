"""Checks how much of a decision is feasible: which jobs start, which are requeued first, which have to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from slurmsched.rounds.scope import EligibleNodeCache
from slurmsched.rounds.specs import pinned_spec

Amounts = Counter[str]
"""Amounts of CPUs, memory (MiB), and of each GPU in its shards (one if it has none), under the keys below."""

_CPUS: Final = "cpus"
_MEMORY: Final = "memory"
_GPU: Final = "gpu:"
"""Followed by a GPU's index."""


@dataclass(slots=True)
class _Part:
    """Resources on one node. The `occupant` has to leave first; it is empty for what is free now."""

    occupant: JobId
    amounts: Amounts


class PlannedResources:
    """Resources that are free or will be released, allocated so that each allocation is met once its occupants left."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._nodes = snapshot, snapshot.nodes_by_name
        self._parts: dict[str, list[_Part]] = {}

    def release(self, job: JobId, allocations: Iterable[NodeAllocation]) -> None:
        """Let the resources of a job that may be requeued be allocated to starts that wait for it to leave."""
        for share in allocations:
            if share.node in self._nodes:
                self._parts_on(share.node).append(_Part(job, self._allocated_amounts(share)))

    def _parts_on(self, node: str) -> list[_Part]:
        """The parts of a node, made when it is first asked for: most rounds ask for few of thousands."""
        if node not in self._parts:
            self._parts[node] = [_Part("", _free_amounts(self._nodes[node]))]
        return self._parts[node]

    @cached_property
    def _known_devices(self) -> set[tuple[str, int]]:
        """The devices of which it is known who has them."""
        jobs = self._snapshot.jobs
        return {(share.node, index) for job in jobs for share in job.allocations for index in share.indices}

    def _allocated_amounts(self, allocation: NodeAllocation) -> Amounts:
        """What a running job's allocation releases. Where its GPUs are not known, they are ones in use of which nobody
        knows."""
        amounts = Counter({_CPUS: allocation.resources.cpus, _MEMORY: allocation.resources.memory})
        by_index = {gpu.index: gpu for gpu in self._nodes[allocation.node].gpus}
        indices = [index for index in allocation.indices if index in by_index]
        if not indices:
            unknown = [
                gpu.index
                for gpu in by_index.values()
                if gpu.used
                and allocation.gpu_type in ("", gpu.type)
                and (allocation.node, gpu.index) not in self._known_devices
            ]
            indices = unknown[: allocation.resources.gpus]
            self._known_devices.update((allocation.node, index) for index in indices)
        for index in indices:
            amounts[f"{_GPU}{index}"] += allocation.shards or max(by_index[index].shards, 1)
        return amounts

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
            if share.node not in self._nodes or not self._draw(share, victim_rank, drawn):
                undo()
                return None
        occupants = dict.fromkeys(part.occupant for part, _, _ in drawn if part.occupant)
        return tuple(occupants), undo

    def _draw(
        self,
        allocation: NodeAllocation,
        victim_rank: Callable[[JobId], int | None],
        drawn: list[tuple[_Part, str, int]],
    ) -> bool:
        there = self._parts_on(allocation.node)
        ranked = [(victim_rank(part.occupant) if part.occupant else -1, part) for part in there]
        usable = sorted(((rank, part) for rank, part in ranked if rank is not None), key=lambda entry: entry[0])
        parts = [part for _, part in usable]
        if allocation.shards:
            needs = [(f"{_GPU}{index}", allocation.shards) for index in allocation.indices]
        else:
            needs = _whole_gpus(self._nodes[allocation.node], allocation, parts)[: allocation.resources.gpus]
            if len(needs) < allocation.resources.gpus:
                return False
        needs += [(_CPUS, allocation.resources.cpus), (_MEMORY, allocation.resources.memory)]
        return all(_draw_amount(parts, kind, amount, drawn) for kind, amount in needs)


def _whole_gpus(node: Node, wanted: NodeAllocation, parts: Sequence[_Part]) -> list[tuple[str, int]]:
    """The GPUs of the wanted type, or of any, of which all is in these parts, each with its shards: those first that
    were foreseen, since others may start with parts of the rest, then those that the first parts have."""
    whole = list[tuple[bool, int, int, str, int]]()
    for gpu in node.gpus:
        kind, shards = f"{_GPU}{gpu.index}", max(gpu.shards, 1)
        holders = [(at, part.amounts[kind]) for at, part in enumerate(parts) if part.amounts[kind] > 0]
        if wanted.gpu_type in ("", gpu.type) and sum(amount for _, amount in holders) >= shards:
            whole.append((gpu.shards > 0 and gpu.index not in wanted.indices, holders[-1][0], gpu.index, kind, shards))
    return [(kind, shards) for _, _, _, kind, shards in sorted(whole)]


def _draw_amount(parts: Iterable[_Part], kind: str, needed: int, drawn: list[tuple[_Part, str, int]]) -> bool:
    """Draw from these parts in turn; False if they have less."""
    for part in parts:
        amount = min(needed, part.amounts[kind])
        if amount > 0:
            part.amounts[kind] -= amount
            drawn.append((part, kind, amount))
            needed -= amount
    return needed <= 0


def _free_amounts(node: Node) -> Amounts:
    free = Counter({_CPUS: max(node.free.cpus, 0), _MEMORY: max(node.free.memory, 0)})
    for gpu in node.gpus:
        free[f"{_GPU}{gpu.index}"] = (MILLI_PER_GPU - gpu.used) * max(gpu.shards, 1) // MILLI_PER_GPU
    return free


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
    check = _without_unordered(_FeasibilityPass(situation, decision, jobs, moves).check(starts))
    while in_vain := frozenset(
        job for job in moves if job in check.deferred or decision.victims.get(job) in check.deferred
    ):
        moves -= in_vain
        check = _without_unordered(_FeasibilityPass(situation, decision, jobs, moves).check(starts))
    return check


def _without_unordered(check: FeasibilityCheck) -> FeasibilityCheck:
    """Defer the starts that would follow one which does not happen: Slurm would choose other devices for them."""
    starts, deferred = check.starts, dict(check.deferred)
    while True:
        planned = {start.job.id for start in starts}
        unordered = [start for start in starts if not planned.issuperset(start.target.after)]
        if not unordered:
            return check if starts == check.starts else replace(check, starts=starts, deferred=deferred)
        deferred |= {start.job.id: Reason(ReasonCode.NO_ROOM, {"gpus": start.spec.gpus}) for start in unordered}
        starts = tuple(start for start in starts if start.job.id not in deferred)


def _ranks(decision: Decision) -> dict[JobId, int]:
    return {ranked.job: rank for rank, ranked in enumerate(decision.order)}


def _keeps_allocation(job: Job, target: Target) -> bool:
    """Whether a running job already has its target; Slurm chooses the devices, so only those of shards are compared:
    where others of the node would do, the job was not meant to leave its own."""
    return job.state is JobState.RUNNING and _allocation_key(job.allocations) == _allocation_key(target.allocations)


def _allocation_key(allocations: tuple[NodeAllocation, ...]) -> list[tuple[str, int, int, int, int, tuple[int, ...]]]:
    return sorted(
        (s.node, s.resources.gpus, s.resources.cpus, s.resources.memory, s.shards, s.indices if s.shards else ())
        for s in allocations
    )


class _FeasibilityPass:
    """One pass over the starts; `moves` are the running jobs that it may move."""

    def __init__(
        self, situation: Situation, decision: Decision, jobs: Mapping[JobId, Job], moves: Collection[JobId]
    ) -> None:
        self._situation, self._decision, self._moves = situation, decision, moves
        ranks = _ranks(decision)
        self._resources = PlannedResources(situation.snapshot)
        self._eligible_nodes = EligibleNodeCache(situation.snapshot, situation.open_nodes)
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
        feasible = tuple(map(self._once_left, (*at_once, *later)))
        return FeasibilityCheck(feasible, tuple(self._requeued), self._deferred)

    def _once_left(self, start: PlannedStart) -> PlannedStart:
        """The start, also after those whose devices Slurm might choose for it."""
        more = [job for job in start.target.once_left if job in self._requeued]
        return replace(start, gone=tuple(dict.fromkeys((*start.gone, *more)))) if more else start

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
        if not self._eligible_nodes.of(job).issuperset(start.spec.nodes):
            self._deferred[job.id] = Reason(ReasonCode.NO_ROOM, {"gpus": start.spec.gpus})
            return False
        return True

    def _feasible_starts(
        self, starts: list[PlannedStart], victim_rank: Callable[[PlannedStart], Callable[[JobId], int | None]]
    ) -> Iterator[PlannedStart]:
        nodes = self._situation.snapshot.nodes_by_name
        for start in starts:
            allocated = self._resources.allocate(_charged_allocations(start, nodes), victim_rank(start))
            if allocated is None:
                continue
            occupants, undo = allocated
            gone = dict.fromkeys((start.job.id, *occupants) if start.job.id in self._moves else occupants)
            limit = self._situation.max_moves
            if len(self._requeued.keys() | gone.keys()) > limit + self._decision.saved_moves:
                undo()
                self._deferred[start.job.id] = Reason(ReasonCode.MOVES_SPENT, {"limit": limit})
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


def _charged_allocations(start: PlannedStart, nodes: Mapping[str, Node]) -> tuple[NodeAllocation, ...]:
    """The allocations as Slurm charges them: with the same memory on every node, where the job asks for it by node, and
    as many CPUs on each, where these have as many GPUs and count CPUs in the same units."""
    spec, shares = start.spec, start.target.allocations
    units = {nodes[share.node].cpu_unit for share in shares if share.node in nodes}
    cpus = 0 if spec.gpus_per_node is None or len(units) > 1 else spec.cpus
    memory, charged = 0 if spec.keeps_memory else spec.memory, list[NodeAllocation]()
    for share in shares:
        has = share.resources
        least = replace(has, cpus=max(has.cpus, cpus), memory=max(has.memory, memory))
        charged.append(share if least == has else replace(share, resources=least))
    return tuple(charged)
