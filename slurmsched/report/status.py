"""What `status` tells, from the database alone: who schedules, what is in use, which jobs run or wait and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from slurmsched.daemon.heartbeat import STOPPED, HeartbeatRecord
from slurmsched.model import ClusterFragmentation, ClusterOverview, JobId, JobState, NodeUsage
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration
from slurmsched.settings.definition import Settings
from slurmsched.store.read_only import ReadOnlyStore
from slurmsched.store.rows import JobRow, RoundRow, SetAsideRow, SwitchRow

_LATE_PERIODS: Final = 2.0
"""Periods after which a round is late."""

_RELEASE_ADVICE: Final = "'synsched release' gives jobs back"


class LivenessState(StrEnum):
    """What the sign of life says."""

    ALIVE = "alive"
    LATE = "late"
    """It lives, and its rounds do not end in time."""
    GONE = "gone"
    """It was there and is not any more: stopped, or silent."""
    NEVER = "never"
    """Nothing has ever run here."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """The verdict, with what to do about it. Ages in seconds, None where there was none."""

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
    """Judge by the last sign of life, the end of the last round (unix seconds), and the two spans of the settings."""
    beat_age = None if beat is None else max(now - beat.at, 0.0)
    round_age = None if ended is None else max(now - ended, 0.0)
    life, sentence = LivenessState.ALIVE, "the first round is under way"
    if beat is None and round_age is None:
        life, sentence = LivenessState.NEVER, "nothing has run yet: start 'synsched run'"
    elif beat is None or beat.is_stale(now, stale_after):
        life, sentence = (
            LivenessState.GONE,
            f"nobody schedules: {_last_sign(beat, beat_age)}; 'synsched run' goes on, {_RELEASE_ADVICE}",
        )
    elif round_age is not None and round_age > _LATE_PERIODS * period:
        due = f"one is due every {duration(period)}, the last ended {duration(round_age)} ago"
        life, sentence = LivenessState.LATE, f"rounds are late: {due}; 'synsched doctor' looks for the cause"
    elif round_age is not None:
        sentence = f"last round {duration(round_age)} ago"
    return Liveness(life, sentence, beat_age, round_age)


def _last_sign(beat: HeartbeatRecord | None, age: float | None) -> str:
    if beat is None or age is None:
        return "there is no heartbeat"
    if beat.mode == STOPPED:
        return f"stopped {duration(age)} ago"
    return f"no sign of life for {duration(age)}" if age else "the heartbeat is from the future: is a clock wrong?"


_MAX_NAMED: Final = 5
"""So many jobs that are set aside are named one by one."""

SCHEMA_VERSION = 1
"""Of everything that `--json` prints: raised when a key changes its meaning or goes away."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One managed job. `nodes` are those it has; `target` those it is to get, at `speed` times its GPU-proportional
    share's, None while it waits. CPUs and memory (MiB) are for the whole job; `problems` are what is wrong with its
    hints."""

    id: JobId
    user: str
    name: str
    partition: str
    state: JobState
    gpus: int
    gpu_type: str
    cpus: int
    memory: int
    nodes: tuple[str, ...]
    target: tuple[str, ...]
    speed: float | None
    rank: int | None
    rank_key: str
    why: str
    held_by_us: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All of it. `at` is when it was asked, `surveyed` when the nodes were as shown (unix seconds).

    `running` and `waiting` count all managed jobs, also where `jobs` are only chosen ones. `paused` says who paused and
    why, empty where nobody did; `problems` name what somebody should mend, worst first.
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
    """What of the idle GPUs the usual jobs could not use, as of the last round."""
    set_aside: tuple[SetAsideRow, ...] = ()
    """Jobs that nothing is decided about; the first of them are among the problems."""


def cluster_status(
    store: ReadOnlyStore, settings: Settings, now: float, beat: HeartbeatRecord | None, disabled: bool = False
) -> ClusterStatus:
    """The state of things. `beat` is the daemon's last sign of life; `disabled` says that the file exists."""
    last, overview, paused = store.last_round(), store.overview(), store.switch("paused")
    used = overview or ClusterOverview(now, ())
    jobs = tuple(map(_job_status, store.jobs()))
    ended = last.finished if last else None
    liveness_now = assess_liveness(now, beat, ended, settings.rounds.period, settings.hook.stale_after)
    problems: list[str] = []
    held = sum(job.held_by_us for job in jobs)
    if liveness_now.life is LivenessState.GONE and held:
        problems.append(f"{pluralise(held, 'job')} still held by it: 'synsched release' gives them back to Slurm")
    if disabled:
        problems.append(f"nothing is changed while {settings.hook.disable_file} exists: remove it to go on")
    pause = _pause_text(paused, now) if paused else ""
    if pause:
        problems.append(f"{pause}: 'synsched resume' goes on")
    if (latest := next(iter(store.rounds(1)), None)) and latest.error:
        problems.append(f"round {latest.id} failed: {latest.error}")
    if last is not None and (elsewhere := store.device_mismatches(last.id)):
        where = f"of round {last.id} on other GPUs than foreseen: see 'synsched history'"
        problems.append(f"{pluralise(elsewhere, 'job')} {where}")
    if left_out := len(store.unreadable_rows()):
        problems.append(f"{pluralise(left_out, 'row')} of the database cannot be read: 'synsched doctor' names them")
    problems += (f"job {job.id}: {problem}" for job in jobs for problem in job.problems)
    aside = store.set_aside()
    problems += (own.sentence for own in aside[:_MAX_NAMED])
    if len(aside) > _MAX_NAMED:
        problems.append(f"{pluralise(len(aside) - _MAX_NAMED, 'more job')} set aside: 'synsched doctor' names them")
    problems += used.oddities
    return ClusterStatus(
        at=now,
        surveyed=used.time,
        cluster=used.cluster,
        mode=last.mode if last else settings.rounds.mode.value,
        liveness=liveness_now,
        paused=pause,
        round=last,
        nodes=used.nodes,
        running=sum(job.state is JobState.RUNNING for job in jobs),
        waiting=sum(job.state is JobState.PENDING for job in jobs),
        jobs=jobs,
        problems=tuple(problems),
        set_aside=aside,
        fragments=used.fragments,
    )


def filter_status(status: ClusterStatus, users: Iterable[str] = (), partitions: Iterable[str] = ()) -> ClusterStatus:
    """Only these people's jobs, and only these partitions' jobs and nodes; empty means all."""
    people, wanted = frozenset(users), frozenset(partitions)
    jobs = tuple(
        job
        for job in status.jobs
        if (not people or job.user in people) and (not wanted or wanted.intersection(job.partition.split(",")))
    )
    nodes = tuple(node for node in status.nodes if not wanted or wanted.intersection(node.partitions))
    return replace(status, jobs=jobs, nodes=nodes)


def _pause_text(switch: SwitchRow, now: float) -> str:
    words = f" ({switch.value})" if switch.value else ""
    return f"paused by {switch.set_by} {duration(now - switch.at)} ago{words}"


def _job_status(row: JobRow) -> JobStatus:
    told = _StoredSummary(row.summary)
    asked = row.original
    return JobStatus(
        id=row.id,
        user=row.owner,
        name=row.name,
        partition=told.text("partition"),
        state=row.state,
        gpus=told.number("gpus", asked.gpus),
        gpu_type=told.text("gpu_type", asked.gpu_type or ""),
        cpus=told.number("cpus", asked.cpus),
        memory=told.number("memory", asked.memory * asked.nodes),
        nodes=told.texts("nodes"),
        target=row.target.nodes if row.target else (),
        speed=row.target.speed if row.target else None,
        rank=row.rank,
        rank_key=row.rank_key,
        why=row.sentence.removeprefix(f"job {row.id} "),
        held_by_us=row.held_by_us,
        problems=told.texts("problems"),
    )


@dataclass(frozen=True, slots=True)
class _StoredSummary:
    """Stored words about a job; what is missing or of another kind counts as not said."""

    values: Mapping[str, object]

    def text(self, key: str, otherwise: str = "") -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else otherwise

    def number(self, key: str, otherwise: int) -> int:
        value = self.values.get(key)
        return value if isinstance(value, int) else otherwise

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        return tuple(map(str, value)) if isinstance(value, list) else ()
