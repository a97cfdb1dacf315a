"""Reads the openb trace without its times, and draws orders of arrivals and nodes (Weng et al., ATC 2023, section 6.1).

The trace is shuffled, and tasks are drawn again or removed until 130 % of the cluster's GPUs are requested.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from cattrs import BaseValidationError, Converter

from slurmsched.experiments.experiment import ExperimentError
from slurmsched.model import MILLI_PER_GPU, Gpu, Node, Resources
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import TaskDemand
from slurmsched.traces.tables import TableRow, csv_rows, read_text

_TASK_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def read_tasks(path: Path) -> tuple[TaskDemand, ...]:
    """Reads a list of pods, including those without GPUs. Raises TraceError."""
    return tuple(_parse_task(line) for line in csv_rows(read_text(path), path.name, _TASK_COLUMNS))


def _parse_task(line: TableRow) -> TaskDemand:
    gpus = line.integer("num_gpu")
    types = tuple(part for part in line.text("gpu_spec").split("|") if part)
    try:
        return TaskDemand(
            line.integer("cpu_milli"), line.integer("memory_mib"), gpus, line.integer("gpu_milli") if gpus else 0, types
        )
    except PolicyError:
        raise line.error("gpu_milli", f"1 to {MILLI_PER_GPU} of each GPU") from None


def read_nodes(path: Path) -> tuple[Node, ...]:
    """Reads a list of nodes, all of them idle, with milli-CPUs as CPUs. Raises TraceError."""
    return tuple(_parse_node(line) for line in csv_rows(read_text(path), path.name, _NODE_COLUMNS))


def _parse_node(line: TableRow) -> Node:
    gpus = tuple(Gpu(index, line.text("model")) for index in range(line.integer("gpu")))
    whole = Resources(len(gpus), line.integer("cpu_milli"), line.integer("memory_mib"))
    return Node(line.text("sn"), gpus, whole, Resources())


REQUESTED_FRACTION: Final = 1.3
"""GPUs requested by all arrivals, relative to the cluster's."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Tasks in order of arrival, and nodes in order of preference among equal scores."""

    tasks: tuple[TaskDemand, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _RecordedSequence:
    pods: tuple[int, ...]
    node_order: tuple[int, ...]


def recorded_arrivals(path: Path, seed: int, tasks: Sequence[TaskDemand], nodes: Sequence[Node]) -> Arrivals | None:
    """Returns the arrivals of the authors' run with this seed, or None if the file lacks it. Raises ExperimentError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))["seeds"].get(str(seed))
        if data is None:
            return None
        sequence = Converter().structure(data, _RecordedSequence)
        return Arrivals(tuple(tasks[i] for i in sequence.pods), tuple(nodes[i] for i in sequence.node_order))
    except (OSError, ValueError, KeyError, IndexError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected arrival and node orders by seed: {error!r}") from error


def draw_arrivals(seed: int, tasks: Sequence[TaskDemand], nodes: Sequence[Node]) -> Arrivals:
    """Draws our own orders of arrivals and nodes."""
    shuffling, tuning, ordering = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3))
    arrivals = [tasks[index] for index in shuffling.permutation(len(tasks))]
    requested, target = (
        sum(task.total_milli_gpu for task in arrivals),
        REQUESTED_FRACTION * MILLI_PER_GPU * sum(len(node.gpus) for node in nodes),
    )
    while requested < target:
        extra = tasks[int(tuning.integers(len(tasks)))]
        if requested + extra.milli_per_gpu > target:  # counts one of its GPUs, as the authors do
            break
        requested += extra.total_milli_gpu
        arrivals.append(extra)
    while requested > target:
        requested -= arrivals.pop(int(tuning.integers(len(arrivals)))).total_milli_gpu
    return Arrivals(tuple(arrivals), tuple(nodes[index] for index in ordering.permutation(len(nodes))))
