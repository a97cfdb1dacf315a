"""An experiment's figures beside the published ones."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from slurmsched.experiments import Bound, Outcome, Row
from slurmsched.report.curves import curves_listing
from slurmsched.report.listing import Column, Listing

__all__ = ["outcome_view"]

_SIGNS = {Bound.EQUAL: "±", Bound.AT_MOST: "≤", Bound.AT_LEAST: "≥"}


def outcome_view(outcome: Outcome) -> RenderableType:
    """A line for each figure and each curve, what differs below, and the verdict."""
    columns = (
        Column("FIGURE"),
        Column("UNIT"),
        Column("PAPER", right=True),
        Column("THEIRS", right=True),
        Column("OURS", right=True),
        Column("RATIO", right=True),
        Column("ASKED", right=True),
        Column("OK"),
    )
    rows = [
        (
            row.metric,
            row.unit,
            _figure(row.published),
            _figure(row.reference),
            _figure(row.measured),
            _figure(row.ratio),
            _asked(row),
            "" if row.bound is Bound.STATED else "yes" if row.ok else "NO",
        )
        for row in outcome.rows
    ]
    held = [row for row in outcome.rows if row.bound is not Bound.STATED]
    missed = sum(not row.ok for row in held)
    verdict = f"{outcome.experiment}: {len(held) - missed} of {len(held)} figures hold."
    curves = (Text(""), curves_listing(outcome.series)) if outcome.series else ()
    return Group(Listing(columns, rows, wrapped=True, giving=0), *curves, *_notes(outcome), Text(f"\n{verdict}"))


def _notes(outcome: Outcome) -> Iterator[RenderableType]:
    """Each note once, with the figures it is about."""
    about = dict[str, list[str]]()
    for row in outcome.rows:
        if row.note:
            about.setdefault(row.note, []).append(row.metric)
    for note, metrics in about.items():
        shown = metrics[0] if len(metrics) == 1 else f"{metrics[0]} and {len(metrics) - 1} more"
        yield Text(f"\n{shown}:")
        yield Padding(Text(note), (0, 0, 0, 2), expand=False)


def _asked(row: Row) -> str:
    if row.bound is Bound.STATED:
        return "-"
    return f"{_SIGNS[row.bound]}{100 * (row.tolerance or 0.0):.3g}%" if row.bound is Bound.EQUAL else _limit(row)


def _limit(row: Row) -> str:
    slack = row.tolerance or 0.0
    return f"{_SIGNS[row.bound]}{1 + slack if row.bound is Bound.AT_MOST else 1 - slack:.3g}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
