"""The Philly trace (Jeon et al., ATC 2019): `cluster_job_log`, JSON with the attempts of each job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError, TraceJob, build_trace

_TIME = "%Y-%m-%d %H:%M:%S"


def read_philly(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """A job lasts as long as all its attempts together, on the GPUs of the last one. Jobs that never ran, or still run,
    are left out. Raises TraceError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{name}: expected JSON: {error}") from error
    if not isinstance(data, list):
        raise TraceError(f"{name}: expected a list of jobs")
    skipped = Counter[str]()
    return ImportedTrace(
        build_trace(name, _jobs(data, name, skipped), f"imported: {name}", from_first=True), dict(skipped)
    )


def _jobs(data: list[object], name: str, skipped: Counter[str]) -> Iterator[TraceJob]:
    for number, entry in enumerate(data, start=1):
        place = f"{name}: job {number}"
        if not isinstance(entry, dict):
            raise TraceError(f"{place}: expected a table")
        attempts = entry.get("attempts")
        if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
            raise TraceError(f"{place}: attempts: expected a list of tables")
        ran = [
            (start, end, attempt)
            for attempt in attempts
            if (start := _time(attempt, "start_time", place)) and (end := _time(attempt, "end_time", place))
        ]
        gpus = _gpus(ran[-1][2], place) if ran else 0
        submitted = _time(entry, "submitted_time", place)
        if not ran or submitted is None:
            skipped["never ran, or still runs"] += 1
        elif not gpus:
            skipped["asks for no GPU"] += 1
        else:
            yield TraceJob(
                id=str(entry.get("jobid", number)),
                arrival=submitted,
                gpus=gpus,
                duration=sum(max(0.0, end - start) for start, end, _ in ran),
                user=str(entry.get("user") or ""),
                account=str(entry.get("vc") or ""),
            )


def _gpus(attempt: Mapping[str, object], place: str) -> int:
    detail = attempt.get("detail")
    if not isinstance(detail, list) or not all(isinstance(host, dict) for host in detail):
        raise TraceError(f"{place}: detail: expected a list of tables")
    return sum(len(gpus) for host in detail if isinstance(gpus := host.get("gpus"), list))


def _time(table: Mapping[str, object], key: str, place: str) -> float | None:
    """Unix seconds, the trace's local time taken as UTC; None for what has not happened."""
    text = table.get(key)
    if text is None or text in ("", "None"):
        return None
    try:
        return datetime.strptime(str(text), _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TraceError(f"{place}: {key}: expected a time such as 2017-10-03 01:27:23, not '{text}'") from None
