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

from slurmsched.bench.generated import generated
from slurmsched.daemon.ingesting import ingest
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.jobside.training import Training
from slurmsched.model import JobState, Resources, Share, Snapshot
from slurmsched.store.store import Store

__all__ = ["JobsideTime", "time_jobside"]

STEPS: Final = 100_000
WORK: Final = 0.005
"""Seconds of other work between two steps, where steps are not counted in a tight loop."""

_PACED: Final = 400
_EACH: Final = 8
_PERIOD: Final = 300.0


@dataclass(frozen=True, slots=True)
class JobsideTime:
    """`step_us` is what a step costs in a tight loop, `paced_us` in the mean with 5 ms between steps, in microseconds,
    and `paced_percent` of these 5 ms. `ingest_s` is one round's reading of `reports` new reports, in seconds."""

    step_us: float
    paced_us: float
    paced_percent: float
    reports: int
    ingest_s: float


def time_jobside(reports: int, times: Iterable[int]) -> JobsideTime:
    """Measure both, the reading once for each of `times`; everything is real but the jobs."""
    with TemporaryDirectory() as folder:
        step, paced = _steps(Path(folder))
        ingesting = _ingesting(Path(folder), reports, times)
    return JobsideTime(step * 1e6, paced * 1e6, 100 * paced / WORK, reports, ingesting)


def _steps(folder: Path) -> tuple[float, float]:
    """Seconds of a step, in a tight loop and with work in between, while reports are written."""
    told = {"SLURM_JOB_ID": "1", "SYNSCHED_SPOOL": str(folder)}
    with Training(Path.touch, Path.touch, folder=folder / "checkpoints", environment=told) as training:
        began = perf_counter()
        for _ in range(STEPS):
            training.step()
        tight = (perf_counter() - began) / STEPS
    with Training(Path.touch, Path.touch, folder=folder / "checkpoints", environment=told) as training:
        spent = []
        for _ in range(_PACED):
            time.sleep(WORK)
            began = perf_counter()
            training.step()
            spent.append(perf_counter() - began)
    return tight, mean(spent)


def _ingesting(folder: Path, reports: int, times: Iterable[int]) -> float:
    seen = _busy(reports)
    spent = []
    with closing(Store.open(folder / "bench.db", seen.time)) as store:
        for number in times:
            at = replace(seen, time=seen.time + _PERIOD * (number + 1))
            for job in at.jobs:
                Spool(folder, job.id).write(_report(job.id, number + 1, at.time))
            began = perf_counter()
            read = ingest(folder, at, at.job, store.measurements, lambda _user: os.getuid())
            spent.append(perf_counter() - began)
            if read != reports:
                raise AssertionError(f"{read} of {reports} reports were read")
    return median(spent)


def _report(job: str, rounds: int, at: float) -> Report:
    done = int(rounds * _PERIOD)
    return Report(job, 0, Stage.RUNNING, at, done, done, done / 2, 2.0, memory=1000, cpus=3)


def _busy(jobs: int) -> Snapshot:
    """A cluster where each job runs on a GPU of its own."""
    nodes = -(-jobs // _EACH)
    seen = generated(nodes * _EACH, nodes, jobs)
    return replace(
        seen,
        jobs=tuple(
            replace(
                job,
                state=JobState.RUNNING,
                run_time=1e6,
                shares=(Share(seen.nodes[place // _EACH].name, Resources(1, 3, 64_000), "v100", (place % _EACH,)),),
            )
            for place, job in enumerate(seen.jobs)
        ),
    )
