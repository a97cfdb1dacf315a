"""Allocation and fragments as the cluster fills, on the default list of pods (figures 7 and 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, Outcome, Row, Task
from slurmsched.experiments.fgd.cells import Cell, filled
from slurmsched.experiments.fgd.filling import POINTS, Filled
from slurmsched.experiments.fgd.policies import MOVES, PUBLISHED
from slurmsched.experiments.fgd.published import CURVES, Published, Spread, digest, read_published

__all__ = ["default"]

EXACT: Final = ("fgd", "best_fit", "gpu_packing", "clustering", "dot_product")
OURS: Final = ("fgd_argmin", "fgd_priced", "fgd_moving")
FULL: Final = 100
REFERENCE_CPU_S: Final = 446.0
REFERENCE_DECISION_MS: Final = 37.8
_ASKED_CPU_S: Final = 5.0
_ASKED_DECISION_MS: Final = 0.4
_EXACT: Final = (
    "Published curves of this seed, 131 points of allocation and of fragment amount, that ours equal in every digit."
)
_AT_FULL: Final = "Within the ten published seeds' lowest and highest."
_DRAWN: Final = "Our own arrival and node orders: the mean of these seeds within two standard deviations of a seed."
_ARGMIN: Final = (
    "The paper's algorithm to the letter. Its authors' scheduler rounds scores to whole numbers, so that changes about"
    " 40 milli-GPU apart are equal and the first node wins: that packs, and allocates more."
)
_PRICED: Final = (
    "Held against the best of FGD's ten published seeds. Parts of GPUs first go where the worth of the device's rest"
    " falls least."
)


def default(task: Task) -> Outcome:
    """Raises ExperimentError, TraceError."""
    pods, servers = task.file("fgd", "openb_pod_list_default.csv"), task.file("fgd", "openb_node_list_gpu_node.csv")
    sequences, published = task.file("fgd", "sequences_default.json"), read_published(task.file("fgd", "expected.json"))
    policies = ("fgd", "fgd_priced") if task.quick else (*EXACT, "random_fit", *OURS)
    exact = [Cell(policy, seed, pods, servers, sequences) for seed in task.seeds for policy in policies]
    drawn = [Cell(policy, seed, pods, servers) for seed in task.seeds for policy in PUBLISHED if not task.quick]
    found = filled([*exact, *drawn], task, "filling")
    rows = [row for cell in exact for row in _of_cell(cell, found[cell], published)]
    for policy in PUBLISHED if drawn else ():
        measured = [float(found[cell].allocated[FULL]) for cell in drawn if cell.policy == policy]
        spread = _spread(published, policy)
        name, mean = f"{policy} own orders, allocated", float(np.mean(measured))
        rows.append(Row(name, "%", mean, None, spread.mean, spread.twice, note=_DRAWN))
    rows += _better(exact, found, published)
    series = {
        f"{cell.policy} {cell.seed}": list(zip(range(POINTS), map(float, run.allocated), strict=True))
        for cell, run in found.items()
        if cell.sequences
    }
    return Outcome("fgd-default", tuple(rows), series)


def _of_cell(cell: Cell, run: Filled, published: Published) -> Iterator[Row]:
    if cell.policy not in PUBLISHED:
        return
    name = f"{cell.policy} seed {cell.seed}"
    if (cell.policy, cell.seed) in CURVES:
        equal = sum(
            own == theirs
            for own, theirs in zip(
                (digest(run.allocated), digest(run.fragment)), CURVES[cell.policy, cell.seed], strict=True
            )
        )
        yield Row(f"{name}, curves", "equal", equal, None, 2.0, 0.0, note=_EXACT)
    spread = _spread(published, cell.policy)
    slack = spread.twice if cell.policy == "random_fit" else spread.reach
    yield Row(f"{name}, allocated", "%", float(run.allocated[FULL]), spread.mean, None, slack, note=_AT_FULL)
    if cell.policy == "fgd":
        milliseconds = 1000 * run.cpu_s / run.decisions
        most = _ASKED_CPU_S / REFERENCE_CPU_S - 1
        yield Row(f"{name}, CPU", "s", run.cpu_s, None, REFERENCE_CPU_S, most, Bound.AT_MOST)
        most = _ASKED_DECISION_MS / REFERENCE_DECISION_MS - 1
        yield Row(f"{name}, one decision", "ms", milliseconds, None, REFERENCE_DECISION_MS, most, Bound.AT_MOST)


def _better(cells: list[Cell], found: Mapping[Cell, Filled], published: Published) -> Iterator[Row]:
    fgd = _spread(published, "fgd")
    for policy in OURS:
        runs = [found[cell] for cell in cells if cell.policy == policy]
        if not runs:
            continue
        mean = float(np.mean([run.allocated[FULL] for run in runs]))
        if policy == "fgd_argmin":
            yield Row(f"{policy}, allocated", "%", mean, fgd.mean, bound=Bound.STATED, note=_ARGMIN)
            continue
        yield Row(f"{policy}, allocated", "%", mean, fgd.max, None, 0.0, Bound.AT_LEAST, note=_PRICED)
        lowest = float(min(run.allocated[FULL] for run in runs))
        yield Row(f"{policy}, allocated, lowest seed", "%", lowest, fgd.max, bound=Bound.STATED, note=_PRICED)
        if policy == "fgd_moving":
            moved = float(np.mean([run.moves for run in runs]))
            yield Row(f"{policy}, moves", "", moved, MOVES, None, 0.0, Bound.AT_MOST)


def _spread(published: Published, policy: str) -> Spread:
    return published.alloc_pct["default"][PUBLISHED[policy]][str(FULL)]
