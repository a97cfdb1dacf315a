"""The soonest that jobs could be through, whatever the schedule: what any figure of total time is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from slurmsched.experiments.mixed.replay import ReplayError
from slurmsched.experiments.mixed.work import Work

__all__ = ["fastest"]


def fastest(work: Sequence[Work], gpus: Mapping[str, int]) -> float:
    """Seconds that the jobs take at least if all are there at once, rounds and restarts cost nothing, and any number of
    a job's copies run beside each other: a linear program over the GPU-seconds that each type gives each job.

    Raises ReplayError where a job can run nowhere.
    """
    kinds, jobs = tuple(gpus), len(work)
    at = np.arange(jobs * len(kinds)).reshape(jobs, len(kinds))
    rates = np.array([[job.rates.get(kind, 0.0) / job.width for kind in kinds] for job in work])
    done = csr_array((-rates.ravel(), (np.repeat(np.arange(jobs), len(kinds)), at.ravel())), (jobs, at.size + 1))
    last = np.full(len(kinds), at.size)
    spent = csr_array(
        (
            np.concatenate([np.ones(at.size), [-float(gpus[kind]) for kind in kinds]]),
            (np.concatenate([np.tile(np.arange(len(kinds)), jobs), np.arange(len(kinds))]), [*at.ravel(), *last]),
        ),
        (len(kinds), at.size + 1),
    )
    cost = np.concatenate([np.zeros(at.size), [1.0]])
    limits = np.concatenate([[-float(job.steps) for job in work], np.zeros(len(kinds))])
    answer = milp(cost, constraints=LinearConstraint(vstack([done, spent]), -np.inf, limits))
    if answer.fun is None:
        raise ReplayError(f"these jobs can never all be done: {answer.message}")
    return float(answer.fun)
