"""What the wrapper costs a training step, and what the reports of many jobs cost a round."""

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
"""Seconds of other work between two steps, where steps are not counted in a tight loop."""

_PACED_STEPS: Final = 400
_GPUS_PER_NODE: Final = 8
_ROUND_PERIOD: Final = 300.0


@dataclass(frozen=True, slots=True)
class JobsideTime:
    """`step_us` is what a step costs in a tight loop, `paced_us` in the mean with 5 ms between steps, in microseconds,
    and `paced_percent` of these 5 ms. `ingest_s` is one round's reading of `reports` new reports, in seconds."""

    step_us: float
    paced_us: float
    paced_percent: float
    reports: int
    ingest_s: float


def time_jobside(reports: int, repetitions: Iterable[int]) -> JobsideTime:
    """Measure both, the reading once for each of `times`; everything is real but the jobs."""
    with TemporaryDirectory() as folder:
        step, paced = _time_steps(Path(folder))
        ingesting = _time_ingest(Path(folder), reports, repetitions)
    return JobsideTime(step * 1e6, paced * 1e6, 100 * paced / WORK_SECONDS, reports, ingesting)


def _time_steps(folder: Path) -> tuple[float, float]:
    """Seconds of a step, in a tight loop and with work in between, while reports are written."""
    environment = {"SLURM_JOB_ID": "1", "SYNSCHED_SPOOL": str(folder)}
    with Training(Path.touch, Path.touch, folder=folder / "checkpoints", environment=environment) as training:
        began = perf_counter()
        for _ in range(STEP_COUNT):
            training.step()
        tight = (perf_counter() - began) / STEP_COUNT
    with Training(Path.touch, Path.touch, folder=folder / "checkpoints", environment=environment) as training:
        spent = []
        for _ in range(_PACED_STEPS):
            time.sleep(WORK_SECONDS)
            began = perf_counter()
            training.step()
            spent.append(perf_counter() - began)
    return tight, mean(spent)


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
    """A cluster where each job runs on a GPU of its own."""
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
