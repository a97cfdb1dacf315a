"""Models measured by short real jobs, and the file that keeps their profiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slurmsched.daemon.clock import Clock
from slurmsched.jobside.atomic_files import write_atomically
from slurmsched.jobside.errors import ReportError
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.knowledge import ProfileError, SensitivityMatrix, load_profiles
from slurmsched.knowledge.optimistic_profiling import ProfilingResult, profile_cpus, profile_matrix
from slurmsched.knowledge.profiles import MIB_PER_GIB
from slurmsched.model import JobId, SynschedError
from slurmsched.model.reasons import pluralise


class ProfilingError(SynschedError):
    """A profiling run that gave no rate; the message names the job and what to look at."""


_POLL_INTERVAL: Final = 1.0
"""Seconds between two polls of a job."""

_STARTUP_SECONDS: Final = 600.0
"""Seconds in addition to the measured ones, for the job to start its program and to warm up."""


@dataclass(frozen=True, slots=True)
class TrialQueue:
    """Access to Slurm's queue: `submit` takes options of sbatch and variables to add to the environment, `ended` tells
    whether a job has left the queue, `cancel` removes it. Each may raise BackendError."""

    submit: Callable[[Sequence[str], Mapping[str, str]], JobId]
    ended: Callable[[JobId], bool]
    cancel: Callable[[JobId], None]


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The request of a run, on one node: GPUs of a type (empty for any), CPUs and memory (MiB) for the whole job. None
    is the default memory of the partition."""

    gpus: int
    gpu_type: str
    cpus: int
    memory: int | None = None

    def sbatch_options(self) -> tuple[str, ...]:
        """Returns the request as options of sbatch."""
        kind = f":{self.gpu_type}" if self.gpu_type else ""
        memory = () if self.memory is None else (f"--mem={self.memory}M",)
        return (
            "--nodes=1", "--ntasks=1", f"--gres=gpu{kind}:{self.gpus}", f"--cpus-per-task={self.cpus}", *memory,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs the user's batch job, `arguments` of sbatch, for `seconds` of work.

    `spool` is the folder of its reports; `queue_timeout` is how many seconds a run may wait in the queue.
    """

    queue: TrialQueue
    arguments: tuple[str, ...]
    spool: Path
    seconds: float
    queue_timeout: float
    clock: Clock

    def rate(self, request: TrialRequest) -> float:
        """Returns the steps per second of the job with this request. Raises ProfilingError, BackendError."""
        longest = self.seconds + _STARTUP_SECONDS
        options = (
            "--job-name=synsched-profile", "--no-requeue", f"--time={int(longest / 60) + 1}", *request.sbatch_options(),
            *self.arguments,
        )  # fmt: skip
        environment = {"SYNSCHED_SPOOL": str(self.spool), "SYNSCHED_MEASURE": f"{self.seconds:g}"}
        job = self.queue.submit(options, environment)
        try:
            report = self._await_measurement(job, longest)
        finally:
            self.queue.cancel(job)
            with suppress(OSError):  # a later job of the same user removes it
                Spool(self.spool, job).remove()
        if report.cpus != request.cpus:
            raise ProfilingError(
                f"job {job} had {pluralise(report.cpus, 'CPU')} instead of {request.cpus}: omit -c, and use a partition"
                " whose jobs are not managed"
            )
        if report.busy <= 0 or not report.done:
            raise ProfilingError(f"job {job} did no step in {self.seconds:g} s: use a larger --seconds")
        return report.done / report.busy

    def _await_measurement(self, job: JobId, longest: float) -> Report:
        began, starts = self.clock.monotonic(), None
        while True:
            report, ended = self._report(job), self.queue.ended(job)
            if report is not None and report.stage is Stage.MEASURED:
                return report
            if ended and self._report(job) == report:
                raise ProfilingError(
                    f"job {job} ended without a report: its program must use slurmsched.jobside; see its output"
                )
            now = self.clock.monotonic()
            starts = now if starts is None and report is not None else starts
            if starts is None and now - began > self.queue_timeout:
                raise ProfilingError(
                    f"job {job} did not begin to train within {self.queue_timeout:.0f} s: see 'squeue -j {job}'"
                )
            if starts is not None and now - starts > longest:
                raise ProfilingError(f"job {job} took more than {longest:.0f} s: its steps are too slow for --seconds")
            self.clock.sleep(_POLL_INTERVAL)

    def _report(self, job: JobId) -> Report | None:
        try:
            return Spool(self.spool, job).read()
        except (OSError, ReportError) as error:
            raise ProfilingError(f"cannot read the report of job {job} in {self.spool}: {error}") from error


def measure_matrix(
    trial: Trial,
    *,
    gpu_type: str,
    gpus: int,
    cpus: Sequence[float],
    memory: Sequence[float],
    on_run: Callable[[TrialRequest, float], None],
) -> ProfilingResult:
    """Measures the matrix over these CPUs and memory sizes (MiB) per GPU, both ascending; without memory, over CPUs.

    `on_run` is called with each run and its steps per second. Raises ProfilingError, BackendError.
    """
    runs: list[tuple[float, float]] = []

    def speed(count: float, size: float | None) -> float:
        request = TrialRequest(gpus, gpu_type, round(count * gpus), None if size is None else round(size * gpus))
        rate = trial.rate(request)
        runs.append((count, size or 0.0))
        on_run(request, rate)
        return rate

    if memory:
        return profile_matrix(speed, cpus, memory)
    curve = profile_cpus(lambda count: speed(count, None), cpus)
    matrix = SensitivityMatrix(tuple(cpus), (), tuple((curve[count],) for count in cpus))
    return ProfilingResult(matrix, tuple(runs))


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile measured for a model on one GPU type.

    `matrix` has the steps per second of a job with `gpus` GPUs, over CPUs and memory (MiB) per GPU; `rate` is that at
    the GPU-proportional share. `at` is in unix seconds.
    """

    model: str
    task: str
    gpu_type: str
    gpus: int
    matrix: SensitivityMatrix
    rate: float
    source: str
    at: float


def save_profile(profile: MeasuredProfile, path: Path) -> None:
    """Writes the profile into the JSON file, which is created if missing; other models and GPU types do not change.

    Raises ProfileError.
    """
    if path.suffix != ".json":
        raise ProfileError(f"{path}: measured profiles are saved as JSON: name a file that ends with .json")
    data: dict[str, Any] = {}
    if path.exists():
        load_profiles(path)  # so that no other kind of file is overwritten
        data = json.loads(path.read_text(encoding="utf-8"))
    model = data.setdefault("models", {}).setdefault(profile.model, {})
    model |= {"source": profile.source, "measured": round(profile.at)}
    if profile.task:
        model["task"] = profile.task
    types = model.setdefault("gpu", {})
    types[profile.gpu_type] = _gpu_type_table(profile, types.get(profile.gpu_type, {}))
    try:
        write_atomically(path, (json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error.strerror}") from error
    load_profiles(path)


def _gpu_type_table(profile: MeasuredProfile, previous: dict[str, Any]) -> dict[str, Any]:
    """Returns the table of the GPU type: the new matrix, and the rate added to those with other numbers of GPUs."""
    matrix = profile.matrix
    speed = [[_rounded(number) for number in row] for row in matrix.speed]
    entry: dict[str, Any] = {"cpus": list(matrix.cpus)}
    if matrix.knows_memory:
        entry["memory"] = [size / MIB_PER_GIB for size in matrix.memory]
    entry["speed"] = speed if matrix.knows_memory else [row[0] for row in speed]
    rates = dict(zip(previous.get("gpus", [1]), previous.get("rate", []), strict=False)) | {
        profile.gpus: _rounded(profile.rate)
    }
    entry["gpus"], entry["rate"] = [list(each) for each in zip(*sorted(rates.items()), strict=True)]
    if "beside" in previous:
        entry["beside"] = previous["beside"]
    return entry


def _rounded(number: float) -> float:
    """Returns the number with six digits; a short run determines about three."""
    return float(f"{number:.6g}")
