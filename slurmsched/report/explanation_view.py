"""`synsched explain` on a screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.report.explaining import JobExplained
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import clock, count, duration, gpu_hours
from slurmsched.report.words import line

__all__ = ["explanation_view"]


def explanation_view(explained: JobExplained, now: float) -> RenderableType:
    """The one sentence first; then who is ahead, what would change it, the figures, and how old all that is."""
    told = explained.explanation
    parts: list[RenderableType] = [line(told.headline, "bold")]
    parts += _list("Ahead of it", told.ordered_behind)
    parts += _list("What would change that", told.what_would_change)
    facts = {**told.facts, "attained": _attained(explained), "state": _state(explained, now)}
    parts += [Text(""), Listing((Column(""), Column("")), list(facts.items()), headings=False, wrapped=True)]
    return Group(*parts)


def _list(heading: str, items: Iterable[str]) -> Iterator[RenderableType]:
    told = tuple(items)
    if told:
        yield Text("")
        yield line(f"{heading}:", "bold")
        yield from (Padding(line(f"- {item}"), (0, 0, 0, 2), expand=False) for item in told)


def _attained(explained: JobExplained) -> str:
    moves = count(explained.moves, "restart") if explained.moves else "no restart"
    return f"{gpu_hours(explained.service)}, {moves} of ours"


def _state(explained: JobExplained, now: float) -> str:
    seen = explained.job.last_seen
    return f"{explained.job.state.value}, {duration(now - seen)} ago ({clock(seen)})"
