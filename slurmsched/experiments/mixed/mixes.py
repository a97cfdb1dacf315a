"""HadarE's clusters and workload mixes (section VI-A and VI-B, table III). All of it is simulated.

The estimates are those of equation 10. How fast a model really is on a node differs from that, by a factor drawn once
for each pair, which Gavel and Hadar know from profiling and HadarE learns as it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from slurmsched.experiments.mixed.work import Work
from slurmsched.experiments.mixed.workers import Workers
from slurmsched.policies.hadare import Machine, Model, estimate

__all__ = ["CLUSTERS", "LISTED", "MIXES", "cluster", "estimates", "mix"]

_OLD_BOARD: Final = 0.5
"""PCIe 3.0, of which a lane carries half of what one of PCIe 4.0 does."""

MACHINES: Final[Mapping[str, Machine]] = {
    "v100": Machine(15.7, 16),
    "k80": Machine(4.1, 12),
    "t4": Machine(8.1, 16),
    "titan-rtx": Machine(16.3, 24),
    "t4-old": Machine(8.1, 16, _OLD_BOARD),
    "t400": Machine(1.1, 4, _OLD_BOARD),
    "rtx-3090": Machine(35.6, 24),
    "rtx-a2000": Machine(8.0, 6, _OLD_BOARD),
}
"""Single-precision teraflops and GB, as the makers state them; of a K80 one of its two GPUs."""

CLUSTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "aws": ("v100", "t4", "t4", "k80", "k80"),
    "lab": ("rtx-3090", "titan-rtx", "rtx-a2000", "t4-old", "t400"),
}
"""Five nodes of one GPU, the fastest first: so Gavel's own code visits V100, P100 and K80. Three of the lab's have PCIe
3.0; the paper does not say which."""

LISTED: Final[Mapping[str, tuple[str, ...]]] = {
    "aws": ("v100", "k80", "k80", "t4", "t4"),
    "lab": ("titan-rtx", "t4-old", "t400", "rtx-3090", "rtx-a2000"),
}
"""The same nodes as the paper lists them."""

_MODELS: Final[Mapping[str, tuple[Model, int]]] = {
    "IC": (Model(1, 1, 128), 20_000),
    "LM": (Model(2, 3, 128), 8_000),
    "LT": (Model(3, 3, 128), 8_000),
    "RS": (Model(2, 4, 128), 9_000),
    "MM": (Model(3, 2, 128), 9_000),
}
"""Table III's models: weight and data set on scales of 1 to 4, and steps. The paper has no more of them than S to XL;
the steps are ours, so that Gavel takes about as long for M-5 on the AWS cluster as it says (4,200 s)."""

MIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "M-1": ("MM",),
    "M-3": ("LT", "MM", "MM"),
    "M-4": ("IC", "LM", "LT", "MM"),
    "M-5": ("IC", "LM", "LT", "RS", "MM"),
    "M-8": ("IC", "LM", "LT", "RS", *["MM"] * 4),
    "M-10": ("IC", "LM", "LT", "RS", *["MM"] * 6),
    "M-12": ("IC", "LM", "LT", "RS", *["MM"] * 8),
}

_UNIT: Final = 0.075
"""Steps per second of one unit of equation 10."""

_SPREAD: Final = 0.2
"""Standard deviation of the logarithm of how wrong an estimate is."""


def cluster(nodes: tuple[str, ...]) -> Workers:
    """A GPU on each of these nodes."""
    return Workers(nodes, tuple(range(len(nodes))))


def mix(name: str, nodes: tuple[str, ...], seed: int) -> tuple[Work, ...]:
    """The jobs of a mix on a cluster of these nodes, all there at the start."""
    wrong = np.random.default_rng(seed).lognormal(0.0, _SPREAD, (len(_MODELS), len(MACHINES)))
    works: list[Work] = []
    for at, model in enumerate(MIXES[name], start=1):
        factors = dict(zip(MACHINES, wrong[list(_MODELS).index(model)].tolist(), strict=True))
        rates = {node: _UNIT * factors[node] * rate for node, rate in estimates(model, nodes).items()}
        works.append(Work(f"{model}-{at}", 1, _MODELS[model][1], rates, model=model))
    return tuple(works)


def estimates(model: str, nodes: tuple[str, ...]) -> dict[str, float]:
    """By kind of node, in equation 10's own unit."""
    return {node: estimate(_MODELS[model][0], MACHINES[node]) for node in dict.fromkeys(nodes)}
