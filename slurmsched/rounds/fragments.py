"""How much of what is idle the usual jobs could not use, and for want of what (Weng et al., ATC 2023, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import MILLI, Fragments, NodeFragments, NodeState, NodeUse, Overview, Request, Snapshot, survey
from slurmsched.model.wording import counted
from slurmsched.policies.fgd import usual_workload
from slurmsched.policies.placing.fragmentation import Fragment, Idle, Measure, Server, Task, Workload

__all__ = ["fragments", "surveyed"]

_CORE: Final = 1000
_LEAST: Final = 0.05
"""GPUs; less is not worth a word."""
_WHY: Final = {
    Fragment.LACK_GPU: "too few are free together",
    Fragment.LACK_CPU: "CPU is gone",
    Fragment.LACK_BOTH: "neither CPUs nor enough GPUs are left beside them",
    Fragment.NO_ACCESS: "they are of other types",
}


def surveyed(snapshot: Snapshot, usual: Iterable[tuple[Request, int]]) -> Overview:
    """What a snapshot shows, and what of it is lost to the usual jobs."""
    overview = survey(snapshot)
    return replace(overview, fragments=fragments(overview.nodes, usual))


def fragments(nodes: Sequence[NodeUse], usual: Iterable[tuple[Request, int]]) -> Fragments:
    """Nodes that are up, with GPUs of one type."""
    counted = [node for node in nodes if node.state is NodeState.UP and len({gpu.type for gpu in node.gpus}) == 1]
    shards = max((gpu.shards for node in counted for gpu in node.gpus), default=0)
    workload = usual_workload(usual, shards, len(counted))
    idle = Idle([_server(node) for node in counted])
    everywhere = np.arange(len(counted))
    by_class = Measure(workload, idle).by_class(everywhere) / MILLI
    rows = tuple(
        _row(node.name, float(idle.gpus[place].sum()) / MILLI, by_class[place]) for place, node in enumerate(counted)
    )
    total = _row("", float(idle.gpus.sum()) / MILLI, by_class.sum(axis=0))
    return Fragments(total, rows, _sentence(total.idle, workload, idle))


def _server(node: NodeUse) -> Server:
    return Server(
        cpu=_CORE * max(node.free.cpus, 0),
        memory=max(node.free.memory, 0),
        gpus=tuple(max(0, MILLI - gpu.used) for gpu in node.gpus),
        gpu_type=node.gpus[0].type,
    )


def _row(name: str, idle: float, by_class: NDArray[np.float64]) -> NodeFragments:
    said = [float(part) for part in by_class]
    return NodeFragments(
        node=name,
        idle=idle,
        lack_gpu=said[Fragment.LACK_GPU],
        lack_cpu=said[Fragment.LACK_CPU],
        lack_both=said[Fragment.LACK_BOTH],
        other_type=said[Fragment.NO_ACCESS],
        no_gpu_asked=said[Fragment.NO_GPU] + said[Fragment.NO_GPU_LACK_CPU],
    )


def _sentence(idle_gpus: float, workload: Workload, idle: Idle) -> str:
    """For the usual kind of job that loses most, weighted by how usual it is."""
    worst, task, by_class = 0.0, None, np.zeros(len(Fragment))
    for one, popularity in zip(workload.tasks, workload.popularity, strict=True):
        if not one.gpus:
            continue
        found = Measure(Workload((one,), (1.0,)), idle).by_class(np.arange(len(idle))).sum(axis=0) / MILLI
        lost = float(found.sum() - found[Fragment.SATISFIED])
        if lost * popularity > worst and lost >= _LEAST:
            worst, task, by_class = lost * popularity, one, found
    if task is None:
        return ""
    lost = float(by_class.sum() - by_class[Fragment.SATISFIED])
    why = max(_WHY, key=lambda name: float(by_class[name]))
    return f"{_amount(idle_gpus)} idle, {lost:.3g} of them unusable for the usual {_named(task)}: {_WHY[why]}"


def _named(task: Task) -> str:
    size = f"{task.milli / MILLI:g} of a GPU" if task.milli < MILLI else f"{task.gpus}-GPU"
    cpus = counted(task.cpu // _CORE, "CPU")
    return f"{size} job with {cpus}" if task.milli == MILLI else f"job of {size} with {cpus}"


def _amount(gpus: float) -> str:
    return counted(round(gpus), "GPU") if gpus == round(gpus) else f"{gpus:.1f} GPUs"
