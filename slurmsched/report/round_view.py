"""What a round did, for `run --once`."""

from __future__ import annotations

from rich.console import Group, RenderableType

from slurmsched.daemon.scheduling import RoundReport
from slurmsched.model import Result
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import count, duration
from slurmsched.report.words import line
from slurmsched.settings.definition import Mode

__all__ = ["blocked", "done_view", "worth_telling"]


def done_view(report: RoundReport) -> RenderableType:
    """The round in one line, then what became of each operation."""
    tally = report.tally
    spent = sum(part or 0.0 for part in (tally.observe_s, tally.decide_s, tally.plan_s, tally.apply_s))
    queue = f"{tally.running} running, {tally.waiting} waiting of {count(tally.managed, 'managed job')}"
    head = line(f"round {report.id}, took {duration(spent)}: {queue}", "bold")
    columns = (Column("OPERATION"), Column("RESULT"), Column("WHAT"))
    rows = [
        (outcome.operation.verb.value, outcome.result.value, outcome.detail or outcome.operation.sentence)
        for outcome in report.outcomes
    ]
    return Group(head, Listing(columns, rows)) if rows else head


def worth_telling(report: RoundReport, mode: Mode) -> bool:
    """Whether cron should mail it: something was tried, or the mode is there to tell what would be done."""
    return bool(report.outcomes) and (
        mode is Mode.ADVISE or any(o.result is not Result.BLOCKED for o in report.outcomes)
    )


def blocked(report: RoundReport) -> bool:
    """Whether something that the round wanted was not allowed."""
    return any(outcome.result is Result.BLOCKED for outcome in report.outcomes)
