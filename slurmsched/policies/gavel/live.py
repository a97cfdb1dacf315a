"""Gavel on a cluster that runs: its picks of each round, placed as all systems here place.

Who runs on which GPU type is Gavel's (section 5). Nodes, CPUs, memory, leases and the limit on moves are those of every
system: so a job leaves its GPUs only where one that was picked needs them, or to a faster type that is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from slurmsched.model import Decision, Job, JobId, JobState, Ranked
from slurmsched.policies.allocating import Proportional
from slurmsched.policies.composed import FINISHING, Composed
from slurmsched.policies.gavel.books import RESET, Books
from slurmsched.policies.gavel.memory import Remembered
from slurmsched.policies.gavel.moving import Moving
from slurmsched.policies.gavel.objectives import least_attained_service
from slurmsched.policies.gavel.picking import picked
from slurmsched.policies.gavel.problem import Mask, Problem
from slurmsched.policies.gavel.rates import managed_gpus, on_type, rate_matrix
from slurmsched.policies.placing import CONSOLIDATED
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["Gavel"]

_SLOWEST = 1e-12
"""A rate below all there are, to divide by."""


@dataclass(frozen=True, slots=True)
class Gavel:
    """Max-min fairness that knows GPU types, the policy that papers compare with. Its books are the decision's
    state."""

    name: str = "gavel"

    def decide(self, situation: Situation) -> Decision:
        situation = replace(situation, jobs=tuple(sorted(situation.jobs, key=lambda job: (job.submit_time, job.id))))
        types = tuple(sorted({gpu.type for node in situation.snapshot.nodes for gpu in node.gpus}))
        gpus, rates = managed_gpus(situation, types), rate_matrix(situation, types)
        books = _booked(situation, types)
        widths = np.array([max(job.gpus, 1) for job in situation.jobs], dtype=np.float64)
        _promise(books, situation, Problem.of(np.array([*gpus.values()], dtype=np.float64), rates, widths))
        part_of_best = rates / np.maximum(rates.max(axis=1, initial=0.0, keepdims=True), _SLOWEST)
        fastest_first = [int(kind) for kind in np.argsort(-part_of_best.sum(axis=0), kind="stable")]
        chosen = picked(books, rates > 0, widths, list(gpus.values()), fastest_first)
        kinds = {entry[0]: types[kind] for kind, entries in chosen.items() for entry in entries}
        jobs = tuple(on_type(job, kinds[job.id]) if job.id in kinds else job for job in situation.jobs)
        picks = _Picks(books, rates > 0, kinds)
        speed = {(job.id, kind): rates[row, at] for row, job in enumerate(jobs) for at, kind in enumerate(types)}
        system = Composed(self.name, picks, Proportional(), CONSOLIDATED, (Moving(kinds, speed), *FINISHING))
        decision = system.decide(replace(situation, jobs=jobs))
        return replace(decision, state=Remembered.of(books, situation.snapshot.time).said())


@dataclass(frozen=True, slots=True)
class _Picks:
    """First those that run where they were picked and those that wait and were picked, then those that were picked for
    another type than they run on, then the others; each by the highest priority that it has on any type."""

    books: Books
    runs: Mask
    kinds: Mapping[JobId, str]
    name: str = "gavel"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        highest = self.books.priorities(self.runs).max(axis=1, initial=0.0)
        priority = {entry[0]: float(value) for entry, value in zip(self.books.entries, highest, strict=True)}
        in_order = sorted(
            situation.jobs,
            key=lambda job: (
                not self._stays(job),
                job.id not in self.kinds,
                -priority[job.id],
                job.submit_time,
                job.id,
            ),
        )
        return tuple(Ranked(job.id, self._said(job, priority[job.id])) for job in in_order)

    def outranks(self, situation: Situation) -> Outranks:  # noqa: ARG002 as the protocol has it
        return lambda newcomer, running: self._stays(newcomer) and not self._stays(running)

    def _stays(self, job: Job) -> bool:
        """Whether it was picked and is not elsewhere."""
        kind = self.kinds.get(job.id)
        return kind is not None and all(share.gpu_type == kind for share in job.shares)

    def _said(self, job: Job, priority: float) -> str:
        where = f"picked for {self.kinds[job.id]}" if job.id in self.kinds else "not picked"
        return f"{where}, priority {priority:.2f}"


def _booked(situation: Situation, types: tuple[str, ...]) -> Books:
    """The books of the last round, with what the jobs have had since then."""
    now, remembered = situation.snapshot.time, Remembered.read(dict(situation.state))
    books = remembered.books(types, situation.period / 2)
    for job in situation.jobs:
        if job.shares and job.state is JobState.RUNNING and job.shares[0].gpu_type in types:
            books.add((job.id,), job.shares[0].gpu_type, max(0.0, min(job.run_time, now - remembered.at)))
    return books


def _promise(books: Books, situation: Situation, problem: Problem) -> None:
    """Enter who came, strike out who left, and compute new shares once the last have held long enough."""
    entries = [(job.id,) for job in situation.jobs]
    books.keep(entries)
    if situation.snapshot.time - books.since < RESET:
        return
    books.settle(situation.snapshot.time)
    types = problem.gpus > 0
    jobs = np.flatnonzero((problem.rates[:, types] > 0).any(axis=1))
    shares = np.zeros_like(problem.rates)
    if len(jobs):
        known = Problem.of(problem.gpus[types], problem.rates[np.ix_(jobs, types)], problem.widths[jobs])
        shares[np.ix_(jobs, types)] = least_attained_service(known).single
    books.promise(dict(zip(entries, shares, strict=True)))
