"""A comparison for people: a table on the screen, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.comparing import Lost, Result, Sweep
from slurmsched.rendering import render
from slurmsched.report.comparison import Compared, Comparison
from slurmsched.report.comparison_plots import plots
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import percent
from slurmsched.report.simulated_view import time

__all__ = ["comparison_page", "comparison_view"]

_HEADINGS = ("POLICY", "LOAD", "MEAN", "MEDIAN", "P99", "MAKESPAN", "USEFUL", "FTF", "MOVES", "RATIO")


def comparison_view(comparison: Comparison) -> RenderableType:
    """A line for each policy and load, the sentence that sums it up, and what is missing."""
    shown = [place for place, heading in enumerate(_HEADINGS) if heading != "LOAD" or comparison.loads]
    columns = [Column(_HEADINGS[place], right=bool(place)) for place in shown]
    rows = [[_cells(row)[place] for place in shown] for row in comparison.rows]
    lost = [Text(f"missing: {line}") for line in comparison.lost]
    return Group(Listing(columns, rows), Text(f"\n{comparison.headline} (simulated)"), *lost)


def comparison_page(sweep: Sweep, results: Sequence[Result | Lost], comparison: Comparison) -> str:
    """One HTML file that needs nothing else. Raises NoPlotsError."""
    best = {load: min(_times(comparison, load)) for load in {row.load for row in comparison.rows}}
    ended = [result for result in results if isinstance(result, Result)]
    options = sweep.cells[0].options if sweep.cells else None
    return render(
        "comparison.html",
        title=comparison.headline,
        headline=comparison.headline,
        headings=_HEADINGS,
        rows=[{"cells": _cells(row), "best": row.avg_jct_s == best[row.load]} for row in comparison.rows],
        lost=comparison.lost,
        plots=plots(ended, comparison) if ended else (),
        cluster=sweep.cluster,
        works=list(dict.fromkeys(f"{trace.name}, {len(trace.jobs)} jobs ({trace.source})" for trace in sweep.traces)),
        terms=(
            f"Rounds every {options.period:g} s; a restart costs {options.overhead:g} s. JCT is from arrival to end;"
            " USEFUL is the part of all GPU time whose work was kept; FTF the worst slowdown against an even part of"
            " the cluster; RATIO the mean JCT against the first policy's."
            if options
            else ""
        ),
        command=sweep.command,
    )


def _times(comparison: Comparison, load: float | None) -> list[float]:
    return [row.avg_jct_s for row in comparison.rows if row.load == load]


def _cells(row: Compared) -> list[str]:
    return [
        row.policy,
        "-" if row.load is None else f"{row.load:g}/h",
        time(row.avg_jct_s),
        time(row.median_jct_s),
        time(row.p99_jct_s),
        time(row.makespan_s),
        percent(row.gpu_utilization),
        "-" if isnan(row.ftf_max) else f"{row.ftf_max:.2f}",
        f"{row.migrations:.0f}",
        "-" if isnan(row.ratio) else f"{row.ratio:.2f}",
    ]
