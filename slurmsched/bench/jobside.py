"""Measures what jobs and rounds pay for reports and copies: the overhead of `Training` per step, the reading of many
jobs' reports, and the averaging of a forked job's copies, with the memory of a process that does nothing else."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Final

import numpy as np

from slurmsched.bench.workload import generate_snapshot
from slurmsched.daemon.job_reports import ingest
from slurmsched.jobside.forking import CopyState, average, average_state_dicts
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.jobside.tensors import open_tensor_file
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


COPY_STEPS: Final = (4000, 2000, 1000)
"""Steps done by each of the three copies, which run at different speeds."""

_TENSOR_MIB: Final = 64
"""MiB of a tensor; a large model has many of this size."""

_MIB: Final = 1 << 20
_POLL_INTERVAL: Final = 0.005
_STATUS: Final = re.compile(r"^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB$", re.MULTILINE)
_AVERAGING_BY_FORM: Final[Mapping[str, Callable[[Sequence[CopyState], Path], None]]] = {
    "safetensors": average,
    "torch": average_state_dicts,
}


@dataclass(frozen=True, slots=True)
class ConsolidationTime:
    """The cost of averaging `copies` files of `model_mb` MiB each.

    `peak_mb` is the peak resident memory in MiB beyond that before the averaging. `peak_own_mb` leaves out the pages of
    mapped files, which the kernel reclaims when memory is short.
    """

    form: str
    copies: int
    model_mb: int
    seconds: float
    peak_mb: float
    peak_own_mb: float


def time_consolidation(model_mib: int) -> tuple[ConsolidationTime, ...]:
    """Measures each file format for a float32 model of `model_mib` MiB; torch's only if torch is installed.

    The files take up to five times the model's size in TMPDIR. Raises OSError.
    """
    return tuple(_time_form(form, model_mib) for form in _AVERAGING_BY_FORM if form == "safetensors" or find_spec(form))


def _time_form(form: str, model_mib: int) -> ConsolidationTime:
    with TemporaryDirectory(prefix="synsched-bench-") as name:
        copies = [CopyState(Path(name) / f"copy-{number}", steps) for number, steps in enumerate(COPY_STEPS)]
        for number, copy in enumerate(copies):
            _write_model(copy.path, model_mib, seed=number)
            if form == "torch":
                _write_as_torch(copy.path)
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            seconds, peak, own = fresh.submit(_measure, form, copies, Path(name) / "mean").result()
    return ConsolidationTime(form, len(copies), model_mib, seconds, peak, own)


def _measure(form: str, copies: Sequence[CopyState], target: Path) -> tuple[float, float, float]:
    """Returns the seconds, and the peaks of `ConsolidationTime` in MiB."""
    if form == "torch":
        import_module(form)  # the import is not part of the measurement
    before = _process_memory()
    with _watch_own_memory() as own_memory:
        began = perf_counter()
        _AVERAGING_BY_FORM[form](copies, target)
        seconds = perf_counter() - began
    return seconds, _process_memory()["VmHWM"] - before["VmRSS"], max(own_memory) - before["RssAnon"]


@contextmanager
def _watch_own_memory() -> Iterator[Sequence[float]]:
    """Yields samples of the process's anonymous memory in MiB, for which the kernel keeps no peak."""
    readings, stopped = [_process_memory()["RssAnon"]], Event()

    def watch() -> None:
        while not stopped.wait(_POLL_INTERVAL):
            readings.append(_process_memory()["RssAnon"])

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield readings
    finally:
        stopped.set()
        watcher.join()


def _process_memory() -> Mapping[str, float]:
    """Returns the memory of this process in MiB by the names of /proc/self/status; VmHWM is the peak."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {name: int(kib) / 1024 for name, kib in _STATUS.findall(status)}


def _write_model(path: Path, model_mib: int, *, seed: int) -> None:
    """Writes a model that repeats one MiB of random numbers."""
    block = np.random.default_rng(seed).standard_normal(_MIB // 4, dtype=np.float32).tobytes()
    layers = {}
    for begin in range(0, model_mib, _TENSOR_MIB):
        end = min(begin + _TENSOR_MIB, model_mib)
        offsets = [begin * _MIB, end * _MIB]
        layers[f"layer-{begin}"] = {"dtype": "F32", "shape": [(end - begin) * _MIB // 4], "data_offsets": offsets}
    header = json.dumps(layers).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(model_mib):
            file.write(block)


def _write_as_torch(path: Path) -> None:
    """Rewrites a safetensors file in torch's format, through a memory map."""
    torch, file = import_module("torch"), open_tensor_file(path)
    numbers = np.memmap(path, dtype="<f4", mode="c", offset=len(file.header))
    layers = {tensor.name: torch.from_numpy(numbers[tensor.begin // 4 : tensor.end // 4]) for tensor in file.tensors}
    fresh = path.with_suffix(".torch")
    torch.save({"model": layers}, fresh)
    fresh.replace(path)
