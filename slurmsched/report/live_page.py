"""`synsched report`: a page of the live system, for everybody who can open it.

It holds what the published document of the present state tells everybody, whoever makes it: no word of a hint, nothing
that was learnt of a user, and nothing that PrivateData hides. From the database, where that may be read, it has sums
over all users beside: GPUs in use, waits and how forecasts turned out, each only where PrivateData hides nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, Final

from slurmsched.backends.slurm.hostlist import fold_hostlist
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.model import MILLI_PER_GPU, ExpectedTime, GpuUsage, JobId, JobState, NodeState, NodeUsage, StartRanges
from slurmsched.model.reasons import pluralise
from slurmsched.report.free import FreeCapacity, free_capacity, largest_text
from slurmsched.report.page import Axis, Plot, Point, Unit, clock_time, curves, render_page, written_at
from slurmsched.report.quantities import duration, memory, per_gpu, percent
from slurmsched.report.queue import JobStatus
from slurmsched.report.status import ClusterStatus, LivenessState, cluster_status, hint_problems
from slurmsched.report.tables import printable
from slurmsched.settings.definition import Settings
from slurmsched.store.publication import (
    ALWAYS_PRIVATE,
    TICKET_POLICIES,
    Document,
    export_folder,
    open_documents,
    read_public,
)
from slurmsched.store.read_only import ReadOnlyStore, open_read_only
from slurmsched.store.rows import StartCalibration, UseRow

MOST_JOBS: Final = 5_000
"""Jobs that are listed, those that run before those that wait."""
MANY_NODES: Final = 64
"""Nodes above which their GPUs are drawn without the ids of jobs, which the mouse tells."""
_MOST_PROBLEMS: Final = 20
_LONGEST_NAME: Final = 48
_LONGEST_SENTENCE: Final = 300
_HISTORY: Final = 7 * 86400.0
"""Seconds that are looked back at most."""
_BUCKETS: Final = 112
_SHORTEST_BUCKET: Final = 60.0
_GAP: Final = 3.0
"""Periods without a round after which nothing is known of the time between."""
_LATE: Final = 3.0
"""Periods after which the daemon should have written the page anew."""
_ENOUGH_STARTS: Final = 20
"""Starts from which on it is told how forecasts of them turned out."""
_LIVES: Final = {
    LivenessState.ALIVE: "",
    LivenessState.LATE: "warn",
    LivenessState.GONE: "bad",
    LivenessState.NEVER: "warn",
}


@dataclass(frozen=True, slots=True)
class ClusterHistory:
    """Sums over all users since `since` (unix seconds). `waits` are the times of first starts and how long these jobs
    had waited; empty where they are private, as are the two on forecasts."""

    since: float
    use: tuple[UseRow, ...] = ()
    waits: tuple[tuple[float, float], ...] = ()
    calibration: tuple[StartCalibration, ...] = ()
    ranges: StartRanges = field(default_factory=StartRanges)


def current_page(settings: Settings, now: float, *, kept_up: bool = False) -> str:
    """Returns the page of what is published at `now` (unix seconds). One that is `kept_up` by the daemon loads itself
    again, and says when it is old. Raises ExportError, StoreError."""
    folder = export_folder(settings.storage)
    document = read_public(folder)
    beat, disabled = HeartbeatFile(Path(settings.hook.heartbeat)).read(), Path(settings.hook.disable_file).exists()
    with open_documents((document,), folder) as store:
        status = cluster_status(store, settings, now, beat, disabled)
        shares = _shares(store) if status.round is not None and status.round.system in TICKET_POLICIES else None
    history = cluster_history(Path(settings.storage.path), document, now)
    if "jobs" in document.hidden and status.round is not None:
        status = replace(status, running=status.round.running, waiting=status.round.waiting)
    private = ", ".join(sorted(document.hidden - ALWAYS_PRIVATE))
    return live_page(status, history, now, settings.rounds.period, shares=shares, private=private, kept_up=kept_up)


def cluster_history(database: Path, document: Document, now: float) -> ClusterHistory | None:
    """The history that everybody may see whom the document hides this much from; None for who may not read the
    database. Raises StoreError."""
    if not os.access(database, os.R_OK):
        return None
    since, hidden = now - _HISTORY, document.hidden
    with open_read_only(database) as store:
        private = bool(hidden & {"jobs", "usage"})
        return ClusterHistory(
            since,
            () if hidden & {"nodes", "usage"} else store.use_history(since),
            () if private else store.start_waits(since),
            () if private else tuple(one for one in store.start_calibration() if one.starts >= _ENOUGH_STARTS),
            StartRanges() if private else store.start_ranges(),
        )


def live_page(
    status: ClusterStatus,
    history: ClusterHistory | None,
    now: float,
    period: float,
    *,
    shares: Sequence[Mapping[str, Any]] | None = None,
    private: str = "",
    kept_up: bool = False,
) -> str:
    """Returns the page. `period` is between two full rounds (seconds), `private` names what PrivateData hides of it."""
    gpus = _GpuCounts.of(status.nodes)
    free = free_capacity(status.nodes, status.surveyed, status.waiting, fragments=status.fragments)
    last, ended = status.round, status.round.finished if status.round else None
    with_gpus = [node for node in status.nodes if node.gpus]
    owners = {job.id: job.user for job in status.jobs}
    plots = list(history_plots(history, now, period)) if history else []
    return render_page(
        "live.html",
        title=f"synsched on {_line(status.cluster)}" if status.cluster else "synsched",
        written=written_at(now),
        reload=max(period, 30.0) if kept_up else 0,
        late_at=now + _LATE * max(period, 30.0) if kept_up else 0,
        answer=_answer(status, gpus),
        trouble="" if status.liveness.healthy else _sentence(status.liveness.sentence),
        trouble_kind=_LIVES[status.liveness.life],
        paused=_sentence(status.paused),
        private=private,
        mode=status.mode,
        policy=(last.system + (f", order {last.ordering}" if last.ordering else "")) if last else "",
        round_at=ended,
        round_age=duration(now - ended) if ended is not None else "",
        surveyed=status.surveyed,
        problems=_problems(status),
        gpus=gpus,
        types=[_type_row(kind, free, status.nodes) for kind in free.types],
        fragments=_sentence(status.fragments.sentence) if status.fragments else "",
        jobs=[_job_row(job, now) for job in status.jobs[:MOST_JOBS]],
        cut=max(len(status.jobs) - MOST_JOBS, 0),
        forecasts=status.forecast_at is not None,
        forecast_late=f"Starts were forecast {duration(now - (status.forecast_at or now))} ago, and not since then."
        if status.forecast_late
        else "",
        many=len(with_gpus) > MANY_NODES,
        nodes=[_node_row(node, free, owners) for node in with_gpus],
        shares=shares,
        calibration=list(_calibration_sentences(history)) if history else [],
        plots=plots,
    )


@dataclass(frozen=True, slots=True)
class _GpuCounts:
    """GPUs of the cluster: in use, in whole or in part, idle, and those that no job may start on because their node
    takes none, or only those of a reservation."""

    total: int
    used: int
    idle: int
    down: int
    reserved: int

    @classmethod
    def of(cls, nodes: Sequence[NodeUsage]) -> _GpuCounts:
        states = [_state(gpu, node) for node in nodes for gpu in node.gpus]
        used, idle = sum(state in {"used", "part"} for state in states), states.count("idle")
        return cls(len(states), used, idle, states.count("down"), states.count("kept"))


def _state(gpu: GpuUsage, node: NodeUsage) -> str:
    """The class of a GPU in the style of the page."""
    if gpu.used:
        return "used" if gpu.used >= MILLI_PER_GPU else "part"
    if node.state is not NodeState.UP:
        return "down"
    return "kept" if node.reservation else "idle"


def _answer(status: ClusterStatus, gpus: _GpuCounts) -> str:
    """One sentence: who runs, who waits, and how many GPUs are idle."""
    if status.round is None:
        return "No round has been made yet."
    run = "1 job runs" if status.running == 1 else f"{status.running:,} jobs run"
    wait = "none waits" if not status.waiting else "1 waits" if status.waiting == 1 else f"{status.waiting:,} wait"
    if not gpus.total:
        return f"{run} and {wait}."
    others = [f"{count} {what}" for count, what in ((gpus.down, "down"), (gpus.reserved, "reserved")) if count]
    idle = f"{gpus.idle:,} of {gpus.total:,} GPUs {'is' if gpus.idle == 1 else 'are'} idle"
    return f"{run} and {wait}; {idle}{''.join(f', {other}' for other in others)}."


def _line(text: str, most: int = _LONGEST_SENTENCE) -> str:
    """The text in one line of no more than `most` characters, without any that a browser would obey."""
    shown = printable(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _sentence(text: str) -> str:
    shown = _line(text)
    return shown[:1].upper() + shown[1:]


def _problems(status: ClusterStatus) -> Sequence[str]:
    """What is wrong with the system; what is wrong with a hint is told to its owner."""
    of_hints = hint_problems(status)
    told = [_line(problem) for problem in status.problems if problem not in of_hints]
    more = len(told) - _MOST_PROBLEMS
    return told if more <= 0 else [*told[:_MOST_PROBLEMS], f"and {pluralise(more, 'more problem')}"]


def _type_row(kind: Any, free: FreeCapacity, nodes: Sequence[NodeUsage]) -> Mapping[str, object]:
    """GPUs of one type: how many in which state, and what could start on them."""
    of_type = [replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.type == kind.gpu_type)) for node in nodes]
    open_nodes = {node.name for node in nodes if node.state is NodeState.UP and not node.reservation}
    rows = (row for row in free.nodes if row.gpu_type == kind.gpu_type and row.node in open_nodes)
    return {
        "type": _line(kind.gpu_type, _LONGEST_NAME) or "GPU",
        "counts": _GpuCounts.of(of_type),
        "largest": largest_text(kind),
        "stranded": sum(row.idle - row.usable for row in rows),
    }


_SHORT: Final = {
    JobState.RUNNING: ("R", "runs"),
    JobState.PENDING: ("PD", "waits"),
    JobState.COMPLETING: ("CG", "is completing"),
    JobState.SUSPENDED: ("S", "is suspended"),
    JobState.FINISHED: ("-", "has ended"),
}


def _job_row(job: JobStatus, now: float) -> Mapping[str, object]:
    amount = pluralise(job.shards, "shard") if job.shards and not job.gpus else str(job.gpus)
    short, state = _SHORT[job.state]
    where = fold_hostlist(job.nodes) or (f"to {fold_hostlist(job.target)}" if job.target else "")
    start, start_range = _expected(job.start, now)
    return {
        "id": _line(job.id, _LONGEST_NAME),
        "number": job.id.partition("_")[0],
        "name": _line(job.name, _LONGEST_NAME),
        "user": _line(job.user, _LONGEST_NAME),
        "partition": _line(job.partition, _LONGEST_NAME),
        "gpus": f"{amount} {_line(job.gpu_type, _LONGEST_NAME)}".strip(),
        "amount": job.gpus or job.shards,
        "cpus": per_gpu(job.cpus, job.gpus),
        "short": short,
        "state": state,
        "where": _line(where, _LONGEST_SENTENCE),
        "start": start,
        "range": start_range,
        "start_at": job.start.median if job.start and job.start.median else "",
        "why": _line(job.why),
    }


def _expected(time: ExpectedTime | None, now: float) -> tuple[str, str]:
    """The median start as a time of the clock, and the range."""
    if time is None:
        return "", ""
    low, median, high = (clock_time(at, now) for at in (time.low, time.median, time.high))
    return median, "" if low == high else f"{low} to {high}"


def _node_row(node: NodeUsage, free: FreeCapacity, owners: Mapping[JobId, str]) -> Mapping[str, object]:
    types = ", ".join(sorted({gpu.type for gpu in node.gpus}))
    used = sum(gpu.used > 0 for gpu in node.gpus)
    why = "; ".join(dict.fromkeys(row.why for row in free.nodes if row.node == node.name and row.why))
    state = node.state_text.lower() or node.state.value
    return {
        "name": _line(node.name, _LONGEST_NAME),
        "types": _line(types, _LONGEST_NAME),
        "used": used,
        "total": len(node.gpus),
        "cpus": f"{node.used.cpus}/{node.total.cpus} CPUs",
        "memory": f"{memory(node.used.memory)}/{memory(node.total.memory)}",
        "up": node.state is NodeState.UP,
        "state": _line(state, _LONGEST_NAME),
        "why": _line(why or ("" if node.state is NodeState.UP else f"{state}: {node.reason}".removesuffix(": "))),
        "gpus": [_gpu_cell(gpu, node, owners) for gpu in node.gpus],
    }


_WITHOUT_JOBS: Final = {"used": "", "part": "part", "down": "down", "kept": "resv", "idle": "idle"}


def _gpu_cell(gpu: GpuUsage, node: NodeUsage, owners: Mapping[JobId, str]) -> Mapping[str, str]:
    state = _state(gpu, node)
    jobs = ", ".join(f"{job} of {owners[job]}" if job in owners else job for job in gpu.jobs)
    told = {"used": "in use", "part": f"{gpu.used / MILLI_PER_GPU:.0%} in use", "kept": "reserved"}.get(state, state)
    return {
        "state": state,
        "text": _line(",".join(gpu.jobs), _LONGEST_NAME) if gpu.jobs else _WITHOUT_JOBS[state],
        "title": _line(f"{gpu.type} {gpu.index}: {told}" + (f" by job {jobs}" if jobs else "")),
    }


def _shares(store: ReadOnlyStore) -> Sequence[Mapping[str, Any]] | None:
    """What users are due by their tickets and had; None where no round used any."""
    from slurmsched.report.shares import NoTicketsError, held_text, ticket_shares  # noqa: PLC0415  # needs numpy

    try:
        shares = ticket_shares(store)
    except NoTicketsError:
        return None
    return [
        {
            "user": _line(share.user, _LONGEST_NAME),
            "due": share.due / 3600.0,
            "had": share.had / 3600.0,
            "part": share.had / share.due if share.due else nan,
            "part_text": percent(share.had / share.due if share.due else nan),
            "holdings": held_text(share.holdings),
        }
        for share in shares.users
    ]


def _calibration_sentences(history: ClusterHistory) -> Iterator[str]:
    """How starts turned out against what had been told."""
    for one in history.calibration:
        told = "first" if one.which == "first" else "about an hour before"
        yield (
            f"Of {pluralise(one.starts, 'start')} {percent(one.within)} were within the range told {told}"
            f" (8 of 10 are meant to be); the median error was {duration(one.error)}."
        )
    if history.ranges.counted >= _ENOUGH_STARTS:
        covered = percent(history.ranges.covered / history.ranges.counted)
        yield f"Of {history.ranges.counted} first forecasts with a known outcome {covered} were right."


def history_plots(history: ClusterHistory, now: float, period: float) -> Iterator[Plot]:
    """Yields plots of GPUs in use, of jobs that ran and waited, and of waits, as far back as anything is known."""
    use, starts = history.use, history.waits
    first = min((*(row.at for row in use[:1]), *(at for at, _ in starts[:1])), default=now)
    if now - first < _SHORTEST_BUCKET:
        return
    axis = Axis("", first, now, Unit.TIME)
    columns = {name: _held(use, name, now, period) for name in ("gpus", "used", "down", "running", "waiting")}
    if use:
        most = max(row.gpus for row in use)
        values = {"GPUs in use": columns["used"], "all GPUs": columns["gpus"]}
        if any(row.down for row in use):
            values["GPUs on nodes that take no jobs"] = columns["down"]
        yield Plot(
            "GPUs in use",
            f"Of all jobs, managed or not, as means over {duration(_width(first, now))}.",
            axis,
            Axis("GPUs", 0.0, 1.08 * most),
            curves(values, tuple(values)),
        )
        queue = {"jobs that run": columns["running"], "jobs that wait": columns["waiting"]}
        most = max(max(row.running, row.waiting) for row in use)
        yield Plot(
            "Managed jobs",
            f"As means over {duration(_width(first, now))}.",
            axis,
            Axis("jobs", 0.0, 1.08 * max(most, 1.0)),
            curves(queue, tuple(queue)),
        )
    if starts:
        yield _wait_plot(starts, axis)


def _width(first: float, now: float) -> float:
    return max((now - first) / _BUCKETS, _SHORTEST_BUCKET)


def _held(use: Sequence[UseRow], column: str, now: float, period: float) -> list[Point]:
    """Means of a column over equal times; each round's value holds until the next, if that comes in time. NaN where
    nothing is known."""
    if not use:
        return []
    first = use[0].at
    width = _width(first, now)
    count = max(int((now - first) / width), 1)
    sums, known = [0.0] * count, [0.0] * count
    longest = _GAP * max(period, _SHORTEST_BUCKET)
    ends = [min(end, row.at + longest) for row, end in zip(use, [*(row.at for row in use[1:]), now], strict=True)]
    for row, end in zip(use, ends, strict=True):
        value = float(getattr(row, column))
        for bucket in range(int((row.at - first) / width), min(int((end - first) / width), count - 1) + 1):
            left = first + bucket * width
            seconds = min(end, left + width) - max(row.at, left)
            if seconds > 0:
                sums[bucket] += value * seconds
                known[bucket] += seconds
    return [
        (first + (bucket + 0.5) * width, sums[bucket] / known[bucket] if known[bucket] else nan)
        for bucket in range(count)
    ]


def _wait_plot(starts: Sequence[tuple[float, float]], axis: Axis) -> Plot:
    """The median and the 90th percentile of the waits of jobs that started, over equal times."""
    buckets = min(_BUCKETS, max(len(starts) // 5, 1), max(int((axis.high - axis.low) / _SHORTEST_BUCKET), 1))
    width = (axis.high - axis.low) / buckets
    waits: list[list[float]] = [[] for _ in range(buckets)]
    for at, wait in starts:
        waits[min(int((at - axis.low) / width), buckets - 1)].append(wait)
    middles = [axis.low + (bucket + 0.5) * width for bucket in range(buckets)]
    values = {
        name: [(at, _quantile(of, part) if of else nan) for at, of in zip(middles, waits, strict=True)]
        for name, part in (("half of them waited at most", 0.5), ("nine of ten waited at most", 0.9))
    }
    everyone = sorted(wait for _, wait in starts)
    most = max(_quantile(of, 0.9) for of in waits if of)
    return Plot(
        "Waits of jobs that started",
        f"From submission to the first start, with any time for which a job had to wait. Of {len(starts):,} jobs half"
        f" waited at most {duration(_quantile(everyone, 0.5))}, nine of ten {duration(_quantile(everyone, 0.9))}.",
        axis,
        Axis("wait", 0.0, 1.08 * max(most, 1.0), Unit.DURATION),
        curves(values, tuple(values)),
    )


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]
