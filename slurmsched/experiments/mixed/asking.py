"""The active jobs of a replay as Gavel's policies see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurmsched.experiments.mixed.rounds import Question
from slurmsched.experiments.mixed.work import Active, Work, rate
from slurmsched.policies.gavel import Entry, Problem, Shares
from slurmsched.policies.gavel.problem import Floats

__all__ = ["by_entry", "problem_of", "runs"]


def problem_of(question: Question, types: Sequence[str], *, packed: bool = False) -> Problem:
    """Jobs in order of arrival, GPU types as given. Those of one model and width are of one kind."""
    jobs = [job.work for job in question.jobs.values()]
    one = {(job.model, job.width): job for job in reversed(jobs)}
    number = {kind: place for place, kind in enumerate(one)}
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
    each = tuple(one.values())
    return replace(problem, beside=np.array([[[_beside(a, b, kind) for kind in types] for b in each] for a in each]))


def by_entry(shares: Shares, jobs: Sequence[str]) -> dict[Entry, Floats]:
    """Shares by job and by pair of jobs."""
    found: dict[Entry, Floats] = {(job,): share for job, share in zip(jobs, shares.single, strict=True)}
    for first, second, share in zip(shares.first, shares.second, shares.pair, strict=True):
        found[jobs[first], jobs[second]] = share
    return found


def runs(jobs: Mapping[str, Active], entry: Entry, kind: str) -> bool:
    """Whether the job, or both jobs of the pair beside each other, can run on this type."""
    works = [jobs[job].work for job in entry]
    if len(works) == 1:
        return works[0].rates.get(kind, 0.0) > 0
    first, second = works
    return _beside(first, second, kind) > 0 and _beside(second, first, kind) > 0


def _beside(own: Work, other: Work, kind: str) -> float:
    return rate(own, (kind,), other) if own.width == other.width else 0.0
