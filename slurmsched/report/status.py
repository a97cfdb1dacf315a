"""What `status` tells: who schedules, what is in use, which jobs run or wait and why. Read from the database alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.daemon.heartbeat import Beat
from slurmsched.model import Fragments, JobId, JobState, NodeUse, Overview
from slurmsched.report.liveness import Life, Liveness, liveness
from slurmsched.report.quantities import count, duration
from slurmsched.settings.definition import Settings
from slurmsched.store.reading import Reading
from slurmsched.store.rows import JobRow, RoundRow, SetAsideRow, SwitchRow

__all__ = ["SCHEMA", "QueuedJob", "Status", "chosen", "status"]

_NAMED: Final = 5
"""So many jobs that are set aside are named one by one."""

SCHEMA = 1
"""Of everything that `--json` prints: raised when a key changes its meaning or goes away."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
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
class Status:
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
    nodes: tuple[NodeUse, ...]
    running: int
    waiting: int
    jobs: tuple[QueuedJob, ...]
    problems: tuple[str, ...]
    fragments: Fragments | None = None
    """What of the idle GPUs the usual jobs could not use, as of the last round."""
    set_aside: tuple[SetAsideRow, ...] = ()
    """Jobs that nothing is decided about; the first of them are among the problems."""


def status(reading: Reading, settings: Settings, now: float, beat: Beat | None, disabled: bool = False) -> Status:
    """The state of things. `beat` is the daemon's last sign of life; `disabled` says that the file exists."""
    last, overview, paused = reading.last_round(), reading.overview(), reading.switch("paused")
    used = overview or Overview(now, ())
    jobs = tuple(map(_job, reading.jobs()))
    ended = last.finished if last else None
    alive = liveness(now, beat, ended, settings.rounds.period, settings.hook.stale_after)
    problems: list[str] = []
    held = sum(job.held_by_us for job in jobs)
    if alive.life is Life.GONE and held:
        problems.append(f"{count(held, 'job')} still held by it: 'synsched release' gives them back to Slurm")
    if disabled:
        problems.append(f"nothing is changed while {settings.hook.disable_file} exists: remove it to go on")
    pause = _paused(paused, now) if paused else ""
    if pause:
        problems.append(f"{pause}: 'synsched resume' goes on")
    if (latest := next(iter(reading.rounds(1)), None)) and latest.error:
        problems.append(f"round {latest.id} failed: {latest.error}")
    if last is not None and (elsewhere := reading.surprises(last.id)):
        where = f"of round {last.id} on other GPUs than foreseen: see 'synsched history'"
        problems.append(f"{count(elsewhere, 'job')} {where}")
    if left_out := len(reading.unreadable()):
        problems.append(f"{count(left_out, 'row')} of the database cannot be read: 'synsched doctor' names them")
    problems += (f"job {job.id}: {problem}" for job in jobs for problem in job.problems)
    aside = reading.set_aside()
    problems += (own.sentence for own in aside[:_NAMED])
    if len(aside) > _NAMED:
        problems.append(f"{count(len(aside) - _NAMED, 'more job')} set aside: 'synsched doctor' names them")
    problems += used.oddities
    return Status(
        at=now,
        surveyed=used.time,
        cluster=used.cluster,
        mode=last.mode if last else settings.rounds.mode.value,
        liveness=alive,
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


def chosen(whole: Status, users: Iterable[str] = (), partitions: Iterable[str] = ()) -> Status:
    """Only these people's jobs, and only these partitions' jobs and nodes; empty means all."""
    people, places = frozenset(users), frozenset(partitions)
    jobs = tuple(
        job
        for job in whole.jobs
        if (not people or job.user in people) and (not places or places.intersection(job.partition.split(",")))
    )
    nodes = tuple(node for node in whole.nodes if not places or places.intersection(node.partitions))
    return replace(whole, jobs=jobs, nodes=nodes)


def _paused(switch: SwitchRow, now: float) -> str:
    words = f" ({switch.value})" if switch.value else ""
    return f"paused by {switch.set_by} {duration(now - switch.at)} ago{words}"


def _job(row: JobRow) -> QueuedJob:
    told = _Summary(row.summary)
    asked = row.original
    return QueuedJob(
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
class _Summary:
    """Stored words about a job; what is missing or of another kind counts as not said."""

    said: Mapping[str, object]

    def text(self, key: str, otherwise: str = "") -> str:
        value = self.said.get(key)
        return value if isinstance(value, str) else otherwise

    def number(self, key: str, otherwise: int) -> int:
        value = self.said.get(key)
        return value if isinstance(value, int) else otherwise

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.said.get(key)
        return tuple(map(str, value)) if isinstance(value, list) else ()
