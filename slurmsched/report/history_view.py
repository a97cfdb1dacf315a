"""`synsched history` on a screen."""

from __future__ import annotations

from rich.console import Group, RenderableType

from slurmsched.report.history import History
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import clock, gpu_hours
from slurmsched.report.words import line

__all__ = ["history_view"]


def history_view(history: History, with_commands: bool = False) -> RenderableType:
    """The job in one line, what happened to it, what was done to it; with the exact commands if wanted."""
    job = history.job
    name = f" ({job.name})" if job.name else ""
    parts: list[RenderableType] = [
        line(f"job {job.id}{name} of {job.owner}: {job.state.value}, {gpu_hours(history.service)} attained", "bold")
    ]
    if history.events:
        rows = [(clock(event.at), event.kind, event.sentence) for event in history.events]
        parts += ["", Listing((Column("WHEN"), Column("EVENT"), Column("WHAT")), rows, wrapped=True)]
    if history.operations:
        columns = (Column("WHEN"), Column("ROUND", right=True), Column("DONE TO IT"), Column("RESULT"), Column("WHY"))
        done_to_it = [
            (clock(done.intended), str(done.round), done.verb.value, done.result.value, done.detail or done.sentence)
            for done in history.operations
        ]
        parts += ["", Listing(columns, done_to_it, wrapped=True)]
    if with_commands:
        parts += [line(f"$ {command}") for done in history.operations for command in done.commands]
    return Group(*parts)
