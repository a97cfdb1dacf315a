"""Jobs short enough to be waited for. Their models are the shipped ones, so that CPUs make them faster or do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from slurmsched.model import Node
from slurmsched.traces import Trace, TraceJob

__all__ = ["MODELS", "workload"]

MODELS: Final = ("resnet18", "shufflenet", "resnet50", "gnmt", "transformer", "deepspeech")
SHORTEST: Final = 20.0
LONGEST: Final = 160.0
"""Seconds of work, between which durations are spread evenly in the logarithm."""

_WIDTHS: Final = (1, 1, 1, 2, 2, 4, 8)


def workload(nodes: Sequence[Node], jobs: int, random: np.random.Generator, load: float = 1.3) -> Trace:
    """That many jobs on the GPU types of these nodes, none wider than a node. `load` is the work that arrives, as a
    multiple of what all GPUs do at the proportional share, until all have arrived."""
    equipped = [node for node in nodes if node.gpus]
    homes = [equipped[int(place)] for place in random.integers(len(equipped), size=jobs)]
    widths = [min(int(width), len(home.gpus)) for width, home in zip(random.choice(_WIDTHS, jobs), homes, strict=True)]
    seconds = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), jobs)).round(1)
    models = random.choice(MODELS, jobs)
    rate = load * sum(len(node.gpus) for node in equipped) / float(np.mean(np.multiply(widths, seconds)))
    arrivals = np.cumsum(random.exponential(1 / rate, jobs)).round(1)
    return Trace(
        name="fidelity",
        source="generated: short jobs",
        jobs=tuple(
            TraceJob(
                id=str(number),
                arrival=float(arrival),
                gpus=width,
                duration=float(work),
                model=str(model),
                user="fidelity",
                gpu_type=home.gpus[0].type,
                gpus_per_node=width,
                cpus=(share := home.proportional(width)).cpus,
                memory=share.memory,
            )
            for number, (arrival, width, work, model, home) in enumerate(
                zip(arrivals, widths, seconds, models, homes, strict=True), start=1
            )
        ),
    )
