"""Reads Slurm's accounting as `sacct --json` prints it.

Slurm 22.05 prints plain numbers and states; later releases print numbers as tables (`{"set": true, "infinite": false,
"number": 5}`) and states as lists.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from slurmsched.traces.formats.sacct import AccountingRecord, finished_jobs
from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError, build_trace

_MAX_NUMBER: Final = 1e15


def read_sacct_json(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the jobs that ran and are over. Raises TraceError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{name}: expected JSON: {error}") from error
    entries = data.get("jobs") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise TraceError(f"{name}: jobs: expected the list that sacct --json prints")
    skipped = Counter[str]()
    jobs = finished_jobs(_records(entries, name), skipped)
    return ImportedTrace(build_trace(name, jobs, f"imported: {name}", from_first=True), dict(skipped))


def _records(entries: list[object], name: str) -> Iterator[AccountingRecord]:
    for number, entry in enumerate(entries, start=1):
        yield _record(_JsonTable(f"{name}: job {number}", entry))


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


def _record(job: _JsonTable) -> AccountingRecord:
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
        gpu_type=next((key.partition(":")[2] for key in requested if key.startswith("gres/gpu:")), ""),
        shards=int(allocated.get("gres/shard", 0)),
        cpus=int(requested.get("cpu") or allocated.get("cpu") or 0) or None,
        memory=int(requested.get("mem") or allocated.get("mem") or 0) or None,
        nodes=int(job.number("allocation_nodes") or 1),
        limit=None if limit is None else 60.0 * limit,
        user=job.text("user"),
        account=job.text("account"),
        comment=str(comment.get("job") or "") if isinstance(comment, dict) else str(comment or ""),
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


def _gpus(tres: Mapping[str, float]) -> float:
    return tres.get("gres/gpu", 0.0) or sum(n for key, n in tres.items() if key.startswith("gres/gpu:"))
