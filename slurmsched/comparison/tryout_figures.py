"""The figures of a tryout: means and percentiles of all measured jobs, how sure the difference is, who gains and who
loses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.comparison.tryout import RECORDED, TryoutRun, WindowOutcome
from slurmsched.simulation.inputs import PLAIN_SLURM
from slurmsched.traces.accounting import AccountedJob

_DRAWS: Final = 400
_BLOCKS: Final = 24
_LEAST_BLOCKS: Final = 6
_LEAST_JOBS: Final = 30
_OUTSIDE: Final = 5.0
"""Percent of the draws below a range, and above it."""
_LATER: Final = 60.0
"""Seconds by which a job ends later, or sooner, to count as such: differences below come from when rounds are."""
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class TryoutColumn:
    """What all measured jobs had by the accounting, under plain Slurm or under a policy. Times are in seconds.

    `makespan_s` is the mean of the windows, from a window's start to the end of its last job. `fairness_p99` is the
    finish-time fairness that one job in a hundred is above, `users_even` Jain's index of its means by user: 1 if all
    users have the same. `idle` is a part of the GPUs, `idle_beside_waiting` of the time in which jobs waited.
    """

    policy: str
    mean_s: float
    median_s: float
    p99_s: float
    mean_wait_s: float
    p99_wait_s: float
    makespan_s: float
    fairness_p99: float
    users_even: float
    idle: float
    idle_beside_waiting: float
    waiting: float
    restarts: int
    restarted_jobs: int


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """A change of the policy against plain Slurm as a fraction, and its 90 % range; NaN where that is not known."""

    measure: str
    change: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def is_sure(self) -> bool:
        """Whether all of the range is on one side of no change."""
        return self.is_known and (self.low > 0) == (self.high > 0) and self.low != 0 != self.high


@dataclass(frozen=True, slots=True)
class GroupGain:
    """Jobs with something in common: their mean seconds from arrival to end under plain Slurm and under the policy, and
    the hours that all of them together end sooner (below zero: later)."""

    kind: str
    name: str
    jobs: int
    slurm_s: float
    policy_s: float
    hours_sooner: float


@dataclass(frozen=True, slots=True)
class JobLoss:
    """A job that ends later under the policy, by so many seconds."""

    job: str
    user: str
    name: str
    gpus: int
    later_s: float


@dataclass(frozen=True, slots=True)
class TryoutFigures:
    """`columns` are by the accounting, plain Slurm, the policy. `sooner` and `later` count jobs that end at least a
    minute sooner or later under the policy. `gains` are groups by kind (user, name, size), the largest difference
    first; `losses` the jobs that lose most."""

    jobs: int
    columns: tuple[TryoutColumn, ...]
    ranges: tuple[ChangeRange, ...]
    blocks: int
    sooner: int
    later: int
    same_times: bool
    gains: tuple[GroupGain, ...]
    losses: tuple[JobLoss, ...]

    @property
    def recorded(self) -> TryoutColumn:
        return self.columns[0]

    @property
    def slurm(self) -> TryoutColumn:
        return self.columns[1]

    @property
    def policy(self) -> TryoutColumn:
        return self.columns[2]

    def range_of(self, measure: str) -> ChangeRange:
        return next(known for known in self.ranges if known.measure == measure)

    def groups(self, kind: str) -> tuple[GroupGain, ...]:
        return tuple(group for group in self.gains if group.kind == kind)


def tryout_figures(run: TryoutRun) -> TryoutFigures:
    """Returns the figures of a run."""
    measured = [job for window in run.simulated for job in window.measured]
    names = (RECORDED, PLAIN_SLURM, run.options.policy)
    slurm, policy = (run.joined(name, lambda of: of.completions) for name in names[1:])
    sooner_by = slurm - policy
    blocks = _blocks(run)
    starts = [run.joined(name, lambda of: of.waits) for name in names[1:]]
    return TryoutFigures(
        jobs=len(measured),
        columns=tuple(_column(run, name, measured) for name in names),
        ranges=tuple(_ranges(slurm, policy, starts, blocks, run.options.seed)),
        blocks=len(blocks),
        sooner=int((sooner_by >= _LATER).sum()),
        later=int((sooner_by <= -_LATER).sum()),
        same_times=bool(np.array_equal(slurm, policy) and np.array_equal(starts[0], starts[1])),
        gains=tuple(_gains(measured, slurm, policy)),
        losses=tuple(_losses(measured, sooner_by)),
    )


def _column(run: TryoutRun, policy: str, measured: Sequence[AccountedJob]) -> TryoutColumn:
    outcomes = [of[policy] for of in run.outcomes]
    weights = np.array([window.end - window.start for window in run.simulated])

    def over_time(of: Callable[[WindowOutcome], float]) -> float:
        values = np.array([of(outcome) for outcome in outcomes])
        known = np.isfinite(values)
        return float(values[known] @ weights[known] / weights[known].sum()) if known.any() else float("nan")

    times, waits = run.joined(policy, lambda of: of.completions), run.joined(policy, lambda of: of.waits)
    fairness, restarts = run.joined(policy, lambda of: of.fairness), run.joined(policy, lambda of: of.restarts)
    return TryoutColumn(
        policy=policy,
        mean_s=float(times.mean()),
        median_s=float(np.median(times)),
        p99_s=float(np.percentile(times, 99)),
        mean_wait_s=float(waits.mean()),
        p99_wait_s=float(np.percentile(waits, 99)),
        makespan_s=float(np.mean([outcome.makespan for outcome in outcomes])),
        fairness_p99=float(np.percentile(fairness, 99)),
        users_even=_jain([job.job.user for job in measured], fairness),
        idle=over_time(lambda of: of.idle),
        idle_beside_waiting=over_time(lambda of: of.idle_beside_waiting),
        waiting=over_time(lambda of: of.waiting),
        restarts=int(restarts.sum()),
        restarted_jobs=int((restarts > 0).sum()),
    )


def _jain(users: Sequence[str], values: Floats) -> float:
    """Returns Jain's index of the users' means (Jain, Chiu, Hawe, DEC TR-301, 1984)."""
    of_user = defaultdict[str, list[float]](list)
    for user, value in zip(users, values.tolist(), strict=True):
        of_user[user].append(value)
    means = np.array([np.mean(of) for of in of_user.values()])
    squares = float((means**2).sum())
    return float(means.sum()) ** 2 / (len(means) * squares) if squares > 0 else float("nan")


def _blocks(run: TryoutRun) -> list[slice]:
    """Returns the jobs in blocks that are drawn as one, because jobs that arrive together wait together: windows if
    there are enough, else equal times within them."""
    parts = max(1, -(-_BLOCKS // len(run.simulated))) if len(run.simulated) < _BLOCKS else 1
    found, first = list[slice](), 0
    for window in run.simulated:
        length = window.end - window.start
        arrivals = np.array([job.job.arrival for job in window.measured])
        edges = np.searchsorted(arrivals, [length * part / parts for part in range(1, parts)])
        bounds = [first, *(first + int(edge) for edge in edges), first + len(arrivals)]
        found += (slice(low, high) for low, high in pairwise(bounds) if high > low)
        first += len(arrivals)
    return found


def _ranges(
    slurm: Floats, policy: Floats, waits: Sequence[Floats], blocks: Sequence[slice], seed: int
) -> Iterator[ChangeRange]:
    """Yields the changes with their ranges, by a block bootstrap (Künsch, Annals of Statistics, 1989) over arrivals:
    blocks are drawn again with replacement, the same ones for both."""
    measures: Sequence[tuple[str, Floats, Floats, Callable[[Floats], float]]] = (
        ("mean", slurm, policy, lambda of: float(of.mean())),
        ("median", slurm, policy, lambda of: float(np.median(of))),
        ("p99", slurm, policy, lambda of: float(np.percentile(of, 99))),
        ("wait", waits[0], waits[1], lambda of: float(of.mean())),
    )
    enough = len(blocks) >= _LEAST_BLOCKS and len(slurm) >= _LEAST_JOBS
    random = np.random.default_rng((seed, len(slurm)))
    drawn = [
        np.concatenate(
            [np.arange(blocks[at].start, blocks[at].stop) for at in random.integers(0, len(blocks), len(blocks))]
        )
        for _ in range(_DRAWS if enough else 0)
    ]
    for name, before, after, measure in measures:
        changes = np.array([_change(measure(before[which]), measure(after[which])) for which in drawn])
        changes = changes[np.isfinite(changes)]
        low, high = np.percentile(changes, [_OUTSIDE, 100 - _OUTSIDE]).tolist() if len(changes) else (np.nan, np.nan)
        yield ChangeRange(name, _change(measure(before), measure(after)), float(low), float(high))


def _change(before: float, after: float) -> float:
    return after / before - 1 if before > 0 else 0.0 if after == before else float("nan")


_SIZES: Final = ((1, "1 GPU"), (4, "2 to 4 GPUs"), (8, "5 to 8 GPUs"), (32, "9 to 32 GPUs"))
_LENGTHS: Final = ((600.0, "under 10 min"), (3600.0, "under 1 h"), (43200.0, "under 12 h"))


def size_class(gpus: int, seconds: float) -> str:
    """Returns the class of a job by GPUs and run time: `1 GPU under 10 min`."""
    size = next((name for most, name in _SIZES if gpus <= most), "more than 32 GPUs")
    return f"{size}, {next((name for most, name in _LENGTHS if seconds < most), '12 h and more')}"


def _gains(measured: Sequence[AccountedJob], slurm: Floats, policy: Floats) -> Iterator[GroupGain]:
    keys: Mapping[str, Callable[[AccountedJob], str]] = {
        "user": lambda job: job.job.user or "(no user)",
        "name": lambda job: job.job.name or "(no name)",
        "size": lambda job: size_class(job.job.gpus, job.job.duration),
    }
    for kind, key in keys.items():
        members = defaultdict[str, list[int]](list)
        for at, job in enumerate(measured):
            members[key(job)].append(at)
        groups = [
            GroupGain(
                kind,
                name,
                len(which),
                float(slurm[which].mean()),
                float(policy[which].mean()),
                float((slurm[which] - policy[which]).sum()) / 3600,
            )
            for name, which in members.items()
        ]
        yield from sorted(groups, key=lambda group: (-abs(group.hours_sooner), group.name))


def _losses(measured: Sequence[AccountedJob], sooner_by: Floats) -> Iterator[JobLoss]:
    for at in np.argsort(sooner_by, kind="stable")[:_NAMED].tolist():
        if sooner_by[at] <= -_LATER:
            job = measured[at].job
            yield JobLoss(job.id, job.user, job.name, job.gpus, -float(sooner_by[at]))
