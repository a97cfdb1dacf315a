"""GPU fragmentation: idle GPUs that typical jobs cannot use, by cause (Weng et al., USENIX ATC 2023, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import (
    MILLI_PER_GPU,
    ClusterFragmentation,
    ClusterOverview,
    Gpu,
    Node,
    NodeFragmentation,
    NodeState,
    NodeUsage,
    Request,
    SameNodes,
    Snapshot,
)
from slurmsched.model.reasons import pluralise
from slurmsched.policies.cluster.resources import FreeResources
from slurmsched.policies.place.fragmentation import (
    FragmentationMeasure,
    FragmentClass,
    TargetWorkload,
    TaskDemand,
    target_workload,
)

_MIN_REPORTED: Final = 0.05
"""GPUs; a smaller loss is not reported."""
_CAUSES: Final = {
    FragmentClass.LACK_GPU: "too few GPUs are free together",
    FragmentClass.LACK_CPU: "too few CPUs are free",
    FragmentClass.LACK_BOTH: "too few GPUs and too few CPUs are free together",
}


def with_fragments(overview: ClusterOverview, usual: Iterable[tuple[Request, int]]) -> ClusterOverview:
    """Return the overview of the cluster with its fragmentation for the usual requests (with their counts)."""
    return replace(overview, fragments=_measured(SameNodes(overview.nodes), tuple(usual)))


@lru_cache(maxsize=1)
def _measured(same: SameNodes[NodeUsage], usual: tuple[tuple[Request, int], ...]) -> ClusterFragmentation:
    """Return what `measure_fragments` does: in most rounds the same as in the last one."""
    return measure_fragments(same.nodes, usual)


def measure_fragments(nodes: Sequence[NodeUsage], usual: Iterable[tuple[Request, int]]) -> ClusterFragmentation:
    """Measure the fragmentation of nodes that are up and have GPUs of a single type."""
    counted = [node for node in nodes if node.state is NodeState.UP and len({gpu.type for gpu in node.gpus}) == 1]
    idle = FreeResources.of_snapshot(Snapshot(0.0, tuple(_node(node) for node in counted), ()))
    workload = target_workload(usual, idle.pools)
    everywhere = np.arange(len(counted))
    by_class = FragmentationMeasure(workload, idle).by_class(everywhere) / MILLI_PER_GPU
    rows = tuple(
        _row(node.name, float(idle.milli[index].sum()) / MILLI_PER_GPU, by_class[index])
        for index, node in enumerate(counted)
    )
    total = _row("", float(idle.milli.sum()) / MILLI_PER_GPU, by_class.sum(axis=0))
    return ClusterFragmentation(total, rows, _sentence(total.idle, workload, idle))


def _node(node: NodeUsage) -> Node:
    gpus = tuple(Gpu(gpu.index, gpu.type, gpu.used, gpu.shards) for gpu in node.gpus)
    return Node(node.name, gpus, node.total, node.used)


def _row(name: str, idle: float, by_class: NDArray[np.float64]) -> NodeFragmentation:
    amounts = [float(part) for part in by_class]
    return NodeFragmentation(
        node=name,
        idle=idle,
        lack_gpu=amounts[FragmentClass.LACK_GPU],
        lack_cpu=amounts[FragmentClass.LACK_CPU],
        lack_both=amounts[FragmentClass.LACK_BOTH],
        other_type=amounts[FragmentClass.NO_ACCESS],
        no_gpu_asked=amounts[FragmentClass.NO_GPU] + amounts[FragmentClass.NO_GPU_LACK_CPU],
    )


def _sentence(idle_gpus: float, workload: TargetWorkload, idle: FreeResources) -> str:
    """Describe the loss for the usual request that loses most, weighted by its popularity; empty if nothing is lost.

    A node that could not take it if it were empty has lost nothing.
    """
    worst, task, by_class = 0.0, None, np.zeros(len(FragmentClass))
    empty, everywhere = FreeResources.of_empty_cluster(idle.pools), np.arange(len(idle.pools))
    for candidate, popularity in zip(workload.tasks, workload.popularity, strict=True):
        if not candidate.gpus:
            continue
        alone = TargetWorkload((candidate,), (1.0,))
        takes_it = FragmentationMeasure(alone, empty).by_class(everywhere)[:, FragmentClass.SATISFIED] > 0
        amounts = FragmentationMeasure(alone, idle).by_class(everywhere)[takes_it].sum(axis=0) / MILLI_PER_GPU
        lost = float(amounts.sum() - amounts[FragmentClass.SATISFIED])
        if lost * popularity > worst and lost >= _MIN_REPORTED:
            worst, task, by_class = lost * popularity, candidate, amounts
    if task is None:
        return ""
    lost = float(by_class.sum() - by_class[FragmentClass.SATISFIED])
    why = max(_CAUSES, key=lambda cause: float(by_class[cause]))
    because = ":" if float(by_class[why]) > lost - _MIN_REPORTED else ", mostly because"
    usual = f"usual jobs with {_task_text(task)} on a node"
    of_one = task.shares_gpu and why is FragmentClass.LACK_GPU
    cause = "no GPU has that much free" if of_one else _CAUSES[why]
    return f"{_gpus_text(idle_gpus)} idle, {lost:.3g} of them unusable for {usual}{because} {cause}"


def _task_text(task: TaskDemand) -> str:
    part = f"{task.milli_per_gpu / MILLI_PER_GPU:g} of a GPU"
    size = part if task.milli_per_gpu < MILLI_PER_GPU else pluralise(task.gpus, "GPU")
    return f"{size} and {pluralise(task.cpus, 'CPU')}"


def _gpus_text(gpus: float) -> str:
    return pluralise(round(gpus), "GPU") if gpus == round(gpus) else f"{gpus:.1f} GPUs"
