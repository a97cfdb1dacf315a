"""Report of the mixed benchmark: a table for the terminal, and an HTML page with Pareto plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.experiments.experiment import MixedColumn, MixedRow
from slurmsched.report.tables import Column, Listing
from slurmsched.template_files import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slurmsched.report.comparison import Plot

Part = tuple[str, str, float]
"""Workload, knowledge and load: the policies of one part had the same jobs."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """How a column is shown: heading, format of the value times `scale`, and whether more is better."""

    heading: str
    form: str
    scale: float = 1.0
    more: bool = False

    def text(self, value: float) -> str:
        return "-" if isnan(value) else format(value * self.scale, self.form)


_SHOWN: Final[Mapping[MixedColumn, _Shown]] = {
    MixedColumn.MEAN: _Shown("MEAN", ".2f"),
    MixedColumn.MEDIAN: _Shown("MED", ".2f"),
    MixedColumn.P99: _Shown("P99", ".1f"),
    MixedColumn.MAKESPAN: _Shown("SPAN", ".0f"),
    MixedColumn.WORST_RHO: _Shown("RHO", ".1f"),
    MixedColumn.P95_RHO: _Shown("R95", ".1f"),
    MixedColumn.SHORTFALL: _Shown("GAP", ".0f", 100),
    MixedColumn.USEFUL: _Shown("USE", ".0f", 100, more=True),
    MixedColumn.ALLOCATED: _Shown("ALLOC", ".0f", 100, more=True),
    MixedColumn.FRAGMENTED: _Shown("FRAG", ".0f", 100),
    MixedColumn.RESTARTS: _Shown("MOVE", ".0f"),
    MixedColumn.MIGRATIONS: _Shown("MIG", ".0f"),
    MixedColumn.LOST: _Shown("LOST", ".0f"),
    MixedColumn.DECISION: _Shown("MS", ".0f", 1000),
    MixedColumn.WORST_DECISION: _Shown("MAX", ".0f", 1000),
    MixedColumn.UNFINISHED: _Shown("LEFT", ".0f"),
}
_ON_TERMINAL: Final = tuple(
    column
    for column in _SHOWN
    if column not in {MixedColumn.ALLOCATED, MixedColumn.FRAGMENTED, MixedColumn.LOST, MixedColumn.UNFINISHED}
)
"""What 80 columns have room for."""
_TERMS: Final = (
    "MEAN, MED, P99 completion and SPAN, the makespan, in hours; RHO and R95: worst and 95th percentile of finish-time"
    " fairness; GAP: the largest part of the GPU time due to a user that the user did not hold, %; USE: GPU time whose"
    " work was kept, %; MOVE: restarts, MIG of them on other nodes; MS and MAX: median and longest decision in ms."
)
_MORE_TERMS: Final = (
    "ALLOC and FRAG: GPUs allocated, and idle on nodes with too few of them for the widest waiting job, %; LOST:"
    " GPU-hours held without work that was kept; LEFT: jobs that did not complete."
)
_PLOTTED: Final[Mapping[MixedColumn, str]] = {
    MixedColumn.WORST_RHO: "worst finish-time fairness",
    MixedColumn.RESTARTS: "restarts",
    MixedColumn.MAKESPAN: "makespan, hours",
}
"""What mean completion is plotted against, and the labels of the axes."""


def dominated(points: Mapping[str, tuple[float, ...]]) -> frozenset[str]:
    """Returns the names of which another one is at least as low in all figures, and lower in one; and those without
    figures."""
    return frozenset(
        name
        for name, figures in points.items()
        if any(map(isnan, figures))
        or any(
            others != figures and all(theirs <= ours for theirs, ours in zip(others, figures, strict=True))
            for others in points.values()
        )
    )


def by_part(rows: Sequence[MixedRow]) -> Mapping[Part, Mapping[str, Mapping[MixedColumn, MixedRow]]]:
    """Returns the rows by part, policy and column, in the order given."""
    parts: dict[Part, dict[str, dict[MixedColumn, MixedRow]]] = {}
    for row in rows:
        policies = parts.setdefault((row.workload, row.knowledge, row.load), {})
        policies.setdefault(row.policy, {})[row.column] = row
    return parts


def mixed_view(rows: Sequence[MixedRow]) -> RenderableType:
    """Returns for each part one line per policy, the best of each column in bold, and who is not dominated."""
    columns = (Column("POLICY"), *(Column(_SHOWN[column].heading, right=True) for column in _ON_TERMINAL))
    shown: list[RenderableType] = []
    for part, policies in by_part(rows).items():
        best = _best(policies)
        lines = [
            [Text(policy), *(_cell(column, of_policy[column], best[column]) for column in _ON_TERMINAL)]
            for policy, of_policy in policies.items()
        ]
        shown += [Text(f"{_title(part)}:"), Listing(columns, lines, shrinking=0), *map(Text, _notes(policies)), Text()]
    return Group(*shown, Text(_TERMS))


def _cell(column: MixedColumn, row: MixedRow, best: float) -> Text:
    return Text(_SHOWN[column].text(row.measured), style="bold" if row.measured == best else "")


def _title(part: Part) -> str:
    workload, knowledge, load = part
    return f"{workload}, {'perfect knowledge' if knowledge == 'perfect' else 'what a site knows'}, load {load:g}"


def _best(policies: Mapping[str, Mapping[MixedColumn, MixedRow]]) -> Mapping[MixedColumn, float]:
    """Returns the best value of each column; NaN if there is none."""
    best = dict[MixedColumn, float]()
    for column, shown in _SHOWN.items():
        values = [of[column].measured for of in policies.values() if not isnan(of[column].measured)]
        best[column] = (max if shown.more else min)(values, default=float("nan"))
    return best


def _notes(policies: Mapping[str, Mapping[MixedColumn, MixedRow]]) -> Iterator[str]:
    """Yields who is on the Pareto front of each plot, and under whom jobs did not complete, and why."""
    for column, label in _PLOTTED.items():
        lost = dominated(_points(policies, column))
        yield f"Not dominated in mean and {label.partition(',')[0]}: {', '.join(p for p in policies if p not in lost)}"
    for policy, of_policy in policies.items():
        left = of_policy[MixedColumn.UNFINISHED]
        if left.measured:
            yield f"{policy}: {left.measured:.3g} jobs did not complete" + (f" ({left.note})" if left.note else "")


def _points(
    policies: Mapping[str, Mapping[MixedColumn, MixedRow]], column: MixedColumn
) -> Mapping[str, tuple[float, ...]]:
    return {name: (of[column].measured, of[MixedColumn.MEAN].measured) for name, of in policies.items()}


def mixed_page(rows: Sequence[MixedRow], command: str) -> str:
    """Returns one self-contained HTML file. Raises PlotsUnavailableError."""
    from slurmsched.experiments.mixed.benchmark_workloads import WORKLOADS  # noqa: PLC0415  # takes seconds to import

    parts = by_part(rows)
    names = dict.fromkeys(workload for workload, _, _ in parts)
    return render(
        "mixed.html",
        title="Policies on mixed workloads",
        headings=("POLICY", *(shown.heading for shown in _SHOWN.values())),
        sections=[
            {
                "title": _title(part),
                "rows": _page_rows(policies),
                "notes": list(_notes(policies)),
                "plots": [_pareto_plot(part, policies, column) for column in _PLOTTED],
            }
            for part, policies in parts.items()
        ],
        workloads=[(name, WORKLOADS[name].summary) for name in names],
        terms=(_TERMS, _MORE_TERMS, "Figures are the means of all seeds; the least and the most are in their titles."),
        command=command,
    )


def _page_rows(policies: Mapping[str, Mapping[MixedColumn, MixedRow]]) -> Sequence[Mapping[str, object]]:
    best = _best(policies)
    return [
        {
            "policy": policy,
            "cells": [
                {
                    "text": shown.text(of_policy[column].measured),
                    "spread": f"{shown.text(of_policy[column].least)} to {shown.text(of_policy[column].most)}",
                    "best": of_policy[column].measured == best[column],
                }
                for column, shown in _SHOWN.items()
            ],
        }
        for policy, of_policy in policies.items()
    ]


DOMINATED_COLOUR: Final = "#9a9a9a"
FRONT_COLOUR: Final = "#d55e00"


def _pareto_plot(part: Part, policies: Mapping[str, Mapping[MixedColumn, MixedRow]], column: MixedColumn) -> Plot:
    from slurmsched.report.comparison import draw_plot  # noqa: PLC0415  # takes seconds to import

    label = _PLOTTED[column]
    return draw_plot(
        f"{_title(part)}: mean completion against {label.partition(',')[0]}",
        "Further left and lower is better; in grey who is no better than another policy in either.",
        _drawing(_points(policies, column), label),
    )


def _drawing(points: Mapping[str, tuple[float, ...]], label: str) -> Callable[[Axes], None]:
    """Returns what draws the policies as points with their names, the dominated ones in grey, equal ones as one."""
    lost, names = dominated(points), dict[tuple[float, ...], list[str]]()
    for name, point in points.items():
        if not any(map(isnan, point)):
            names.setdefault(point, []).append(name)

    def draw(axes: Axes) -> None:
        for (x, y), there in names.items():
            colour = DOMINATED_COLOUR if there[0] in lost else FRONT_COLOUR
            axes.scatter([x], [y], color=colour, s=18)
            axes.annotate(", ".join(there), (x, y), (4, 3), textcoords="offset points", fontsize=7, color=colour)
        axes.margins(0.15, 0.1)
        axes.set(xlabel=label, ylabel="mean completion, hours")

    return draw
