"""History as `sacct --json` prints it: the shape of 22.05, and the one since where numbers are tables
(`{"set": true, "infinite": false, "number": 5}`) and a state is a list.
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
    """The jobs that ran and are over. Raises TraceError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{name}: expected JSON: {error}") from error
    entries = data.get("jobs") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise TraceError(f"{name}: jobs: expected the list that sacct --json prints")
    skipped = Counter[str]()
    found = finished_jobs(_records(entries, name), skipped)
    return ImportedTrace(build_trace(name, found, f"imported: {name}", from_first=True), dict(skipped))


def _records(entries: list[object], name: str) -> Iterator[AccountingRecord]:
    for number, entry in enumerate(entries, start=1):
        yield _record(_JsonTable(f"{name}: job {number}", entry))


class _JsonTable:
    """A table within the file that knows where it stands."""

    def __init__(self, place: str, data: object) -> None:
        if not isinstance(data, dict):
            raise TraceError(f"{place}: expected a table")
        self.location, self.data = place, data

    def table(self, key: str) -> _JsonTable:
        return _JsonTable(f"{self.location}: {key}", self.data.get(key) or {})

    def text(self, key: str) -> str:
        value = self.data.get(key)
        return "" if value is None else str(value)

    def number(self, key: str) -> float | None:
        """A number in either shape; None for one that is not set, or infinite."""
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
        """`gres/gpu:v100` and the like to counts; memory in MiB, as sacct has it."""
        found: dict[str, float] = {}
        entries = self.data.get(key) or []
        if not isinstance(entries, list):
            raise TraceError(f"{self.location}: {key}: expected a list")
        for entry in entries:
            own = _JsonTable(f"{self.location}: {key}", entry)
            name = own.text("type") + (f"/{own.text('name')}" if own.text("name") else "")
            found[name] = own.number("count") or 0.0
        return found


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
    task, own = array.number("task_id"), array.number("job_id")
    if own and task is not None:
        return f"{own:.0f}_{task:.0f}"
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
