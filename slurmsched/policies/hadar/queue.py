"""The jobs of one of Hadar's rounds as arrays: prices, ranks, exchanges and total utilities are computed for all at
once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf

import numpy as np

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.policies.hadar.problem import HadarJob, InverseTime, ServerPools, TaskAllocation, Utility


class QueueArrays:
    """A row for each job, in the order of the queue. `remaining` (iterations), `age` (seconds), `workers` and `best`
    (the `best_rate`) are by job; `rates` has the consolidated rates, then the spread ones; [jobs, 2 types]."""

    def __init__(self, queue: Sequence[HadarJob], servers: ServerPools, utility: Utility) -> None:
        self.jobs, self._servers, self._utility = tuple(queue), servers, utility
        throughputs, types = [job.throughput for job in queue], len(servers.types)
        self.remaining, self.age, self.workers, self.best = (
            np.array(column, dtype=np.float64)
            for column in (
                [job.remaining for job in queue],
                [job.age for job in queue],
                [of.workers for of in throughputs],
                servers.best_rates(throughputs),
            )
        )
        each = chain.from_iterable(rates for of in throughputs for rates in (of.consolidated, of.spread))
        self.rates: Floats = np.fromiter(each, dtype=np.float64).reshape(len(self.jobs), 2 * types)

    def __len__(self) -> int:
        return len(self.jobs)

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """The row of each job."""
        return {job.job: row for row, job in enumerate(self.jobs)}

    @cached_property
    def with_same_request(self) -> Sequence[Ints]:
        """The rows of the jobs with each request, in the order of the first ones."""
        rows = dict[tuple[int, int, int | None, bool], list[int]]()
        for row, job in enumerate(self.jobs):
            gang = job.throughput
            rows.setdefault((gang.workers, gang.min_servers, gang.max_servers, gang.mixes_types), []).append(row)
        return [np.array(alike, dtype=np.int64) for alike in rows.values()]

    @cached_property
    def _inverse_time(self) -> tuple[Floats, Floats, Floats] | None:
        """Size, worth and what is taken off the completion time of each job under a utility that is `InverseTime`."""
        of = self._utility
        if not isinstance(of, InverseTime):
            return None
        parts = chain.from_iterable(of.parts[job.job] for job in self.jobs)
        size_and_worth = np.fromiter(parts, dtype=np.float64).reshape(len(self), 2)
        return size_and_worth[:, 0], size_and_worth[:, 1], np.zeros(len(self)) if of.since_arrival else self.age

    def utilities(self, rows: Ints | slice, completion: Floats) -> Floats:
        """Returns the utility of these jobs at each of their completion times; [rows, times]."""
        if self._inverse_time is None:
            jobs = [self.jobs[row] for row in np.arange(len(self))[rows].tolist()]
            each = [
                self._utility(job, time) for job, times in zip(jobs, completion.tolist(), strict=True) for time in times
            ]
            return np.array(each, dtype=np.float64).reshape(completion.shape)
        size, worth, before = (column[rows, None] for column in self._inverse_time)
        ahead = completion - before
        ends = (ahead > 0) & (ahead < inf)
        return np.where(ends, size / np.where(ends, ahead, 1.0) * worth, 0.0)

    def completion_times(self, rows: Ints | slice, rates: Floats, delays: Floats | float = 0.0) -> Floats:
        """Returns `HadarJob.completion_time` of these jobs at each of their rates; [rows, rates]. `delays` are by
        row."""
        begins, runs = self.age[rows] + delays, rates > 0
        return np.where(runs, begins[:, None] + self.remaining[rows, None] / np.where(runs, rates, 1.0), inf)

    def rates_at(self, rows: Ints, places: Sequence[TaskAllocation]) -> Floats:
        """Returns the rate of each of these jobs at its place."""
        types = self._servers.pool_types
        kinds = np.array([types[place[0][0]] if len(place) == 1 else -1 for place in places], dtype=np.int64)
        rates = self.rates[rows, kinds]
        for number in np.flatnonzero(kinds < 0).tolist():
            rates[number] = self._servers.rate(self.jobs[rows[number]], places[number])
        return rates

    def worth_at(self, rows: Ints, places: Sequence[TaskAllocation], delays: Floats | float = 0.0) -> Floats:
        """Returns the utility of each of these jobs at its place after a delay."""
        return self.utilities(rows, self.completion_times(rows, self.rates_at(rows, places)[:, None], delays))[:, 0]


class PlacesByRow:
    """Allocations of jobs of a queue, in the order of its rows: `rows`, and for each of these its place."""

    def __init__(self, queue: QueueArrays, allocations: Mapping[str, TaskAllocation]) -> None:
        row_of = queue.row_of
        known = {row_of[job]: place for job, place in allocations.items() if job in row_of}
        self.rows: Ints = np.array(sorted(known), dtype=np.int64)
        self.places = [known[row] for row in self.rows.tolist()]
        self.of_row = known
        self.has: Mask = np.zeros(len(queue), dtype=np.bool_)
        """Whether a job has a place; [jobs]."""
        self.has[self.rows] = True

    def those_of(self, rows: Collection[int]) -> list[TaskAllocation]:
        """Returns the places of these rows, which have one."""
        return [self.of_row[row] for row in rows]
