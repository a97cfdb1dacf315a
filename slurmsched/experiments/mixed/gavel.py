"""Gavel in the replay: a policy's shares, kept by its rounds (Narayanan et al., OSDI 2020, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.experiments.mixed.rounds import Grant, Question
from slurmsched.experiments.mixed.work import Active, Work
from slurmsched.policies.gavel.books import Books, Entry
from slurmsched.policies.gavel.equal import equal_shares
from slurmsched.policies.gavel.leasing import seated
from slurmsched.policies.gavel.objectives import Objective
from slurmsched.policies.gavel.picking import picked
from slurmsched.policies.gavel.problem import Floats, Problem, Shares

__all__ = ["RESET", "GavelRounds"]

RESET: Final = 1920.0
"""Seconds that shares hold at least, though jobs come and end: Gavel's `minimum_time_between_allocation_resets`."""


@dataclass(slots=True)
class GavelRounds:
    """A policy by its objective. `see` is how it sees the rates; `packed` lets two jobs of one GPU share it.

    With `random`, which blind policies have, GPU types are gone through in another order each round; else as the
    cluster has them.
    """

    name: str
    objective: Objective
    blind: bool = False
    reference: str | None = None
    packed: bool = False
    random: np.random.Generator | None = None
    reset: float = RESET
    _books: Books | None = None
    _stale: bool = True
    _alone: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    _runs: NDArray[np.bool_] = field(init=False)
    _widths: Floats = field(init=False)

    def decide(self, question: Question) -> Sequence[Grant]:
        types, workers = tuple(question.workers.gpus), question.workers
        books = self._books = self._books or Books(types, question.period / 2)
        for one in question.last:
            books.add(one.grant.jobs, workers.types[one.grant.workers[0]], one.seconds)
        self._meet(books, question.jobs)
        due = question.time - books.since >= self.reset or books.since == 0 or not question.last
        if self._stale and due:
            books.settle(question.time)
            books.promise(self._shares(question, books))
            self._stale = False
        visited = list(range(len(types)))
        if self.random is not None:
            self.random.shuffle(visited)
        chosen = picked(books, self._runs, self._widths, list(workers.gpus.values()), visited)
        before = {one.grant.jobs: one.grant.workers for one in question.last}
        late = set(books.shareless())
        grants: list[Grant] = []
        for kind in visited:
            widths = {entry: question.jobs[entry[0]].work.width for entry in chosen[kind] if entry not in late}
            places = seated(widths, workers.of_type[types[kind]], before)
            grants += [Grant(entry, place) for entry, place in places.items()]
        return grants

    def _meet(self, books: Books, jobs: Mapping[str, Active]) -> None:
        """Enter who came and strike out who left."""
        singles = tuple((job,) for job in jobs)
        if singles == tuple(entry for entry in books.entries if len(entry) == 1):
            return
        self._stale = True
        pairs = [pair for pair in combinations(jobs, 2) if self._may_share(jobs, pair)] if self.packed else []
        books.keep((*singles, *pairs))
        self._runs = np.array(
            [[_runs(jobs, entry, kind) for kind in books.types] for entry in books.entries], dtype=np.bool_
        ).reshape(len(books.entries), len(books.types))
        self._widths = np.array([jobs[entry[0]].work.width for entry in books.entries], dtype=np.float64)

    @staticmethod
    def _may_share(jobs: Mapping[str, Active], pair: tuple[str, str]) -> bool:
        a, b = (jobs[job].work for job in pair)
        return a.width == b.width and any(b.model in known for known in a.beside.values())

    def _shares(self, question: Question, books: Books) -> dict[Entry, Floats]:
        problem = problem_of(question, books.types, packed=self.packed)
        if self.blind:
            problem = problem.blind(None if self.reference is None else books.types.index(self.reference))
        problem = replace(problem, alone=self._time_alone(problem, tuple(question.jobs)))
        return by_entry(self.objective(problem), tuple(question.jobs))

    def _time_alone(self, problem: Problem, jobs: tuple[str, ...]) -> Floats:
        """Seconds that the steps each job has done so far would have taken on its equal part of the cluster, which
        changes with the number of jobs."""
        rates = equal_shares(problem).rates(problem)
        now: dict[str, tuple[float, float, float]] = {}
        for job, remaining, rate in zip(jobs, problem.remaining, rates, strict=True):
            before, had, was = self._alone.get(job, (0.0, float(remaining), float(rate)))
            now[job] = (before + (had - remaining) / was, float(remaining), float(rate))
        self._alone = now
        return np.array([now[job][0] for job in jobs])


def problem_of(question: Question, types: Sequence[str], *, packed: bool = False) -> Problem:
    """The active jobs as Gavel's policies see them."""
    jobs = [job.work for job in question.jobs.values()]
    kinds = dict.fromkeys((job.model, job.width) for job in jobs)
    number = {kind: place for place, kind in enumerate(kinds)}
    one = {(job.model, job.width): job for job in reversed(jobs)}
    problem = Problem(
        gpus=np.array([question.workers.gpus[kind] for kind in types], dtype=np.float64),
        rates=np.array([[job.rates.get(kind, 0.0) for kind in types] for job in jobs]),
        widths=np.array([job.width for job in jobs], dtype=np.float64),
        remaining=np.array([job.remaining for job in question.jobs.values()], dtype=np.float64),
        elapsed=np.array([question.time - job.arrival for job in jobs]),
        alone=np.zeros(len(jobs)),
        weights=np.array([job.weight for job in jobs]),
        kinds=np.array([number[job.model, job.width] for job in jobs], dtype=np.int64),
    )
    if not packed:
        return problem
    each = [one[kind] for kind in kinds]
    return replace(problem, beside=np.array([[[_beside(a, b, kind) for kind in types] for b in each] for a in each]))


def by_entry(shares: Shares, jobs: Sequence[str]) -> dict[Entry, Floats]:
    """Shares by job and by pair of jobs."""
    found: dict[Entry, Floats] = {(job,): share for job, share in zip(jobs, shares.single, strict=True)}
    for first, second, share in zip(shares.first, shares.second, shares.pair, strict=True):
        found[jobs[first], jobs[second]] = share
    return found


def _beside(own: Work, other: Work, kind: str) -> float:
    return (
        own.rates.get(kind, 0.0) * own.beside.get(kind, {}).get(other.model, 0.0) if own.width == other.width else 0.0
    )


def _runs(jobs: Mapping[str, Active], entry: Entry, kind: str) -> bool:
    works = [jobs[job].work for job in entry]
    if len(works) == 1:
        return works[0].rates.get(kind, 0.0) > 0
    a, b = works
    return _beside(a, b, kind) > 0 and _beside(b, a, kind) > 0
