"""Gavel with packing on GPUs of one type, as Tesserae's evaluation compares with it (Narayanan et al., OSDI 2020).

The time fractions are those of the least-attained-service program with packing (sections 3.1 and 4.1), over classes of
equal jobs. Of all solutions with the best worst-off job, that with the highest throughput is taken. The rounds run jobs
and pairs by time fraction over time received, the highest first (section 5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_matrix, hstack

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.experiments.tesserae.policies import WorkerLeases
from slurmsched.experiments.tesserae.replay import ReplayState
from slurmsched.experiments.tesserae.round import TesseraePlan
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel.objectives import Objective
from slurmsched.policies.gavel.problem import GavelProblem, IsolatedTime
from slurmsched.policies.gavel.rounds import (
    RESET_INTERVAL,
    AllocationLedger,
    JobCombination,
    greedy_round,
    rows_by_priority,
)
from slurmsched.policies.tesserae.migration import NO_JOB

_ONLY_TYPE: Final = "any"


@dataclass(slots=True)
class TimeFractionLedger:
    """Tracks time fractions and received time in one replay.

    With `packed` there is also an entry for any two jobs with as many GPUs whose combined rate exceeds one job's.
    """

    objective: Objective
    packed: bool = False
    _ledger: AllocationLedger | None = None
    _known_jobs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _targets_set: bool = False
    _isolated_time: IsolatedTime = field(default_factory=IsolatedTime)

    def update(self, state: ReplayState) -> AllocationLedger:
        """Adds the last round, computes targets if they are due, and returns the ledger for the coming round."""
        ledger = self._ledger = self._ledger or AllocationLedger(
            (_ONLY_TYPE,), state.period / 2, reset_time=-RESET_INTERVAL
        )
        for combination in self._combinations_run(state):
            ledger.add_received(combination, _ONLY_TYPE, state.period)
        if not np.array_equal(state.active, self._known_jobs):
            self._known_jobs, self._targets_set = state.active, False
            ledger.set_combinations([*((str(job),) for job in state.active), *self._pairs(state)])
        if not self._targets_set and state.time - ledger.reset_time >= RESET_INTERVAL:
            ledger.reset(state.time)
            ledger.set_targets(self._time_fractions(state))
            self._targets_set = True
        return ledger

    def _combinations_run(self, state: ReplayState) -> Iterable[JobCombination]:
        for row in np.unique(state.previous.jobs, axis=0).reshape(-1, 2).tolist():
            jobs = tuple(str(job) for job in row if job != NO_JOB)
            yield from (jobs,) if self.packed else ((job,) for job in jobs)

    def _pairs(self, state: ReplayState) -> list[JobCombination]:
        if not self.packed:
            return []
        workload, active = state.workload, state.active
        first, second = np.triu_indices(len(active), 1)
        kind, width = workload.job_type[active], workload.gpus[active]
        able = _useful_pairs(workload.relative_rates)[kind[first], kind[second]] & (width[first] == width[second])
        pairs = zip(active[first[able]].tolist(), active[second[able]].tolist(), strict=True)
        return [(str(one), str(other)) for one, other in pairs]

    def _time_fractions(self, state: ReplayState) -> dict[JobCombination, Floats]:
        workload, active = state.workload, state.active
        names, remaining = [str(job) for job in active], state.remaining[active]
        widths = workload.gpus[active].astype(np.float64)
        problem = replace(
            GavelProblem.of(np.array([float(state.node_gpus.sum())]), np.ones((len(active), 1)), widths),
            remaining=remaining,
            elapsed=state.time - workload.arrival[active],
            job_types=workload.job_type[active],
        )
        problem = replace(
            problem, isolated_time=self._isolated_time.update(problem, names, workload.seconds[active] - remaining)
        )
        if self.packed:
            problem = replace(
                problem,
                colocated_rates=np.where(_useful_pairs(workload.relative_rates), workload.relative_rates, 0.0)[
                    :, :, None
                ],
            )
        fractions = self.objective(problem)
        by_combination: dict[JobCombination, Floats] = {
            (name,): share for name, share in zip(names, fractions.single, strict=True)
        }
        for first, second, share in zip(
            fractions.first.tolist(), fractions.second.tolist(), fractions.pair, strict=True
        ):
            by_combination[names[first], names[second]] = share
        return by_combination


def _useful_pairs(relative_rates: Floats) -> Mask:
    """Returns which pairs of job types have a combined rate above that of one job."""
    return np.asarray(
        (relative_rates > 0) & (relative_rates.T > 0) & (relative_rates + relative_rates.T > 1), dtype=np.bool_
    )


@dataclass(slots=True)
class GavelPriorityOrder:
    """A `JobOrder` by Gavel's priorities, which ignore packing."""

    ledger: TimeFractionLedger

    def __call__(self, state: ReplayState) -> Ints:
        allocations = self.ledger.update(state)
        rows = rows_by_priority(allocations, np.ones((len(allocations.combinations), 1), dtype=np.bool_), 0)
        return np.asarray(state.active[rows])


@dataclass(slots=True)
class SingleTypeGavelPolicy:
    """Gavel's greedy rounds over jobs and pairs, with its rule of keeping workers."""

    name: str
    ledger: TimeFractionLedger
    leases: WorkerLeases

    def decide(self, state: ReplayState) -> TesseraePlan:
        allocations, gpus = self.ledger.update(state), state.workload.gpus
        combinations = [tuple(map(int, entry)) for entry in allocations.combinations]
        widths = gpus[[entry[0] for entry in combinations]].astype(np.float64)
        runnable = np.ones((len(combinations), 1), dtype=np.bool_)
        selected = greedy_round(allocations, runnable, widths, [int(state.node_gpus.sum())], [0])[0]
        running = [tuple(map(int, entry)) for entry in selected]
        placement, migrated = self.leases.assign(running, gpus)
        return TesseraePlan(placement, tuple((entry[0], entry[1]) for entry in running if len(entry) > 1), migrated)


_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class PackingClasses:
    """Classes of `count[c]` jobs of one type and width. An entry is a class, or two classes that share GPUs.

    `first` and `second` are an entry's classes, the same if it is one class alone; `relative_rates` are the parts of
    their rates that they keep.
    """

    width: Ints
    count: Ints
    first: Ints
    second: Ints
    relative_rates: tuple[Floats, Floats]
    packed: Mask

    @classmethod
    def build(cls, job_type: Ints, width: Ints, count: Ints, relative_rates: Floats) -> PackingClasses:
        """Returns all classes alone, and all pairs of equal width with a combined rate above that of one job."""
        alone = np.arange(len(job_type))
        a, b = np.triu_indices(len(job_type))
        first_rate, second_rate = relative_rates[job_type[a], job_type[b]], relative_rates[job_type[b], job_type[a]]
        useful = (
            (width[a] == width[b])
            & (first_rate > 0)
            & (second_rate > 0)
            & (first_rate + second_rate > 1)
            & ((a != b) | (count[a] > 1))
        )
        a, b, first_rate, second_rate = a[useful], b[useful], first_rate[useful], second_rate[useful]
        ones, packed = np.ones(len(job_type)), np.repeat((False, True), (len(job_type), len(a)))
        parts = np.concatenate((ones, first_rate)), np.concatenate((0 * ones, second_rate))
        return cls(width, count, np.concatenate((alone, a)), np.concatenate((alone, b)), parts, packed)

    def incidence(self, first: Floats, second: Floats) -> csr_matrix:
        """Returns a matrix by class and entry, with the values of an entry's first and second class."""
        entries = np.arange(len(self.first))
        rows = np.concatenate((self.first, self.second))
        columns = np.concatenate((entries, entries))
        return csr_matrix((np.concatenate((first, second)), (rows, columns)), shape=(len(self.width), len(entries)))


def class_time_fractions(classes: PackingClasses, gpus: int) -> Floats:
    """Returns how many jobs or pairs of each entry run at a time. Raises PolicyError.

    Maximises the least width times speed of any job first, then the sum over all jobs.
    """
    speed = classes.incidence(*classes.relative_rates)
    busy = classes.incidence(np.ones(len(classes.first)), classes.packed.astype(np.float64))
    gpus_used = csr_matrix(classes.width[classes.first].astype(np.float64))
    least_job = csr_matrix((classes.count / classes.width)[:, None])
    limits = [
        LinearConstraint(hstack((busy, 0 * least_job)).tocsr(), -np.inf, classes.count),
        LinearConstraint(hstack((gpus_used, csr_matrix((1, 1)))).tocsr(), -np.inf, gpus),
        LinearConstraint(hstack((speed, -least_job)).tocsr(), 0, np.inf),
    ]
    maximise_least = np.zeros(len(classes.first) + 1)
    maximise_least[-1] = -1.0
    best = _solve(maximise_least, limits)[-1]
    keep_least = LinearConstraint(csr_matrix(-maximise_least), (1 - _ROUNDING) * best, np.inf)
    work = np.append(-np.asarray(speed.T @ classes.width, dtype=np.float64), 0.0)
    return np.clip(_solve(work, [*limits, keep_least])[:-1], 0.0, None)


def _solve(cost: Floats, limits: list[LinearConstraint]) -> Floats:
    answer = milp(cost, constraints=limits)
    if answer.x is None:
        raise PolicyError(f"the program for time fractions has no solution: {answer.message}")
    return np.asarray(answer.x, dtype=np.float64)


MIN_RECOMPUTE_INTERVAL: Final = 1920.0
"""Least seconds between two computations of the time fractions, even if jobs arrive and end."""


@dataclass(slots=True)
class GavelPacked:
    """Gavel's policy with packing. It keeps the time fractions by class and the received seconds of each entry since
    their computation, so one object serves one replay."""

    name: str
    leases: WorkerLeases
    packed: bool = True
    _job_classes: PackingClasses | None = None
    _class_of: dict[tuple[int, int], int] = field(default_factory=dict)
    _fractions: Floats = field(default_factory=lambda: np.zeros(0))
    _received: Floats = field(default_factory=lambda: np.zeros(0))
    _computed_at: float = -np.inf
    _computed_for: frozenset[int] = frozenset()

    def decide(self, state: ReplayState) -> TesseraePlan:
        present = frozenset(state.active.tolist())
        if present != self._computed_for and state.time - self._computed_at >= MIN_RECOMPUTE_INTERVAL:
            self._compute_fractions(state)
            self._computed_for, self._computed_at = present, state.time
        combinations = self._select_combinations(state)
        placement, migrated = self.leases.assign(combinations, state.workload.gpus)
        return TesseraePlan(
            placement, tuple((entry[0], entry[1]) for entry in combinations if len(entry) > 1), migrated
        )

    def _compute_fractions(self, state: ReplayState) -> None:
        workload, active = state.workload, state.active
        keys = np.column_stack((workload.job_type[active], workload.gpus[active]))
        distinct, count = np.unique(keys, axis=0, return_counts=True)
        relative_rates = workload.relative_rates if self.packed else np.zeros_like(workload.relative_rates)
        self._job_classes = PackingClasses.build(distinct[:, 0], distinct[:, 1], count, relative_rates)
        self._class_of = {(kind, width): index for index, (kind, width) in enumerate(distinct.tolist())}
        self._fractions = class_time_fractions(self._job_classes, int(state.node_gpus.sum()))
        self._received = np.full(len(self._fractions), state.period / 2)

    def _select_combinations(self, state: ReplayState) -> list[tuple[int, ...]]:
        """Returns the jobs and pairs to run: entries by time fraction over time received, the highest first, and in a
        class the job with the least service first. Entries without a time fraction come last."""
        if self._job_classes is None:
            return []
        classes, free_gpus = self._job_classes, int(state.node_gpus.sum())
        waiting = self._waiting_by_class(state)
        combinations, open_ = list[tuple[int, ...]](), np.ones(len(self._fractions), dtype=np.bool_)
        width = classes.width[classes.first]
        while free_gpus and open_.any():
            priority = np.where(open_, self._fractions / self._received, -1.0)
            row = int(np.argmax(priority))
            first, second = int(classes.first[row]), int(classes.second[row])
            needed = [first, second] if classes.packed[row] else [first]
            too_few = any(len(waiting[one]) < needed.count(one) for one in needed)
            if too_few or width[row] > free_gpus:
                open_[row] = False
                continue
            combinations.append(tuple(sorted(waiting[one].pop() for one in needed)))
            self._received[row] += state.period
            free_gpus -= int(width[row])
        return combinations

    def _waiting_by_class(self, state: ReplayState) -> list[list[int]]:
        """Returns the jobs of each class, that with the least service last. Jobs of a new class wait for the next
        computation."""
        workload = state.workload
        waiting: list[list[int]] = [[] for _ in self._job_classes.width] if self._job_classes else []
        received = state.attained_service[state.active] / workload.gpus[state.active]
        for job in state.active[np.lexsort((-state.active, -received))].tolist():
            class_index = self._class_of.get((int(workload.job_type[job]), int(workload.gpus[job])))
            if class_index is not None:
                waiting[class_index].append(job)
        return waiting
