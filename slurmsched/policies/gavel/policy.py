"""Gavel as a policy (Narayanan et al., OSDI 2020): max-min fair rounds on a live cluster.

Gavel chooses which jobs run on which GPU type (section 5). The pipeline that all policies share chooses nodes, CPUs and
memory and limits moves. Gavel moves jobs at no cost; here a move is a checkpoint and a restart, so a job leaves its
GPUs only if a chosen job needs them, or for a faster type that is free and repays the restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.estimation import estimates_by_type
from slurmsched.model import Job, JobId, JobState, RankedJob
from slurmsched.model.reasons import format_duration
from slurmsched.policies.admit.promise import KeptPromise
from slurmsched.policies.cluster.demand import DemandClasses
from slurmsched.policies.cluster.resources import Pools
from slurmsched.policies.empty_cluster import EmptyCluster
from slurmsched.policies.gavel.objectives import least_attained_service
from slurmsched.policies.gavel.problem import GavelProblem
from slurmsched.policies.gavel.rounds import RESET_INTERVAL, AllocationLedger, GavelState, greedy_round
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.stages import Entitlement, PreemptionRule, Situation


def rate_matrix(situation: Situation, types: Sequence[str]) -> Floats:
    """Returns the rates of jobs, [jobs, types], in steps per second or any other unit that a job's types share.

    0 where the job asks for another type, does not fit onto the nodes of this one, or is known not to run there. Rates
    that nobody measured are estimated. A job without any rate is equally fast on every type.
    """
    snapshot, knowledge = situation.snapshot, situation.knowledge
    fits, classes = dict[tuple[object, ...], bool](), DemandClasses(knowledge)
    empty_cluster = EmptyCluster(Pools(snapshot.nodes), snapshot, knowledge, Proportional())
    rates = np.zeros((len(situation.jobs), len(types)))
    for row, job in enumerate(situation.jobs):
        known = _rates_on_types(job, types, knowledge)
        for column, (kind, rate) in enumerate(zip(types, known, strict=True)):
            key = kind, classes.of(job)
            if rate > 0 and key not in fits:
                fits[key] = not empty_cluster.unmet_demand(with_gpu_type(job, kind))
            rates[row, column] = rate if rate > 0 and fits[key] else 0.0
    return rates


def with_gpu_type(job: Job, gpu_type: str) -> Job:
    """Returns the job as if it asked for this type; unchanged if it asks for a type already."""
    return (
        job
        if job.original_request.gpu_type
        else replace(job, original_request=replace(job.original_request, gpu_type=gpu_type))
    )


def _rates_on_types(job: Job, types: Sequence[str], knowledge: Knowledge) -> list[float]:
    """Returns the job's rate on each type, 0 where it asks for another."""
    asked, gpus = job.original_request.gpu_type, max(job.original_request.gpus, 1)
    known = knowledge.rates_by_type(job, types, gpus)
    return [known.get(kind, float(gpus)) if asked in (None, kind) else 0.0 for kind in types]


_MIN_RATE = 1e-12
"""Keeps a division by a rate of 0 finite."""


_NEVER_RAN: Final = 1e12
"""Seconds by which a job that never ran comes before all that did: Gavel's priority of it is infinite."""


def _precedences(situation: Situation) -> Floats:
    """Returns the seconds that count beside those for which each job was due. The one of those that never ran that is
    promised its start comes first: it may preempt only once it is chosen."""
    ran, promised = situation.knowledge.attained_gpu_seconds, KeptPromise.of_state(situation.state).job
    return np.array([0.0 if ran(job) else _NEVER_RAN * (1 + (job.id == promised)) for job in situation.jobs])


def gavel_entitlement(situation: Situation) -> Entitlement:
    """Returns what max-min fairness that distinguishes GPU types gives jobs (`max_min_fairness_perf`).

    The policy's state is its ledger.
    """
    situation = replace(situation, jobs=tuple(sorted(situation.jobs, key=lambda job: job.queue_key)))
    gpus = situation.managed_gpus()
    types = tuple(gpus)
    rates, ledger = rate_matrix(situation, types), _updated_ledger(situation, types)
    widths = np.array([max(job.gpus, 1) for job in situation.jobs], dtype=np.float64)
    _update_targets(ledger, situation, GavelProblem.of(np.array([*gpus.values()], dtype=np.float64), rates, widths))
    part_of_best = rates / np.maximum(rates.max(axis=1, initial=0.0, keepdims=True), _MIN_RATE)
    estimates = np.array([*estimates_by_type(types).values()])
    fastest_first = np.lexsort((-estimates, -part_of_best.sum(axis=0))).tolist()
    due = np.nan_to_num(ledger.target_fractions).sum(axis=1).tolist()
    slices = np.array([situation.shortest_slice(job.id, part) for job, part in zip(situation.jobs, due, strict=True)])
    overdue = ledger.overdue(rates > 0, situation.snapshot.time, np.maximum(slices, situation.period))
    ranks = overdue + _precedences(situation)[:, None]
    chosen = greedy_round(ledger, rates > 0, widths, list(gpus.values()), fastest_first, ranks=ranks)
    type_of = {entry[0]: types[kind] for kind, entries in chosen.items() for entry in entries}
    measured = {job.id: situation.knowledge.measured_types(job) for job in situation.jobs}
    state = GavelState.from_ledger(ledger, situation.snapshot.time).encode()
    return Entitlement(
        order=_GavelOrder(
            {job.id: float(rank) for job, rank in zip(situation.jobs, ranks.max(axis=1, initial=-np.inf), strict=True)},
            type_of,
            frozenset(
                job.id  # to the nearest round
                for job, seconds in zip(situation.jobs, slices.tolist(), strict=True)
                if job.allocations and job.run_time + situation.period / 2 < seconds
            ),
        ),
        gpu_types={job: frozenset({gpu_type}) for job, gpu_type in type_of.items()},
        rates={
            (job.id, kind): float(rates[row, column])
            for row, job in enumerate(situation.jobs)
            for column, kind in enumerate(types)
            if kind in measured[job.id]
        },
        next_state=lambda _victims, _allocations: state,
    )


@dataclass(frozen=True, slots=True)
class _GavelOrder:
    """First chosen jobs that wait or run on the type they were chosen for, then jobs within their slice, then jobs that
    were chosen for another type than they run on, then the others; each group by the time for which the job has been
    due on any type; one that never ran comes first.

    A job is preempted within its slice only for one that never ran: a slice is so long that a job's restarts of a day
    are enough for its turns, else it would have none left and stay where it is, or wait, for the rest of the day. None
    is preempted before it has run at all: of several that never ran each would displace the one before.
    """

    ranks: Mapping[JobId, float]
    types_of_jobs: Mapping[JobId, str]
    within_slice: frozenset[JobId]
    name: str = "gavel"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        in_order = sorted(
            situation.jobs,
            key=lambda job: (
                not self._keeps_type(job),
                job.id not in self.within_slice,
                job.id not in self.types_of_jobs,
                -self.ranks[job.id],
                job.queue_key,
            ),
        )
        return tuple(RankedJob(job.id, self._explain(job)) for job in in_order)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        ran = situation.knowledge.executed_seconds

        def may_preempt(newcomer: Job, running: Job) -> bool:
            if not self._keeps_type(newcomer) or self._keeps_type(running) or not running.run_time:
                return False
            return running.id not in self.within_slice or not ran(newcomer)

        return may_preempt

    def _keeps_type(self, job: Job) -> bool:
        """Returns whether it was chosen and does not run on another type."""
        kind = self.types_of_jobs.get(job.id)
        return kind is not None and all(share.gpu_type == kind for share in job.allocations)

    def _explain(self, job: Job) -> str:
        where = f"chosen for {self.types_of_jobs[job.id]}" if job.id in self.types_of_jobs else "not chosen"
        rank = self.ranks[job.id]
        if isinf(rank):
            return f"{where}, has no target"
        if rank >= _NEVER_RAN / 2:
            return f"{where}, never ran"
        return f"{where}, {format_duration(abs(rank))} {'overdue' if rank >= 0 else 'ahead'}"


def _updated_ledger(situation: Situation, types: tuple[str, ...]) -> AllocationLedger:
    """Returns the ledger of the last round with the time that jobs received since then."""
    now, state = situation.snapshot.time, GavelState.decode(dict(situation.state))
    ledger = state.to_ledger(types, situation.period / 2)
    for job in situation.jobs:
        if job.allocations and job.state is JobState.RUNNING and job.allocations[0].gpu_type in types:
            ledger.add_received((job.id,), job.allocations[0].gpu_type, max(0.0, min(job.run_time, now - state.at)))
    return ledger


def _update_targets(ledger: AllocationLedger, situation: Situation, problem: GavelProblem) -> None:
    """Updates the combinations, and computes new target fractions `RESET_INTERVAL` seconds after the last ones."""
    combinations = [(job.id,) for job in situation.jobs]
    ledger.set_combinations(combinations)
    if situation.snapshot.time - ledger.reset_time < RESET_INTERVAL:
        return
    ledger.reset(situation.snapshot.time)
    types = problem.gpus > 0
    jobs = np.flatnonzero((problem.rates[:, types] > 0).any(axis=1))
    targets = np.zeros_like(problem.rates)
    if len(jobs):
        restricted = GavelProblem.of(problem.gpus[types], problem.rates[np.ix_(jobs, types)], problem.widths[jobs])
        targets[np.ix_(jobs, types)] = least_attained_service(restricted).single
    ledger.set_targets(dict(zip(combinations, targets, strict=True)))
