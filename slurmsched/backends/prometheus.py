"""What the GPUs of ended runs were used for, and which of running jobs are idle, from a Prometheus that the site names,
by the exporters that know of jobs.

Slurm's accounting tells of GPUs only a peak, where it tells anything. One question for each exporter has all runs: each
part of its query is one amount of one run over its own time, and a label of the answer says which. One question has all
running jobs: Prometheus counts their GPUs by job, so that the answer is short however many there are.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from math import isfinite
from threading import Thread
from time import monotonic
from typing import Final
from urllib.parse import urlencode, urlsplit

from slurmsched.backends.protocol import CLOCK_TOLERANCE, IDLE_PERCENT, BackendError
from slurmsched.model import AccountedRun, JobId

MOST_RUNS: Final = 100
"""Runs of one question at most."""
MOST_RUNNING: Final = 5_000
"""Running jobs of one question at most."""
RUNNING_JOBS: Final = "running jobs"
"""The name of the question for running jobs, beside those of exporters."""
_SECONDS: Final = 3.0
"""Longest wait for all answers together."""
_MAX_BYTES: Final = 4 * 2**20
_LONGEST_WINDOW: Final = 86_400
"""Seconds of a run that count, the last: what Prometheus has to read for it is bounded."""
_STEPS: Final = 100
_SHORTEST_STEP: Final = 30
"""Times at which, and seconds after which, who had a GPU is looked at, where its own series does not say so."""
_LABEL: Final = "synsched"
_AMOUNTS: Final = ("gpu", "memory", "cpu")
_MOST_PERCENT: Final = 101.0
_MEBIBYTE: Final = 2**20
_MAX_TEXT: Final = 120
_MAX_MEMORY: Final = 2.0**40
"""MiB. No GPU has as many."""


class PrometheusError(BackendError):
    """Prometheus does not answer, or not as it should."""


@dataclass(frozen=True, slots=True)
class JobExporter:
    """An exporter whose series know of jobs: its queries for the mean use of each GPU of a run in percent, the most
    memory of each in MiB, and the seconds of its CPUs together (empty if it does not have them).

    In a query `JOB` stands for Slurm's number of the job, `SINCE` for the window over which it is looked at, and
    `CLUSTER` for the selection of the cluster.
    """

    name: str
    gpu: str
    gpu_memory: str
    cpu: str = ""
    series: str = ""
    """The series of the use of GPUs in percent, and behind a blank its label with the number of the job; without one
    the value of a second series that has the same labels is the number."""

    def query(self, runs: Sequence[AskedRun], cluster: str) -> str:
        """One query for all these runs."""
        terms = (
            f'label_replace({_of_run(query, run, cluster)},"{_LABEL}","{_label(number, amount)}","","")'
            for number, run in enumerate(runs)
            for amount, query in zip(_AMOUNTS, (self.gpu, self.gpu_memory, self.cpu), strict=True)
            if query
        )
        return " or ".join(terms)

    def idle_query(self, numbers: Sequence[str], window: int, cluster: str) -> str:
        """A query for running jobs by number: how many GPUs of each were idle in the last `window` seconds, how many
        it had then, and how many of these were looked at all of the time."""
        series, label, value = (*self.series.split(), "")[:3]
        selection = f"cluster='{cluster}'" if cluster else ""
        ours = ",".join(filter(None, (f"{label}=~'{'|'.join(numbers)}'" if not value else "", selection)))
        use, looks = f"{series}{{{ours}}}", window // _LOOK
        counted = {
            "idle": f"(avg_over_time({use}[{window}s])>=0)<{_IDLE_PERCENT:g}",
            "all": f"avg_over_time({use}[{window}s])",
            "seen": f"count_over_time({use}[{window}s:{_LOOK}s])>={looks}",
        }
        by_job = f"count by({label})(X)" if not value else f'count_values("{label}",{value}{{{ours}}} and (X))'
        return " or ".join(
            f'label_replace({by_job.replace("X", part)},"{_LABEL}","{what} {self.name}","","")'
            for what, part in counted.items()
        )


_IDLE_PERCENT: Final = 1.0
"""Use below which a GPU of a running job is idle."""
_LOOK: Final = 300
"""Seconds between two looks at whether the use of a GPU is told: for so long a value stands for the present one."""
_OF_STEPS: Final = "cgroup_cpu_total_seconds{jobid='JOB',step='',task=''CLUSTER}"
EXPORTERS: Final = (
    JobExporter(
        "nvidia_gpu_exporter",
        "avg_over_time(nvidia_gpu_duty_cycle{jobid='JOB'CLUSTER}SINCE)",
        "max_over_time(nvidia_gpu_memory_used_bytes{jobid='JOB'CLUSTER}SINCE)/1048576",
        f"sum(max_over_time({_OF_STEPS}SINCE))",
        "nvidia_gpu_duty_cycle jobid",
    ),
    JobExporter(
        "slurm-job-exporter",
        "avg_over_time(slurm_job_utilization_gpu{slurmjobid='JOB'CLUSTER}SINCE)",
        "max_over_time(slurm_job_memory_usage_gpu{slurmjobid='JOB'CLUSTER}SINCE)/1048576",
        "sum(max_over_time(slurm_job_core_usage_total{slurmjobid='JOB'CLUSTER}SINCE))/1e9",
        "slurm_job_utilization_gpu slurmjobid",
    ),
    JobExporter(
        "dcgm-exporter",
        "avg_over_time(DCGM_FI_DEV_GPU_UTIL{hpc_job='JOB'CLUSTER}SINCE)",
        "max_over_time(DCGM_FI_DEV_FB_USED{hpc_job='JOB'CLUSTER}SINCE)",
        series="DCGM_FI_DEV_GPU_UTIL hpc_job",
    ),
    JobExporter(
        "nvidia_gpu_jobId",
        "avg_over_time((nvidia_gpu_duty_cycle{CLUSTER} and nvidia_gpu_jobId{CLUSTER}==JOB)SINCE_BY_STEPS)",
        "max_over_time((nvidia_gpu_memory_used_bytes{CLUSTER} and nvidia_gpu_jobId{CLUSTER}==JOB)SINCE_BY_STEPS)"
        "/1048576",
        f"sum(max_over_time({_OF_STEPS}SINCE))",
        "nvidia_gpu_duty_cycle jobid nvidia_gpu_jobId",
    ),
)
"""Best first. The last is an older release of the first, in which only another series says whose a GPU was."""


@dataclass(frozen=True, slots=True)
class AskedRun:
    """A run that is asked for, and Slurm's number of its job, which for a task of an array is another than its name."""

    run: AccountedRun
    number: str


def _label(number: int, amount: str) -> str:
    return f"{number} {amount}"


def _of_run(query: str, asked: AskedRun, cluster: str) -> str:
    seconds = max(min(int(asked.run.seconds), _LONGEST_WINDOW), 1)
    at = f" @ {int(asked.run.ended)}"
    selection = f"cluster='{cluster}'" if cluster else ""
    words = {
        "SINCE_BY_STEPS": f"[{seconds}s:{max(seconds // _STEPS, _SHORTEST_STEP)}s]{at}",
        "SINCE": f"[{seconds}s]{at}",
        "{CLUSTER": f"{{{selection}",
        "CLUSTER": f",{selection}" if selection else "",
        "JOB": asked.number,
    }
    return re.sub("|".join(map(re.escape, words)), lambda word: words[word[0]], query)


Amounts = Mapping[str, Sequence[float]]
"""The values of a run by amount: `gpu` in percent and `memory` in MiB, of each GPU; `cpu` in seconds."""


class Prometheus:
    """The Prometheus at a URL; `cluster` is the label of this cluster's series, empty if it has no others."""

    def __init__(self, url: str, cluster: str = "", seconds: float = _SECONDS) -> None:
        self._url = url
        self._cluster = cluster
        self._seconds = seconds

    def measure(
        self, exporters: Sequence[JobExporter], runs: Sequence[AskedRun]
    ) -> tuple[Mapping[tuple[JobId, float], AccountedRun], Sequence[int | PrometheusError]]:
        """The runs of which one of these exporters tells how busy their GPUs were, by job and end, completed by the
        first of them; and for each exporter of how many it told, or why of none. Raises nothing."""
        measured, outcomes = dict[tuple[JobId, float], AccountedRun](), list[int | PrometheusError]()
        for exporter, answer in zip(exporters, self._ask(exporters, runs), strict=True):
            if isinstance(answer, PrometheusError):
                outcomes.append(answer)
                continue
            told = [with_amounts(runs[place].run, amounts, exporter.name) for place, amounts in answer.items()]
            told = [run for run in told if run.gpu_source]
            outcomes.append(len(told))
            for run in told:
                measured.setdefault((run.job, run.ended), run)
        return measured, outcomes

    def _ask(
        self, exporters: Sequence[JobExporter], runs: Sequence[AskedRun]
    ) -> Sequence[Mapping[int, Amounts] | PrometheusError]:
        """What each of these exporters tells of the runs, by the run's place, or why it does not.

        All are asked at once, and it takes a few seconds at most, whatever answers: who is not done by then is left
        alone.
        """
        end = monotonic() + self._seconds
        questions = [_Question(self._url, exporter.query(runs, self._cluster), end) for exporter in exporters]
        return [
            body if isinstance(body, PrometheusError) else _parsed(body, len(runs)) for body in _answers(questions, end)
        ]

    def idle_gpus(self, gpus: Mapping[str, int], window: int, exporters: Sequence[JobExporter]) -> Mapping[str, int]:
        """How many GPUs were idle all of the last `window` seconds of each of these running jobs, which have so many
        `gpus`, by Slurm's number of the job. A job is missing if no exporter told of all its GPUs all of that time.

        It is one question, which takes a few seconds at most. Raises PrometheusError.
        """
        end, numbers = monotonic() + self._seconds, sorted(filter(str.isdecimal, gpus))
        query = " or ".join(exporter.idle_query(numbers, window, self._cluster) for exporter in exporters)
        (body,) = _answers([_Question(self._url, query, end)], end)
        if isinstance(body, PrometheusError):
            raise body
        return parse_idle(body, gpus, exporters)


def _answers(questions: Sequence[_Question], end: float) -> Sequence[bytes | PrometheusError]:
    for question in questions:
        question.start()
    for question in questions:
        question.join(max(end - monotonic(), 0.0))
    return [question.result() for question in questions]


def _parsed(body: bytes, runs: int) -> Mapping[int, Amounts] | PrometheusError:
    try:
        return parse_answer(body, runs)
    except PrometheusError as error:
        return error


class _Question(Thread):
    """Asks one query in a thread of its own: neither a name server nor a server that sends a byte a second is waited
    for. Nobody waits for the thread where the program ends."""

    def __init__(self, url: str, query: str, end: float) -> None:
        super().__init__(daemon=True, name="prometheus")
        self._url = url
        self._query = query
        self._end = end
        self._connection: HTTPConnection | None = None
        self._answer: bytes | PrometheusError | None = None

    def run(self) -> None:
        try:
            self._answer = self._read()
        except (OSError, HTTPException, ValueError) as error:
            self._answer = PrometheusError(
                f"Prometheus does not answer: {_in_a_line(str(error)) or type(error).__name__}"
            )

    def result(self) -> bytes | PrometheusError:
        """The answer, or why there is none; a question that is still under way is given up."""
        if self._answer is None:
            connected = self._connection.sock if self._connection is not None else None
            with suppress(OSError):
                if connected is not None:
                    connected.shutdown(socket.SHUT_RDWR)
            return PrometheusError("Prometheus did not answer in time")
        return self._answer

    def _read(self) -> bytes:
        left, parts = max(self._end - monotonic(), 0.1), urlsplit(self._url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = connection = kind(parts.hostname or "", parts.port, timeout=left)
        try:
            connection.connect()
            if monotonic() > self._end:
                raise TimeoutError("it took too long to connect")
            form = urlencode({"query": self._query, "timeout": f"{left:.1f}"})
            headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
            connection.request("POST", f"{parts.path.rstrip('/')}/api/v1/query", form, headers)
            response = connection.getresponse()
            body = response.read(_MAX_BYTES + 1)
        finally:
            connection.close()
        if len(body) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES // _MEBIBYTE} MiB")
        if response.status != HTTPStatus.OK:
            raise ValueError(f"HTTP {response.status} {_problem(body)}".rstrip())
        return body


def _problem(body: bytes) -> str:
    """Prometheus's own words on what is wrong."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""


def _in_a_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_TEXT])


def _vector(body: bytes) -> list[tuple[Mapping[str, object], object]]:
    """The labels and values of an answer, neither checked. Raises PrometheusError."""
    try:
        elements = [(element["metric"], element["value"][1]) for element in json.loads(body)["data"]["result"]]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PrometheusError(_NO_VECTOR) from error
    if not all(isinstance(metric, dict) for metric, _ in elements):
        raise PrometheusError(_NO_VECTOR)
    return elements


_NO_VECTOR: Final = "Prometheus does not answer as it should: no vector of values"


def parse_idle(body: bytes, gpus: Mapping[str, int], exporters: Sequence[JobExporter]) -> Mapping[str, int]:
    """The idle GPUs of each of these jobs in the answer, by the first exporter that told of exactly as many GPUs as the
    job has, all of the time. Raises PrometheusError."""
    counts = dict[tuple[object, str], float | None]()
    labels = {one.name: one.series.split()[1] for one in exporters}
    for metric, value in _vector(body):
        told = str(metric.get(_LABEL))
        number = metric.get(labels.get(told.partition(" ")[2], ""))
        if isinstance(number, str) and number in gpus:
            counts[told, number] = None if (told, number) in counts else _amount(value)
    found = dict[str, int]()
    for number, has in gpus.items():
        for exporter in exporters:
            every, seen = (counts.get((f"{what} {exporter.name}", number)) for what in ("all", "seen"))
            idle = counts.get((f"idle {exporter.name}", number), 0.0)
            if every == seen == has and idle is not None and idle <= has and idle == int(idle):
                found[number] = int(idle)
                break
    return found


def parse_answer(body: bytes, runs: int) -> Mapping[int, Amounts]:
    """The amounts of each run in the answer to a question for so many. Values that are no amounts are left out, and
    their runs with them. Raises PrometheusError."""
    elements = [(metric.get(_LABEL), value) for metric, value in _vector(body)]
    asked = {_label(number, amount): (number, amount) for number in range(runs) for amount in _AMOUNTS}
    found = dict[int, dict[str, list[float]]]()
    refused = set[int]()
    for label, text in elements:
        if not isinstance(label, str) or label not in asked:
            continue
        (number, amount), value = asked[label], _amount(text)
        if value is None:
            refused.add(number)
        else:
            found.setdefault(number, {}).setdefault(amount, []).append(value)
    return {number: amounts for number, amounts in found.items() if number not in refused}


def _amount(text: object) -> float | None:
    try:
        value = float(text) if isinstance(text, str) else -1.0
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def with_amounts(run: AccountedRun, amounts: Amounts, exporter: str) -> AccountedRun:
    """The run with what an exporter told of it, as far as it can be so: each of its GPUs once, none used for more than
    all of the time, and no more CPU time than its CPUs had. What accounting gathered counts for more."""
    gpu, memory, cpu = (amounts.get(name, ()) for name in _AMOUNTS)
    if not 0 < len(gpu) == run.gpus or max(gpu) > _MOST_PERCENT or max(memory, default=0.0) >= _MAX_MEMORY:
        return run
    run = replace(
        run,
        gpu_use=min(sum(gpu) / 100 / len(gpu), 1.0),
        idle_gpus=sum(use < IDLE_PERCENT for use in gpu),
        gpu_memory=max((run.gpu_memory or 0, *map(round, memory))) or None,
        gpu_source=exporter,
    )
    if run.gathered or len(cpu) != 1 or not 0 < cpu[0] <= (run.seconds + CLOCK_TOLERANCE) * run.cpus:
        return run
    return replace(run, cpu_seconds=max(run.cpu_seconds or 0.0, cpu[0]), gathered=True)
