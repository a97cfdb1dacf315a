"""Nodes that fail and are repaired. (Failing is a random stream of its own, one for each node.)"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from zlib import crc32

import numpy as np

from slurmsched.backends.simulated import Happening
from slurmsched.backends.simulated.agenda import Agenda, Event
from slurmsched.model import Node
from slurmsched.simulation.world import Options

__all__ = ["Breaking"]


class Breaking:
    """Failures come `options.failures` times per hour that a node is up, and it stays down for `options.repair`
    seconds."""

    def __init__(self, nodes: Sequence[Node], options: Options, start: float) -> None:
        self._options = options
        self._streams = {
            node.name: np.random.default_rng((options.seed, crc32(f"fails {node.name}".encode()))) for node in nodes
        }
        self._due: list[tuple[float, str]] = []
        if options.failures:
            self._due = [(self._next(node.name, start), node.name) for node in nodes]
            heapify(self._due)

    def enter(self, agenda: Agenda, until: float) -> None:
        """Put what fails by then on the agenda, with the repair."""
        while self._due and self._due[0][0] <= until:
            at, node = self._due[0]
            repaired = at + self._options.repair
            agenda.enter(Event(at, Happening.NODE_DOWN, node))
            agenda.enter(Event(repaired, Happening.NODE_UP, node))
            heapreplace(self._due, (self._next(node, repaired), node))

    def _next(self, node: str, since: float) -> float:
        return since + float(self._streams[node].exponential(3600.0 / self._options.failures))
