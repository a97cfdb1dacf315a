"""One job on a screen: why it runs or waits (`synsched explain`), and what happened to it (`synsched history`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.model import JobId, JobState, Result, Verb, decode
from slurmsched.model.reasons import format_gpu_hours, pluralise
from slurmsched.report.history import JobHistory, JobNotSeenError, job_history
from slurmsched.report.quantities import duration, local_time
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.rounds.explanation import Explanation
from slurmsched.store.read_only import ReadOnlyStore
from slurmsched.store.rows import JobRow, SetAsideRow


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """One job's explanation. `service` in GPU-seconds; `moves` are our restarts of it; `round` is the latest one."""

    job: JobRow
    explanation: Explanation
    round: int | None
    service: float
    moves: int


def explain_job(store: ReadOnlyStore, job: JobId) -> JobExplanation:
    """What is known of a job. Raises UnknownJobError, EncodingError."""
    aside = next((own for own in store.set_aside() if own.job in (job, job.partition("_")[0])), None)
    if aside is not None and store.job(job) is None:
        raise JobNotSeenError(aside.sentence)
    past, last = job_history(store, job), store.last_round()
    moves = sum(done.verb is Verb.REQUEUE and done.result is Result.DONE for done in past.operations)
    return JobExplanation(past.job, _explanation(past.job, aside), last.id if last else None, past.service, moves)


def _explanation(row: JobRow, aside: SetAsideRow | None) -> Explanation:
    if aside is not None:
        return Explanation(row.id, aside.sentence)
    if row.reason:
        told = decode(Explanation, json.dumps(row.reason))
        if row.state is JobState.RUNNING:
            return told
        # It was written before the round was applied: what the job had then it may have lost by it.
        return replace(told, facts={name: fact for name, fact in told.facts.items() if name != "has"})
    return Explanation(row.id, f"job {row.id} has been seen; no round has decided about it yet")


def explanation_view(explanation: JobExplanation, now: float) -> RenderableType:
    """The one sentence first; then who is ahead, what would change it, the figures, and how old all that is."""
    told = explanation.explanation
    parts: list[RenderableType] = [safe_line(told.headline, "bold")]
    parts += _list("Ahead of it", told.ordered_behind)
    parts += _list("What would change that", told.what_would_change)
    facts = {**told.facts, "attained": _attained(explanation), "state": _state(explanation, now)}
    parts += [Text(""), Listing((Column(""), Column("")), list(facts.items()), headings=False, wrapped=True)]
    return Group(*parts)


def _list(heading: str, items: Iterable[str]) -> Iterator[RenderableType]:
    told = tuple(items)
    if told:
        yield Text("")
        yield safe_line(f"{heading}:", "bold")
        yield from (Padding(safe_line(f"- {item}"), (0, 0, 0, 2), expand=False) for item in told)


def _attained(explanation: JobExplanation) -> str:
    moves = pluralise(explanation.moves, "restart") if explanation.moves else "no restart"
    return f"{format_gpu_hours(explanation.service)}, {moves} of ours"


def _state(explanation: JobExplanation, now: float) -> str:
    seen = explanation.job.last_seen
    return f"{explanation.job.state.value}, {duration(now - seen)} ago ({local_time(seen)})"


def history_view(history: JobHistory, with_commands: bool = False) -> RenderableType:
    """The job in one line, what happened to it, what was done to it; with the exact commands if wanted."""
    job = history.job
    name = f" ({job.name})" if job.name else ""
    parts: list[RenderableType] = [
        safe_line(
            f"job {job.id}{name} of {job.owner}: {job.state.value}, {format_gpu_hours(history.service)} attained",
            "bold",
        )
    ]
    if history.events:
        rows = [(local_time(event.at), event.kind, event.sentence) for event in history.events]
        parts += ["", Listing((Column("WHEN"), Column("EVENT"), Column("WHAT")), rows, wrapped=True)]
    if history.operations:
        columns = (Column("WHEN"), Column("ROUND", right=True), Column("DONE TO IT"), Column("RESULT"), Column("WHY"))
        done_to_it = [
            (
                local_time(done.intended),
                str(done.round),
                done.verb.value,
                done.result.value,
                done.detail or done.sentence,
            )
            for done in history.operations
        ]
        parts += ["", Listing(columns, done_to_it, wrapped=True)]
    if with_commands:
        parts += [safe_line(f"$ {command}") for done in history.operations for command in done.commands]
    return Group(*parts)
