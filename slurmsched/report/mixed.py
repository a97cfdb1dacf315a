"""Report of the mixed benchmark: a table for the terminal, and an HTML page with Pareto plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.experiments.experiment import KNOWLEDGE, MixedColumn, MixedRow
from slurmsched.model.reasons import pluralise
from slurmsched.report.page import Axis, Plot, Unit, curves, render_page, written_at
from slurmsched.report.tables import Column, Listing

Part = tuple[str, str, float]
"""Workload, knowledge and load: the policies of one part had the same jobs."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """How a column is shown: heading, format of the value times `scale`, and whether less is `better`. How much of the
    GPU time is in use is neither: jobs that are done sooner leave GPUs idle."""

    heading: str
    form: str
    scale: float = 1.0
    better: bool = True

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
    MixedColumn.USEFUL: _Shown("USE", ".0f", 100, better=False),
    MixedColumn.ALLOCATED: _Shown("ALLOC", ".0f", 100, better=False),
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


def dominated(points: Mapping[str, tuple[float, float]]) -> frozenset[str]:
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


def _title(part: tuple[str, str, float | None]) -> str:
    workload, knowledge, load = part
    at = "" if load is None else f", load {load:g}"
    return f"{workload}, {KNOWLEDGE[knowledge]}{at}"


def _best(policies: Mapping[str, Mapping[MixedColumn, MixedRow]]) -> Mapping[MixedColumn, float]:
    """Returns the best value of each column; NaN if none is."""
    best = dict[MixedColumn, float]()
    for column, shown in _SHOWN.items():
        values = [of[column].measured for of in policies.values() if not isnan(of[column].measured)]
        best[column] = min(values, default=float("nan")) if shown.better else float("nan")
    return best


def _notes(policies: Mapping[str, Mapping[MixedColumn, MixedRow]]) -> Iterator[str]:
    """Yields what no policy can have, who is on the Pareto front of each plot, and under whom jobs did not complete and
    why."""
    completed = (of for of in policies.values() if not of[MixedColumn.UNFINISHED].measured)
    yield from {of[MixedColumn.MEAN].note: None for of in completed if of[MixedColumn.MEAN].note}
    for column, label in _PLOTTED.items():
        lost = dominated(_points(policies, column))
        yield f"Not dominated in mean and {label.partition(',')[0]}: {', '.join(p for p in policies if p not in lost)}"
    for policy, of_policy in policies.items():
        left = of_policy[MixedColumn.UNFINISHED]
        if left.measured:
            yield f"{policy}: {left.measured:.3g} jobs did not complete" + (f" ({left.note})" if left.note else "")


def _points(
    policies: Mapping[str, Mapping[MixedColumn, MixedRow]], column: MixedColumn
) -> Mapping[str, tuple[float, float]]:
    return {name: (of[column].measured, of[MixedColumn.MEAN].measured) for name, of in policies.items()}


def mixed_headline(rows: Sequence[MixedRow]) -> str:
    """One sentence: who has the shortest mean completion how often, and who is never dominated."""
    parts = by_part(rows)
    if not parts:
        return "Nothing was compared."
    soonest = Counter[str]()
    fair: set[str] | None = None
    for policies in parts.values():
        best = _best(policies)[MixedColumn.MEAN]
        soonest.update(name for name, of in policies.items() if of[MixedColumn.MEAN].measured == best)
        front = policies.keys() - dominated(_points(policies, MixedColumn.WORST_RHO))
        fair = set(front) if fair is None else fair & front
    first = [name for name, count in soonest.items() if count == max(soonest.values())]
    where = f"in {max(soonest.values(), default=0)} of {pluralise(len(parts), 'case')}"
    who = f"{' and '.join(first)} {'finishes' if len(first) == 1 else 'finish'}" if first else "Nobody finishes"
    never = sorted(fair or (), key=list(dict.fromkeys(row.policy for row in rows)).index)
    always = "" if len(parts) == 1 else "in any of them "
    return (
        f"{who} jobs soonest on average {where}; not dominated {always}in mean and worst fairness:"
        f" {', '.join(never) or 'nobody'}."
    )


def mixed_page(rows: Sequence[MixedRow], command: str, written: float) -> str:
    """Returns one self-contained HTML file, written at that time (unix seconds)."""
    from slurmsched.experiments.mixed.benchmark_workloads import WORKLOADS  # noqa: PLC0415  # takes seconds to import

    parts, policies = by_part(rows), tuple(dict.fromkeys(row.policy for row in rows))
    return render_page(
        "mixed.html",
        title=mixed_headline(rows),
        written=written_at(written),
        headings=[(shown.heading, column.value) for column, shown in _SHOWN.items()],
        by_load=list(_load_plots(parts, policies)),
        sections=[
            {
                "title": _title(part),
                "rows": _page_rows(of_part, policies),
                "notes": list(_notes(of_part)),
                "plots": [_pareto_plot(of_part, column, policies) for column in _PLOTTED],
            }
            for part, of_part in parts.items()
        ],
        workloads=[(name, WORKLOADS[name].summary) for name in dict.fromkeys(workload for workload, _, _ in parts)],
        terms=(_TERMS, _MORE_TERMS, "Figures are the means of all seeds; the least and the most are in their titles."),
        command=command,
    )


def _page_rows(
    policies: Mapping[str, Mapping[MixedColumn, MixedRow]], names: Sequence[str]
) -> Sequence[Mapping[str, object]]:
    best = _best(policies)
    return [
        {
            "policy": policy,
            "series": names.index(policy),
            "cells": [
                {
                    "text": shown.text(of_policy[column].measured),
                    "value": "" if isnan(of_policy[column].measured) else of_policy[column].measured,
                    "spread": f"{shown.text(of_policy[column].least)} to {shown.text(of_policy[column].most)}",
                    "best": of_policy[column].measured == best[column],
                }
                for column, shown in _SHOWN.items()
            ],
        }
        for policy, of_policy in policies.items()
    ]


def _load_plots(
    parts: Mapping[Part, Mapping[str, Mapping[MixedColumn, MixedRow]]], policies: Sequence[str]
) -> Iterator[Plot]:
    """Yields mean completion by load for each workload and knowledge that was measured at several."""
    for workload, knowledge in dict.fromkeys(part[:2] for part in parts):
        of_loads = {part[2]: of for part, of in parts.items() if part[:2] == (workload, knowledge)}
        means = {
            name: [(load, of[name][MixedColumn.MEAN].measured) for load, of in sorted(of_loads.items()) if name in of]
            for name in policies
        }
        known = [mean for points in means.values() for _, mean in points if not isnan(mean)]
        if len(of_loads) > 1 and known:
            yield Plot(
                f"{_title((workload, knowledge, None))}: mean completion by load",
                "Hours. At load 1 as much work arrives as all GPUs can do. Lower is better.",
                Axis("load", min(of_loads), max(of_loads)),
                Axis("mean completion, hours", 0.0, 1.05 * max(known)),
                curves(means, policies),
            )


def _pareto_plot(
    policies: Mapping[str, Mapping[MixedColumn, MixedRow]], column: MixedColumn, names: Sequence[str]
) -> Plot:
    """Mean completion against another column: names stand beside the policies that are not dominated."""
    label, points = _PLOTTED[column], _points(policies, column)
    lost = dominated(points)
    known = {name: [point] for name, point in points.items() if not any(map(isnan, point))}
    x, y = ([of[0][axis] for of in known.values()] for axis in (0, 1))
    return Plot(
        f"Mean completion against {label.partition(',')[0]}",
        "Further left and lower is better. Pale is who is no better than another policy in either.",
        _around(label, x),
        _around("mean completion, hours", y),
        curves(known, names),
        joined=False,
        labelled=frozenset(names.index(name) for name in known if name not in lost),
        pale=frozenset(names.index(name) for name in lost),
    )


def _around(label: str, values: Sequence[float]) -> Axis:
    """An axis with room around these values, by their logarithm where most of them would lie together."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low > 0 and high > _LOG_FROM * low:
        return Axis(label, low / 1.3, high * 1.3, Unit.NUMBER, log=True)
    room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return Axis(label, low - room if low > room else 0.0, high + room)


_LOG_FROM: Final = 20.0
