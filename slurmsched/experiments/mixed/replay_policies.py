"""Gavel, Hadar and HadarE as policies of a replay: the programs, prices and shares of the live ones, round by round.

Gavel: Narayanan et al., OSDI 2020, sections 3 to 5. Hadar and HadarE: Sultana et al., 2025, sections III to V. Every
job of HadarE has a copy for every node, and all copies together run at the sum of their rates. Mean completion time is
lowest when the job that ends first goes first, on all nodes. A job that can end in this round gets only the nodes it
needs (the last job the fastest, the beta of the paper), and the next job gets the others. Nodes that are left help the
job that ends last, so no node is idle while a job has a step for it (theorem 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Mask
from slurmsched.knowledge.estimation import ThroughputEstimates, learned_scale
from slurmsched.policies.gavel.objectives import GavelPolicy
from slurmsched.policies.gavel.problem import GavelProblem, IsolatedTime, TimeFractions
from slurmsched.policies.gavel.rounds import (
    RESET_INTERVAL,
    AllocationLedger,
    JobCombination,
    assign_workers,
    greedy_round,
)
from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import GangThroughput, HadarJob, ServerPools, TaskAllocation
from slurmsched.policies.hadare.policy import copies_needed, divide_steps
from slurmsched.simulation.replay import ActiveJob, GpuWorkers, Grant, ReplayJob, RoundInput, gang_rate


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


@dataclass(slots=True)
class HadarReplayPolicy:
    """Decides again when a job has arrived or ended; otherwise all jobs keep their allocations.

    Without `mixes_types` every gang is on one GPU type.
    """

    scheduler: HadarScheduler = field(default_factory=HadarScheduler)
    name: str = "hadar"
    mixes_types: bool = True
    _jobs: frozenset[str] = frozenset()
    _allocations: dict[str, TaskAllocation] = field(default_factory=dict)
    _server_pools: ServerPools | None = None

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        pools = self._server_pools = self._server_pools or server_pools(round_input.workers)
        jobs, workers_before = (
            frozenset(round_input.jobs),
            {outcome.grant.jobs[0]: outcome.grant.workers for outcome in round_input.previous},
        )
        self._allocations = {job: tasks for job, tasks in self._allocations.items() if job in jobs}
        if jobs != self._jobs:
            queue = hadar_jobs(round_input, pools, mixes_types=self.mixes_types)
            self._allocations = self.scheduler.decide(queue, pools, self._allocations)
            self._jobs = jobs
        return _assign_workers(round_input.workers, pools, self._allocations, workers_before)


def server_pools(workers: GpuWorkers) -> ServerPools:
    """Returns a pool for the GPUs of each type on each server."""
    sizes: dict[tuple[int, str], int] = defaultdict(int)
    for server, kind in zip(workers.server_indices, workers.gpu_types, strict=True):
        sizes[server, kind] += 1
    types = tuple(workers.gpus_by_type)
    return ServerPools(
        types,
        np.array([types.index(kind) for _, kind in sizes], dtype=np.int64),
        np.array([server for server, _ in sizes], dtype=np.int64),
        np.array([*sizes.values()], dtype=np.int64),
    )


def hadar_jobs(round_input: RoundInput, pools: ServerPools, *, mixes_types: bool = True) -> list[HadarJob]:
    """Returns the active jobs as Hadar's problem; equal jobs share one throughput object."""
    throughputs, jobs = dict[GangThroughput, GangThroughput](), list[HadarJob]()
    for active in round_input.jobs.values():
        job, throughput = active.spec, gang_throughput(active.spec, pools, mixes_types=mixes_types)
        throughput = throughputs.setdefault(throughput, throughput)
        jobs.append(HadarJob(job.id, throughput, active.remaining, job.steps, round_input.time - job.arrival))
    return jobs


def gang_throughput(job: ReplayJob, pools: ServerPools, *, mixes_types: bool = True) -> GangThroughput:
    """Returns the whole gang's throughput by type. The replay has no loss between servers."""
    rates = tuple(job.rates.get(kind, 0.0) for kind in pools.types)
    return GangThroughput(job.gpus, rates, rates, mixes_types=mixes_types)


def _assign_workers(
    workers: GpuWorkers,
    pools: ServerPools,
    allocations: Mapping[str, TaskAllocation],
    workers_before: Mapping[str, tuple[int, ...]],
) -> list[Grant]:
    """Returns workers for the allocations. A job that stays in its pools keeps its workers."""
    types, free = pools.types, defaultdict[tuple[int, str], list[int]](list)
    for worker, key in enumerate(zip(workers.server_indices, workers.gpu_types, strict=True)):
        free[key].append(worker)
    pool = [(int(s), types[t]) for s, t in zip(pools.server_of, pools.type_of, strict=True)]
    grants: dict[str, Grant] = {}
    for job, tasks in allocations.items():
        kept = workers_before.get(job, ())
        if kept and _count_by_pool(workers, kept) == {pool[index]: gpus for index, gpus in tasks}:
            grants[job] = Grant((job,), kept)
            for worker in kept:
                free[workers.server_indices[worker], workers.gpu_types[worker]].remove(worker)
    for job, tasks in allocations.items():
        if job not in grants:
            taken = [free[pool[index]].pop(0) for index, gpus in tasks for _ in range(gpus)]
            grants[job] = Grant((job,), tuple(sorted(taken)))
    return [*grants.values()]


def _count_by_pool(workers: GpuWorkers, taken: Sequence[int]) -> dict[tuple[int, str], int]:
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for worker in taken:
        counts[workers.server_indices[worker], workers.gpu_types[worker]] += 1
    return dict(counts)


_UNMEASURED_SCALE: Final = 1e-12
"""Steps per second of one unit of the estimates before any measurement: so slow that no job ends in the first round and
all nodes take part in it."""


@dataclass(slots=True)
class HadarEReplayPolicy:
    """Gives the nodes to the job that ends first, as the paper reads; workers are nodes with one GPU each.

    `estimates` are the throughputs by model and GPU type, in any unit.
    """

    estimates: Mapping[str, Mapping[str, float]]
    name: str = "hadare"
    _throughput: dict[str, ThroughputEstimates] = field(default_factory=dict)

    def decide(self, round_input: RoundInput) -> Sequence[Grant]:
        types = round_input.workers.gpu_types
        for job, active in round_input.jobs.items():
            self._throughput.setdefault(job, ThroughputEstimates(self.estimates[active.spec.model]))
        for outcome in round_input.previous:
            (job,), (worker,) = outcome.grant.jobs, outcome.grant.workers
            if outcome.steps[0]:
                measured = self._throughput[job].with_measurement(types[worker], outcome.grant.rates[0])
                self._throughput[job] = measured
        scale = learned_scale(self._throughput.values()) or _UNMEASURED_SCALE
        forked_jobs = [
            ForkedJob(job, round(active.remaining), tuple(self._throughput[job].rate_on(kind, scale) for kind in types))
            for job, active in round_input.jobs.items()
        ]
        slot = round_input.period - round_input.semantics.exchange_seconds
        return [*_grants(round_input, assign_nodes(forked_jobs, slot))]


def _grants(round_input: RoundInput, plan: Mapping[str, Mapping[int, int]]) -> Iterator[Grant]:
    for job, active in round_input.jobs.items():
        for worker, steps in plan.get(job, {}).items():
            rate = active.spec.rates[round_input.workers.gpu_types[worker]]
            yield Grant((job,), (worker,), (rate,), steps=(steps,))


@dataclass(frozen=True, slots=True)
class ForkedJob:
    """A job with `remaining` steps. `rates` are the steps per second of a copy on each node, 0.0 if it cannot run."""

    job: str
    remaining: int
    rates: tuple[float, ...]


def assign_nodes(jobs: Sequence[ForkedJob], slot: float) -> Mapping[str, Mapping[int, int]]:
    """Returns by job the steps of each of its nodes. `slot` is the seconds of work in a round."""
    queue = sorted(
        (job for job in jobs if job.remaining and any(job.rates)), key=lambda job: job.remaining / sum(job.rates)
    )
    nodes: dict[str, list[int]] = {}
    free = set(range(max((len(job.rates) for job in queue), default=0)))
    for job in queue:
        nodes[job.job] = _nodes_needed(job, free, slot, is_last=job is queue[-1])
        free.difference_update(nodes[job.job])
    for node in sorted(free):
        helpable = [job for job in queue if _adds_work(job, nodes[job.job], node)]
        if helpable:
            nodes[max(helpable, key=lambda job: _seconds_to_end(job, nodes[job.job])).job].append(node)
    return {job.job: _portions(job, nodes[job.job]) for job in queue if nodes[job.job]}


def _nodes_needed(job: ForkedJob, free: Collection[int], slot: float, *, is_last: bool) -> list[int]:
    """Returns the nodes on which the job ends in this round: the slowest single node that suffices, which leaves faster
    ones to later jobs, else the fewest fastest; all free nodes if the job does not end."""
    nodes = sorted(free)
    needed = copies_needed(job.remaining, [job.rates[node] for node in nodes], slot, spare_fast=not is_last)
    return [nodes[index] for index in needed]


def _seconds_to_end(job: ForkedJob, nodes: Sequence[int]) -> float:
    """Returns the seconds until the job ends on these nodes."""
    portions = _portions(job, nodes)
    return max((steps / job.rates[node] for node, steps in portions.items()), default=float("inf"))


def _adds_work(job: ForkedJob, nodes: Sequence[int], node: int) -> bool:
    """Returns whether one more node would get a step of this job and leave one to each of `nodes`."""
    portions = _portions(job, [*nodes, node]) if job.rates[node] > 0 else {}
    return len(portions) > len(nodes)


def _portions(job: ForkedJob, nodes: Sequence[int]) -> dict[int, int]:
    steps = divide_steps(job.remaining, [job.rates[node] for node in nodes]) if nodes else ()
    return {node: count for node, count in zip(nodes, steps, strict=True) if count}
