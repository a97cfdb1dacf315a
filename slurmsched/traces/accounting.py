"""Jobs as Slurm's accounting tells of them: what they asked for, and when they really started and ended.

Owners write some of the text (names, comments), and sacct does not escape it. A row that cannot be read is left out and
counted, unless most of them cannot.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.model.reasons import pluralise
from slurmsched.traces.formats.sacct import (
    SACCT_FIELDS,
    AccountingRecord,
    json_entries,
    json_record,
    runs_by_job,
    table_record,
    trace_job,
)
from slurmsched.traces.tables import TableRow
from slurmsched.traces.trace import TraceError, TraceJob

SACCT_ARGUMENTS: Final = ("sacct", "-a", "-XDP", "-S", "now-30days", "-E", "now", "-o", ",".join(SACCT_FIELDS))
"""What prints a month of all users' jobs: every run of a requeued one (-D), without steps (-X)."""
SACCT_COMMAND: Final = " ".join(("SLURM_TIME_FORMAT=%s", *SACCT_ARGUMENTS))
"""With times in unix seconds: those of a zone are an hour off when its clocks change."""

_REQUIRED: Final = ("JobID", "State", "Submit", "Start", "Elapsed")
_AMOUNTS: Final = ("ReqTRES", "AllocTRES")
_JOB_ID: Final = re.compile(r"[0-9]{1,10}(?:[_+](?:[0-9]{1,10}|\[[0-9,%-]{1,200}\.{0,3}\]?))?\Z")
_STEP_ID: Final = re.compile(r"[0-9_+]{1,24}\.[A-Za-z0-9]{1,16}\Z")
_MOST_UNREADABLE: Final = 0.5
"""The part of the rows from which on the whole text is taken for something else."""

_RUNNING: Final = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "RESIZING"})
_WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUED", "PREEMPTED", "REQUEUE_FED"})

UNREADABLE: Final = "rows that sacct or an owner wrote so that they cannot be read"
STILL_WAITING: Final = "jobs that still wait"
NEVER_RAN: Final = "jobs that ended before they ran (cancelled while they waited)"
NO_GPUS: Final = "jobs without GPUs"
SHARDS: Final = "jobs that share a GPU (gres/shard)"
IMPOSSIBLE: Final = "jobs with dates before 2000 or after 2099, years of run time, or more GPUs than any cluster has"
"""A clock was wrong, or the database is damaged. One such job would stretch the period over decades."""

_DATES: Final = (946_684_800.0, 4_102_444_800.0)
"""2000 to 2100, in unix seconds."""
_LONGEST_RUN: Final = 3 * 366 * 86400.0
_MOST_GPUS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """A job, with `arrival` in unix seconds, and what Slurm did with it: its first start and last end in unix seconds.

    `arrival` is when it could have started but for resources. A job that still runs has no `end`; its `duration` is
    then what it has run so far. `runs` are its starts that the accounting shows.
    """

    job: TraceJob
    start: float
    end: float | None
    state: str
    partition: str = ""
    runs: int = 1
    ran_on: str = ""
    """The GPU type that it was given or asked for; empty if the accounting tells none, or several."""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Accounting:
    """The GPU jobs of a period by arrival. `left_out` counts what is not among them, by reason; `notes` say what was
    taken for granted."""

    jobs: tuple[AccountedJob, ...]
    left_out: Mapping[str, int]
    notes: tuple[str, ...] = ()


def read_accounting(text: str, name: str) -> Accounting:
    """Returns the jobs of what `sacct --parsable2` or `sacct --json` printed. Raises TraceError."""
    text = text.lstrip("\ufeff")
    if not text.strip():
        raise TraceError(f"{name} is empty: write it with '{SACCT_COMMAND}'")
    records, counts = _json_records(text, name) if text.lstrip()[:1] == "{" else _table_records(text, name)
    return _accounting(records, counts, name)


def _table_records(text: str, name: str) -> tuple[list[AccountingRecord], Counter[str]]:
    """Returns the records of a table with headings, and how many rows there were of each kind that is left out."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    first = next(number for number, line in enumerate(lines) if line.strip())
    headings = _headings(lines[first], name, first + 1)
    ends, counts, records = lines[first].endswith("|"), Counter[str](), list[AccountingRecord]()
    problem = ""
    for number, line in enumerate(lines[first + 1 :], first + 2):
        if not line.strip():
            continue
        fields = (line.removesuffix("|") if ends else line).split("|", len(headings) - 1)
        row = TableRow(f"{name}:{number}", dict(zip(headings, fields, strict=False)))
        if _STEP_ID.match(row.text("JobID")):
            counts["steps"] += 1
            continue
        try:
            if len(fields) != len(headings):
                found = f"{pluralise(len(fields), 'field')} under {pluralise(len(headings), 'heading')}"
                raise TraceError(f"{row.location}: expected a field for each heading, not {found}")
            if not _JOB_ID.match(row.text("JobID")):
                raise row.error("JobID", "the number of a job")
            records.append(table_record(row))
        except TraceError as error:
            counts[UNREADABLE] += 1
            problem = problem or str(error)
    return _mostly_readable(records, counts, problem, name)


def _mostly_readable(
    records: list[AccountingRecord], counts: Counter[str], problem: str, name: str
) -> tuple[list[AccountingRecord], Counter[str]]:
    bad = counts[UNREADABLE]
    if bad > _MOST_UNREADABLE * (len(records) + bad):
        raise TraceError(problem + (f" (and {pluralise(bad - 1, 'more row')})" if bad > 1 else ""))
    if not records:
        raise TraceError(f"{name} has no jobs: choose another period with sacct's -S and -E")
    return records, counts


def _headings(line: str, name: str, number: int) -> list[str]:
    """Returns the headings of sacct's table. Raises TraceError for anything else, and says what it looks like."""
    found = [heading.strip() for heading in line.removesuffix("|").split("|")]
    if "JobID" not in found:
        raise TraceError(f"{name}:{number}: {_what_it_is(line)}: write it with '{SACCT_COMMAND}'")
    missing = [heading for heading in _REQUIRED if heading not in found]
    if not missing and not set(_AMOUNTS) & set(found):
        missing = ["AllocTRES"]
    if missing:
        raise TraceError(f"{name}:{number}: the column {missing[0]} is missing: write it with '{SACCT_COMMAND}'")
    return found


def _what_it_is(line: str) -> str:
    known = {heading.lower() for heading in SACCT_FIELDS}
    for sign, called in (
        (",", "commas"),
        (";", "semicolons"),
        ("\t", "tabs"),
        ("^", "'^'"),
        ("~", "'~'"),
        (":", "':'"),
    ):
        if len({word.strip().lower() for word in line.split(sign)} & known) > 1:
            return f"its columns are separated by {called}, expected '|' (no --delimiter)"
    words = line.split()
    if len({word.lower() for word in words} & known) > 1:
        return "its columns are padded with blanks, expected '|' (--parsable2)"
    if _JOB_ID.match(line.split("|", maxsplit=1)[0].strip()):
        return "it begins with a job, expected headings (no --noheader)"
    return "expected the headings of sacct, among them JobID"


def _json_records(text: str, name: str) -> tuple[list[AccountingRecord], Counter[str]]:
    records, counts, problem = list[AccountingRecord](), Counter[str](), ""
    for entry, location in json_entries(text, name):
        try:
            records.append(json_record(entry, location))
        except TraceError as error:
            counts[UNREADABLE] += 1
            problem = problem or str(error)
    return _mostly_readable(records, counts, problem, name)


def _accounting(records: Iterable[AccountingRecord], counts: Counter[str], name: str) -> Accounting:
    jobs, left_out = list[AccountedJob](), Counter[str]()
    for runs in runs_by_job(records):
        if reason := _reason_left_out(runs):
            left_out[reason] += 1
        else:
            jobs.append(_accounted(runs))
    if counts[UNREADABLE]:
        left_out[UNREADABLE] = counts[UNREADABLE]
    if not jobs:
        found = ", ".join(counted(reason, count) for reason, count in left_out.items())
        raise TraceError(f"{name}: expected jobs that ran on GPUs, found only {found}")
    jobs.sort(key=lambda job: (job.job.arrival, job.job.id))
    return Accounting(tuple(jobs), dict(left_out), tuple(_notes(jobs, counts)))


def counted(reason: str, count: int) -> str:
    """Returns a reason with the number of jobs or rows that it leaves out: `1 job without GPUs`."""
    noun, _, rest = reason.partition("s ")
    return f"{pluralise(count, noun)} {rest}"


def _reason_left_out(runs: Sequence[AccountingRecord]) -> str:
    last = runs[-1]
    if not any(run.gpus for run in runs):
        return SHARDS if any(run.shards for run in runs) else NO_GPUS
    if not any(run.start is not None and run.elapsed > 0 for run in runs):
        return STILL_WAITING if last.state in _WAITING | _RUNNING else NEVER_RAN
    if not all(map(_is_possible, runs)):
        return IMPOSSIBLE
    return UNREADABLE if last.submit is None and runs[0].submit is None else ""


def _is_possible(run: AccountingRecord) -> bool:
    first, last = _DATES
    times = (run.submit, run.eligible, run.start, run.end)
    in_time = all(first <= time < last for time in times if time is not None)
    return in_time and run.elapsed <= _LONGEST_RUN and 0 <= run.gpus <= _MOST_GPUS


def _accounted(runs: Sequence[AccountingRecord]) -> AccountedJob:
    """Returns all runs of a job as one: its work is what they took together, what it asks for is that of the last."""
    ran = [run for run in runs if run.start is not None and run.elapsed > 0]
    first, last = ran[0], ran[-1]
    start = first.start or 0.0
    elapsed = sum(run.elapsed for run in ran)
    job = trace_job(replace(last, elapsed=elapsed, limit=None), runs[0])
    limit = None if last.limit is None else max(last.limit, elapsed)
    possible = [time for time in (runs[0].submit, runs[0].eligible) if time is not None and time <= start]
    over = runs[-1].state not in _RUNNING | _WAITING
    ended = last.end if last.end is not None and last.end > start else (last.start or 0.0) + last.elapsed
    return AccountedJob(
        job=replace(job, arrival=max(possible, default=start), time_limit=limit, gpu_type=job.gpu_type.lower()),
        start=start,
        end=ended if over else None,
        state=runs[-1].state,
        partition=last.partition,
        runs=len(ran),
        ran_on=(last.ran_on or last.gpu_type).lower(),
        comment=last.comment,
    )


def _notes(jobs: Sequence[AccountedJob], counts: Counter[str]) -> Iterator[str]:
    states = Counter(job.state for job in jobs)
    if running := sum(job.end is None for job in jobs):
        yield (
            f"{pluralise(running, 'job')} had not ended: they hold GPUs for as long as they had so far, and no figure"
            " counts them"
        )
    if failed := states["FAILED"] + states["OUT_OF_MEMORY"]:
        yield f"{pluralise(failed, 'job')} failed: what they ran counts as all their work"
    if cut := sum(states[state] for state in ("CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "BOOT_FAIL")):
        yield (f"{pluralise(cut, 'job')} ended by scancel, a limit or a node: what they ran counts as all their work")
    if again := sum(job.runs > 1 for job in jobs):
        yield f"{pluralise(again, 'job')} ran more than once: the seconds of all runs count as work"
    if unlimited := sum(job.job.time_limit is None for job in jobs):
        yield f"{pluralise(unlimited, 'job')} without a time limit in sacct: Slurm backfills none of them"
    if counts["steps"]:
        yield f"{pluralise(counts['steps'], 'row')} of job steps do not count (sacct -X leaves them out)"
