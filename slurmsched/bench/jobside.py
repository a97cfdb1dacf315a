"""Measures the overhead of `Training` per step, and the time that a round needs to read many jobs' reports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

from slurmsched.bench.workload import generate_snapshot
from slurmsched.daemon.job_reports import ingest
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.jobside.training import Training
from slurmsched.model import JobState, NodeAllocation, Resources, Snapshot
from slurmsched.store.store import Store

STEP_COUNT: Final = 100_000
WORK_SECONDS: Final = 0.005
"""Seconds of other work between two paced steps."""

_PACED_STEPS: Final = 400
_GPUS_PER_NODE: Final = 8
_ROUND_PERIOD: Final = 300.0


@dataclass(frozen=True, slots=True)
class JobsideTime:
    """The overhead of a step and of reading reports.

    `step_us` is the overhead per step in microseconds without pause between steps, `paced_us` its mean with 5 ms
    between steps, and `paced_percent` that as a percentage of 5 ms. `ingest_s` is the time in seconds of reading
    `reports` new reports in one round.
    """

    step_us: float
    paced_us: float
    paced_percent: float
    reports: int
    ingest_s: float


def time_jobside(reports: int, repetitions: Iterable[int]) -> JobsideTime:
    """Measures both, the reading once for each of `repetitions`. Only the jobs are simulated."""
    with TemporaryDirectory() as folder:
        step, paced = _time_steps(Path(folder))
        ingest_seconds = _time_ingest(Path(folder), reports, repetitions)
    return JobsideTime(step * 1e6, paced * 1e6, 100 * paced / WORK_SECONDS, reports, ingest_seconds)


def _time_steps(folder: Path) -> tuple[float, float]:
    """Returns the overhead in seconds per step, without pause and with work between steps, reports included."""
    environment = {"SLURM_JOB_ID": "1", "SYNSCHED_SPOOL": str(folder)}
    with Training(Path.touch, Path.touch, folder=folder / "checkpoints", environment=environment) as training:
        began = perf_counter()
        for _ in range(STEP_COUNT):
            training.step()
        unpaced = (perf_counter() - began) / STEP_COUNT
    with Training(Path.touch, Path.touch, folder=folder / "checkpoints", environment=environment) as training:
        spent = []
        for _ in range(_PACED_STEPS):
            time.sleep(WORK_SECONDS)
            began = perf_counter()
            training.step()
            spent.append(perf_counter() - began)
    return unpaced, mean(spent)


def _time_ingest(folder: Path, reports: int, repetitions: Iterable[int]) -> float:
    first_snapshot = _all_running(reports)
    seconds = []
    with closing(Store.open(folder / "bench.db", first_snapshot.time)) as store:
        for number in repetitions:
            snapshot = replace(first_snapshot, time=first_snapshot.time + _ROUND_PERIOD * (number + 1))
            for job in snapshot.jobs:
                Spool(folder, job.id).write(_report(job.id, number + 1, snapshot.time))
            began = perf_counter()
            accepted = ingest(folder, snapshot, snapshot.jobs_by_id, store.measurements, lambda _user: os.getuid())
            seconds.append(perf_counter() - began)
            if accepted != reports:
                raise AssertionError(f"{accepted} of {reports} reports were read")
    return median(seconds)


def _report(job: str, rounds: int, at: float) -> Report:
    done = int(rounds * _ROUND_PERIOD)
    return Report(job, 0, Stage.RUNNING, at, done, done, done / 2, 2.0, memory=1000, cpus=3)


def _all_running(jobs: int) -> Snapshot:
    """Returns a cluster on which each job runs on one GPU."""
    nodes = -(-jobs // _GPUS_PER_NODE)
    snapshot = generate_snapshot(nodes * _GPUS_PER_NODE, nodes, jobs)
    return replace(
        snapshot,
        jobs=tuple(
            replace(
                job,
                state=JobState.RUNNING,
                run_time=1e6,
                allocations=(
                    NodeAllocation(
                        snapshot.nodes[index // _GPUS_PER_NODE].name,
                        Resources(1, 3, 64_000),
                        "v100",
                        (index % _GPUS_PER_NODE,),
                    ),
                ),
            )
            for index, job in enumerate(snapshot.jobs)
        ),
    )
