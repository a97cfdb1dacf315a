"""Who arrives in which order, and which node is the first of equals (section 6.1): the paper's construction.

The trace is shuffled, and tuned until 130 % of the cluster's GPUs have been asked for: with tasks of it drawn again, or
less some of them.
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
from slurmsched.model import MILLI
from slurmsched.policies.placing.fragmentation import Server, Task

__all__ = ["LOAD", "Arrivals", "drawn", "recorded"]

LOAD: Final = 1.3
"""What has been asked for in the end, of all GPUs."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Tasks in order of arrival, servers in order of preference among equals."""

    tasks: tuple[Task, ...]
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class _Recorded:
    pods: tuple[int, ...]
    node_order: tuple[int, ...]


def recorded(path: Path, seed: int, tasks: Sequence[Task], servers: Sequence[Server]) -> Arrivals | None:
    """The very sequence of the authors' run with this seed; None for a seed the file does not have.

    Raises ExperimentError.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))["seeds"].get(str(seed))
        if data is None:
            return None
        found = Converter().structure(data, _Recorded)
        return Arrivals(tuple(tasks[i] for i in found.pods), tuple(servers[i] for i in found.node_order))
    except (OSError, ValueError, KeyError, IndexError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected arrival and node orders by seed: {error!r}") from error


def drawn(seed: int, tasks: Sequence[Task], servers: Sequence[Server]) -> Arrivals:
    """One of our own."""
    shuffling, tuning, ordering = (np.random.default_rng(own) for own in np.random.SeedSequence(seed).spawn(3))
    arrivals = [tasks[place] for place in shuffling.permutation(len(tasks))]
    asked, enough = sum(task.demand for task in arrivals), LOAD * MILLI * sum(len(server.gpus) for server in servers)
    while asked < enough:
        another = tasks[int(tuning.integers(len(tasks)))]
        if asked + another.milli > enough:  # once, not for each of its GPUs, as the authors tune
            break
        asked += another.demand
        arrivals.append(another)
    while asked > enough:
        asked -= arrivals.pop(int(tuning.integers(len(arrivals)))).demand
    return Arrivals(tuple(arrivals), tuple(servers[place] for place in ordering.permutation(len(servers))))
