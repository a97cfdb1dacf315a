"""Decisions for tests of what comes after deciding: prescribed word for word, or by the simplest rule there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Decision,
    Job,
    JobId,
    JobState,
    NodeAllocation,
    RankedJob,
    Reason,
    ReasonCode,
    Resources,
    Snapshot,
    Target,
    Verb,
)
from slurmsched.policies.stages import Situation
from slurmsched.rounds.scope import usable_nodes


@dataclass(frozen=True)
class Anyone:
    """An identity that may do all but `not_`."""

    not_: frozenset[Verb] = frozenset()

    def may(self, verb: Verb) -> bool:
        return verb not in self.not_


@dataclass(frozen=True)
class Prescribed:
    """A system that decides what it is told: `targets` as job id to shares, everyone else waits or stays."""

    targets: Mapping[JobId, tuple[NodeAllocation, ...]] = field(default_factory=dict)
    victims: Mapping[JobId, JobId] = field(default_factory=dict)
    order: tuple[JobId, ...] = ()

    @property
    def name(self) -> str:
        return "prescribed"

    def decide(self, situation: Situation) -> Decision:
        return decision(situation.jobs, self.targets, self.victims, self.order)


@dataclass(frozen=True)
class InOrder:
    """The simplest preempting system: jobs in the order given, each on the first node with room, fixed ones first.

    A running job keeps its lease; whoever runs and finds no room left is a victim of the first newcomer.
    """

    order: tuple[JobId, ...]

    @property
    def name(self) -> str:
        return "in-order"

    def decide(self, situation: Situation) -> Decision:
        known = {job.id: job for job in situation.jobs}
        ranked = sorted(known, key=lambda job: (job not in situation.non_preemptible, self.order.index(job)))
        left = {node.name: node.free for node in situation.snapshot.nodes}
        for job in known.values():
            for share in job.allocations:
                left[share.node] += share.resources
        targets: dict[JobId, tuple[NodeAllocation, ...]] = {}
        for name in ranked:
            job = known[name]
            shares = job.allocations or _first_fit(job, left, situation)
            if shares and all(share.resources.fits_in(left[share.node]) for share in shares):
                targets[name] = shares
                for share in shares:
                    left[share.node] -= share.resources
        newcomers = [name for name in ranked if name in targets and known[name].state is JobState.PENDING]
        displaced = [job.id for job in known.values() if job.state is JobState.RUNNING and job.id not in targets]
        victims = {name: newcomers[0] for name in displaced if newcomers}
        return decision(situation.jobs, targets, victims, tuple(ranked))


def decision(
    jobs: Iterable[Job],
    targets: Mapping[JobId, tuple[NodeAllocation, ...]],
    victims: Mapping[JobId, JobId] | None = None,
    order: tuple[JobId, ...] = (),
) -> Decision:
    """A decision in few words; jobs that `order` leaves out come last."""
    names = [job.id for job in jobs]
    ranked = (*order, *(name for name in names if name not in order))
    return Decision(
        policy="prescribed",
        order=tuple(RankedJob(name, f"number {place}") for place, name in enumerate(ranked, 1)),
        targets={
            name: Target(name, shares, (Reason(ReasonCode.FIRST_IN_ORDER, {"order": "given"}),))
            for name, shares in targets.items()
        },
        waiting={name: Reason(ReasonCode.NO_ROOM, {"gpus": 1}) for name in names if name not in targets},
        victims=victims or {},
    )


def situation(snapshot: Snapshot, fixed: Mapping[JobId, Reason] | None = None, moves: int = 8) -> Situation:
    """Every pending or running job of the snapshot, as if all were managed and could start."""
    jobs = tuple(snapshot.jobs_in_state(JobState.PENDING, JobState.RUNNING))
    return Situation(snapshot, jobs, Knowledge(), fixed or {}, usable_nodes(snapshot), moves)


def _first_fit(job: Job, left: Mapping[str, Resources], situation: Situation) -> tuple[NodeAllocation, ...]:
    each = job.original_request.gpus // job.original_request.nodes
    size = Resources(each, job.original_request.cpus // job.original_request.nodes, job.original_request.memory or 1)
    names = [node.name for node in situation.snapshot.nodes if node.name in situation.open_nodes["gpu"]]
    found = [name for name in names if size.fits_in(left[name])][: job.original_request.nodes]
    return (
        tuple(NodeAllocation(name, size, "v100") for name in found) if len(found) == job.original_request.nodes else ()
    )
