"""The best way to divide 3D-parallel jobs for a pair (Tesserae, section 4.2, figures 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurmsched.policies.tesserae.layout import Floats

__all__ = ["Edge", "PairRates", "best_edges", "weighed"]

PairRates = Mapping[tuple[str, str], tuple[float, float]]
"""What part of its rate alone each of two jobs keeps beside the other, by their strategies; 0.0 for both where they do
not fit into memory together. Alone means with the strategy that is best alone. A data-parallel job has the one
strategy ""."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Two kinds of jobs on the same GPUs: the strategy of each and what part of its rate alone each keeps."""

    strategies: tuple[str, str] = ("", "")
    kept: tuple[float, float] = (0.0, 0.0)

    @property
    def weight(self) -> float:
        """Combined normalised throughput; 0.0 is no edge."""
        return sum(self.kept)


NO_EDGE = Edge()


def weighed(rates: PairRates) -> Edge:
    """The strategies with the highest combined throughput; no edge where no two of them fit."""
    edges = (Edge(strategies, kept) for strategies, kept in rates.items() if min(kept) > 0)
    return max(edges, key=lambda edge: edge.weight, default=NO_EDGE)


def best_edges(rates: Sequence[Sequence[PairRates]], least: float = 0.0) -> tuple[list[list[Edge]], Floats]:
    """The edge of each placed kind (row) with each pending kind (column), and their weights for `pack`.

    A pair that together does no more than `least` has no edge: 1.0 leaves out those that do less than one job alone.
    """
    edges = [[weighed(pair) for pair in row] for row in rates]
    edges = [[edge if edge.weight > least else NO_EDGE for edge in row] for row in edges]
    return edges, np.array([[edge.weight for edge in row] for row in edges], dtype=np.float64)
