"""Sizing: how many CPUs and how much memory a job gets with its GPUs.

A sizing says what would be best; `demand_range` and `size_upgrades` keep it to what the job lets be done: never less
than it asked for, unless its owner's hint allows that and the speed of its model was measured, or earlier runs of the
same work left CPUs idle, which it may then lose down to its share, or it lends what is above its share (`lends_cpus`);
and only amounts that its request can express, since its script sees how it asked (memory per CPU grows with the CPUs,
the rest stays).

Source: Mohan et al. (Synergy, OSDI 2022), sections 2, 4.1.3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Final, Protocol

import numpy as np

from slurmsched.knowledge.speed import SensitivityMatrix
from slurmsched.knowledge.usage import rising_to
from slurmsched.policies.cluster.cpu_units import Amount, CpuUnits
from slurmsched.policies.cluster.gang import Gang
from slurmsched.policies.cluster.resources import PoolKind
from slurmsched.policies.limits import ResourceCap


@dataclass(frozen=True, slots=True)
class PerTaskResources:
    """CPUs and MiB for each part of a gang, as it asks for them. CPUs are a multiple of the tasks of a part."""

    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class DemandRange:
    """What each part of a gang should have on nodes of one kind, and the least it accepts there.

    `most` is what limits of its owner let each part have; None: anything.
    """

    best: PerTaskResources
    minimum: PerTaskResources
    most: PerTaskResources | None = None


SizeUpgrade = tuple[PerTaskResources, float]
"""More resources per part, and the speed they add, as a multiple of the speed at the proportional share; infinite for
what a job should have before others get more than their share, which tells nothing of its speed."""


class Sizing(Protocol):
    """Sizes a gang's CPUs and memory."""

    @property
    def name(self) -> str:
        """A short name: `tune`."""

    @property
    def by_sensitivity(self) -> bool:
        """Whether a job with a profile gets what its sensitivity says."""

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        """Return what the gang should have, and the least it accepts, on nodes of this kind."""

    def upgrades(
        self, gang: Gang, kind: PoolKind, current: PerTaskResources, limit: PerTaskResources
    ) -> Iterator[SizeUpgrade]:
        """Yield sizes above `current` and up to `limit` that make the gang faster; none where more has no effect."""


def proportional_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """Return the GPU-proportional share of each part: whole CPUs per task, rounded down, at least 1 per task.

    Where Slurm gives whole cores or sockets, it is the share that a node's parts have of those together.
    """
    parts = _most_parts(gang, kind)
    share = kind.cpus * gang.gpus_per_part * parts // kind.gpus
    cpus = kind.cpu_units(gang.request.threads_per_core).within(share) // parts
    return PerTaskResources(
        max(cpus // gang.tasks_per_part, 1) * gang.tasks_per_part, kind.memory * gang.gpus_per_part // kind.gpus
    )


def requested_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """Return what the job requested; without a memory request the proportional share.

    The memory of a job that does not let it be tuned is in `Gang.memory_per_node`, so it is 0 here.
    """
    share, asked = proportional_size(gang, kind).memory, -(-gang.request.memory * gang.min_nodes // gang.parts)
    return PerTaskResources(_requested_cpus(gang), 0 if gang.memory_per_node else asked or share)


def _requested_cpus(gang: Gang) -> int:
    return -(-gang.request.cpus // gang.parts // gang.tasks_per_part) * gang.tasks_per_part


def demand_range(sizing: Sizing, gang: Gang, kind: PoolKind) -> DemandRange:
    """Return the gang's demand range on nodes of this kind. Jobs without whole GPUs get the CPUs that they ask for."""
    if gang.gpus_per_part:
        nothing = PerTaskResources(0, 0)
        if not kind.gpus:
            return DemandRange(nothing, nothing)
        demand = sizing.demand_range(gang, kind)
        least = proportional_size(gang, kind).memory
        most = _exclusive_size(gang, kind).memory if gang.profile else least
        returns = sizing.by_sensitivity  # the other sizings never give CPUs back
        best, minimum = (_allowed_size(gang, kind, size, returns=returns) for size in (demand.best, demand.minimum))
        return DemandRange(expressible_size(gang, best, most), expressible_size(gang, minimum, least))
    asked = PerTaskResources(max(_requested_cpus(gang), gang.tasks_per_part), 0)
    return DemandRange(asked, asked)


def size_upgrades(
    sizing: Sizing, gang: Gang, kind: PoolKind, current: PerTaskResources, limit: PerTaskResources
) -> Iterator[SizeUpgrade]:
    """Yield the sizing's steps above `current` and up to `limit` that the job's request and hint allow."""
    per_cpu = gang.request.memory_per_cpu
    if gang.request.keeps_cpus or gang.cpus_tunable is False:
        return
    if gang.profile is None:
        share = max(current.memory, proportional_size(gang, kind).memory)
        limit = replace(limit, memory=min(limit.memory, share))
    if per_cpu:
        affordable = limit.memory // per_cpu // gang.tasks_per_part * gang.tasks_per_part
        limit = replace(limit, cpus=min(limit.cpus, affordable))
    for size, faster in sizing.upgrades(gang, kind, current, limit):
        step = expressible_size(gang, size, limit.memory)
        if step.cpus > current.cpus or step.memory > current.memory:
            yield step, faster


def lends_cpus(gang: Gang, kind: PoolKind) -> bool:
    """Return whether the gang may have fewer CPUs than it asked for, down to its share, whatever it could use.

    GPUs that lack CPUs are idle, while CPUs above a share bring their job less than a GPU. Only a job that writes a
    checkpoint lends them, as it takes a restart to get them back, and only where accounting tells of runs of the same
    work, since its next runs then show whether it lacked some. With a hint about CPUs the owner has decided, and with
    memory per CPU the job would lose memory too.
    """
    measured = gang.profile is not None and gang.profile.same_work
    if not measured or not gang.has_checkpoint or not _leaves_cpus_open(gang):
        return False
    return _requested_cpus(gang) > proportional_size(gang, kind).cpus


def _leaves_cpus_open(gang: Gang) -> bool:
    """Whether the owner said nothing of CPUs beyond their number."""
    return gang.cpus_tunable is None and not gang.request.memory_per_cpu


def _allowed_size(gang: Gang, kind: PoolKind, size: PerTaskResources, *, returns: bool) -> PerTaskResources:
    """Return the size with no less than the job asked for, except where its hint and a measurement allow less, or it
    lends CPUs; `returns` says that the sizing gives those back."""
    asked, matrix = requested_size(gang, kind), gang.profile.matrix(kind.gpu_type) if gang.profile else None
    measured = gang.profile is not None and gang.profile.was_measured
    cuts_memory = measured and gang.memory_tunable and matrix is not None and matrix.knows_memory
    cuts_cpus = measured and gang.cpus_tunable is True and (cuts_memory or not gang.request.memory_per_cpu)
    spares = gang.profile is not None and gang.profile.spares and _leaves_cpus_open(gang)
    least = asked.cpus
    if spares and gang.has_checkpoint and returns:
        least = min(least, size.cpus)  # what three of its runs proved to be enough; a restart gives back the others
    elif spares or (returns and lends_cpus(gang, kind)):
        least = min(least, proportional_size(gang, kind).cpus)
    cpus = size.cpus if cuts_cpus else max(size.cpus, least)
    memory = size.memory if cuts_memory or not gang.request.memory else max(size.memory, asked.memory)
    return PerTaskResources(asked.cpus if gang.cpus_tunable is False else cpus, memory)


def expressible_size(gang: Gang, size: PerTaskResources, most_memory: int) -> PerTaskResources:
    """Return the size as the request can express it. CPUs that bring memory are added up to `most_memory`, in MiB."""
    request, asked = gang.request, _requested_cpus(gang)
    cpus = size.cpus
    if request.keeps_cpus:
        cpus = -(-request.cpus // gang.parts) if request.cpus_per_gpu else asked
    if request.memory_unscheduled:
        return PerTaskResources(cpus, 0)
    if request.memory_per_gpu:
        return PerTaskResources(cpus, request.memory_per_gpu * gang.gpus_per_part)
    if request.memory_per_cpu:
        affordable = most_memory // request.memory_per_cpu // gang.tasks_per_part * gang.tasks_per_part
        cpus = min(cpus, max(affordable, asked))
        return PerTaskResources(cpus, request.memory_per_cpu * cpus)
    return PerTaskResources(cpus, 0 if request.whole_memory else size.memory)


_ANY_AMOUNT: Final = 2**62


def capped_range(demand: DemandRange, gang: Gang, cap: ResourceCap | None) -> DemandRange:
    """Return the range within what limits let the gang have, which is never less than it asks for."""
    if cap is None or not gang.gpus_per_part:
        return demand
    tasks = gang.tasks_per_part
    cpus = _most_of_part(cap.cpus, cap.cpus_per_node, gang)
    memory = _most_of_part(cap.memory, cap.memory_per_node, gang)
    most = PerTaskResources(
        max(cpus // tasks * tasks, _requested_cpus(gang)),
        max(memory, -(-gang.request.memory * gang.min_nodes // gang.parts)),
    )
    best, least = (
        expressible_size(gang, PerTaskResources(min(size.cpus, most.cpus), min(size.memory, most.memory)), most.memory)
        for size in (demand.best, demand.minimum)
    )
    return DemandRange(best, least, most)


def _most_of_part(of_job: int | None, on_node: int | None, gang: Gang) -> int:
    """Return what a part may have of a resource that is limited for the whole job and on a node."""
    shares = ((of_job, gang.parts), (on_node, gang.max_parts_per_node))
    return min((amount // parts for amount, parts in shares if amount is not None), default=_ANY_AMOUNT)


def resources_on_node(
    gang: Gang, cpus: Amount, memory: Amount, parts: int, *, memory_parts: int, units: CpuUnits[Amount]
) -> tuple[Amount, Amount]:
    """Return the CPUs and MiB that Slurm charges on a node with so many parts, each with these CPUs and MiB.

    CPUs are rounded once for the node. A gang that is on one node with what it asked for is charged exactly that, and
    not what that comes to by part. `memory_parts` are the most parts on any node where Slurm has one amount for all.
    """
    asked = cpus * parts
    if parts == gang.parts and (more := parts * _requested_cpus(gang) - gang.request.cpus) > 0:
        asked = asked - more * (cpus == _requested_cpus(gang))
    asked = _at_least(gang.cpus_per_node, asked)
    if per_cpu := gang.request.memory_per_cpu:
        return units.charged(asked), units.counted(asked) * per_cpu
    return units.charged(asked), _at_least(gang.memory_per_node, memory * memory_parts)


def _at_least(least: int, amount: Amount) -> Amount:
    return np.maximum(amount, least) if isinstance(amount, np.ndarray) else max(amount, least)


class _NoUpgrades:
    """Sizings whose best is their minimum: a job has nothing to gain from spare resources."""

    __slots__ = ()
    by_sensitivity = False

    def upgrades(
        self,
        gang: Gang,  # noqa: ARG002 as the protocol has it
        kind: PoolKind,  # noqa: ARG002
        current: PerTaskResources,  # noqa: ARG002
        limit: PerTaskResources,  # noqa: ARG002
    ) -> Iterator[SizeUpgrade]:
        return iter(())


@dataclass(frozen=True, slots=True)
class AsRequested(_NoUpgrades):
    """CPUs and memory as requested. A job that requests no memory gets its proportional share; or, unless
    `shares_memory`, what Slurm gives it, which is not counted."""

    shares_memory: bool = True
    name: str = "as requested"

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        per_task = requested_size(gang, kind)
        if not self.shares_memory and not gang.request.memory:
            per_task = replace(per_task, memory=0)
        return DemandRange(per_task, per_task)


@dataclass(frozen=True, slots=True)
class Proportional(_NoUpgrades):
    """CPUs and memory in proportion to GPUs; memory is never below the request, unless the job lets it be tuned."""

    name: str = "proportional"

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        per_task = proportional_size(gang, kind)
        return DemandRange(per_task, per_task)


_MIN_GAIN: Final = 1e-6
"""Gains below this, as a part of the speed, are rounding errors."""


@dataclass(frozen=True, slots=True)
class Tune:
    """Synergy-Tune's sizes (section 4.2): a job with a profile should have its best-case demand, and accepts what is
    as fast as its GPU-proportional share.

    A job without a profile should have its share of CPUs, or what it asked for where that is more, before any job gets
    more than its least; it starts with what it asked for where others have its share, as it would on plain Slurm. A job
    that lends CPUs (`lends_cpus`) should have what it asked for before any gets more than its share, if runs used all
    that they had, or nobody knows what it needs on these GPUs.
    """

    name: str = "tune"
    by_sensitivity: bool = True

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        asked, share, node = requested_size(gang, kind), proportional_size(gang, kind), _exclusive_size(gang, kind)
        in_use = 0
        if gang.profile is not None and asked.memory:
            in_use = min(ceil(gang.profile.least_memory * gang.gpus_per_part), node.memory)
            asked = replace(asked, memory=max(asked.memory, in_use))
        matrix = _known_matrix(gang, kind)
        if not matrix:
            least = min(asked.cpus, share.cpus) if lends_cpus(gang, kind) else asked.cpus
            return DemandRange(replace(asked, cpus=max(asked.cpus, share.cpus)), replace(asked, cpus=least))
        floor = _rounded_size(gang, matrix.minimum_for_share(*_per_gpu(gang, share)), share)
        demand = _rounded_size(gang, matrix.best_case_demand(*_per_gpu(gang, node)), node)
        best = PerTaskResources(max(demand.cpus, floor.cpus), max(demand.memory, floor.memory))
        if gang.profile is not None and gang.profile.spares is not None:
            least = min(best.cpus, asked.cpus) if gang.profile.spares else asked.cpus
            floor = replace(floor, cpus=min(least, share.cpus) if lends_cpus(gang, kind) else least)
            if gang.cpus_tunable is None:  # what it asked for, as long as nobody needs it
                best = replace(best, cpus=max(best.cpus, asked.cpus))
        if matrix.knows_memory:  # of the cache, below which lies what processes have in use
            return DemandRange(*(replace(size, memory=max(size.memory, in_use)) for size in (best, floor)))
        return DemandRange(replace(best, memory=asked.memory), replace(floor, memory=asked.memory))

    def upgrades(
        self, gang: Gang, kind: PoolKind, current: PerTaskResources, limit: PerTaskResources
    ) -> Iterator[SizeUpgrade]:
        matrix, fair = _known_matrix(gang, kind), proportional_size(gang, kind)
        if not matrix:
            if (own := min(max(fair.cpus, _lent_in_need(gang, kind)), limit.cpus)) > current.cpus:
                yield replace(current, cpus=own), inf
            return
        if (own := min(_lent_in_need(gang, kind), limit.cpus)) > current.cpus:
            yield replace(current, cpus=own), inf
        now, share = matrix.speed_at(*_per_gpu(gang, current)), matrix.speed_at(*_per_gpu(gang, fair))
        fewest, (most, memory) = current.cpus / gang.gpus_per_part, _per_gpu(gang, limit)
        for cpus in (fewest, *(point for point in matrix.cpus if fewest < point < most), most):
            speed = matrix.speed_at(cpus, memory)
            if speed > now * (1 + _MIN_GAIN):
                step = _rounded_size(gang, matrix.minimum_for_speed(speed, cpus, memory), limit)
                enough = max(step.memory, current.memory) if matrix.knows_memory else current.memory
                yield PerTaskResources(max(step.cpus, current.cpus), enough), (speed - now) / share
        if (own := min(_lent_unproven(gang, kind), limit.cpus)) > current.cpus:
            yield replace(current, cpus=own), _MIN_GAIN


def _lent_in_need(gang: Gang, kind: PoolKind) -> int:
    """Return the CPUs that each part asked for, if it lends some and nothing tells that fewer are enough; else 0."""
    profile = gang.profile
    if profile is None or not lends_cpus(gang, kind):
        return 0
    enough = profile.spares or profile.suffices
    return 0 if enough and profile.matrix(kind.gpu_type) else requested_size(gang, kind).cpus


def _lent_unproven(gang: Gang, kind: PoolKind) -> int:
    """Return the CPUs that each part asked for, if it lends some and an average use is all that tells that fewer are
    enough, so that it should have them while nobody else gains by them; else 0."""
    proven = gang.profile is not None and gang.profile.spares
    return 0 if proven or not lends_cpus(gang, kind) else requested_size(gang, kind).cpus


def _known_matrix(gang: Gang, kind: PoolKind) -> SensitivityMatrix | None:
    """Return the matrix of the gang's model on these GPUs, if any.

    If it is only known that runs used all of their CPUs, a gang may use at least its share.
    """
    matrix = gang.profile and gang.profile.matrix(kind.gpu_type)
    if not matrix or gang.profile is None or gang.profile.spares is not False or gang.profile.suffices:
        return matrix or None
    share = proportional_size(gang, kind).cpus / gang.gpus_per_part
    return rising_to(share) if matrix.cpus[-1] < share else matrix


@dataclass(frozen=True, slots=True)
class Greedy(_NoUpgrades):
    """Synergy-Greedy, a baseline of the paper: a job gets its best-case demand, and waits until all of it is free."""

    name: str = "greedy"
    by_sensitivity: bool = True

    def demand_range(self, gang: Gang, kind: PoolKind) -> DemandRange:
        best = Tune().demand_range(gang, kind).best
        return DemandRange(best, best)


def _exclusive_size(gang: Gang, kind: PoolKind) -> PerTaskResources:
    """Return what each part has if the gang has its nodes to itself."""
    parts = _most_parts(gang, kind)
    cpus = kind.cpu_units(gang.request.threads_per_core).within(kind.cpus)
    return PerTaskResources(cpus // parts // gang.tasks_per_part * gang.tasks_per_part, kind.memory // parts)


def _most_parts(gang: Gang, kind: PoolKind) -> int:
    """Return the most parts that share one node of this kind."""
    return max(1, min(gang.max_parts_per_node, kind.gpus // gang.gpus_per_part))


def _per_gpu(gang: Gang, per_task: PerTaskResources) -> tuple[float, float]:
    return per_task.cpus / gang.gpus_per_part, per_task.memory / gang.gpus_per_part


def _rounded_size(gang: Gang, per_gpu: tuple[float, float], most: PerTaskResources) -> PerTaskResources:
    """Return the size of a part from CPUs and MiB per GPU: CPUs rounded up to its tasks, neither above `most`."""
    cpus, memory = (round(amount * gang.gpus_per_part, 6) for amount in per_gpu)
    return PerTaskResources(
        min(ceil(cpus / gang.tasks_per_part) * gang.tasks_per_part, most.cpus), min(ceil(memory), most.memory)
    )
