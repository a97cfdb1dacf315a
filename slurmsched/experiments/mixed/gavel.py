"""Gavel in the replay: time fractions and the its rounds (Narayanan et al., OSDI 2020, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from slurmsched.arrays import Floats, Mask
from slurmsched.policies.gavel.objectives import GavelPolicy
from slurmsched.policies.gavel.problem import GavelProblem, IsolatedTime, TimeFractions
from slurmsched.policies.gavel.rounds import (
    RESET_INTERVAL,
    AllocationLedger,
    JobCombination,
    assign_workers,
    greedy_round,
)
from slurmsched.simulation.replay import ActiveJob, Grant, ReplayJob, RoundInput, gang_rate


def gavel_problem(round_input: RoundInput, gpu_types: Sequence[str], *, packed: bool = False) -> GavelProblem:
    """Returns the problem, with jobs in order of arrival. Jobs of one model and number of GPUs have one job type."""
    jobs = [job.spec for job in round_input.jobs.values()]
    by_type = {(job.model, job.gpus): job for job in reversed(jobs)}
    type_index = {kind: index for index, kind in enumerate(by_type)}
    problem = GavelProblem(
        gpus=np.array([round_input.workers.gpus_by_type[kind] for kind in gpu_types], dtype=np.float64),
        rates=np.array([[job.rates.get(kind, 0.0) for kind in gpu_types] for job in jobs]),
        widths=np.array([job.gpus for job in jobs], dtype=np.float64),
        remaining=np.array([job.remaining for job in round_input.jobs.values()], dtype=np.float64),
        elapsed=np.array([round_input.time - job.arrival for job in jobs]),
        isolated_time=np.zeros(len(jobs)),
        weights=np.array([job.weight for job in jobs]),
        job_types=np.array([type_index[job.model, job.gpus] for job in jobs], dtype=np.int64),
    )
    if not packed:
        return problem
    representatives = tuple(by_type.values())
    return replace(
        problem,
        colocated_rates=np.array(
            [[[_colocated_rate(a, b, kind) for kind in gpu_types] for b in representatives] for a in representatives]
        ),
    )


def fractions_by_combination(fractions: TimeFractions, jobs: Sequence[str]) -> dict[JobCombination, Floats]:
    """Returns the time fractions by job and by pair of jobs."""
    by_combination: dict[JobCombination, Floats] = {
        (job,): row for job, row in zip(jobs, fractions.single, strict=True)
    }
    for first, second, row in zip(fractions.first, fractions.second, fractions.pair, strict=True):
        by_combination[jobs[first], jobs[second]] = row
    return by_combination


def can_run(jobs: Mapping[str, ActiveJob], combination: JobCombination, gpu_type: str) -> bool:
    """Whether the job, or both jobs of the pair together, can run on this GPU type."""
    specs = [jobs[job].spec for job in combination]
    if len(specs) == 1:
        return specs[0].rates.get(gpu_type, 0.0) > 0
    first, second = specs
    return _colocated_rate(first, second, gpu_type) > 0 and _colocated_rate(second, first, gpu_type) > 0


def _colocated_rate(job: ReplayJob, partner: ReplayJob, gpu_type: str) -> float:
    return gang_rate(job, (gpu_type,), partner) if job.gpus == partner.gpus else 0.0


@dataclass(slots=True)
class GavelReplayPolicy:
    """One of Gavel's policies as a `Decider`.

    It visits GPU types in the cluster's order; a blind policy draws another order from `random` each round.
    """

    name: str
    policy: GavelPolicy
    random: np.random.Generator
    reset_interval: float = RESET_INTERVAL
    _ledger: AllocationLedger | None = None
    _targets_stale: bool = True
    _isolated_time: IsolatedTime = field(default_factory=IsolatedTime)
    _runnable: Mask = field(init=False)
    _widths: Floats = field(init=False)

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        workers, gpu_types = round_input.workers, tuple(round_input.workers.gpus_by_type)
        ledger = self._ledger = self._ledger or AllocationLedger(gpu_types, round_input.period / 2)
        for outcome in round_input.previous:
            ledger.add_received(outcome.grant.jobs, workers.gpu_types[outcome.grant.workers[0]], outcome.busy_seconds)
        self._update_jobs(ledger, round_input.jobs)
        due = (
            round_input.time - ledger.reset_time >= self.reset_interval
            or ledger.reset_time == 0
            or not round_input.previous
        )
        if self._targets_stale and due:
            ledger.reset(round_input.time)
            ledger.set_targets(self._time_fractions(round_input, gpu_types))
            self._targets_stale = False
        visited = list(range(len(gpu_types)))
        if self.policy.blind:
            self.random.shuffle(visited)
        allowed = (
            self._runnable & (np.nan_to_num(ledger.target_fractions) > 0) if self.policy.strict else self._runnable
        )
        selected = greedy_round(ledger, allowed, self._widths, list(workers.gpus_by_type.values()), visited)
        assigned_before, without_target = (
            {outcome.grant.jobs: outcome.grant.workers for outcome in round_input.previous},
            set(ledger.without_target()),
        )
        grants: list[Grant] = []
        for type_index in visited:
            # As in Gavel, a job that came after the targets were computed uses up GPUs but gets no worker.
            widths = {
                entry: round_input.jobs[entry[0]].spec.gpus
                for entry in selected[type_index]
                if entry not in without_target
            }
            grants += [
                Grant(entry, granted)
                for entry, granted in assign_workers(
                    widths, workers.workers_by_type[gpu_types[type_index]], assigned_before
                ).items()
            ]
        return grants

    def _update_jobs(self, ledger: AllocationLedger, jobs: Mapping[str, ActiveJob]) -> None:
        """Adds new jobs to the ledger and removes ended ones; both make the targets stale."""
        singles = tuple((job,) for job in jobs)
        if singles == ledger.combinations[: len(singles)] and not any(
            len(e) == 1 for e in ledger.combinations[len(singles) :]
        ):
            return
        self._targets_stale = True
        pairs = combinations(jobs, 2) if self.policy.packed else ()
        same_width = [pair for pair in pairs if len({jobs[job].spec.gpus for job in pair}) == 1]
        possible = {entry: [can_run(jobs, entry, kind) for kind in ledger.types] for entry in (*singles, *same_width)}
        ledger.set_combinations([entry for entry, where in possible.items() if len(entry) == 1 or any(where)])
        self._runnable = np.array([possible[entry] for entry in ledger.combinations], dtype=np.bool_)
        self._widths = np.array([jobs[entry[0]].spec.gpus for entry in ledger.combinations], dtype=np.float64)

    def _time_fractions(self, round_input: RoundInput, gpu_types: Sequence[str]) -> dict[JobCombination, Floats]:
        jobs = tuple(round_input.jobs)
        problem = self.policy.view(gavel_problem(round_input, gpu_types, packed=self.policy.packed), gpu_types)
        steps_done = np.array([job.steps_done for job in round_input.jobs.values()], dtype=np.float64)
        problem = replace(problem, isolated_time=self._isolated_time.update(problem, jobs, steps_done))
        return fractions_by_combination(self.policy.objective(problem), jobs)
