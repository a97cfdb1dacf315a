"""Synergy-Opt's placement on real servers (section 4.1.2; appendix A.1.3, equations 15 to 19): a linear program whose
vertices split at most three jobs for each server (theorem A.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from slurmsched.policies.errors import PolicyError

__all__ = ["Amount", "split_jobs", "spread"]

Floats = NDArray[np.float64]

_WHOLE = 1e-7


@dataclass(frozen=True, slots=True)
class Amount:
    """GPUs, CPUs and memory, of a job's demand or of a server."""

    gpus: float
    cpus: float
    memory: float


def spread(demands: Sequence[Amount], servers: Sequence[Amount]) -> Floats:
    """The part of each job (columns) that each server (rows) holds; columns sum to 1.

    The simplex method ends in a vertex, which is what bounds the split jobs. Parts of a GPU may come out: this is the
    bound's placement, not one for a real cluster (section 4.1.3). Raises PolicyError where the demands do not fit.
    """
    jobs, count = len(demands), len(servers)
    if not jobs:
        return np.zeros((count, 0))
    wanted = np.array([(d.gpus, d.cpus, d.memory) for d in demands], dtype=float)
    have = np.array([(s.gpus, s.cpus, s.memory) for s in servers], dtype=float)
    # Variable i * jobs + j is the part of job j on server i; row 3 * i + r is resource r there.
    server, job, resource = np.meshgrid(np.arange(count), np.arange(jobs), np.arange(3), indexing="ij")
    at_most = coo_matrix(
        (wanted[job, resource].ravel(), ((3 * server + resource).ravel(), (server * jobs + job).ravel())),
        shape=(3 * count, count * jobs),
    )
    whole = coo_matrix(
        (np.ones(count * jobs), (np.tile(np.arange(jobs), count), np.arange(count * jobs))), shape=(jobs, count * jobs)
    )
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices, linprog does
        np.zeros(count * jobs), A_ub=at_most, b_ub=have.ravel(), A_eq=whole, b_eq=np.ones(jobs), method="highs-ds"
    )
    if answer.x is None:
        raise PolicyError(f"the jobs do not fit on the servers, whole or split: {answer.message}")
    return np.asarray(answer.x.reshape(count, jobs), dtype=np.float64)


def split_jobs(parts: Floats) -> int:
    """How many jobs lie on more than one server."""
    return int(((parts > _WHOLE).sum(axis=0) > 1).sum())
