"""What is compared: Tesserae over an order, with any of its parts, and with Gavel's own rule of keeping workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmsched.experiments.tesserae.orders import Order, queued
from slurmsched.experiments.tesserae.replay import Standing
from slurmsched.policies.gavel import seated
from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae import Layout
from slurmsched.policies.tesserae.deciding import Decided, Question, Reading, decide
from slurmsched.policies.tesserae.layout import Floats

__all__ = ["KeepingWorkers", "Leases", "Matching"]


@dataclass(frozen=True, slots=True)
class Matching:
    """Tesserae with some or all of its parts. `weights` are by kind, as packing is told them."""

    name: str
    weights: Floats
    order: Order = queued
    reading: Reading = field(default_factory=Reading)

    def decide(self, standing: Standing) -> Decided:
        return decide(question(standing, self.order), self.weights, self.reading)


@dataclass(slots=True)
class Leases:
    """Gavel's rule of keeping workers, over the rounds of one replay; a pair keeps them only where it is the same."""

    sizes: Ints
    _had: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def seated(self, entries: Sequence[tuple[int, ...]], gpus: Ints) -> tuple[Layout, frozenset[int]]:
        """The layout, and the jobs that ran on other GPUs in the round before."""
        node_of = np.repeat(np.arange(len(self.sizes)), self.sizes).tolist()
        now = seated({entry: int(gpus[entry[0]]) for entry in entries}, range(len(node_of)), self._had)
        before, after = ({job: workers for entry, workers in of.items() for job in entry} for of in (self._had, now))
        self._had = now
        rows = [(node_of[worker], 1, entry) for entry, workers in now.items() for worker in workers]
        changed = frozenset(job for job in before.keys() & after.keys() if before[job] != after[job])
        return Layout.of(rows), changed


@dataclass(slots=True)
class KeepingWorkers:
    """The same jobs and the same pairs as another policy, on the workers that Gavel's rule gives them."""

    name: str
    deciding: Matching
    leases: Leases

    def decide(self, standing: Standing) -> Decided:
        chosen = self.deciding.decide(standing)
        alone = set(chosen.layout.jobs[:, 0].tolist()) - {job for pair in chosen.pairs for job in pair}
        entries = [*((min(pair), max(pair)) for pair in chosen.pairs), *((job,) for job in sorted(alone))]
        layout, changed = self.leases.seated(entries, standing.workload.gpus)
        return Decided(layout, chosen.pairs, changed)


def question(standing: Standing, order: Order) -> Question:
    workload = standing.workload
    return Question(
        order(standing).tolist(),
        workload.gpus,
        workload.kind,
        np.ones(len(workload), dtype=np.bool_),
        standing.sizes,
        standing.before,
    )
