"""Random failures of simulated nodes."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from zlib import crc32

import numpy as np

from slurmsched.backends.simulated import SimulatedEventKind
from slurmsched.backends.simulated.events import Event, EventQueue
from slurmsched.model import Node
from slurmsched.simulation.inputs import SimulationOptions


class NodeFailures:
    """Random node failures: `options.failures` per hour that a node is up, each for `options.repair` seconds.

    Each node has its own random stream, with exponential times between failures.
    """

    def __init__(self, nodes: Sequence[Node], options: SimulationOptions, start: float) -> None:
        self._options = options
        self._streams = {
            node.name: np.random.default_rng((options.seed, crc32(f"fails {node.name}".encode()))) for node in nodes
        }
        self._upcoming: list[tuple[float, str]] = []
        if options.failures:
            self._upcoming = [(self._next_failure(node.name, start), node.name) for node in nodes]
            heapify(self._upcoming)

    def schedule(self, events: EventQueue, until: float) -> None:
        """Pushes all failures until `until` (unix seconds) and their repairs to the event queue."""
        while self._upcoming and self._upcoming[0][0] <= until:
            at, node = self._upcoming[0]
            repaired = at + self._options.repair
            events.push(Event(at, SimulatedEventKind.NODE_DOWN, node))
            events.push(Event(repaired, SimulatedEventKind.NODE_UP, node))
            heapreplace(self._upcoming, (self._next_failure(node, repaired), node))

    def _next_failure(self, node: str, since: float) -> float:
        return since + float(self._streams[node].exponential(3600.0 / self._options.failures))
