"""The queue as squeue's users know it: which jobs are chosen, the table of them, and lines of a format of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from slurmsched.backends.slurm.hostlist import fold_hostlist
from slurmsched.model import ExpectedTime, JobId, JobState, SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, from_now, memory, per_gpu
from slurmsched.report.tables import Column, Listing, printable, safe_line

SHORT_STATES: Final[Mapping[JobState, str]] = {
    JobState.PENDING: "PD",
    JobState.RUNNING: "R",
    JobState.COMPLETING: "CG",
    JobState.SUSPENDED: "S",
    JobState.FINISHED: "-",
}
_CROPPED: Final = 8
"""Characters of a job's name where the terminal is narrow, as in squeue."""


class QueueFormatError(SynschedError):
    """A format of `status -o` has a field that is not known."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One managed job. `nodes` are allocated, `target` are planned; `speed` is the predicted speed there relative to
    the GPU-proportional share (None while it waits). CPUs and memory (MiB) are for the whole job; `problems` are errors
    in its hints."""

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
    shards: int = 0
    """What it asks for instead of whole GPUs."""
    start: ExpectedTime | None = None
    """When it is expected to start, while it waits; None where that is not told."""
    end: ExpectedTime | None = None
    account: str = ""
    started: float | None = None
    """When the current run started (unix seconds)."""
    time_limit: int | None = None
    """Seconds; None for no limit, or where it is not known."""
    reason: str = ""
    """The code of the reason in words: `behind`, `no room`."""
    reason_code: str = ""
    """The code of the reason as programs match it (`ReasonCode`): `no_room`."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are shown; an empty set means all. Jobs are named by their numbers, or by that of their array."""

    users: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    states: frozenset[JobState] = frozenset()
    jobs: frozenset[JobId] = frozenset()

    def chooses(self, job: JobStatus) -> bool:
        """Whether the job is shown."""
        return all(
            not wanted or not wanted.isdisjoint(has)
            for wanted, has in (
                (self.users, (job.user,)),
                (self.partitions, job.partition.split(",")),
                (self.accounts, (job.account,)),
                (self.names, (job.name,)),
                (self.nodes, job.nodes),
                (self.states, (job.state,)),
                (self.jobs, (job.id, job.id.partition("_")[0])),
            )
        )

    @property
    def chooses_all(self) -> bool:
        return self == JobFilter()


@dataclass(frozen=True, slots=True)
class QueueTable:
    """One line per job: squeue's columns, when it starts where that is forecast, and the reason. In a terminal that is
    too narrow for that names are cut, and the reason is its code. Without headings the columns are always the same."""

    jobs: Sequence[JobStatus]
    now: float
    headings: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        told = self.headings and any(job.start is not None for job in self.jobs)
        columns = (
            *(Column("JOBID"), Column("USER"), Column("NAME"), Column("GPUS", right=True), Column("ST")),
            *(Column("TIME", right=True), Column("LIMIT", right=True)),
            *([Column("START", right=True)] if told else []),
            *(Column("WHERE"), Column("CPU/GPU", right=True), Column("WHY")),
        )
        rows = [self._row(job, with_start=told) for job in self.jobs]
        width = sum(
            max((cell_len(row[at]) for row in rows), default=0)
            if not self.headings
            else max(cell_len(column.heading), *(cell_len(row[at]) for row in rows), 0)
            for at, column in enumerate(columns)
        )
        narrow = width + len(columns) - 1 > options.max_width
        if narrow:
            columns = (*columns[:-2], columns[-1])
            for row, job in zip(rows, self.jobs, strict=True):
                row[2] = row[2][:_CROPPED]
                row[-2:] = [_marked(job, job.reason or job.why)]
        yield Listing(columns, rows, self.headings)
        if self.headings and (legend := _legend(self.jobs, narrow=narrow)):
            yield Text(legend, style="dim")

    def _row(self, job: JobStatus, *, with_start: bool) -> list[str]:
        start = [from_now(job.start.median, self.now) if job.start is not None else "-"] if with_start else []
        return [
            *(printable(job.id), printable(job.user), printable(job.name) or "-", printable(_gpus(job))),
            *(SHORT_STATES[job.state], _run_time(job, self.now), _limit(job), *start),
            *(printable(_where(job)), per_gpu(job.cpus, job.gpus), _marked(job, job.why)),
        ]


def _legend(jobs: Sequence[JobStatus], *, narrow: bool) -> str:
    words = {JobState.PENDING: "PD waits", JobState.COMPLETING: "CG ends", JobState.SUSPENDED: "S is suspended"}
    parts = [text for state, text in words.items() if any(job.state is state for job in jobs)]
    parts += ["! has a wrong hint"] if any(job.problems for job in jobs) else []
    parts += ["WHY in short, whole by 'synsched explain'"] if narrow else []
    return ", ".join(parts)


def jobs_view(jobs: Sequence[JobStatus], now: float, headings: bool = True) -> RenderableType:
    """The table of the jobs."""
    return QueueTable(jobs, now, headings)


def first_jobs(jobs: Sequence[JobStatus], limit: int) -> Sequence[JobStatus]:
    """Returns at most `limit` of the jobs; all if it is 0."""
    return jobs[:limit] if limit else jobs


def more_jobs_line(count: int) -> Text:
    """What is said of jobs that a limit leaves out."""
    return safe_line(f"and {pluralise(count, 'more job')}: --limit 0 shows all, -u, -t and others choose")


_FIELD = re.compile(r"%(\.?)([0-9]{0,4})([A-Za-z])")


def format_jobs(jobs: Sequence[JobStatus], now: float, template: str, headings: bool = True) -> list[str]:
    """Lines in squeue's notation (`%i %.8u %T`), one per job, behind that of headings. Raises QueueFormatError."""
    for _, _, letter in _FIELD.findall(template):
        if letter not in _FIELDS:
            raise QueueFormatError(f"%{letter} is not known here: known are {', '.join(f'%{one}' for one in _FIELDS)}")

    def line(values: Mapping[str, str]) -> str:
        def cell(match: re.Match[str]) -> str:
            right, digits, letter = match.groups()
            text, width = values[letter], int(digits or 0)
            return (text.rjust(width) if right else text.ljust(width))[: width or None]

        return _FIELD.sub(cell, template)

    shown = [line(_FIELDS)] if headings else []
    return shown + [line({letter: printable(text) for letter, text in _values(job, now).items()}) for job in jobs]


_FIELDS: Final[Mapping[str, str]] = {
    "i": "JOBID", "u": "USER", "a": "ACCOUNT", "P": "PARTITION", "j": "NAME", "t": "ST", "T": "STATE", "M": "TIME",
    "l": "LIMIT", "S": "START", "D": "NODES", "N": "NODELIST", "R": "NODELIST(REASON)", "r": "REASON", "C": "CPUS",
    "m": "MEMORY", "b": "GPUS", "Q": "RANK",
}  # fmt: skip
"""squeue's letters that are known, with their headings."""


def _values(job: JobStatus, now: float) -> dict[str, str]:
    nodes = fold_hostlist(job.nodes)
    return {
        "i": job.id, "u": job.user, "a": job.account, "P": job.partition, "j": job.name, "t": SHORT_STATES[job.state],
        "T": job.state.name, "M": _run_time(job, now), "l": _limit(job),
        "S": from_now(job.start.median, now) if job.start is not None else "-", "D": str(len(job.nodes)), "N": nodes,
        "R": nodes or f"({job.reason or job.why})", "r": job.why, "C": str(job.cpus), "m": memory(job.memory),
        "b": _gpus(job), "Q": "-" if job.rank is None else str(job.rank),
    }  # fmt: skip


def _gpus(job: JobStatus) -> str:
    amount = pluralise(job.shards, "shard") if job.shards and not job.gpus else str(job.gpus)
    return f"{amount} {job.gpu_type}".rstrip()


def _where(job: JobStatus) -> str:
    return fold_hostlist(job.nodes) or (f"to {fold_hostlist(job.target)}" if job.target else "-")


def _run_time(job: JobStatus, now: float) -> str:
    """How long it has run; `-` for one that waits, or where that is not known."""
    return duration(now - job.started) if job.started is not None and job.state is not JobState.PENDING else "-"


def _limit(job: JobStatus) -> str:
    return "-" if job.time_limit is None else duration(ceil(job.time_limit))


def _marked(job: JobStatus, why: str) -> str:
    return printable(("! " if job.problems else "") + why)
