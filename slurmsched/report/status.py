"""`synsched status`: the daemon's liveness, the nodes in use, and why jobs run or wait, from the database alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.daemon.heartbeat import STOPPED, HeartbeatRecord
from slurmsched.model import (
    ClusterFragmentation,
    ClusterOverview,
    IdleGpus,
    JobState,
    NodeState,
    NodeUsage,
)
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, fixed, local_time, memory
from slurmsched.report.queue import JobFilter, JobStatus, first_jobs, jobs_view, more_jobs_line
from slurmsched.report.tables import Column, GpuBar, Listing, LoadBar, safe_line
from slurmsched.settings.definition import Settings
from slurmsched.store.read_only import ReadOnlyStore
from slurmsched.store.rows import SETTINGS_SWITCH, ForecastRow, JobRow, RoundRow, SetAsideRow, SwitchRow

_LATE_PERIODS: Final = 2.0
"""Periods without a finished round after which rounds are late."""

_OLD_PERIODS: Final = 3.0
"""Periods after which a forecast is old: it takes one, and is made anew in each."""

_RELEASE_ADVICE: Final = "'synsched release' gives jobs back"


class LivenessState(StrEnum):
    """Whether a daemon schedules, by its heartbeat and the last round."""

    ALIVE = "alive"
    LATE = "late"
    """The heartbeat is fresh, but rounds do not finish in time."""
    GONE = "gone"
    """The daemon stopped, or its heartbeat is stale."""
    NEVER = "never"
    """No daemon has run here yet."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """The state, with what to do about it. Ages are in seconds, None without a heartbeat or round."""

    life: LivenessState
    sentence: str
    heartbeat_age: float | None
    round_age: float | None

    @property
    def healthy(self) -> bool:
        return self.life is LivenessState.ALIVE


def assess_liveness(
    now: float, beat: HeartbeatRecord | None, ended: float | None, period: float, stale_after: float
) -> Liveness:
    """The liveness at `now`, from the last heartbeat `beat` and the end of the last round `ended` (unix seconds).

    `period` is between two rounds, `stale_after` the age at which a heartbeat is stale (both seconds).
    """
    beat_age = None if beat is None else max(now - beat.at, 0.0)
    round_age = None if ended is None else max(now - ended, 0.0)
    life, sentence = LivenessState.ALIVE, "the first round is under way"
    if beat is None and round_age is None:
        life, sentence = LivenessState.NEVER, "nothing has run yet: start 'synsched run'"
    elif beat is None or beat.is_stale(now, stale_after):
        life, sentence = (
            LivenessState.GONE,
            f"no daemon is running: {_heartbeat_text(beat, beat_age)}; 'synsched run' starts one, {_RELEASE_ADVICE}",
        )
    elif round_age is not None and round_age > _LATE_PERIODS * period:
        due = f"one is due every {duration(period)}, the last finished {duration(round_age)} ago"
        life, sentence = LivenessState.LATE, f"rounds are late: {due}; 'synsched doctor' looks for the cause"
    elif round_age is not None:
        sentence = f"last round {duration(round_age)} ago"
    return Liveness(life, sentence, beat_age, round_age)


def _heartbeat_text(beat: HeartbeatRecord | None, age: float | None) -> str:
    if beat is None or age is None:
        return "there is no heartbeat"
    if beat.mode == STOPPED:
        return f"stopped {duration(age)} ago"
    return f"no heartbeat for {duration(age)}" if age else "the heartbeat is from the future: is a clock wrong?"


_MAX_NAMED: Final = 5
"""Maximum number of set-aside jobs that are named one by one."""

SCHEMA_VERSION = 1
"""Version of the output of `--json`: incremented when a key changes its meaning or is removed."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The status as of `at`, with the nodes as of `surveyed` (unix seconds).

    `running` and `waiting` count all managed jobs, also where `jobs` is filtered. `paused` says who paused and why,
    empty when not paused; `problems` are sentences, most severe first.
    """

    at: float
    surveyed: float
    cluster: str
    mode: str
    liveness: Liveness
    paused: str
    round: RoundRow | None
    nodes: tuple[NodeUsage, ...]
    running: int
    waiting: int
    jobs: tuple[JobStatus, ...]
    problems: tuple[str, ...]
    fragments: ClusterFragmentation | None = None
    """Idle GPUs that typical jobs cannot use, as of the last round."""
    set_aside: tuple[SetAsideRow, ...] = ()
    """Jobs that are excluded from decisions; the first of them are among the problems."""
    forecast_at: float | None = None
    """The round from which starts were forecast (unix seconds)."""
    forecast_late: bool = False
    """Whether that is long ago."""
    idle: tuple[IdleGpus, ...] = ()
    """Running jobs with GPUs that are idle for long, managed or not, as lately told; the most idle GPU time first."""


def cluster_status(
    store: ReadOnlyStore, settings: Settings, now: float, beat: HeartbeatRecord | None, disabled: bool = False
) -> ClusterStatus:
    """The status at `now` (unix seconds). `beat` is the last heartbeat; `disabled` says that hook.disable_file exists.

    Raises UnreadableError.
    """
    last, paused = store.last_round(), store.switch("paused")
    overview = store.overview() or ClusterOverview(now, ())
    forecasts = store.start_forecasts()
    jobs = tuple(_job_status(row, forecasts.get(row.id)) for row in store.jobs())
    forecast_at = max((forecast.at for forecast in forecasts.values()), default=None)
    ended = last.finished if last else None
    liveness = assess_liveness(now, beat, ended, settings.rounds.period, settings.hook.stale_after)
    problems: list[str] = []
    held = sum(job.held_by_us for job in jobs)
    if liveness.life is LivenessState.GONE and held:
        problems.append(f"{pluralise(held, 'job')} still held by synsched: 'synsched release' gives jobs back to Slurm")
    if disabled:
        problems.append(f"nothing is changed while {settings.hook.disable_file} exists: remove it to go on")
    if refused := store.switch(SETTINGS_SWITCH):
        problems.append(f"the daemon keeps the settings from before {local_time(refused.at)}: {refused.value}")
    pause = _pause_text(paused, now) if paused else ""
    if pause:
        problems.append(f"{pause}: 'synsched resume' goes on")
    if (latest := next(iter(store.rounds(1)), None)) and latest.error:
        problems.append(f"round {latest.id} failed: {latest.error}")
    if last is not None and (mismatches := store.device_mismatches(last.id)):
        where = f"of round {last.id} on other GPUs than planned: see 'synsched history'"
        problems.append(f"{pluralise(mismatches, 'job')} {where}")
    if left_out := len(store.unreadable_rows()):
        problems.append(f"{pluralise(left_out, 'row')} of the database cannot be read: 'synsched doctor' names them")
    problems += (problem for job in jobs for problem in _hint_problems(job))
    aside = store.set_aside()
    problems += (row.sentence for row in aside[:_MAX_NAMED])
    if len(aside) > _MAX_NAMED:
        problems.append(f"{pluralise(len(aside) - _MAX_NAMED, 'more job')} set aside: 'synsched doctor' names them")
    problems += overview.oddities
    return ClusterStatus(
        at=now,
        surveyed=overview.time,
        cluster=overview.cluster,
        mode=last.mode if last else settings.rounds.mode.value,
        liveness=liveness,
        paused=pause,
        round=last,
        nodes=overview.nodes,
        running=sum(job.state is JobState.RUNNING for job in jobs),
        waiting=sum(job.state is JobState.PENDING for job in jobs),
        jobs=jobs,
        problems=tuple(problems),
        set_aside=aside,
        fragments=overview.fragments,
        forecast_at=forecast_at,
        forecast_late=forecast_at is not None and now - forecast_at > _OLD_PERIODS * settings.rounds.period,
        idle=store.idle_gpus(now - _OLD_PERIODS * settings.rounds.period),
    )


def filter_status(status: ClusterStatus, chosen: JobFilter) -> ClusterStatus:
    """The status with only the `chosen` jobs, and the nodes of the chosen partitions and names. What is wrong with
    other jobs is no problem of this status."""
    jobs = tuple(job for job in status.jobs if chosen.chooses(job))
    nodes = tuple(
        node
        for node in status.nodes
        if (not chosen.partitions or chosen.partitions.intersection(node.partitions))
        and (not chosen.nodes or node.name in chosen.nodes)
    )
    aside = tuple(
        row
        for row in status.set_aside
        if (not chosen.users or row.owner in chosen.users) and (not chosen.jobs or row.job in chosen.jobs)
    )
    of_others = {problem for job in status.jobs if job not in jobs for problem in _hint_problems(job)}
    of_others |= {row.sentence for row in status.set_aside if row not in aside}
    problems = tuple(problem for problem in status.problems if problem not in of_others)
    shown = {job.id for job in jobs}
    idle = tuple(
        row
        for row in status.idle
        if (not chosen.users or row.owner in chosen.users)
        and (replace(chosen, users=frozenset()).chooses_all or row.job in shown)
    )
    return replace(status, jobs=jobs, nodes=nodes, problems=problems, set_aside=aside, idle=idle)


def _hint_problems(job: JobStatus) -> Iterator[str]:
    yield from (f"job {job.id}: {problem}" for problem in job.problems)


def hint_problems(status: ClusterStatus) -> frozenset[str]:
    """The problems of this status that are about hints, of which they have words."""
    return frozenset(problem for job in status.jobs for problem in _hint_problems(job))


def _pause_text(switch: SwitchRow, now: float) -> str:
    words = f" ({switch.value})" if switch.value else ""
    return f"paused by {switch.set_by} {duration(now - switch.at)} ago{words}"


def _job_status(row: JobRow, forecast: ForecastRow | None) -> JobStatus:
    told = forecast if forecast is not None and row.state is JobState.PENDING and not forecast.why else None
    summary = _StoredSummary(row.summary)
    original = row.original
    code = told_code if isinstance(told_code := row.reason.get("code"), str) else ""
    return JobStatus(
        id=row.id,
        user=row.owner,
        name=row.name,
        partition=summary.text("partition"),
        state=row.state,
        gpus=summary.number("gpus", original.gpus),
        shards=original.shards,
        gpu_type=summary.text("gpu_type", original.gpu_type or ""),
        cpus=summary.number("cpus", original.cpus),
        memory=summary.number("memory", original.memory * original.nodes),
        nodes=summary.texts("nodes"),
        target=row.target.nodes if row.target else (),
        speed=row.target.speed if row.target else None,
        rank=row.rank,
        rank_key=row.rank_key,
        why=row.sentence.removeprefix(f"job {row.id} "),
        held_by_us=row.held_by_us,
        problems=summary.texts("problems"),
        start=told.start if told is not None else None,
        end=told.end if told is not None else None,
        account=summary.text("account"),
        started=summary.amount("started"),
        time_limit=None if (limit := summary.amount("time_limit")) is None else int(limit),
        reason=code.replace("_", " "),
        reason_code=code,
    )


@dataclass(frozen=True, slots=True)
class _StoredSummary:
    """The stored summary of a job; a value that is missing or of the wrong type counts as absent."""

    values: Mapping[str, object]

    def text(self, key: str, otherwise: str = "") -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else otherwise

    def number(self, key: str, otherwise: int) -> int:
        value = self.values.get(key)
        return value if isinstance(value, int) else otherwise

    def amount(self, key: str) -> float | None:
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        return tuple(map(str, value)) if isinstance(value, list) else ()


MAX_NODES_DRAWN: Final = 12
"""Maximum number of nodes drawn one by one; above it there is one line per GPU type."""

_STYLES: Final = {
    LivenessState.ALIVE: "",
    LivenessState.LATE: "bold red",
    LivenessState.GONE: "bold red",
    LivenessState.NEVER: "bold yellow",
}


def status_view(status: ClusterStatus, every_node: bool = False, limit: int = 0) -> RenderableType:
    """Header, nodes, jobs and problems; at most `limit` jobs, all if it is 0."""
    parts: list[RenderableType] = [header_view(status)]
    if status.nodes:
        parts += ["", nodes_view(status.nodes, every_node)]
    if status.fragments and status.fragments.sentence:
        parts += [safe_line(status.fragments.sentence)]
    if status.jobs:
        jobs = first_jobs(status.jobs, limit)
        parts += ["", jobs_view(jobs, status.at)]
        if len(jobs) < len(status.jobs):
            parts += [more_jobs_line(len(status.jobs) - len(jobs))]
        if status.forecast_at is not None and status.forecast_late and any(job.start for job in status.jobs):
            age = duration(status.at - status.forecast_at)
            parts += [safe_line(f"starts were forecast {age} ago, and not since then")]
    elif status.running or status.waiting:
        parts += ["", safe_line("no managed job is as chosen")]
    if status.idle:
        parts += ["", safe_line("running jobs with idle GPUs", "bold"), idle_view(status.idle[:_MOST_IDLE])]
        if len(status.idle) > _MOST_IDLE:
            parts.append(safe_line(f"and {pluralise(len(status.idle) - _MOST_IDLE, 'more job')}"))
    problems = [problem for problem in status.problems if not status.paused or not problem.startswith(status.paused)]
    if problems:
        parts += ["", Text(pluralise(len(problems), "problem"), style="bold red")]
        parts += (Padding(safe_line(problem), (0, 0, 0, 2), expand=False) for problem in problems)
    return Group(*parts)


_MOST_IDLE: Final = 10
"""Most jobs with idle GPUs that are listed."""


def idle_view(idle: Sequence[IdleGpus]) -> RenderableType:
    """One line per job with idle GPUs: whose it is, how many are idle since when, and the GPU-hours that makes."""
    columns = (
        *(Column("JOBID"), Column("USER"), Column("IDLE", right=True), Column("FOR", right=True)),
        *(Column("GPU-HOURS", right=True), Column("COMES LAST")),
    )
    rows = [
        (
            *(row.job, row.owner, f"{row.idle} of {row.gpus}", duration(max(row.at - row.since, 0.0))),
            *(fixed(row.idle_gpu_hours), "idle=last" if row.agreed else "-"),
        )
        for row in idle
    ]
    return Listing(columns, rows)


def header_view(status: ClusterStatus) -> RenderableType:
    """The mode and policy, a pause, the daemon's liveness, and the last round."""
    where = f" on {status.cluster}" if status.cluster else ""
    last = status.round
    pause = [safe_line(f"{status.paused}: 'synsched resume' goes on", "bold yellow")] if status.paused else []
    if last is None:
        return Group(safe_line(f"synsched{where}: {status.liveness.sentence}", _STYLES[status.liveness.life]), *pause)
    order = f", order {last.ordering}" if last.ordering else ""
    paused = " (paused)" if status.paused else ""
    how = f"synsched{where}: mode {status.mode}{paused}, system {last.system}{order}"
    spent = sum(seconds or 0.0 for seconds in (last.observe_s, last.decide_s, last.plan_s, last.apply_s))
    took = f", took {duration(spent)}" if spent else ""
    return Group(
        safe_line(how, "bold"),
        *pause,
        safe_line(status.liveness.sentence, _STYLES[status.liveness.life]),
        safe_line(f"round {last.id}{took}; {status.running} running, {status.waiting} waiting"),
    )


def nodes_view(nodes: Sequence[NodeUsage], every_node: bool = False) -> RenderableType:
    """One bar per node with a sign per GPU; on a large cluster one bar per GPU type."""
    with_gpus = [node for node in nodes if node.gpus]
    if every_node or len(with_gpus) <= MAX_NODES_DRAWN:
        return Listing(
            (
                Column("NODE"),
                Column("TYPE"),
                Column("USED", right=True),
                Column("GPUS"),
                Column("CPUS", right=True),
                Column("MEM", right=True),
                Column("STATE"),
            ),
            [_node_row(node) for node in with_gpus],
        )
    return Listing(
        (Column("TYPE"), Column("NODES", right=True), Column("USED", right=True), Column("GPUS")),
        list(_type_rows(with_gpus)),
    )


def _node_row(node: NodeUsage) -> Sequence[RenderableType]:
    types = ",".join(sorted({gpu.type for gpu in node.gpus}))
    taken = len(node.gpus) - node.idle_gpus()
    up = node.state is NodeState.UP
    words = node.state_text.lower() or node.state.value
    words += f", reserved: {node.reservation}" if node.reservation else ""
    return (
        node.name,
        types,
        f"{taken}/{len(node.gpus)}",
        GpuBar(node.gpus),
        f"{node.used.cpus}/{node.total.cpus}",
        f"{memory(node.used.memory)}/{memory(node.total.memory)}",
        safe_line(words if up or not node.reason else f"{words}: {node.reason}", "" if up else "red"),
    )


def _type_rows(nodes: Iterable[NodeUsage]) -> Iterator[Sequence[RenderableType]]:
    gpus: dict[str, list[bool]] = {}
    nodes_of_type: dict[str, set[str]] = {}
    for node in nodes:
        for gpu in node.gpus:
            gpus.setdefault(gpu.type, []).append(gpu.used > 0)
            nodes_of_type.setdefault(gpu.type, set()).add(node.name)
    for kind, taken in sorted(gpus.items()):
        used = f"{sum(taken)}/{len(taken)}"
        yield kind, str(len(nodes_of_type[kind])), used, LoadBar(sum(taken), len(taken), 40)
