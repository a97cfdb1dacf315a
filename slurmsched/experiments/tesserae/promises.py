"""Gavel's shares of time on one GPU type and what jobs have had of them (Narayanan et al., OSDI 2020, section 5): an
order for others, and its own rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from slurmsched.experiments.tesserae.policies import Leases
from slurmsched.experiments.tesserae.replay import Standing
from slurmsched.policies.gavel import Books, Entry, Objective, Problem, TimeAlone, by_priority, picked
from slurmsched.policies.gavel.books import RESET
from slurmsched.policies.pools import Ints, Mask
from slurmsched.policies.tesserae import NOBODY
from slurmsched.policies.tesserae.deciding import Decided
from slurmsched.policies.tesserae.layout import Floats

__all__ = ["ByPriority", "GavelRounds", "Promises"]

_TYPE: Final = "any"


@dataclass(slots=True)
class Promises:
    """The books of one replay. With `packed` there is also an entry for any two jobs of one width that do more together
    than one of them does alone."""

    objective: Objective
    packed: bool = False
    _books: Books | None = None
    _entered: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _shared_out: bool = False
    _alone: TimeAlone = field(default_factory=TimeAlone)

    def kept(self, standing: Standing) -> Books:
        """The books as the coming round finds them: what the last one gave is entered, and new shares where they are
        due."""
        books = self._books = self._books or Books((_TYPE,), standing.period / 2, since=-RESET)
        for entry in self._ran(standing):
            books.add(entry, _TYPE, standing.period)
        if not np.array_equal(standing.active, self._entered):
            self._entered, self._shared_out = standing.active, False
            books.keep([*((str(job),) for job in standing.active), *self._pairs(standing)])
        if not self._shared_out and standing.time - books.since >= RESET:
            books.settle(standing.time)
            books.promise(self._shares(standing))
            self._shared_out = True
        return books

    def _ran(self, standing: Standing) -> Iterable[Entry]:
        for row in np.unique(standing.before.jobs, axis=0).reshape(-1, 2).tolist():
            jobs = tuple(str(job) for job in row if job != NOBODY)
            yield from (jobs,) if self.packed else ((job,) for job in jobs)

    def _pairs(self, standing: Standing) -> list[Entry]:
        if not self.packed:
            return []
        workload, active = standing.workload, standing.active
        first, second = np.triu_indices(len(active), 1)
        kind, width = workload.kind[active], workload.gpus[active]
        able = _useful(workload.kept)[kind[first], kind[second]] & (width[first] == width[second])
        pairs = zip(active[first[able]].tolist(), active[second[able]].tolist(), strict=True)
        return [(str(one), str(other)) for one, other in pairs]

    def _shares(self, standing: Standing) -> dict[Entry, Floats]:
        workload, active = standing.workload, standing.active
        names, left = [str(job) for job in active], standing.remaining[active]
        widths = workload.gpus[active].astype(np.float64)
        problem = replace(
            Problem.of(np.array([float(standing.sizes.sum())]), np.ones((len(active), 1)), widths),
            remaining=left,
            elapsed=standing.time - workload.arrival[active],
            kinds=workload.kind[active],
        )
        problem = replace(problem, alone=self._alone.seconds(problem, names, workload.work[active] - left))
        if self.packed:
            problem = replace(problem, beside=np.where(_useful(workload.kept), workload.kept, 0.0)[:, :, None])
        found = self.objective(problem)
        shares: dict[Entry, Floats] = {(name,): share for name, share in zip(names, found.single, strict=True)}
        for first, second, share in zip(found.first.tolist(), found.second.tolist(), found.pair, strict=True):
            shares[names[first], names[second]] = share
        return shares


def _useful(kept: Floats) -> Mask:
    """Which kinds do more together than alone."""
    return np.asarray((kept > 0) & (kept.T > 0) & (kept + kept.T > 1), dtype=np.bool_)


@dataclass(slots=True)
class ByPriority:
    """The active jobs by Gavel's priorities, which know nothing of packing: an `Order`."""

    promises: Promises

    def __call__(self, standing: Standing) -> Ints:
        books = self.promises.kept(standing)
        rows = by_priority(books, np.ones((len(books.entries), 1), dtype=np.bool_), 0)
        return np.asarray(standing.active[rows])


@dataclass(slots=True)
class GavelRounds:
    """Its own greedy pass over jobs and pairs, and its own rule of keeping workers."""

    name: str
    promises: Promises
    leases: Leases

    def decide(self, standing: Standing) -> Decided:
        books, gpus = self.promises.kept(standing), standing.workload.gpus
        entries = [tuple(map(int, entry)) for entry in books.entries]
        widths = gpus[[entry[0] for entry in entries]].astype(np.float64)
        runs = np.ones((len(entries), 1), dtype=np.bool_)
        chosen = picked(books, runs, widths, [int(standing.sizes.sum())], [0])[0]
        running = [tuple(map(int, entry)) for entry in chosen]
        layout, changed = self.leases.seated(running, gpus)
        return Decided(layout, tuple((entry[0], entry[1]) for entry in running if len(entry) > 1), changed)
