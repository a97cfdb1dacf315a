"""A comparison in figures: what table, headline and plots are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

import numpy as np

from slurmsched.comparing import Lost, Result
from slurmsched.simulation import Figures, figures

__all__ = ["Compared", "Comparison", "compared"]


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy at one load: the mean of its seeds, and each mean JCT as a multiple of the first policy's."""

    policy: str
    load: float | None
    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    gpu_utilization: float
    ftf_max: float
    migrations: float
    restarts: float
    finished: int
    jobs: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows` by load, then as the policies were named; `cells` are the figures of each run; `lost` says what is
    missing."""

    rows: tuple[Compared, ...]
    cells: tuple[Figures, ...]
    lost: tuple[str, ...] = ()
    loads: tuple[float, ...] = ()
    policies: tuple[str, ...] = field(default=())

    @property
    def headline(self) -> str:
        """The most that can be said in one sentence: the best policy against the first, at the highest load."""
        if not self.rows:
            return "No simulation came to an end."
        top = [row for row in self.rows if row.load == (self.loads[-1] if self.loads else None)]
        first, best = top[0], min(top, key=lambda row: row.avg_jct_s)
        at = f" at {best.load:g} jobs an hour" if best.load is not None else ""
        if best is first or isnan(best.ratio) or best.ratio >= 1:
            return f"No policy finishes the mean job sooner than {first.policy}{at}."
        return f"{best.policy} finishes the mean job {1 / best.ratio:.2g} times as soon as {first.policy}{at}."


def compared(results: Sequence[Result | Lost]) -> Comparison:
    """The figures of a sweep, seeds averaged."""
    ended = [result for result in results if isinstance(result, Result)]
    groups: dict[tuple[float | None, str], list[Figures]] = {}
    for result in ended:
        groups.setdefault((result.cell.load, result.cell.policy.name), []).append(figures(result.run))
    first: dict[float | None, float] = {}
    rows: list[Compared] = []
    for (load, policy), cells in groups.items():
        mean = _mean([cell.avg_jct_s for cell in cells])
        rows.append(_row(policy, load, cells, mean / first.setdefault(load, mean)))
    return Comparison(
        rows=tuple(rows),
        cells=tuple(cell for cells in groups.values() for cell in cells),
        lost=tuple(f"{lost.cell.name}: {lost.why}" for lost in results if isinstance(lost, Lost)),
        loads=tuple(sorted({load for load, _ in groups if load is not None})),
        policies=tuple(dict.fromkeys(policy for _, policy in groups)),
    )


def _row(policy: str, load: float | None, cells: Sequence[Figures], ratio: float) -> Compared:
    def mean(name: str) -> float:
        return _mean([float(getattr(cell, name)) for cell in cells])

    return Compared(
        policy=policy,
        load=load,
        avg_jct_s=mean("avg_jct_s"),
        median_jct_s=mean("median_jct_s"),
        p99_jct_s=mean("p99_jct_s"),
        makespan_s=mean("makespan_s"),
        gpu_utilization=mean("gpu_utilization"),
        ftf_max=mean("ftf_max"),
        migrations=mean("migrations"),
        restarts=mean("restarts"),
        finished=sum(cell.finished for cell in cells),
        jobs=sum(cell.jobs for cell in cells),
        ratio=ratio,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def entitlement(results: Sequence[Result]) -> Mapping[str, Mapping[str, float]]:
    """By policy and user: the GPU time the user's jobs got, as a multiple of an even share among the users."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        had: dict[str, float] = {}
        for job in result.run.measured:
            had[job.user or "user"] = had.get(job.user or "user", 0.0) + job.service
        even = sum(had.values()) / max(len(had), 1)
        found.setdefault(result.cell.policy.name, {user: got / even if even else 0.0 for user, got in had.items()})
    return found
