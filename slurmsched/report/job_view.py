"""Jobs one by one: why one runs or waits (`synsched explain`), what happened to it (`synsched history`), and when those
that wait, or would, are expected to start and to end (`synsched forecast`, `synsched submit --dry-run`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.model import (
    ExpectedTime,
    Explanation,
    IdleGpus,
    JobId,
    JobState,
    QueueForecast,
    Result,
    StartRanges,
    SynschedError,
    Verb,
    decode,
)
from slurmsched.model.reasons import ReasonCode, format_gpu_hours, pluralise
from slurmsched.report.quantities import duration, fixed, from_now, local_time, percent, significant
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.store.read_only import ReadOnlyStore
from slurmsched.store.rows import EventRow, ForecastRow, JobRow, OperationRow, SetAsideRow, StartCalibration


class JobNotSeenError(SynschedError):
    """No round has seen this job as a managed one."""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Events and operations of one job, oldest first. `service` is in GPU-seconds over all its runs."""

    job: JobRow
    service: float
    events: tuple[EventRow, ...]
    operations: tuple[OperationRow, ...]


def job_history(store: ReadOnlyStore, job: JobId) -> JobHistory:
    """The stored history of a job. Raises JobNotSeenError, UnreadableError."""
    row = store.job(job)
    if row is None:
        raise JobNotSeenError(f"job {job} is not known here: 'squeue -j {job}' shows it if it is not managed")
    return JobHistory(row, store.service(job), store.events(job), store.operations(job))


def expand_array(store: ReadOnlyStore, job: JobId) -> tuple[JobId, ...]:
    """The job itself, or for the id of an array its known tasks."""
    return (job,) if store.job(job) is not None else store.array_tasks(job) or (job,)


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """Why a job runs or waits. `service` is in GPU-seconds, `moves` counts our requeues of it, `round` is the number
    of the last round. `forecast` is the daemon's last one of a waiting job."""

    job: JobRow
    explanation: Explanation
    round: int | None
    service: float
    moves: int
    forecast: ForecastRow | None = None
    idle: IdleGpus | None = None
    """Its idle GPUs, while it runs."""


def explain_job(store: ReadOnlyStore, job: JobId) -> JobExplanation:
    """The explanation stored for a job. Raises JobNotSeenError, UnreadableError, EncodingError."""
    aside = next((row for row in store.set_aside() if row.job in (job, job.partition("_")[0])), None)
    if aside is not None and store.job(job) is None:
        raise JobNotSeenError(aside.sentence)
    history, last = job_history(store, job), store.last_round()
    moves = sum(operation.verb is Verb.REQUEUE and operation.result is Result.DONE for operation in history.operations)
    forecast = store.start_forecasts(job).get(job) if history.job.state is JobState.PENDING else None
    return JobExplanation(
        history.job,
        _explanation(history.job, aside),
        last.id if last else None,
        history.service,
        moves,
        forecast,
        idle_of(store, history.job),
    )


_IDLE_SHOWN: Final = 900.0
"""Seconds before a job was last seen from which it is told that its GPUs are idle."""


def idle_of(store: ReadOnlyStore, job: JobRow) -> IdleGpus | None:
    """The idle GPUs of a running job as told of late, None if none are known. Raises UnreadableError."""
    told = store.idle_gpus(job.last_seen - _IDLE_SHOWN) if job.state is JobState.RUNNING else ()
    return next((row for row in told if row.job == job.id), None)


def _explanation(row: JobRow, aside: SetAsideRow | None) -> Explanation:
    if aside is not None:
        return Explanation(row.id, aside.sentence, code=ReasonCode.SET_ASIDE.value)
    if row.state is JobState.FINISHED:
        ended = f"job {row.id} has ended: 'synsched history {row.id}' shows what became of it"
        return Explanation(row.id, ended, code=ReasonCode.ENDED.value)
    if row.reason:
        explanation = decode(Explanation, json.dumps(row.reason))
        if row.state is JobState.RUNNING:
            return explanation
        # Written before the round was applied: the job may have lost its resources in that round.
        facts = {name: fact for name, fact in explanation.facts.items() if name != "has"}
        return replace(explanation, facts=facts)
    return Explanation(row.id, f"job {row.id} has been seen; no round has decided about it yet")


def explanation_view(explanation: JobExplanation, now: float) -> RenderableType:
    """The headline, the jobs ahead, what would change it, and the facts with their age."""
    stored = explanation.explanation
    parts: list[RenderableType] = [safe_line(stored.headline, "bold")]
    parts += _list("Ahead of it", stored.ordered_behind)
    parts += _list("What would change that", stored.what_would_change)
    expected = _expected_facts(explanation.forecast, now) if explanation.forecast is not None else {}
    expected |= {"idle": _idle_fact(explanation.idle, now)} if explanation.idle is not None else {}
    facts = {**expected, **stored.facts, "attained": _attained(explanation), "state": _state(explanation, now)}
    parts += [Text(""), Listing((Column(""), Column("")), list(facts.items()), headings=False, wrapped=True)]
    return Group(*parts)


def _idle_fact(idle: IdleGpus, now: float) -> str:
    agreed = "idle=last in its hint lets the site rank it last" if idle.agreed else "its hint does not say idle=last"
    return f"{idle.text}, as told {duration(max(0.0, now - idle.at))} ago; {agreed}"


def _expected_facts(forecast: ForecastRow, now: float) -> dict[str, str]:
    """When it starts and ends. Reasons may name a time too: the latest, which follows from time limits."""
    age = f"{duration(max(0.0, now - forecast.at))} ago"
    if forecast.why:
        return {"starts": f"not told, since {forecast.why} (as of {age})"}
    start, starts = _expected(forecast.start, now)
    told = _expected(forecast.end, now) if forecast.end is not None else None
    draws, limits = pluralise(forecast.draws, "draw"), "what is promised, or 'at the latest', goes by time limits"
    few = forecast.draws < ForecastRow.ENOUGH_DRAWS
    if few:
        told_start = f"in {start}, forecast {age} by {draws}, too few for a range; {limits}"
    else:
        told_start = f"in {start} ({starts}), forecast {age} by {draws} of how long jobs run; {limits}"
    if told is None:  # only its owner is told how long it runs
        return {"starts": told_start}
    return {"starts": told_start, "ends": f"in {told[0]}" if few else f"in {told[0]} ({told[1]})"}


def _list(heading: str, items: Iterable[str]) -> Iterator[RenderableType]:
    lines = [Padding(safe_line(f"- {item}"), (0, 0, 0, 2), expand=False) for item in items]
    if lines:
        yield Text("")
        yield safe_line(f"{heading}:", "bold")
        yield from lines


def _attained(explanation: JobExplanation) -> str:
    moves = pluralise(explanation.moves, "restart") if explanation.moves else "no restart"
    return f"{format_gpu_hours(explanation.service)}, {moves} by synsched"


def _state(explanation: JobExplanation, now: float) -> str:
    seen = explanation.job.last_seen
    return f"{explanation.job.state.value}, as of {duration(now - seen)} ago ({local_time(seen)})"


def _given_beyond_request(job: JobRow) -> Iterator[RenderableType]:
    """Yield what the job asked for and what it was given, where these differ: Slurm accounts what it was given."""
    asked, given = job.original, job.target.resources if job.target is not None else None
    if given is not None and (given.cpus != asked.cpus or (asked.memory and given.memory not in (0, asked.memory))):
        memory = f", {asked.memory} MiB per node" if asked.memory else ""
        has = f", {given.memory} MiB" if given.memory else ""
        yield safe_line(
            f"asked for {pluralise(asked.cpus, 'CPU')}{memory}; was given {pluralise(given.cpus, 'CPU')}{has},"
            " which Slurm accounts"
        )


def history_view(history: JobHistory, with_commands: bool = False) -> RenderableType:
    """The job in one line, its events and the operations on it; `with_commands` adds the exact commands."""
    job = history.job
    name = f" ({job.name})" if job.name else ""
    parts: list[RenderableType] = [
        safe_line(
            f"job {job.id}{name} of {job.owner}: {job.state.value}, {format_gpu_hours(history.service)} attained",
            "bold",
        )
    ]
    parts += _given_beyond_request(job)
    if history.events:
        rows = [(local_time(event.at), event.kind, event.sentence) for event in history.events]
        parts += ["", Listing((Column("WHEN"), Column("EVENT"), Column("WHAT")), rows, wrapped=True)]
    if history.operations:
        columns = (Column("WHEN"), Column("ROUND", right=True), Column("OPERATION"), Column("RESULT"), Column("WHY"))
        operation_rows = [
            (
                local_time(operation.intended),
                str(operation.round),
                operation.verb.value,
                operation.result.value,
                operation.detail or operation.sentence,
            )
            for operation in history.operations
        ]
        parts += ["", Listing(columns, operation_rows, wrapped=True)]
    if with_commands:
        parts += [safe_line(f"$ {command}") for operation in history.operations for command in operation.commands]
    return Group(*parts)


_TOLD: Final = {"first": "first", "hour": "an hour before"}


def calibration_view(calibration: Iterable[StartCalibration], ranges: StartRanges) -> RenderableType:
    """How starts turned out against what had been told of them, and by how much ranges are corrected since."""
    rows = [
        (_TOLD.get(one.which, one.which), str(one.starts), percent(one.within), duration(one.error))
        for one in calibration
    ]
    columns = (
        *(Column("TOLD"), Column("STARTS", right=True)),
        *(Column("IN RANGE", right=True), Column("MEDIAN ERROR", right=True)),
    )
    parts: list[RenderableType] = [
        Listing(columns, rows) if rows else Text("no job has started of which that had been forecast")
    ]
    if ranges.counted:
        counted, covered = pluralise(ranges.counted, "first forecast"), percent(ranges.covered / ranges.counted)
        parts += [
            "",
            Text(f"of {counted} with a known outcome {covered} were in range"),
            Text(f"by them ranges reach {fixed(ranges.below, 2)} times as far before the median"),
            Text(f"and {fixed(ranges.above, 2)} times as far after it as the draws do"),
        ]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class ForecastJob:
    """What is shown of a job beside its forecast."""

    user: str
    gpus: float


def forecast_view(forecast: QueueForecast, jobs: Mapping[JobId, ForecastJob], now: float) -> RenderableType:
    """The waiting jobs in the order of their median starts; times are from now on."""
    age, horizon = duration(max(0.0, now - forecast.at)), duration(forecast.until - forecast.at)
    draws = pluralise(forecast.draws, "draw")
    parts: list[RenderableType] = [
        safe_line(f"as of {age} ago, by {draws} of how long jobs run, {horizon} ahead; 8 of 10 in the range", "bold")
    ]
    columns = (
        *(Column("JOB"), Column("USER"), Column("GPUS", right=True)),
        *(Column("STARTS IN", right=True), Column("RANGE"), Column("ENDS IN", right=True), Column("RANGE")),
    )
    rows = [
        (
            one.job,
            jobs[one.job].user,
            significant(jobs[one.job].gpus),
            *_expected(one.start, now),
            *_expected(one.end, now),
        )
        for one in forecast.jobs
    ]
    parts += ["", Listing(columns, rows, shrinking=1)] if rows else ["", Text("no job waits that can start")]
    if forecast.left_out:
        left_out = [(job, jobs[job].user, why) for job, why in forecast.left_out.items()]
        parts += ["", Listing((Column("JOB"), Column("USER"), Column("NOT TOLD, SINCE")), left_out)]
    parts += ["", Text("jobs that are submitted later may come first")]
    return Group(*parts, *map(safe_line, forecast.remarks))


def _expected(time: ExpectedTime, now: float) -> tuple[str, str]:
    """The median and the range, in words as short as `2.3 h`."""
    low, median, high = (from_now(at, now) for at in (time.low, time.median, time.high))
    return median, low if low == high else f"{low} - {high}"


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """When a job that is not submitted would start and end with a request, `name` telling which; None for both where
    that is not told, as `why` says.

    `length` is what its length is known by. Where that is empty it ends by its time limit, and without one `end` is
    None.
    """

    name: str
    gpus: int
    gpu_type: str | None
    start: ExpectedTime | None
    end: ExpectedTime | None
    length: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class SubmissionForecast:
    """What `synsched submit --dry-run` tells, the request as asked first. Times are unix seconds; `assumed` are
    sentences on what the submission leaves open, `remarks` those on what is simulated otherwise."""

    at: float
    until: float
    draws: int
    requests: tuple[ForecastRequest, ...]
    assumed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def submission_view(forecast: SubmissionForecast, now: float) -> RenderableType:
    """The request as asked in a sentence, and all requests in a table; times are from now on."""
    asked, age = forecast.requests[0], duration(max(0.0, now - forecast.at))
    ranged = forecast.draws >= ForecastRow.ENOUGH_DRAWS
    draws = pluralise(forecast.draws, "draw") + (" of how long jobs run" if ranged else ", too few for ranges")
    parts: list[RenderableType] = [
        safe_line(_submission_sentence(asked, forecast, now, ranged), "bold"),
        safe_line(f"as of {age} ago, by {draws}, {duration(forecast.until - forecast.at)} ahead"),
        Text(""),
    ]
    columns = (
        *(Column("REQUEST"), Column("STARTS IN", right=True), Column("80 %")),
        *(Column("ENDS IN", right=True), Column("80 %"), Column("LENGTH BY")),
    )
    parts.append(Listing(columns, [_request_row(one, now, ranged) for one in forecast.requests], wrapped=True))
    parts += ["", Text("nothing was submitted; jobs that are submitted later may come first")]
    if any("GPU" in one.name for one in forecast.requests):
        parts.append(Text("with fewer GPUs it asks for CPUs, tasks and memory in proportion"))
    return Group(*parts, *map(safe_line, (*forecast.assumed, *forecast.remarks)))


def _request_row(request: ForecastRequest, now: float, ranged: bool) -> tuple[str, ...]:
    if request.start is None:
        return request.name, "-", "", "-", "", f"not told, since {request.why}"
    start, starts = _expected(request.start, now)
    end, ends = _expected(request.end, now) if request.end is not None else ("-", "")
    by = request.length or ("unknown" if request.end is None else "unknown: limit")
    return request.name, start, starts if ranged else "", end, ends if ranged else "", by


def _submission_sentence(asked: ForecastRequest, forecast: SubmissionForecast, now: float, ranged: bool) -> str:
    if asked.start is None:
        return f"when it would start is not told: {asked.why}"
    start = _in_words(asked.start, forecast, now, ranged)
    if asked.end is None:
        return f"would start {start}; its length is unknown, and it has no time limit"
    unknown = "" if asked.length else "; its length is unknown, so it ends by its time limit"
    return f"would start {start}, end {_in_words(asked.end, forecast, now, ranged)}{unknown}"


def _in_words(time: ExpectedTime, forecast: SubmissionForecast, now: float, ranged: bool) -> str:
    """`in 2 h 10 min (80 %: 40 min to 5 h)`."""

    def words(at: float | None) -> str:
        if at is None or not isfinite(at):
            return f"more than {duration(forecast.until - now)}"
        minutes = round((at - now) / 60.0)  # rounded, as in the table
        return duration(60.0 * minutes) if minutes > 0 else "now"

    median, low, high = map(words, (time.median, time.low, time.high))
    spread = f" (80 %: {low} to {high})" if ranged and low != high else ""
    return f"{'' if median == 'now' else 'in '}{median}{spread}"
