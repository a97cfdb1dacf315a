"""The same experiment on other lists of pods: more shared GPUs, more gangs, more types asked for (figures 11 to 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from slurmsched.experiments.experiment import Bound, ExperimentError, Outcome, Row, Task
from slurmsched.experiments.fgd.cells import Cell, filled
from slurmsched.experiments.fgd.policies import PUBLISHED
from slurmsched.experiments.fgd.published import Published, Spread, read_published

__all__ = ["variant"]

POINTS: Final = (100, 130)
_DRAWN: Final = (
    "Our own arrival and node orders: the mean of these seeds within two standard deviations of a seed. The"
    " authors have ten, 42..51; the mean of fewer may lie further off."
)


def variant(task: Task) -> Outcome:
    """Options: `variant`, a published list's name, or `pods`, any file of that form. Raises ExperimentError,
    TraceError."""
    name, file = task.options.get("variant", ""), task.options.get("pods", "")
    if bool(name) == bool(file):
        raise ExperimentError("name a list of pods: --variant gpushare100, multigpu20, gpuspec10, or --pods FILE")
    pods = Path(file) if file else task.file("fgd", f"openb_pod_list_{name}.csv")
    servers, published = (
        task.file("fgd", "openb_node_list_gpu_node.csv"),
        read_published(task.file("fgd", "expected.json")),
    )
    policies = ("fgd", "best_fit") if task.quick else (*PUBLISHED, "fgd_priced")
    cells = [Cell(policy, seed, pods, servers) for policy in policies for seed in task.seeds]
    found = filled(cells, task, "filling")
    rows: list[Row] = []
    for policy in policies:
        for point in POINTS:
            mean = float(np.mean([found[cell].allocated[point] for cell in cells if cell.policy == policy]))
            rows.append(_row(f"{policy} at {point} %, allocated", mean, _spread(published, name, policy, point)))
        failed = float(np.mean([found[cell].failed for cell in cells if cell.policy == policy]))
        rows.append(Row(f"{policy}, failed", "tasks", failed, bound=Bound.STATED))
    return Outcome("fgd-variant", tuple(rows))


def _row(metric: str, mean: float, spread: Spread | None) -> Row:
    if spread is None:
        return Row(metric, "%", mean, bound=Bound.STATED)
    return Row(metric, "%", mean, None, spread.mean, spread.twice, note=_DRAWN)


def _spread(published: Published, name: str, policy: str, point: int) -> Spread | None:
    by_policy = published.alloc_pct.get(name, {})
    return by_policy.get(PUBLISHED.get(policy, ""), {}).get(str(point))
