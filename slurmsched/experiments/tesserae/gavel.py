"""Gavel's rounds with packing, as Tesserae compares itself with them (Narayanan et al., OSDI 2020, section 5): by share
over time had, the highest first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurmsched.experiments.tesserae.policies import Leases
from slurmsched.experiments.tesserae.replay import Standing
from slurmsched.experiments.tesserae.shares import Classes, shares_of_time
from slurmsched.policies.tesserae.deciding import Decided
from slurmsched.policies.tesserae.layout import Floats

__all__ = ["GavelPacked"]

RESET: Final = 1920.0
"""Seconds that shares hold at least, though jobs come and end."""


@dataclass(slots=True)
class GavelPacked:
    """One object serves one replay. It remembers the shares, the classes they are of, when and for which jobs they were
    computed, and the seconds that each entry has had since."""

    name: str
    leases: Leases
    packed: bool = True
    _classes: Classes | None = None
    _class_of: dict[tuple[int, int], int] = field(default_factory=dict)
    _shares: Floats = field(default_factory=lambda: np.zeros(0))
    _had: Floats = field(default_factory=lambda: np.zeros(0))
    _since: float = -np.inf
    _seen: frozenset[int] = frozenset()

    def decide(self, standing: Standing) -> Decided:
        present = frozenset(standing.active.tolist())
        if present != self._seen and standing.time - self._since >= RESET:
            self._share_out(standing)
            self._seen, self._since = present, standing.time
        entries = self._picked(standing)
        layout, changed = self.leases.seated(entries, standing.workload.gpus)
        return Decided(layout, tuple((entry[0], entry[1]) for entry in entries if len(entry) > 1), changed)

    def _share_out(self, standing: Standing) -> None:
        workload, active = standing.workload, standing.active
        keys = np.column_stack((workload.kind[active], workload.gpus[active]))
        found, count = np.unique(keys, axis=0, return_counts=True)
        kept = workload.kept if self.packed else np.zeros_like(workload.kept)
        self._classes = Classes.of(found[:, 0], found[:, 1], count, kept)
        self._class_of = {(kind, width): place for place, (kind, width) in enumerate(found.tolist())}
        self._shares = shares_of_time(self._classes, int(standing.sizes.sum()))
        self._had = np.full(len(self._shares), standing.period / 2)

    def _picked(self, standing: Standing) -> list[tuple[int, ...]]:
        """Entry by entry with the highest share over time had; in a class who has had least comes first. What has no
        share comes last but is not left out."""
        if self._classes is None:
            return []
        classes, left = self._classes, int(standing.sizes.sum())
        waiting = self._waiting(standing)
        entries, open_ = list[tuple[int, ...]](), np.ones(len(self._shares), dtype=np.bool_)
        width = classes.width[classes.first]
        while left and open_.any():
            priority = np.where(open_, self._shares / self._had, -1.0)
            entry = int(np.argmax(priority))
            first, second = int(classes.first[entry]), int(classes.second[entry])
            needed = [first, second] if classes.packed[entry] else [first]
            short = any(len(waiting[one]) < needed.count(one) for one in needed)
            if short or width[entry] > left:
                open_[entry] = False
                continue
            entries.append(tuple(sorted(waiting[one].pop() for one in needed)))
            self._had[entry] += standing.period
            left -= int(width[entry])
        return entries

    def _waiting(self, standing: Standing) -> list[list[int]]:
        """The jobs of each class, who has had least last. A job whose class came later waits for new shares."""
        workload = standing.workload
        waiting: list[list[int]] = [[] for _ in self._classes.width] if self._classes else []
        had = standing.attained[standing.active] / workload.gpus[standing.active]
        for job in standing.active[np.lexsort((-standing.active, -had))].tolist():
            place = self._class_of.get((int(workload.kind[job]), int(workload.gpus[job])))
            if place is not None:
                waiting[place].append(job)
        return waiting
