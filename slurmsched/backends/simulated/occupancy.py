"""What jobs occupy, as Slurm's scheduler reckons with it: resources until their end, places of throttled arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from math import inf

from slurmsched.backends.simulated.job import SimulatedJob
from slurmsched.backends.simulated.queueing import Ending
from slurmsched.model import JobId, JobState, Share

__all__ = ["endings", "free_slots"]

_HOLDING = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


def endings(jobs: Collection[SimulatedJob], completing: float, now: float) -> list[Ending]:
    """What has resources now, and until when at the latest; ending takes `completing` seconds more."""
    return [Ending(_held(job), _latest(job, now) + completing) for job in jobs if job.state in _HOLDING]


def free_slots(jobs: Collection[SimulatedJob]) -> dict[JobId, int]:
    """How many more tasks of each throttled array may run."""
    running = Counter(job.array_job for job in jobs if job.array_job and job.state in _HOLDING)
    limits = {job.array_job: job.throttle for job in jobs if job.throttle is not None}
    return {array: limit - running[array] for array, limit in limits.items()}


def _latest(job: SimulatedJob, now: float) -> float:
    match job.state:
        case JobState.SUSPENDED:
            return inf
        case JobState.COMPLETING:
            return now if job.end_time is None else job.end_time
        case _:
            return job.latest_end


def _held(job: SimulatedJob) -> tuple[Share, ...]:
    """What the job really holds: a suspended one has left its CPUs."""
    if not job.cpus_left:
        return job.shares
    return tuple(replace(share, resources=replace(share.resources, cpus=0)) for share in job.shares)
