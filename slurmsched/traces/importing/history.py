"""A cluster's own history: what Slurm's accounting knows of a job, and what of it can be run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.model import parse_hints
from slurmsched.traces.trace import TraceJob

__all__ = ["Record", "jobs"]

_GOING_ON: Final = frozenset(
    {"RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "REQUEUE_HOLD"}
)
_OWN_FAULT: Final = frozenset({"FAILED", "OUT_OF_MEMORY"})
_WENT_ON_LATER: Final = frozenset({"REQUEUED", "PREEMPTED", "REQUEUE_FED"})


@dataclass(frozen=True, slots=True)
class Record:
    """One run of a job. Times are unix seconds, None where there was none; `elapsed` and `limit` in seconds; memory in
    MiB for the whole job. `gpu_type` is the type it asked for."""

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


def jobs(records: Iterable[Record], skipped: Counter[str]) -> Iterator[TraceJob]:
    """The jobs that ran, each once: the runs of a requeued one count together, from its first submission on.

    What is left out is counted in `skipped`. A job that failed by itself fails again after as much work; one that was
    cancelled, timed out or lost its node is taken to have been done by then.
    """
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record.id, []).append(record)
    for own in runs.values():
        last = own[-1]
        why = _unusable(last)
        if why:
            skipped[why] += 1
        else:
            yield _job(replace(last, elapsed=sum(run.elapsed for run in own)), own[0])


def _unusable(record: Record) -> str:
    if record.state in _GOING_ON or record.state in _WENT_ON_LATER:
        return "not over yet"
    if record.submit is None or record.start is None or record.elapsed <= 0:
        return "never ran"
    if record.shards and not record.gpus:
        return "shares a GPU (gres/shard)"
    return "" if record.gpus else "has no GPUs"


def _job(record: Record, first: Record) -> TraceJob:
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
        fails_after=duration if record.state in _OWN_FAULT else None,
    )
