"""HadarE (Sultana et al., 2025, section V): the copies of a forked job are the tasks of a job array that its owner
submitted.

Hadar schedules all copies as jobs, each with its part of the work (section V-A). No two copies of a job run on one
node, and a node is idle only if no job has a step for it (theorem 3). The remaining steps are divided among the running
copies (section V-B); the job itself counts the steps done. A running copy without a step is not preempted, since that
would free no needed GPU. A waiting copy stays held if the running ones will finish before it could help. The rate on a
GPU type where a model never ran is estimated (equation 10) and corrected by measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import exp, floor, log, sqrt
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, JobState, NodeAllocation, Reason, ReasonCode
from slurmsched.policies.admit.allocate import AllocateFree
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.hadar.policy import HadarPrices
from slurmsched.policies.session import Session
from slurmsched.policies.stages import Entitlement, Situation


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A node's GPU: teraflops, memory in GB, and the factor of its PCIe version, at most 1.0."""

    tflops: float
    memory: float
    pcie_scaling: float = 1.0

    @property
    def performance_memory_index(self) -> float:
        """The Performance-Memory Index: teraflops per second over the square root of the memory."""
        return self.tflops / sqrt(self.memory)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Weight and data set on scales of 1 (small) to 4 (extra large), and the mini-batch size."""

    weight: float
    dataset: float
    batch: int


def estimate_throughput(model: ModelSpec, gpu: GpuSpec) -> float:
    """Returns the throughput by equation 10, in an unknown unit that is the same for all nodes and models."""
    return gpu.performance_memory_index * model.batch * gpu.pcie_scaling / (model.weight * model.dataset)


@dataclass(frozen=True, slots=True)
class ThroughputEstimates:
    """Rates of one model: estimates by node in any unit, and steps per second where it was measured."""

    estimated: Mapping[str, float]
    measured: Mapping[str, float] = field(default_factory=dict)

    def with_measurement(self, node: str, rate: float) -> ThroughputEstimates:
        """Returns the estimates with a node's measured rate; a rate of 0 is ignored."""
        return replace(self, measured={**self.measured, node: rate}) if rate > 0 else self

    def rate_on(self, node: str, scale: float = 1.0) -> float:
        """Returns the measured rate, else the estimate times the mean ratio of measured to estimated rates.

        `scale` is that ratio, in steps per second per unit of the estimates, for a model without measurements.
        """
        if node in self.measured:
            return self.measured[node]
        return self.estimated.get(node, 0.0) * (_mean_ratio([self]) or scale)


def learned_scale(models: Iterable[ThroughputEstimates]) -> float | None:
    """Returns the steps per second per unit of the estimates over all models; None without measurements."""
    return _mean_ratio(models)


def _mean_ratio(models: Iterable[ThroughputEstimates]) -> float | None:
    """Returns the geometric mean of measured over estimated rates; None without measurements."""
    logs = [
        log(rate / throughput.estimated[node])
        for throughput in models
        for node, rate in throughput.measured.items()
        if throughput.estimated.get(node, 0.0) > 0
    ]
    return exp(sum(logs) / len(logs)) if logs else None


GPU_SPECS: Final[Mapping[str, GpuSpec]] = {
    "k80": GpuSpec(4.1, 12),
    "p100": GpuSpec(9.3, 16),
    "v100": GpuSpec(15.7, 16),
    "t4": GpuSpec(8.1, 16),
    "titan-rtx": GpuSpec(16.3, 24),
    "rtx-3090": GpuSpec(35.6, 24),
    "a10": GpuSpec(62.5, 24),
    "a100": GpuSpec(156.0, 40),
    "l4": GpuSpec(60.0, 24),
    "l40s": GpuSpec(183.0, 48),
    "h100": GpuSpec(494.0, 80),
}
"""By GPU type: teraflops in single precision, on tensor cores where they support it, and memory in GB, both from the
manufacturers; for a K80 one of its two GPUs. The PCIe version is not known."""

_UNIT_MODEL: Final = ModelSpec(1, 1, 1)
"""Batch, weight and data set are the same for all copies of a job and cancel out."""


def estimates_by_type(types: Iterable[str]) -> Mapping[str, float]:
    """Returns a model's throughput by GPU type in one unit; an unknown type counts as the slowest known one."""
    throughput = {
        kind: estimate_throughput(_UNIT_MODEL, GPU_SPECS[kind.lower()]) for kind in types if kind.lower() in GPU_SPECS
    }
    slowest = min(throughput.values(), default=1.0)
    return {kind: throughput.get(kind, slowest) for kind in types}


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """A forked job and its copies in the queue; `remaining` of its steps are not reported as done.

    `throughput` is by GPU type; `measured_by_copy` are the steps per second that each copy measured, by GPU type.
    """

    job: JobId
    copies: tuple[Job, ...]
    remaining: int
    throughput: ThroughputEstimates
    measured_by_copy: Mapping[JobId, Mapping[str, float]]

    def rate(self, copy: JobId, allocations: Iterable[NodeAllocation]) -> float:
        """Returns the steps per second of a copy with these allocations, that of its slowest type.

        Its own measurement counts first, then those of other copies on the type, then the estimate.
        """
        types = {share.gpu_type for share in allocations}
        return min(
            (self.measured_by_copy.get(copy, {}).get(kind) or self.throughput.rate_on(kind) for kind in types),
            default=0.0,
        )

    @property
    def measured(self) -> bool:
        """Whether any copy has measured its rate."""
        return bool(self.throughput.measured)


def copy_groups(
    jobs: Iterable[Job], knowledge: Knowledge, types: Iterable[str], done: Mapping[JobId, int]
) -> list[CopyGroup]:
    """Returns the forked jobs among these, in submission order of their copies: those of whole GPUs, since copies on
    parts of GPUs are jobs like others.

    `done` has the steps of each forked job that were known to be done before.
    """
    copies: dict[JobId, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.queue_key):
        if job.copy_of and job.original_request.gpus:
            copies.setdefault(job.copy_of, []).append(job)
    return [_copy_group(job, copies[job], knowledge, tuple(types), done.get(job, 0)) for job in copies]


def _copy_group(
    job: JobId, copies: list[Job], knowledge: Knowledge, types: tuple[str, ...], steps_before: int
) -> CopyGroup:
    total = max(copy.hints.fork or 0 for copy in copies)
    reported = max((knowledge.steps.get(copy.id, 0) for copy in copies), default=0)
    measured_by_copy = {copy.id: knowledge.measured[copy.id] for copy in copies if copy.id in knowledge.measured}
    by_type: dict[str, list[float]] = {}
    for rates in measured_by_copy.values():
        for kind, rate in rates.items():
            by_type.setdefault(kind, []).append(rate)
    measured = {kind: sum(rates) / len(rates) for kind, rates in by_type.items()}
    throughput = ThroughputEstimates(_estimated_rates(copies[0], knowledge, types), measured)
    return CopyGroup(job, tuple(copies), total - min(total, max(steps_before, reported)), throughput, measured_by_copy)


def _estimated_rates(copy: Job, knowledge: Knowledge, types: tuple[str, ...]) -> Mapping[str, float]:
    """Returns the rates of the model's profile if that has all types, else those of equation 10."""
    profile = knowledge.profile(copy)
    scaling = profile.scaling if profile else {}
    if not all(kind in scaling for kind in types):
        return estimates_by_type(types)
    return {kind: scaling[kind].rate_at(max(copy.original_request.gpus, 1)) for kind in types}


@dataclass(frozen=True, slots=True)
class HadarEPrices:
    """Hadar's entitlement with copies: no two of a job on one node, none that would come too late.

    The state is Hadar's, and the steps done of each forked job.
    """

    name: str = "hadare"

    def __call__(self, situation: Situation) -> Entitlement:
        groups = _copy_groups(situation)
        superfluous = {
            copy.id: why for group in groups for copy, why in _superfluous_copies(group, situation.restart_cost)
        }
        scheduled = tuple(job for job in situation.jobs if job.id not in superfluous)
        entitlement = HadarPrices(name=self.name)(replace(situation, jobs=scheduled), superfluous)
        done = {group.job: _total_steps(group.copies) - group.remaining for group in groups}
        hadar_state = entitlement.next_state
        return replace(
            entitlement,
            anti_affinity={job.id: job.copy_of for job in scheduled if job.copy_of},
            next_state=lambda *outcome: {**(hadar_state(*outcome) if hadar_state else {}), "done": done},
        )


def spread_copies(session: Session) -> None:
    """Places copies of a forked job that still wait on any idle GPU (theorem 3).

    Prices ignore that two copies of a job may not share a node, so the type that a copy is due may be free only on
    nodes with other copies.
    """
    step = AllocateFree(session)
    for ranked in session.ranking:
        job = session.jobs[ranked.job]
        if job.id in session.entitlement.anti_affinity and session.needs_placement(job):
            session.demands.lift_restriction(job)
            step.try_admit(job)


def dispatch_steps(session: Session) -> None:
    """Divides the remaining steps of each forked job among its copies that run or were placed (section V-B)."""
    for group in _copy_groups(session.situation):
        allocations = {
            copy.id: allocations for copy in group.copies if (allocations := _allocations(session, copy)) is not None
        }
        rates = [group.rate(copy, on_nodes) for copy, on_nodes in allocations.items()]
        if not any(rates):
            continue
        details: Mapping[str, str | int | float] = {
            "left": group.remaining,
            "job": group.job,
            "speed": "measured" if group.measured else "estimated",
        }
        for copy, rate, steps in zip(allocations, rates, divide_steps(group.remaining, rates), strict=True):
            session.steps[copy] = steps
            part = f"{rate / sum(rates):.0%}"
            session.remarks[copy] = Reason(ReasonCode.DISPATCHED, {**details, "steps": steps, "part": part})


def _allocations(session: Session, copy: Job) -> tuple[NodeAllocation, ...] | None:
    if copy.id in session.running:
        return copy.allocations
    placement = session.placements.get(copy.id)
    return None if placement is None else placement.node_allocations(session.pools)


def _copy_groups(situation: Situation) -> list[CopyGroup]:
    types = sorted({gpu.type for node in situation.snapshot.nodes for gpu in node.gpus})
    return copy_groups(situation.jobs, situation.knowledge, types, _steps_done(situation.state))


def _superfluous_copies(group: CopyGroup, restart_cost: float) -> Iterator[tuple[Job, Reason]]:
    """Yields the waiting copies that would start too late to help; a start takes `restart_cost` seconds."""
    running = [copy for copy in group.copies if copy.state is JobState.RUNNING]
    speed = sum(group.rate(copy.id, copy.allocations) for copy in running)
    waiting = [copy for copy in group.copies if copy.state is JobState.PENDING]
    if not running:
        return
    ends_soon = group.measured and group.remaining <= speed * restart_cost
    for index, copy in enumerate(waiting, start=len(running)):
        if ends_soon or index >= group.remaining:
            yield copy, Reason(ReasonCode.COPIES_SUFFICE, {"job": group.job, "left": group.remaining})


def _total_steps(copies: Iterable[Job]) -> int:
    return max(copy.hints.fork or 0 for copy in copies)


def _steps_done(state: Mapping[str, object]) -> Mapping[JobId, int]:
    done = state.get("done")
    return {job: steps for job, steps in done.items() if isinstance(steps, int)} if isinstance(done, Mapping) else {}


def divide_steps(steps: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Divides the steps over copies with these rates in steps per second, so that the last copy ends earliest.

    Each copy's portion differs from the exact proportion by less than the number of copies. A few steps go to the
    fastest copies only (the rule of the last round). Raises PolicyError if there are steps but no rate is above 0.
    """
    if steps < 0 or any(rate < 0 for rate in rates):
        raise PolicyError(f"cannot divide {steps} steps over rates {', '.join(f'{rate:g}' for rate in rates)}")
    total_rate = sum(rates)
    if steps and not total_rate > 0:
        raise PolicyError(f"no copy of the job can run on any node, but {steps} steps are left")
    portions = [floor(steps * (rate / total_rate)) if rate else 0 for rate in rates]
    while sum(portions) > steps:  # the portion of a very small rate may be rounded up
        portions[max(range(len(rates)), key=portions.__getitem__)] -= 1
    ends = [((portions[copy] + 1) / rate, copy) for copy, rate in enumerate(rates) if rate > 0]
    heapify(ends)
    for _ in range(steps - sum(portions)):
        _, copy = heappop(ends)
        portions[copy] += 1
        heappush(ends, ((portions[copy] + 1) / rates[copy], copy))
    return tuple(portions)
