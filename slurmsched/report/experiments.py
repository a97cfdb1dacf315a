"""Views of experiments: measured against published figures, curves as sparklines, and the page of all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from slurmsched.experiments.experiment import Bound, ExperimentResult, FigureRow, FigureVerdict, MixedRow, PromiseRow
from slurmsched.experiments.figures import KeptFigures, figure_parts
from slurmsched.model.reasons import pluralise
from slurmsched.report.mixed import mixed_view
from slurmsched.report.tables import Column, Listing

_LEVEL_SIGNS: Final = (" ▁▂▃▄▅▆▇█", " .:-=+*#%")
_LISTED_VALUES: Final = 7
"""Curves of at most this many points are printed as numbers rather than drawn."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A step curve drawn in `width` characters, each the curve's mean over its interval, scaled from 0 to `top`."""

    points: Points
    top: float
    width: int = 24

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = _LEVEL_SIGNS[options.ascii_only]
        levels = self._means() / self.top if self.top > 0 else np.zeros(self.width)
        highest = len(signs) - 1
        line = "".join(signs[int(np.ceil(min(max(level, 0.0), 1.0) * highest - 0.5))] for level in levels)
        yield Text(line, style="green")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)

    def _means(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The curve's mean in each of `width` equal intervals of x; the last point only ends the curve."""
        x, y = (np.array(values, dtype=np.float64) for values in zip(*self.points, strict=True))
        area = np.concatenate([[0.0], np.cumsum(np.diff(x) * y[:-1])])
        edges = np.linspace(x[0], x[-1], self.width + 1)
        means: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(np.interp(edges, x, area)) / np.diff(edges)
        return means


def curves_listing(series: Mapping[str, Points]) -> Listing:
    """One row per curve: first and last x, the largest value, and the curve scaled from 0 to that."""
    columns = (Column("CURVE"), Column("FROM", right=True), Column("TO", right=True), Column("MOST", right=True))
    rows = [
        (name, f"{points[0][0]:.5g}", f"{points[-1][0]:.5g}", f"{_largest_value(points):.3g}", _sparkline(points))
        for name, points in series.items()
        if points
    ]
    return Listing((*columns, Column("COURSE")), rows, wrapped=True)


def _sparkline(points: Points) -> Sparkline | str:
    if len(points) <= _LISTED_VALUES or points[0][0] == points[-1][0]:
        return " ".join(f"{value:.3g}" for _, value in points[:_LISTED_VALUES])
    return Sparkline(points, _largest_value(points))


def _largest_value(points: Points) -> float:
    return max(value for _, value in points)


_OK_SIGNS: Final = {
    FigureVerdict.HELD: "yes",
    FigureVerdict.MISSED: "NO",
    FigureVerdict.NOT_HELD: "",
    FigureVerdict.MEASURED: "",
}
_BOUND_SIGNS = {Bound.EQUAL: "±", Bound.AT_MOST: "≤", Bound.AT_LEAST: "≥"}


def outcome_view(outcome: ExperimentResult) -> RenderableType:
    """One line per figure and per curve, the notes on differing inputs, and the verdict."""
    if promises := [row for row in outcome.rows if isinstance(row, PromiseRow)]:
        return _promises_view(outcome.experiment, promises)
    if compared := [row for row in outcome.rows if isinstance(row, MixedRow)]:
        return mixed_view(compared)
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
            _marked_metric(row),
            row.unit,
            _figure(row.published),
            _figure(row.reference),
            _figure(row.measured),
            _figure(row.ratio),
            _required_ratio(row),
            _OK_SIGNS[row.verdict],
        )
        for row in outcome.rows
    ]
    met, missed = outcome.count(FigureVerdict.HELD), outcome.count(FigureVerdict.MISSED)
    verdict = f"{outcome.experiment}: {met} of {pluralise(met + missed, 'figure')} within bounds."
    if not_held := outcome.count(FigureVerdict.NOT_HELD):
        verdict = f"{outcome.experiment}: {pluralise(not_held, 'figure')} not held, as the notes say.\n{verdict}"
    curves = (Text(""), curves_listing(outcome.series)) if outcome.series else ()
    return Group(Listing(columns, rows, wrapped=True, shrinking=0), *curves, *_notes(outcome), Text(f"\n{verdict}"))


_CHOSEN_AFTER: Final = "[after]"
"""Marks a row whose inputs or bound were chosen when its result was known."""


def _promises_view(experiment: str, rows: Sequence[PromiseRow]) -> RenderableType:
    """One line per policy, scenario and promise in the order given, where policies promise it, and the verdict."""
    columns = (
        Column("POLICY"),
        Column("SCENARIO"),
        Column("PROMISE"),
        Column("UNIT"),
        Column("MEAN", right=True),
        Column("WORST", right=True),
        Column("ASKED", right=True),
        Column("KEPT"),
    )
    listed = [
        (
            row.policy,
            row.scenario,
            row.promise,
            row.unit,
            f"{row.mean:.3g}",
            f"{row.measured:.3g}",
            _asked(row),
            _OK_SIGNS[row.verdict],
        )
        for row in rows
    ]
    held = [row for row in rows if row.bound is not Bound.INFORMATIVE]
    sources = dict.fromkeys((row.promise, row.note) for row in held)
    verdict = f"{experiment}: {sum(row.ok for row in held)} of {pluralise(len(held), 'promise')} kept."
    return Group(
        Listing(columns, listed, wrapped=True, shrinking=1),
        Text("\nPromised by:"),
        *(Padding(Text(f"{promise}: {note}"), (0, 0, 0, 2), expand=False) for promise, note in sources),
        Text(f"\n{verdict}"),
    )


def _asked(row: PromiseRow) -> str:
    if row.bound is Bound.INFORMATIVE:
        return "-"
    slack, limit = row.tolerance or 0.0, row.limit or 0.0
    if row.bound is Bound.EQUAL:
        return f"{limit:.3g}±{slack:.3g}"
    return f"{_BOUND_SIGNS[row.bound]}{limit + (slack if row.bound is Bound.AT_MOST else -slack):.3g}"


def _notes(outcome: ExperimentResult) -> Iterator[RenderableType]:
    """Each note once, with the figures that it applies to."""
    metrics_by_note = dict[str, list[str]]()
    for row in outcome.rows:
        if row.note:
            metrics_by_note.setdefault(row.note, []).append(row.metric)
    for note, metrics in metrics_by_note.items():
        shown = metrics[0] if len(metrics) == 1 else f"{metrics[0]} and {len(metrics) - 1} more"
        yield Text(f"\n{shown}:")
        yield Padding(Text(note), (0, 0, 0, 2), expand=False)


def _required_ratio(row: FigureRow) -> str:
    if row.bound is Bound.INFORMATIVE:
        return "-" if row.limit is None else f"({row.limit:.4g})"
    if row.bound is not Bound.EQUAL:
        return _limit(row)
    around = f"{row.limit:.3g} " if row.limit is not None else ""
    return f"{around}{_BOUND_SIGNS[row.bound]}{100 * (row.tolerance or 0.0):.3g}%"


def _limit(row: FigureRow) -> str:
    slack, limit = row.tolerance or 0.0, row.limit or 0.0
    return f"{_BOUND_SIGNS[row.bound]}{limit * (1 + slack if row.bound is Bound.AT_MOST else 1 - slack):.3g}"


def _marked_metric(row: FigureRow) -> str:
    return f"{row.metric} {_CHOSEN_AFTER}" if row.chosen_after else row.metric


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


_PAGE_HEAD: Final = f"""\
# Published figures

Generated by `synsched reproduce --all`; do not edit.

Every figure of the papers that an experiment measures again. *Published* is the paper's figure, *authors' code* what
their own program gives on the same input, *ours* what is measured here. A verdict is one of:

- **held**: ours is as *asked*: within so many per cent on both sides of the authors' figure, else of the published one;
  or beyond a limit from elsewhere, such as an optimum.
- **missed**: it is not as asked.
- **not held**: there is a published figure and nothing is asked; the note says why.
- *measured*: no figure of somebody else is there to compare with. In parentheses stands a limit that is not asked for.

{_CHOSEN_AFTER} marks rows whose inputs or bound were chosen when their results were known: that they hold proves less.
**QUICK** marks rows of a small version of the experiment, with fewer jobs or an earlier window. They show that it runs,
and are no figures of the paper's size.
"""

_TABLE_HEAD: Final = (
    "| paper | experiment | figure | unit | published | authors' code | ours | asked | verdict | note |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def figures_page(figures: Sequence[KeptFigures]) -> str:
    """Returns the page of all figures in Markdown: where each part stands, one table of all rows, and their notes.

    In a part misses come first, then what is not held, then what is held. Parts without rows are named.
    """
    lines = [_PAGE_HEAD, "## Experiments", ""]
    lines += [
        "| paper | experiment | size | held | missed | not held | measured | day | command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by_part = {kept.part.name: kept for kept in figures}
    for part in figure_parts():
        kept = by_part.get(part.name)
        if kept is None:
            lines.append(f"| {part.system} | {part.name} | **NOT MEASURED YET** | 0 | 0 | 0 | 0 | - | - |")
            continue
        counts = " | ".join(str(kept.result.count(verdict)) for verdict in _COUNTED)
        size = "**QUICK**" if kept.quick else "whole"
        lines.append(f"| {kept.part.system} | {kept.part.name} | {size} | {counts} | {kept.day} | `{kept.command}` |")
    numbers = dict[str, int]()
    lines += ["", "## Figures", "", *_TABLE_HEAD]
    lines += [_table_row(kept, row, numbers) for kept in figures for row in sorted(kept.rows, key=_miss_first)]
    lines += ["", "## Notes", "", *(f"{number}. {note}" for note, number in numbers.items())]
    return "\n".join(lines) + "\n"


_COUNTED: Final = (FigureVerdict.HELD, FigureVerdict.MISSED, FigureVerdict.NOT_HELD, FigureVerdict.MEASURED)
_MISS_FIRST: Final = (FigureVerdict.MISSED, FigureVerdict.NOT_HELD, FigureVerdict.HELD, FigureVerdict.MEASURED)
_VERDICT_WORDS: Final = {
    FigureVerdict.HELD: "**held**",
    FigureVerdict.MISSED: "**MISSED**",
    FigureVerdict.NOT_HELD: "**not held**",
    FigureVerdict.MEASURED: "measured",
}


def _miss_first(row: FigureRow) -> int:
    return _MISS_FIRST.index(row.verdict)


def _table_row(kept: KeptFigures, row: FigureRow, numbers: dict[str, int]) -> str:
    """Returns a line of the table; a note that is new gets the next of the `numbers`."""
    note = str(numbers.setdefault(row.note, len(numbers) + 1)) if row.note else ""
    quick = "**QUICK** " if kept.quick else ""
    cells = (
        kept.part.system,
        kept.part.name,
        quick + _marked_metric(row),
        row.unit,
        _figure(row.published),
        _figure(row.reference),
        _figure(row.measured),
        _required_ratio(row),
        _VERDICT_WORDS[row.verdict],
        note,
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
