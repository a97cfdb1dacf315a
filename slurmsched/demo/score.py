"""What a cluster made of its jobs, in figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmsched.backends.simulated import Cluster

__all__ = ["Score", "score"]


@dataclass(frozen=True, slots=True)
class Score:
    """Times in seconds, NaN where no job has finished. JCT, job completion time, is from submission to the end.

    `makespan` is from the first submission to the last end. `useful` is the part of all GPU time in it that went into
    work that was kept: neither idle, restarting, completing nor lost. `work` is what was done, in GPU-seconds at the
    proportional share, per GPU-second of the makespan: above `useful` where CPUs and memory made jobs faster.
    """

    jobs: int
    finished: int
    mean_jct: float
    median_jct: float
    p99_jct: float
    makespan: float
    useful: float
    work: float
    restarts: int
    rounds: int


def score(cluster: Cluster, rounds: int = 0) -> Score:
    """The figures of a cluster on which no job is left; `rounds` is how many it had."""
    jobs = list(cluster.life.ended.values())
    done = [job for job in jobs if job.state_text == "COMPLETED" and job.end_time is not None]
    times = np.array([job.end_time - job.submit_time for job in done if job.end_time is not None])
    ends = [job.end_time for job in jobs if job.end_time is not None]
    makespan = max(ends) - min(job.submit_time for job in jobs) if jobs else float("nan")
    available = makespan * sum(len(machine.facts.gpus) for machine in cluster.machines.values())
    return Score(
        jobs=len(jobs),
        finished=len(done),
        mean_jct=float(np.mean(times)) if done else float("nan"),
        median_jct=float(np.median(times)) if done else float("nan"),
        p99_jct=float(np.percentile(times, 99)) if done else float("nan"),
        makespan=makespan,
        useful=sum(interval.gpus * interval.kept for interval in cluster.life.intervals) / available,
        work=sum(job.submission.request.gpus * job.work.saved for job in jobs) / available,
        restarts=sum(job.restarts for job in jobs),
        rounds=rounds,
    )
