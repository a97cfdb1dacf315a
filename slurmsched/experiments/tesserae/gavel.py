"""Gavel with packing, as Tesserae compares itself with it (Narayanan et al., OSDI 2020, sections 3.1, 4.1 and 5).

A linear program says what part of the time each job and each pair shall run, so that the least job gets the most; of
all such shares those with the most throughput are taken, since the rounds use up what is left anyway. Jobs of one model
and width are alike, so the program is over these classes. Rounds then go by share over time had, the highest first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_matrix, hstack

from slurmsched.experiments.tesserae.policies import Leases
from slurmsched.experiments.tesserae.replay import Standing
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.pools import Ints, Mask
from slurmsched.policies.tesserae.deciding import Decided
from slurmsched.policies.tesserae.layout import Floats

__all__ = ["Classes", "GavelPacked", "shares_of_time"]

RESET: Final = 1920.0
"""Seconds that shares hold at least, though jobs come and end."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Jobs of one kind and width: of class c there are `count[c]`. An entry is a class, or two that share GPUs: those
    at `first` and `second`, which is the first again for one alone; `kept` is what part of its rate each then keeps."""

    width: Ints
    count: Ints
    first: Ints
    second: Ints
    kept: tuple[Floats, Floats]
    packed: Mask

    @classmethod
    def of(cls, kind: Ints, width: Ints, count: Ints, kept: Floats) -> Classes:
        """All classes alone, and all pairs of equal width that do more together than one alone does."""
        alone = np.arange(len(kind))
        a, b = np.triu_indices(len(kind))
        own, other = kept[kind[a], kind[b]], kept[kind[b], kind[a]]
        useful = (width[a] == width[b]) & (own > 0) & (other > 0) & (own + other > 1) & ((a != b) | (count[a] > 1))
        a, b, own, other = a[useful], b[useful], own[useful], other[useful]
        ones, packed = np.ones(len(kind)), np.repeat((False, True), (len(kind), len(a)))
        parts = np.concatenate((ones, own)), np.concatenate((0 * ones, other))
        return cls(width, count, np.concatenate((alone, a)), np.concatenate((alone, b)), parts, packed)

    def per_class(self, first: Floats, second: Floats) -> csr_matrix:
        """By class and entry, what a unit of the entry is to its first and to its second class."""
        entries = np.arange(len(self.first))
        rows = np.concatenate((self.first, self.second))
        columns = np.concatenate((entries, entries))
        return csr_matrix((np.concatenate((first, second)), (rows, columns)), shape=(len(self.width), len(entries)))


def shares_of_time(classes: Classes, gpus: int) -> Floats:
    """Of each entry, how many of its jobs or pairs run at a time. Raises PolicyError.

    The least of all jobs, by its width times its speed, gets the most there is; then all together the most.
    """
    speed = classes.per_class(*classes.kept)
    busy = classes.per_class(np.ones(len(classes.first)), classes.packed.astype(np.float64))
    room = csr_matrix(classes.width[classes.first].astype(np.float64))
    least = csr_matrix((classes.count / classes.width)[:, None])
    limits = [
        LinearConstraint(hstack((busy, 0 * least)).tocsr(), -np.inf, classes.count),
        LinearConstraint(hstack((room, csr_matrix((1, 1)))).tocsr(), -np.inf, gpus),
        LinearConstraint(hstack((speed, -least)).tocsr(), 0, np.inf),
    ]
    level = np.zeros(len(classes.first) + 1)
    level[-1] = -1.0
    best = _solved(level, limits)[-1]
    reached = LinearConstraint(csr_matrix(-level), (1 - _ROUNDING) * best, np.inf)
    work = np.append(-np.asarray(speed.T @ classes.width, dtype=np.float64), 0.0)
    return np.clip(_solved(work, [*limits, reached])[:-1], 0.0, None)


_ROUNDING: Final = 1e-6


def _solved(cost: Floats, limits: list[LinearConstraint]) -> Floats:
    answer = milp(cost, constraints=limits)
    if answer.x is None:
        raise PolicyError(f"no shares of time were found: {answer.message}")
    return np.asarray(answer.x, dtype=np.float64)


@dataclass(slots=True)
class GavelPacked:
    """The rounds. `had`: jobs' seconds by entry, since shares were computed; `seconds`: those of each job, ever."""

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
