"""Who is on which GPUs in one round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.pools import Ints, Mask

__all__ = ["NOBODY", "Floats", "Layout", "together"]

Floats = NDArray[np.float64]

NOBODY = -1
"""In the place of a second job on GPUs that one job has to itself."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One row for each set of GPUs of one node that the same jobs use: the node's number, how many GPUs, and the one or
    two jobs as numbers, `NOBODY` for a missing second one. Idle GPUs have no row.

    Which GPUs of the node they are is not said: Slurm chooses the indices, so equal counts of one node are the same.
    Rows of one node with the same jobs are one row.
    """

    node: Ints
    gpus: Ints
    jobs: Ints
    """Shape (rows, 2), each row ascending in its jobs, where there are two."""

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, tuple[int, ...]]]) -> Layout:
        """From rows of node, GPUs and jobs."""
        given = [(node, gpus, min(jobs), max(jobs) if len(jobs) > 1 else NOBODY) for node, gpus, jobs in rows]
        table = np.array(given, dtype=np.int64).reshape(-1, 4)
        return together(table[:, 0], table[:, 1], table[:, 2:])

    def __len__(self) -> int:
        return len(self.node)

    def widths(self) -> dict[int, int]:
        """GPUs of each job, on all its nodes."""
        jobs, gpus = self.entries()[:2]
        numbers, place = np.unique(jobs, return_inverse=True)
        totals = np.bincount(place, weights=gpus, minlength=len(numbers))
        return dict(zip(numbers.tolist(), totals.astype(int).tolist(), strict=True))

    def entries(self) -> tuple[Ints, Ints, Ints]:
        """Each job on each row it is in: the job, its GPUs there and the row."""
        row, place = np.nonzero(self.jobs != NOBODY)
        return self.jobs[row, place], self.gpus[row], row

    def of_jobs(self, kept: Ints) -> Layout:
        """Without all other jobs; GPUs that nobody is left on are idle."""
        stays: Mask = np.isin(self.jobs, kept)
        jobs = np.where(stays, self.jobs, NOBODY)
        jobs = np.where(jobs[:, :1] == NOBODY, jobs[:, ::-1], jobs)
        used = jobs[:, 0] != NOBODY
        return together(self.node[used], self.gpus[used], jobs[used])

    def renamed(self, names: Ints) -> Layout:
        """The same on other nodes: what was on node n is on node `names[n]`."""
        return Layout(names[self.node], self.gpus, self.jobs)


def together(node: Ints, gpus: Ints, jobs: Ints) -> Layout:
    """A layout of rows that may repeat a node's jobs."""
    keys, place = np.unique(np.column_stack((node, jobs)), axis=0, return_inverse=True)
    summed = np.bincount(place.ravel(), weights=gpus, minlength=len(keys)).astype(np.int64)
    return Layout(keys[:, 0], summed, keys[:, 1:])
