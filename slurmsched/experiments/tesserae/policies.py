"""The compared policies: Tesserae with some job order and any of its parts, or with Gavel's rule of keeping workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.experiments.tesserae.replay import ReplayState
from slurmsched.experiments.tesserae.round import TesseraePlan, TesseraeProblem, TesseraeVariant, plan_round
from slurmsched.policies.gavel.rounds import assign_workers
from slurmsched.policies.policies import DEFAULT_LAS_QUEUES
from slurmsched.policies.tesserae.migration import PlacementPlan

JobOrder = Callable[[ReplayState], Ints]
"""Returns the active jobs in order."""


def tiresias_order(state: ReplayState) -> Ints:
    """Orders by Tiresias' queue of attained service, then by arrival. Tesserae's text names no queues: they are those
    of the daemon's order `las`, which its policy `tesserae` has too."""
    queue = np.searchsorted(DEFAULT_LAS_QUEUES, state.attained_service[state.active], "right")
    return np.asarray(state.active[np.lexsort((state.active, queue))])


def las_order(state: ReplayState) -> Ints:
    """Orders by attained service, without queues."""
    return np.asarray(state.active[np.lexsort((state.active, state.attained_service[state.active]))])


def ftf_order(state: ReplayState) -> Ints:
    """Orders by rho, the highest first: the time from arrival to end if the job ran alone from now on, over its time
    with an equal share of the GPUs."""
    active, workload = state.active, state.workload
    part = state.node_gpus.sum() / len(active)
    shared = state.time - workload.arrival[active] + state.remaining[active]
    alone = workload.seconds[active] * np.maximum(1.0, workload.gpus[active] / part)
    return np.asarray(active[np.lexsort((active, -shared / alone))])


@dataclass(frozen=True, slots=True)
class TesseraeReplayPolicy:
    """Tesserae with some or all of its parts. `edge_weights` are the weights of pairs by job type."""

    name: str
    edge_weights: Floats
    order: JobOrder = tiresias_order
    variant: TesseraeVariant = field(default_factory=TesseraeVariant)

    def decide(self, state: ReplayState) -> TesseraePlan:
        return plan_round(tesserae_problem(state, self.order), self.edge_weights, self.variant)


@dataclass(slots=True)
class WorkerLeases:
    """Gavel's rule of keeping workers over the rounds of one replay. A pair keeps them only as the same pair."""

    node_gpus: Ints
    _previous: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def assign(self, combinations: Sequence[tuple[int, ...]], gpus: Ints) -> tuple[PlacementPlan, frozenset[int]]:
        """Returns the placement, and the jobs that ran on other GPUs in the round before."""
        node_of = np.repeat(np.arange(len(self.node_gpus)), self.node_gpus).tolist()
        assigned = assign_workers(
            {entry: int(gpus[entry[0]]) for entry in combinations}, range(len(node_of)), self._previous
        )
        before, after = (
            {job: workers for entry, workers in of.items() for job in entry} for of in (self._previous, assigned)
        )
        self._previous = assigned
        rows = [(node_of[worker], 1, entry) for entry, workers in assigned.items() for worker in workers]
        migrated = frozenset(job for job in before.keys() & after.keys() if before[job] != after[job])
        return PlacementPlan.from_rows(rows), migrated


@dataclass(slots=True)
class WithGavelLeases:
    """Runs the jobs and pairs of another policy on the workers of Gavel's rule."""

    name: str
    inner: TesseraeReplayPolicy
    leases: WorkerLeases

    def decide(self, state: ReplayState) -> TesseraePlan:
        plan = self.inner.decide(state)
        alone = set(plan.placement.jobs[:, 0].tolist()) - {job for pair in plan.pairs for job in pair}
        combinations = [*((min(pair), max(pair)) for pair in plan.pairs), *((job,) for job in sorted(alone))]
        placement, migrated = self.leases.assign(combinations, state.workload.gpus)
        return TesseraePlan(placement, plan.pairs, migrated)


def tesserae_problem(state: ReplayState, order: JobOrder) -> TesseraeProblem:
    workload = state.workload
    return TesseraeProblem(
        order(state).tolist(),
        workload.gpus,
        workload.job_type,
        np.ones(len(workload), dtype=np.bool_),
        state.node_gpus,
        state.previous,
    )
