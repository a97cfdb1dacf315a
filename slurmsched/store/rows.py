"""What the database holds, as those who only look at it see it. Times are unix seconds, durations seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurmsched.model import JobId, JobState, Measured, Operation, Reason, Request, Result, Target, Verb
from slurmsched.store.columns import Row, number, text, whole

__all__ = [
    "ComplaintRow",
    "EventRow",
    "JobRow",
    "MeasuredRow",
    "OperationRow",
    "RoundRow",
    "SetAsideRow",
    "SwitchRow",
    "measured_point",
]


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round. `finished` is None while it is under way, and of one that was killed."""

    id: int
    started: float
    finished: float | None
    mode: str
    system: str
    ordering: str
    nodes: int
    jobs: int
    managed: int
    running: int
    waiting: int
    observe_s: float | None
    decide_s: float | None
    plan_s: float | None
    apply_s: float | None
    reads: int
    writes: int
    error: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """One managed job as of the last round that saw it. `sentence` says why it runs or waits.

    `target` is what the last round decided for it, None while it waits. `summary` is what was stored for people.
    """

    id: JobId
    owner: str
    name: str
    first_seen: float
    last_seen: float
    state: JobState
    original: Request
    held_by_us: bool
    reshaped: bool
    boosted: bool
    rank: int | None
    rank_key: str
    reason: Mapping[str, object]
    sentence: str
    target: Target | None
    summary: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened to a job."""

    at: float
    round: int | None
    job: JobId
    kind: str
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation of the journal, with what became of it."""

    id: int
    round: int
    position: int
    verb: Verb
    subject: str
    reason: Reason
    sentence: str
    undo: Operation | None
    result: Result
    commands: tuple[str, ...]
    detail: str
    intended: float
    finished: float | None


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """How fast a job was with one allocation, and the hints that name its profile."""

    job: JobId
    owner: str
    model: str
    task: str
    point: Measured


@dataclass(frozen=True, slots=True)
class ComplaintRow:
    """A job or a user, as `job 12 of mallory`, whose reports were not believed, and why; `at` the last time."""

    subject: str
    sentence: str
    at: float


@dataclass(frozen=True, slots=True)
class SetAsideRow:
    """A job that nothing is decided about, since when and why. `owner` is empty where it is not known beyond doubt;
    `readable` says that its record could be read, and that deciding about it failed."""

    job: JobId
    owner: str
    reason: str
    since: float
    readable: bool

    @property
    def sentence(self) -> str:
        of = f" of {self.owner}" if self.owner else ""
        return f"job {self.job}{of} is set aside: {self.reason}"


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """A switch that somebody set: who, when, and their words."""

    name: str
    value: str
    set_by: str
    at: float


def measured_point(row: Row) -> Measured:
    """A row of `rates` with its `rate` in steps per second. Raises ValueError."""
    return Measured(
        gpu_type=text(row, "gpu_type"),
        gpus=whole(row, "gpus"),
        nodes=whole(row, "nodes"),
        cpus=number(row, "cpus"),
        memory=number(row, "memory"),
        fair_cpus=number(row, "fair_cpus"),
        fair_memory=number(row, "fair_memory"),
        rate=number(row, "rate"),
        at=number(row, "at"),
    )
