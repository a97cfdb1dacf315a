"""HadarE against Hadar and Gavel on seven mixes and two clusters (section VI-C, figures 8 to 12). All simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.mixed.fastest import fastest
from slurmsched.experiments.mixed.figures import Replayed
from slurmsched.experiments.mixed.forked import replay_forked
from slurmsched.experiments.mixed.gavel import GavelRounds
from slurmsched.experiments.mixed.hadar import HadarRounds
from slurmsched.experiments.mixed.hadare_published import (
    EXCHANGE,
    PUBLISHED,
    RESTART,
    SLOW_EXCHANGE,
    WHY,
    best_slot,
)
from slurmsched.experiments.mixed.mixes import CLUSTERS, LISTED, MIXES, cluster, estimates, mix
from slurmsched.experiments.mixed.replay import replay
from slurmsched.policies.gavel import POLICIES
from slurmsched.policies.hadar import Hadar, timely

__all__ = ["mixes", "slot_utilisation"]

SLOTS: Final = (90.0, 180.0, 270.0, 360.0)
DRAWS: Final = 10
"""Clusters with other errors of the estimates, over which all figures are means."""

_OVER_GAVEL: Final = "over Gavel, mean of seven mixes"
_FIGURES: Final = ("total time", "mean JCT", "utilisation")
_Figures = Mapping[str, Mapping[str, float]]
"""Of one mix on one draw: by scheduler the figures by name."""


def mixes(task: Task) -> Outcome:
    """Raises ReplayError."""
    draws = 1 if task.quick else DRAWS
    seeds = tuple(seed * DRAWS + draw for seed in task.seeds for draw in range(draws))
    rows, series = list[Row](), dict[str, Sequence[tuple[float, float]]]()
    for name in task.tracked(tuple(CLUSTERS), "replaying"):
        found = {mix_: [_runs(name, mix_, seed) for seed in seeds] for mix_ in MIXES}
        rows += _rows(name, found)
        for mix_ in MIXES:
            series[f"{name} {mix_}: utilisation by slot"] = sweep = _sweep(name, mix_, seeds, EXCHANGE)
            rows.append(_peak(f"{name} {mix_}: best slot", sweep, best_slot(name, mix_)))
        for mix_ in MIXES:
            slow = _sweep(name, mix_, seeds, SLOW_EXCHANGE)
            rows.append(
                _peak(f"{name} {mix_}: best slot, exchange of {SLOW_EXCHANGE:g} s", slow, best_slot(name, mix_))
            )
        for figure in _FIGURES:
            points = [(float(len(MIXES[mix_])), _gain(found[mix_], "hadare", figure)) for mix_ in MIXES]
            series[f"{name} gain in {figure} by jobs"] = points
    return Outcome("hadare-mixes", tuple(rows), series)


def slot_utilisation(run: Replayed, slot: float) -> float:
    """The paper's CRU: busy time of all nodes over all of their slots, the last one whole."""
    busy = sum(sum(record.busy.values()) for record in run.rounds)
    return busy / (sum(run.gpus.values()) * slot * len(run.rounds))


def _runs(name: str, mix_: str, seed: int) -> _Figures:
    """Seconds in total and to a mean completion, and utilisation; of the fastest possible the total alone."""
    nodes, slot = CLUSTERS[name], SLOTS[-1]
    work = mix(mix_, nodes, seed)
    runs = {
        "gavel": replay(work, cluster(nodes), _gavel(), period=slot, overhead=RESTART),
        "gavel, types as listed": replay(work, cluster(LISTED[name]), _gavel(), period=slot, overhead=RESTART),
        "hadar": replay(work, cluster(nodes), HadarRounds(Hadar(valuing=timely)), period=slot, overhead=RESTART),
        "hadare": _forked(name, mix_, seed, slot, EXCHANGE),
    }
    found = {
        policy: dict(zip(_FIGURES, (run.makespan, run.mean_jct, slot_utilisation(run, slot)), strict=True))
        for policy, run in runs.items()
    }
    return found | {"fastest": {"total time": fastest(work, cluster(nodes).gpus)}}


def _gavel() -> GavelRounds:
    """Its policy draws nothing."""
    return GavelRounds("gavel", POLICIES["max_min_fairness_perf"], np.random.default_rng(0))


def _forked(name: str, mix_: str, seed: int, slot: float, exchange: float) -> Replayed:
    nodes = CLUSTERS[name]
    work = mix(mix_, nodes, seed)
    known = {job.model: estimates(job.model, nodes) for job in work}
    return replay_forked(work, cluster(nodes), known, period=slot, exchange=exchange)


def _sweep(name: str, mix_: str, seeds: Sequence[int], exchange: float) -> Sequence[tuple[float, float]]:
    """Utilisation by slot."""
    return [
        (slot, fmean(slot_utilisation(_forked(name, mix_, seed, slot, exchange), slot) for seed in seeds))
        for slot in SLOTS
    ]


def _peak(metric: str, curve: Sequence[tuple[float, float]], published: float) -> Row:
    best = max(curve, key=lambda point: point[1])[0]
    return Row(metric, "s", best, published, bound=Bound.STATED, note=WHY["slot"])


def _gain(runs: Sequence[_Figures], of: str, figure: str, over: str = "gavel") -> float:
    """How many times better it is: less time, more utilisation."""
    better, worse = (of, over) if figure == "utilisation" else (over, of)
    return fmean(run[better][figure] / run[worse][figure] for run in runs)


def _rows(name: str, found: Mapping[str, Sequence[_Figures]]) -> Iterator[Row]:
    published, runs = PUBLISHED[name], [run for of_mix in found.values() for run in of_mix]
    metric, gain = f"{name} HadarE: utilisation {_OVER_GAVEL}", _gain(runs, "hadare", "utilisation")
    asked = published.hadare["utilisation"]
    yield Row(metric, "x", gain, asked, tolerance=0.1, bound=Bound.AT_LEAST, note=WHY["utilisation"])
    for figure in ("total time", "mean JCT"):
        gain = _gain(runs, "hadare", figure)
        yield _stated(f"{name} HadarE: {figure} {_OVER_GAVEL}", gain, published.hadare[figure], WHY[figure])
        gain, asked = _gain(runs, "hadare", figure, "hadar"), published.hadare[figure] / published.hadar[figure]
        yield _stated(f"{name} HadarE: {figure} over Hadar", gain, asked, WHY["over Hadar"])
        gain = _gain(runs, "hadare", figure, "gavel, types as listed")
        yield _stated(f"{name} HadarE: {figure} over Gavel, as listed", gain, published.hadare[figure], WHY["listed"])
    for figure in ("utilisation", "total time", "mean JCT"):
        gain = _gain(runs, "hadar", figure)
        yield _stated(f"{name} Hadar: {figure} {_OVER_GAVEL}", gain, published.hadar[figure], WHY["hadar"])
    for figure, asked in published.hadar_at_m5.items():
        yield _stated(
            f"{name} M-5: Hadar: {figure} over Gavel", _gain(found["M-5"], "hadar", figure), asked, WHY["hadar"]
        )
    gain = _gain(runs, "fastest", "total time")
    yield _stated(f"{name} fastest possible: total time over Gavel", gain, None, WHY["fastest"])
    most = _gain(runs, "fastest", "total time", "hadare")
    metric = f"{name} HadarE: total time over the fastest possible"
    yield Row(metric, "x", most, None, 1.0, 0.35, Bound.AT_MOST, note=WHY["fastest"])


def _stated(metric: str, measured: float, published: float | None, note: str) -> Row:
    return Row(metric, "x", measured, published, bound=Bound.STATED, note=note)
