"""Gavel in the replay: a policy's shares, kept by its rounds (Narayanan et al., OSDI 2020, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from slurmsched.experiments.mixed.asking import by_entry, problem_of, runs
from slurmsched.experiments.mixed.rounds import Grant, Question
from slurmsched.experiments.mixed.work import Active
from slurmsched.policies.gavel import Books, Entry, GavelPolicy, TimeAlone, picked, seated
from slurmsched.policies.gavel.books import RESET
from slurmsched.policies.gavel.problem import Floats, Mask

__all__ = ["GavelRounds"]


@dataclass(slots=True)
class GavelRounds:
    """One of Gavel's policies as `RoundPolicy`. GPU types are gone through as the cluster has them; by a blind policy
    in another order each round, drawn from `random`."""

    name: str
    policy: GavelPolicy
    random: np.random.Generator
    reset: float = RESET
    _books: Books | None = None
    _stale: bool = True
    _alone: TimeAlone = field(default_factory=TimeAlone)
    _runs: Mask = field(init=False)
    _widths: Floats = field(init=False)

    def decide(self, question: Question) -> Sequence[Grant]:
        workers, types = question.workers, tuple(question.workers.gpus)
        books = self._books = self._books or Books(types, question.period / 2)
        for one in question.last:
            books.add(one.grant.jobs, workers.types[one.grant.workers[0]], one.seconds)
        self._meet(books, question.jobs)
        due = question.time - books.since >= self.reset or books.since == 0 or not question.last
        if self._stale and due:
            books.settle(question.time)
            books.promise(self._shares(question, types))
            self._stale = False
        visited = list(range(len(types)))
        if self.policy.blind:
            self.random.shuffle(visited)
        may = self._runs & (np.nan_to_num(books.share) > 0) if self.policy.strict else self._runs
        chosen = picked(books, may, self._widths, list(workers.gpus.values()), visited)
        before, late = {one.grant.jobs: one.grant.workers for one in question.last}, set(books.shareless())
        grants: list[Grant] = []
        for kind in visited:
            # Who came after shares were computed took room, but gets no worker: so it is in Gavel.
            widths = {entry: question.jobs[entry[0]].work.width for entry in chosen[kind] if entry not in late}
            grants += [
                Grant(entry, place) for entry, place in seated(widths, workers.of_type[types[kind]], before).items()
            ]
        return grants

    def _meet(self, books: Books, jobs: Mapping[str, Active]) -> None:
        """Enter who came and strike out who left; both call for new shares."""
        singles = tuple((job,) for job in jobs)
        if singles == books.entries[: len(singles)] and not any(len(e) == 1 for e in books.entries[len(singles) :]):
            return
        self._stale = True
        pairs = combinations(jobs, 2) if self.policy.packed else ()
        alike = [pair for pair in pairs if len({jobs[job].work.width for job in pair}) == 1]
        possible = {entry: [runs(jobs, entry, kind) for kind in books.types] for entry in (*singles, *alike)}
        books.keep([entry for entry, where in possible.items() if len(entry) == 1 or any(where)])
        self._runs = np.array([possible[entry] for entry in books.entries], dtype=np.bool_)
        self._widths = np.array([jobs[entry[0]].work.width for entry in books.entries], dtype=np.float64)

    def _shares(self, question: Question, types: Sequence[str]) -> dict[Entry, Floats]:
        jobs = tuple(question.jobs)
        problem = self.policy.seen(problem_of(question, types, packed=self.policy.packed), types)
        done = np.array([job.done for job in question.jobs.values()], dtype=np.float64)
        problem = replace(problem, alone=self._alone.seconds(problem, jobs, done))
        return by_entry(self.policy.objective(problem), jobs)
