"""Whether the dependency of a held job may be met by now, though Slurm still shows it as unmet.

Slurm looks at the dependencies of held jobs about once a minute (24.11 and 26.05), and at those of other jobs whenever
it schedules. What may be met is therefore read off the other jobs; Slurm has the last word once the job is released.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cached_property
from typing import Final

from slurmsched.model import Job, JobId, JobState, Snapshot

_ITEM: Final = re.compile(
    r"(?:(?P<kind>after(?:any|ok|notok|corr)?):(?P<job>\d+)(?:_(?P<task>\d+|\*))?(?:\+(?P<minutes>\d+))?|singleton)"
    r"\((?P<state>unfulfilled|fulfilled|failed)\)"
)
_STARTED: Final = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


def has_failed(dependency: str) -> bool:
    """Whether Slurm shows that the dependency can never be met."""
    parts, any_suffices = _parts(dependency)
    return (all if any_suffices else any)("(failed)" in part for part in parts)


def _parts(dependency: str) -> tuple[list[str], bool]:
    """The parts of a dependency, and whether one suffices: Slurm joins those by question marks, others by commas."""
    return re.split("[,?]", dependency), "?" in dependency


class Dependencies:
    """The dependencies of the jobs of a snapshot. Many jobs may have the same, and each is looked at once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._met = dict[str, bool]()

    def may_be_met(self, job: Job) -> bool:
        """Whether Slurm may find the job's dependency met if it looks now; False for what cannot be read off others."""
        parts, any_suffices = _parts(job.dependency)
        return (any if any_suffices else all)(self._part_may_be_met(part, job) for part in parts)

    def _part_may_be_met(self, part: str, job: Job) -> bool:
        if part == "singleton(unfulfilled)":
            return self._first.get((job.user, job.name), job).id == job.id
        if part not in self._met:
            self._met[part] = self._is_met(part)
        return self._met[part]

    def _is_met(self, text: str) -> bool:
        part, now = _ITEM.fullmatch(text), self._snapshot.time
        if part is None or part["state"] != "unfulfilled":
            return part is not None and part["state"] == "fulfilled"
        others = self._jobs_of(part["job"], part["task"] or "*")
        if part["kind"] == "after":
            since = 60.0 * int(part["minutes"] or 0)
            begun = (other.state in _STARTED and (other.start_time or 0.0) + since <= now for other in others)
            return all(begun) if others else self._has_ended(part["job"]) and not since
        return not others and self._has_ended(part["job"])

    def _has_ended(self, number: JobId) -> bool:
        """Whether a job that is not in the queue has ended, and is not one that could not be read."""
        known = self._snapshot.jobs_by_id.get(number)
        return self._snapshot.is_gone(number) if known is None else known.state is JobState.FINISHED

    def _jobs_of(self, number: JobId, task: str) -> list[Job]:
        """The jobs in the queue that this number names: a job, a task, all tasks of an array, a heterogeneous job."""
        names = {number, f"{number}_{task}"}
        return [
            job
            for job in self._of_number[number]
            if job.id in names or job.id.startswith(f"{number}+") or (task == "*" and job.array_job == number)
        ]

    @cached_property
    def _of_number(self) -> defaultdict[JobId, list[Job]]:
        """The jobs in the queue by the number of the job, the array or the heterogeneous job."""
        found = defaultdict[JobId, list[Job]](list)
        for job in self._snapshot.jobs:
            if job.state is not JobState.FINISHED:
                found[job.id.replace("+", "_").partition("_")[0]].append(job)
        return found

    @cached_property
    def _first(self) -> dict[tuple[str, str], Job]:
        """Of the jobs of each owner and name the one that `--dependency=singleton` lets run: one that has begun, or
        the first that waits."""
        first = dict[tuple[str, str], Job]()
        for job in self._snapshot.jobs_in_state(JobState.RUNNING, JobState.SUSPENDED, JobState.PENDING):
            other = first.setdefault((job.user, job.name), job)
            if other.state is JobState.PENDING and _goes_first(job, other):
                first[job.user, job.name] = job
        return first


def _goes_first(job: Job, other: Job) -> bool:
    """Whether the job has begun, or waits before the other one."""
    return job.state is not JobState.PENDING or job.queue_key < other.queue_key
