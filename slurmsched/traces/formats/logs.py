"""Reads logs of clusters and workloads of papers that were published as CSV, one job a line.

- Helios (SenseTime; Hu et al., SC 2021): `cluster_log.csv`, times as dates without a zone.
- Acme (Shanghai AI Laboratory; Hu et al., NSDI 2024): `trace_seren.csv` and `trace_kalos.csv`, times with their zone.
- Philly (Microsoft; Jeon et al., ATC 2019), flat as Sia's authors have it: no ids and no users.
- Chronus (Gao et al., SoCC 2021): Philly and Helios with users and drawn models, times in minutes.
- ITP (Microsoft; Gu et al., ASPLOS 2023) and the form that ElasticFlow makes of it and of Philly, times in seconds.
- Sia (Jayaram Subramanya et al., SOSP 2023): applications without durations.
- Alibaba's spot GPUs (Duan et al., ASPLOS 2026): `job_info_df.csv`, requests for each worker, times in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Final

from slurmsched.model import MILLI_PER_GPU
from slurmsched.traces.tables import TableRow, csv_rows
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceJob, build_trace

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_MIB_PER_GB: Final = 1024

_NO_GPU: Final = "asks for no GPU"
_NEVER_RAN: Final = "never ran"
_NOT_OVER: Final = "not over yet"

HELIOS_COLUMNS: Final = ("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "duration")
ACME_COLUMNS: Final = ("job_id", "user", "type", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "duration")
PHILLY_FLAT_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
CHRONUS_COLUMNS: Final = ("job_id", "user", "num_gpu", "submit_time", "duration", "expect_time_list")
ELASTICFLOW_COLUMNS: Final = ("job_id", "submit_time", "iteration", "model_name", "ddl", "num_gpu", "duration")
ITP_COLUMNS: Final = ("job_id", "submission_time", "duration", "num_gpu")
SIA_COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
SPOT_COLUMNS: Final = (
    "job_name", "organization", "gpu_model", "cpu_request", "gpu_request", "worker_num", "submit_time", "duration",
    "job_type",
)  # fmt: skip

_LineReader = Callable[[TableRow], TraceJob | str]
"""Returns the job of a line, or why it is left out."""


def _read(
    columns: Sequence[str], read_line: _LineReader, text: str, name: str, _context: ImportContext
) -> ImportedTrace:
    skipped = Counter[str]()
    jobs = _jobs(csv_rows(text, name, columns), read_line, skipped)
    return ImportedTrace(build_trace(name, jobs, f"imported: {name}", from_first=True), dict(skipped))


def _jobs(lines: Iterator[TableRow], read_line: _LineReader, skipped: Counter[str]) -> Iterator[TraceJob]:
    for line in lines:
        job = read_line(line)
        if isinstance(job, str):
            skipped[job] += 1
        else:
            yield job


_OPEN_STATES: Final = frozenset({"RUNNING", "PENDING", "SUSPENDED"})


def _logged_job(line: TableRow) -> TraceJob | str:
    """A job of Helios or Acme. It runs from its start to its end, since Acme's Kalos counts the wait in `duration`."""
    gpus, state = line.integer("gpu_num"), line.text("state").upper()
    start, end = line.time("start_time"), line.time("end_time")
    seconds = line.optional_number("duration") or 0.0 if start is None or end is None else end - start
    if state in _OPEN_STATES:
        return _NOT_OVER
    if not gpus:
        return _NO_GPU
    if seconds <= 0:
        return _NEVER_RAN
    nodes = line.optional_integer("node_num") or 1
    memory = line.optional_number("mem_per_pod_GB")
    return TraceJob(
        id=_id(line, "job_id"),
        arrival=_submitted(line, "submit_time"),
        gpus=gpus,
        duration=seconds,
        user=line.text("user"),
        account=line.text("vc"),
        gpus_per_node=gpus // nodes if gpus % nodes == 0 else None,
        cpus=ceil(line.optional_number("cpu_num") or 0.0) or None,
        memory=None if memory is None else ceil(memory * _MIB_PER_GB * nodes),
        fails_after=seconds if state == "FAILED" else None,
    )


def _id(line: TableRow, field: str) -> str:
    if not line.text(field):
        raise line.error(field, "a name")
    return line.text(field)


def _submitted(line: TableRow, field: str) -> float:
    time = line.time(field)
    if time is None:
        raise line.error(field, "a time such as 2026-01-31T12:00:00")
    return time


read_helios = partial(_read, HELIOS_COLUMNS, _logged_job)
read_acme = partial(_read, ACME_COLUMNS, _logged_job)


def _philly_job(line: TableRow) -> TraceJob | str:
    gpus, seconds = line.integer("num_gpus"), line.number("duration")
    if not gpus:
        return _NO_GPU
    if not seconds:
        return _NEVER_RAN
    arrival, cluster = _submitted(line, "timestamp"), line.text("cluster")
    return TraceJob(id=line.number_of_line, arrival=arrival, gpus=gpus, duration=seconds, account=cluster)


read_philly_flat = partial(_read, PHILLY_FLAT_COLUMNS, _philly_job)


def _timed_job(line: TableRow, *, submitted: str = "submit_time", iterations: str, unit: float = 1.0) -> TraceJob | str:
    """A job whose times are numbers of `unit` seconds."""
    gpus, time = line.integer("num_gpu"), line.number("duration")
    if not gpus:
        return _NO_GPU
    if not time:
        return _NEVER_RAN
    return TraceJob(
        id=_id(line, "job_id"),
        arrival=unit * line.number(submitted),
        gpus=gpus,
        duration=unit * time,
        model=line.text("model_name").lower(),
        user=line.text("user"),
        iterations=line.optional_integer(iterations, 1) if iterations else None,
    )


read_chronus = partial(_read, CHRONUS_COLUMNS, partial(_timed_job, iterations="iterations", unit=_MINUTE))
read_elasticflow = partial(_read, ELASTICFLOW_COLUMNS, partial(_timed_job, iterations="iteration"))
read_itp = partial(_read, ITP_COLUMNS, partial(_timed_job, submitted="submission_time", iterations=""))


SIA_GPU_HOURS: Final[Mapping[str, float]] = {
    "cifar10": 1.8,
    "bert": 5.5,
    "deepspeech2": 7.7,
    "yolov3": 14.0,
    "imagenet": 190.0,
}
"""GPU-hours of a job by application, by the rates and epochs that the authors measured on T4 GPUs: the mean over the
GPUs and batch sizes of their workloads."""


def _sia_job(line: TableRow) -> TraceJob | str:
    application, gpus = line.text("application"), line.integer("num_replicas")
    if application not in SIA_GPU_HOURS:
        return f"how long {application[:24] or 'an application without a name'} takes is not known"
    if not gpus:
        return _NO_GPU
    seconds = SIA_GPU_HOURS[application] * _HOUR / gpus
    name, arrival = _id(line, "name"), line.number("time")
    return TraceJob(id=name, arrival=arrival, gpus=gpus, duration=seconds, model=application)


read_sia = partial(_read, SIA_COLUMNS, _sia_job)


def _spot_job(line: TableRow) -> TraceJob | str:
    """A job with the user `organization` and the account `hp` or `spot`."""
    each, workers, seconds = line.number("gpu_request"), line.integer("worker_num"), line.number("duration", -1e15)
    if not each or not workers:
        return _NO_GPU
    if seconds <= 0:
        return _NEVER_RAN
    if not each.is_integer() and (each > 1 or workers > 1):
        return "asks for a part of a GPU beside others"
    part = 0 if each.is_integer() else max(round(each * MILLI_PER_GPU), 1)
    cpus = line.optional_number("cpu_request") or 0.0
    return TraceJob(
        id=_id(line, "job_name"),
        arrival=line.number("submit_time"),
        gpus=0 if 0 < part < MILLI_PER_GPU else max(int(each), 1) * workers,
        duration=seconds,
        user=line.text("organization"),
        account=line.text("job_type").lower(),
        gpu_type=line.text("gpu_model").lower(),
        milli_gpu=part if part < MILLI_PER_GPU else 0,
        gpus_per_node=None if part else int(each),
        cpus=ceil(cpus * workers) or None,
    )


read_spot = partial(_read, SPOT_COLUMNS, _spot_job)
