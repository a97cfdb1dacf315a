"""Reads the Philly trace (Jeon et al., ATC 2019): `cluster_job_log`, JSON with the attempts of each job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from slurmsched.traces.trace import ImportContext, ImportedTrace, TraceError, TraceJob, build_trace

_TIME = "%Y-%m-%d %H:%M:%S"


def read_philly(text: str, name: str, _sources: ImportContext) -> ImportedTrace:
    """Returns the jobs that ran and are over. A job has the GPUs of its last attempt and the duration of all attempts.

    Raises TraceError.
    """
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
        location = f"{name}: job {number}"
        if not isinstance(entry, dict):
            raise TraceError(f"{location}: expected a table")
        attempts = entry.get("attempts")
        if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
            raise TraceError(f"{location}: attempts: expected a list of tables")
        ran = [
            (start, end, attempt)
            for attempt in attempts
            if (start := _time(attempt, "start_time", location)) and (end := _time(attempt, "end_time", location))
        ]
        gpus = _gpus(ran[-1][2], location) if ran else 0
        submitted = _time(entry, "submitted_time", location)
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


def _gpus(attempt: Mapping[str, object], location: str) -> int:
    detail = attempt.get("detail")
    if not isinstance(detail, list) or not all(isinstance(host, dict) for host in detail):
        raise TraceError(f"{location}: detail: expected a list of tables")
    return sum(len(gpus) for host in detail if isinstance(gpus := host.get("gpus"), list))


def _time(table: Mapping[str, object], key: str, location: str) -> float | None:
    """Returns unix seconds, with the trace's local time read as UTC; None if the field is empty."""
    text = table.get(key)
    if text is None or text in ("", "None"):
        return None
    try:
        return datetime.strptime(str(text), _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TraceError(f"{location}: {key}: expected a time such as 2017-10-03 01:27:23, not '{text}'") from None
