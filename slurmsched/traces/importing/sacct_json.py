"""History as `sacct --json` prints it: the shape of 22.05, and the one since where numbers are tables
(`{"set": true, "infinite": false, "number": 5}`) and a state is a list."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from slurmsched.traces.errors import TraceError
from slurmsched.traces.imported import Imported, Sources, in_order
from slurmsched.traces.importing.history import Record, jobs

__all__ = ["read_sacct_json"]

_LARGEST: Final = 1e15


def read_sacct_json(text: str, name: str, _sources: Sources) -> Imported:
    """The jobs that ran and are over. Raises TraceError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{name}: expected JSON: {error}") from error
    entries = data.get("jobs") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise TraceError(f"{name}: jobs: expected the list that sacct --json prints")
    skipped = Counter[str]()
    found = jobs(_records(entries, name), skipped)
    return Imported(in_order(name, found, f"imported: {name}", from_first=True), dict(skipped))


def _records(entries: list[object], name: str) -> Iterator[Record]:
    for number, entry in enumerate(entries, start=1):
        yield _record(_Part(f"{name}: job {number}", entry))


class _Part:
    """A table within the file that knows where it stands."""

    def __init__(self, place: str, data: object) -> None:
        if not isinstance(data, dict):
            raise TraceError(f"{place}: expected a table")
        self.place, self.data = place, data

    def part(self, key: str) -> _Part:
        return _Part(f"{self.place}: {key}", self.data.get(key) or {})

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
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
            raise TraceError(f"{self.place}: {key}: expected a number, not {str(value)[:24]!r}")
        return float(value)

    def tres(self, key: str) -> Mapping[str, float]:
        """`gres/gpu:v100` and the like to counts; memory in MiB, as sacct has it."""
        found: dict[str, float] = {}
        entries = self.data.get(key) or []
        if not isinstance(entries, list):
            raise TraceError(f"{self.place}: {key}: expected a list")
        for entry in entries:
            own = _Part(f"{self.place}: {key}", entry)
            name = own.text("type") + (f"/{own.text('name')}" if own.text("name") else "")
            found[name] = own.number("count") or 0.0
        return found


def _record(job: _Part) -> Record:
    time, tres = job.part("time"), job.part("tres")
    asked, had = tres.tres("requested"), tres.tres("allocated")
    limit, start = time.number("limit"), time.number("start")
    comment = job.data.get("comment")
    return Record(
        id=_id(job),
        state=_state(job),
        submit=time.number("submission"),
        start=start or None,
        elapsed=time.number("elapsed") or 0.0,
        gpus=int(_gpus(had) or _gpus(asked)),
        gpu_type=next((key.partition(":")[2] for key in asked if key.startswith("gres/gpu:")), ""),
        shards=int(had.get("gres/shard", 0)),
        cpus=int(asked.get("cpu") or had.get("cpu") or 0) or None,
        memory=int(asked.get("mem") or had.get("mem") or 0) or None,
        nodes=int(job.number("allocation_nodes") or 1),
        limit=None if limit is None else 60.0 * limit,
        user=job.text("user"),
        account=job.text("account"),
        comment=str(comment.get("job") or "") if isinstance(comment, dict) else str(comment or ""),
    )


def _id(job: _Part) -> str:
    array = job.part("array")
    task, own = array.number("task_id"), array.number("job_id")
    if own and task is not None:
        return f"{own:.0f}_{task:.0f}"
    number = job.number("job_id")
    if number is None:
        raise TraceError(f"{job.place}: job_id: expected a number")
    return f"{number:.0f}"


def _state(job: _Part) -> str:
    current = job.part("state").data.get("current")
    said = current[0] if isinstance(current, list) and current else current
    return str(said or "").split(" ")[0]


def _gpus(tres: Mapping[str, float]) -> float:
    return tres.get("gres/gpu", 0.0) or sum(n for key, n in tres.items() if key.startswith("gres/gpu:"))
