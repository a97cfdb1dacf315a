"""A lower bound on the makespan, which holds for every schedule: Hadar's comparison has it beside its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from slurmsched.simulation.replay import ReplayError, ReplayJob


def makespan_lower_bound(jobs: Sequence[ReplayJob], gpus_by_type: Mapping[str, int]) -> float:
    """Returns a lower bound in seconds: all jobs are there at once, restarts are free, and a job has any copies.

    It is a linear program over the GPU-seconds of each type for each job. Raises ReplayError if a job can run nowhere.
    """
    gpu_types, job_count = tuple(gpus_by_type), len(jobs)
    variable = np.arange(job_count * len(gpu_types)).reshape(job_count, len(gpu_types))
    rates = np.array([[job.rates.get(kind, 0.0) / job.gpus for kind in gpu_types] for job in jobs])
    done = csr_array(
        (-rates.ravel(), (np.repeat(np.arange(job_count), len(gpu_types)), variable.ravel())),
        (job_count, variable.size + 1),
    )
    last = np.full(len(gpu_types), variable.size)
    spent = csr_array(
        (
            np.concatenate([np.ones(variable.size), [-float(gpus_by_type[kind]) for kind in gpu_types]]),
            (
                np.concatenate([np.tile(np.arange(len(gpu_types)), job_count), np.arange(len(gpu_types))]),
                [*variable.ravel(), *last],
            ),
        ),
        (len(gpu_types), variable.size + 1),
    )
    cost = np.concatenate([np.zeros(variable.size), [1.0]])
    limits = np.concatenate([[-float(job.steps) for job in jobs], np.zeros(len(gpu_types))])
    answer = milp(cost, constraints=LinearConstraint(vstack([done, spent]), -np.inf, limits))
    if answer.fun is None:
        raise ReplayError(f"these jobs can never all end: {answer.message}")
    return float(answer.fun)
