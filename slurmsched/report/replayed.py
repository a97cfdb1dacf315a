"""Recorded rounds decided again, one line for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from slurmsched.model import Verb
from slurmsched.report.listing import Column, Listing
from slurmsched.report.planned import PlannedRound
from slurmsched.report.quantities import clock, duration

__all__ = ["Replayed", "replayed_view"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One recording: where it came from, what a round makes of it, and how long that took (seconds)."""

    source: str
    plan: PlannedRound
    seconds: float


def replayed_view(rounds: Sequence[Replayed]) -> RenderableType:
    """A line for each recording."""
    columns = (
        Column("WHEN"),
        Column("STAY", right=True),
        Column("START", right=True),
        Column("REQUEUE", right=True),
        Column("WAIT", right=True),
        Column("TOOK", right=True),
        Column("RECORDING"),
    )
    return Listing(
        columns,
        [
            (
                clock(one.plan.at),
                str(len(one.plan.keeps)),
                str(len(one.plan.starts)),
                str(_displaced(one.plan)),
                str(len(one.plan.waits)),
                duration(one.seconds),
                one.source,
            )
            for one in rounds
        ],
    )


def _displaced(plan: PlannedRound) -> int:
    return sum(operation.verb is Verb.REQUEUE for operation in plan.operations)
