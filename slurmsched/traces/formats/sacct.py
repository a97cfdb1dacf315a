"""Reads Slurm's accounting as `sacct` prints it: any columns in any order with `--parsable2` (`--parsable`), or JSON.

`finished_jobs` selects the jobs that can be replayed; `traces.accounting` tells what Slurm did with each.
In JSON Slurm 22.05 prints plain numbers and states; later releases
print numbers as tables (`{"set": true, "infinite": false, "number": 5}`) and states as lists.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.model import parse_hints
from slurmsched.model.reasons import pluralise
from slurmsched.traces.tables import NO_VALUE, TableRow, pipe_separated_rows
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError, TraceJob, build_trace

_NOT_FINISHED: Final = frozenset(
    {"RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "REQUEUE_HOLD"}
)
_FAILED_BY_ITSELF: Final = frozenset({"FAILED", "OUT_OF_MEMORY"})
_REQUEUED: Final = frozenset({"REQUEUED", "PREEMPTED", "REQUEUE_FED"})


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """One run of a job. `submit` and `start` are unix seconds, None if there is none; `elapsed` and `limit` are in
    seconds; memory is in MiB for the whole job. `gpu_type` is the type that it asked for."""

    id: str
    state: str
    submit: float | None
    start: float | None
    elapsed: float
    gpus: int
    gpu_type: str = ""
    shards: int = 0
    cpus: int | None = None
    memory: int | None = None
    nodes: int = 1
    limit: float | None = None
    user: str = ""
    account: str = ""
    comment: str = ""
    eligible: float | None = None
    """When it could start but for resources: after its dependencies and its begin time."""
    end: float | None = None
    name: str = ""
    partition: str = ""
    ran_on: str = ""
    """The GPU type that it was given."""


def finished_jobs(records: Iterable[AccountingRecord], skipped: Counter[str]) -> Iterator[TraceJob]:
    """Yields the jobs that ran, with all runs of a requeued job as one from its first submission on.

    Other jobs are counted in `skipped`. A job that failed by itself fails again after as much work; a job that was
    cancelled, timed out or lost its node counts as complete.
    """
    for job_runs in runs_by_job(records):
        last = job_runs[-1]
        why = _skip_reason(last)
        if why:
            skipped[why] += 1
        else:
            yield trace_job(replace(last, elapsed=sum(run.elapsed for run in job_runs)), job_runs[0])


def runs_by_job(records: Iterable[AccountingRecord]) -> Iterable[list[AccountingRecord]]:
    """Returns the runs of each job, in the order of the records."""
    runs: dict[str, list[AccountingRecord]] = {}
    for record in records:
        runs.setdefault(record.id, []).append(record)
    return runs.values()


def _skip_reason(record: AccountingRecord) -> str:
    if record.state in _NOT_FINISHED or record.state in _REQUEUED:
        return "not over yet"
    if record.submit is None or record.start is None or record.elapsed <= 0:
        return "never ran"
    if record.shards and not record.gpus:
        return "shares a GPU (gres/shard)"
    return "" if record.gpus else "has no GPUs"


def trace_job(record: AccountingRecord, first: AccountingRecord) -> TraceJob:
    """Returns the job of a record, which arrives when its `first` run was submitted (unix seconds)."""
    hints = parse_hints(record.comment)
    submit = first.submit if first.submit is not None else record.submit
    duration = record.elapsed if record.limit is None else min(record.elapsed, record.limit)
    return TraceJob(
        id=record.id,
        arrival=submit or 0.0,
        gpus=record.gpus,
        duration=duration,
        model=hints.model or "",
        task=hints.task or "",
        user=record.user,
        account=record.account,
        gpu_type=record.gpu_type,
        gpus_per_node=record.gpus // record.nodes if record.nodes and record.gpus % record.nodes == 0 else None,
        cpus=record.cpus,
        memory=record.memory,
        time_limit=record.limit,
        fails_after=duration if record.state in _FAILED_BY_ITSELF else None,
        name=record.name,
    )


SACCT_FIELDS: Final = (
    "JobID",
    "JobIDRaw",
    "User",
    "Account",
    "Partition",
    "State",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "Elapsed",
    "Timelimit",
    "NNodes",
    "ReqTRES",
    "AllocTRES",
    "JobName",
    "Comment",
)
"""The columns to export. What owners write freely comes last."""

_REQUIRED: Final = ("JobID", "State", "Submit", "Start", "Elapsed")
_ELAPSED: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?\Z")
_AMOUNT: Final = re.compile(r"([0-9.]+)([KMGTP]?)[nc]?\Z")
_MIB: Final = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_LONGEST_AMOUNT: Final = 24


def read_sacct(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the jobs that ran and are over, without their steps. Raises TraceError.

    Times without a zone are read as UTC, since only differences matter. `SLURM_TIME_FORMAT=%s` gives unix seconds,
    which do not depend on daylight saving time.
    """
    if "|" not in text.partition("\n")[0]:
        raise TraceError(f"{name}:1: expected columns separated by '|': run sacct with --parsable2")
    skipped = Counter[str]()
    return _imported(name, finished_jobs(_records(text, name), skipped), skipped)


def _imported(name: str, found: Iterable[TraceJob], skipped: Mapping[str, int]) -> ImportedTrace:
    """Returns the trace of the jobs, which are counted in `skipped` while they are read. Raises TraceError, which says
    what was left out if that is all."""
    jobs = list(found)
    if not jobs and skipped:
        left_out = ", ".join(f"{pluralise(count, 'job')} left out ({reason})" for reason, count in skipped.items())
        raise TraceError(f"{name}: expected at least one job that can be replayed, found {left_out}")
    return ImportedTrace(build_trace(name, jobs, f"imported: {name}", from_first=True), dict(skipped))


def _records(text: str, name: str) -> Iterator[AccountingRecord]:
    for line in pipe_separated_rows(text, name, _REQUIRED):
        if "." not in line.text("JobID"):
            yield table_record(line)


def table_record(line: TableRow) -> AccountingRecord:
    """Returns the run of a row of `sacct --parsable2`. Raises TraceError."""
    requested, allocated = _tres(line, "ReqTRES"), _tres(line, "AllocTRES")
    gpus = _gpus(allocated) or _gpus(requested)
    typed = _single_type(requested)
    memory = requested.get("mem") or allocated.get("mem")
    cpus = requested.get("cpu") or allocated.get("cpu")
    return AccountingRecord(
        id=line.text("JobIDRaw") or line.text("JobID"),
        state=(line.text("State").split() or [""])[0].rstrip("+"),
        submit=line.time("Submit"),
        start=line.time("Start"),
        elapsed=parse_elapsed(line, "Elapsed") or 0.0,
        gpus=int(gpus),
        gpu_type=typed,
        shards=int(allocated.get("gres/shard", 0)),
        cpus=int(cpus) if cpus else None,
        memory=int(memory) if memory else None,
        nodes=line.optional_integer("NNodes") or 1,
        limit=parse_elapsed(line, "Timelimit"),
        user=line.text("User"),
        account=line.text("Account"),
        comment=line.text("Comment"),
        eligible=line.time("Eligible"),
        end=line.time("End"),
        name=line.text("JobName"),
        ran_on=_single_type(allocated),
        partition=line.text("Partition"),
    )


def _single_type(tres: Mapping[str, float]) -> str:
    """Returns the GPU type of a request or an allocation; empty if it names none, or several."""
    types = [key.partition(":")[2] for key, amount in tres.items() if key.startswith("gres/gpu:") and amount]
    return types[0] if len(types) == 1 else ""


def _gpus(tres: Mapping[str, float]) -> float:
    typed = sum(amount for key, amount in tres.items() if key.startswith("gres/gpu:"))
    return tres.get("gres/gpu", 0.0) or typed


def _tres(line: TableRow, field: str) -> dict[str, float]:
    """Returns `cpu=4,mem=16G,gres/gpu:v100=2` as numbers, with memory in MiB."""
    amounts: dict[str, float] = {}
    for part in filter(None, line.text(field).split(",")):
        key, _, amount = part.partition("=")
        match = _AMOUNT.match(amount)
        if match is None or match[1].count(".") > 1 or match[1] == "." or len(amount) > _LONGEST_AMOUNT:
            raise line.error(field, "amounts such as cpu=4,mem=16G,gres/gpu=2")
        amounts[key] = float(match[1]) * (_MIB[match[2]] if key == "mem" else 1)
    return amounts


def parse_elapsed(line: TableRow, field: str) -> float | None:
    """Returns `1-02:03:04`, `02:03:04` or `03:04` in seconds; None if empty or unlimited. Raises TraceError."""
    text = line.text(field)
    if text in NO_VALUE or text.upper() in ("UNLIMITED", "PARTITION_LIMIT"):
        return None
    match = _ELAPSED.match(text)
    if match is None or len(text) > 32:  # noqa: PLR2004  # longer than any time Slurm prints
        raise line.error(field, "a time such as 1-02:03:04")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    seconds = 86400.0 * days + 3600.0 * hours + 60.0 * minutes + rest
    if seconds > _MAX_NUMBER:
        raise line.error(field, "a time such as 1-02:03:04")
    return seconds


_MAX_NUMBER: Final = 1e15


def read_sacct_json(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the jobs that ran and are over. Raises TraceError."""
    skipped = Counter[str]()
    return _imported(name, finished_jobs((json_record(*entry) for entry in json_entries(text, name)), skipped), skipped)


def json_entries(text: str, name: str) -> Iterator[tuple[object, str]]:
    """Yields the entries of `sacct --json`, each with where it stands. Raises TraceError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{name}: this JSON is damaged or cut off, write it again: {error}") from error
    entries = data.get("jobs") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise TraceError(f"{name}: jobs: expected the list that sacct --json prints")
    for number, entry in enumerate(entries, start=1):
        yield entry, f"{name}: job {number}"


class _JsonTable:
    """A table of the file with its location, for error messages."""

    def __init__(self, location: str, data: object) -> None:
        if not isinstance(data, dict):
            raise TraceError(f"{location}: expected a table")
        self.location, self.data = location, data

    def table(self, key: str) -> _JsonTable:
        return _JsonTable(f"{self.location}: {key}", self.data.get(key) or {})

    def text(self, key: str) -> str:
        value = self.data.get(key)
        return "" if value is None else str(value)

    def number(self, key: str) -> float | None:
        """Returns a number in either form; None if it is not set or infinite."""
        value = self.data.get(key)
        if isinstance(value, dict):
            if value.get("infinite") or value.get("set") is False:
                return None
            value = value.get("number")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MAX_NUMBER:
            raise TraceError(f"{self.location}: {key}: expected a number, not {str(value)[:24]!r}")
        return float(value)

    def tres(self, key: str) -> Mapping[str, float]:
        """Returns the counts by TRES, such as `gres/gpu:v100`; memory is in MiB."""
        counts: dict[str, float] = {}
        entries = self.data.get(key) or []
        if not isinstance(entries, list):
            raise TraceError(f"{self.location}: {key}: expected a list")
        for entry in entries:
            table = _JsonTable(f"{self.location}: {key}", entry)
            name = table.text("type") + (f"/{table.text('name')}" if table.text("name") else "")
            counts[name] = table.number("count") or 0.0
        return counts


def json_record(entry: object, location: str) -> AccountingRecord:
    """Returns the run of an entry of `sacct --json`. Raises TraceError, which begins with the location."""
    job = _JsonTable(location, entry)
    time, tres = job.table("time"), job.table("tres")
    requested, allocated = tres.tres("requested"), tres.tres("allocated")
    limit, start = time.number("limit"), time.number("start")
    comment = job.data.get("comment")
    return AccountingRecord(
        id=_id(job),
        state=_state(job),
        submit=time.number("submission"),
        start=start or None,
        elapsed=time.number("elapsed") or 0.0,
        gpus=int(_gpus(allocated) or _gpus(requested)),
        gpu_type=_single_type(requested),
        shards=int(allocated.get("gres/shard", 0)),
        cpus=int(requested.get("cpu") or allocated.get("cpu") or 0) or None,
        memory=int(requested.get("mem") or allocated.get("mem") or 0) or None,
        nodes=int(job.number("allocation_nodes") or 1),
        limit=None if limit is None else 60.0 * limit,
        user=job.text("user"),
        account=job.text("account"),
        comment=str(comment.get("job") or "") if isinstance(comment, dict) else str(comment or ""),
        eligible=time.number("eligible") or None,
        end=time.number("end") or None,
        name=job.text("name"),
        ran_on=_single_type(allocated),
        partition=job.text("partition"),
    )


def _id(job: _JsonTable) -> str:
    array = job.table("array")
    task, array_job = array.number("task_id"), array.number("job_id")
    if array_job and task is not None:
        return f"{array_job:.0f}_{task:.0f}"
    number = job.number("job_id")
    if number is None:
        raise TraceError(f"{job.location}: job_id: expected a number")
    return f"{number:.0f}"


def _state(job: _JsonTable) -> str:
    current = job.table("state").data.get("current")
    state = current[0] if isinstance(current, list) and current else current
    return str(state or "").split(" ")[0]
