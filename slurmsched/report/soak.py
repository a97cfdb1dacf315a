"""Report of a soak: what was measured and whether it grows, what went wrong, and what the daemon left; with plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.endurance import TOLERANCE
from slurmsched.endurance.soak import MEASURES, SoakResult
from slurmsched.endurance.trends import Trend
from slurmsched.model.reasons import pluralise
from slurmsched.report.page import Axis, Plot, Unit, curves, render_page, steps, written_at
from slurmsched.report.quantities import duration, significant
from slurmsched.report.tables import Column, Listing, safe_line

_COLUMNS: Final = ("MEASURE", "UNIT", "FIRST", "MIDDLE", "LAST", "A DAY", "FROM", "TO", "GROWS")
_DAY: Final = 86400.0

_RULE: Final = (
    f"A measure grows if its median in the last third of the time after the warm-up is more than {TOLERANCE:.0%} above"
    " that in the middle third. A DAY is the slope of Theil and Sen, with its 95 % confidence from FROM to TO."
)
_LEFT: Final = (
    "At the end the daemon stopped, and its journal and its holds were compared with the cluster, on which the jobs"
    " that were left then ended under plain Slurm."
)


def soak_headline(result: SoakResult) -> str:
    """What was run, in a sentence."""
    options, counts = result.options, ((result.rounds, "round"), (result.submitted, "job"))
    faults = pluralise(sum(result.faults.values()), "fault")
    return (
        f"{significant(options.days)} simulated days of {options.policy}, seed {options.seed}:"
        f" {', '.join(pluralise(*count) for count in counts)}, {faults}, in {duration(result.took_s)}"
    )


def soak_view(result: SoakResult) -> RenderableType:
    """The tables for a terminal."""
    columns = [Column(heading, right=heading not in ("MEASURE", "UNIT", "GROWS")) for heading in _COLUMNS]
    figures = (Column("FIGURE"), Column("VALUE", right=True))
    return Group(
        safe_line(soak_headline(result), "bold"),
        Text(""),
        Listing(columns, [_row(trend) for trend in result.trends]),
        Text(""),
        Listing(figures, list(_figures(result))),
        Text(""),
        *(safe_line(f"not held: {problem}") for problem in result.problems),
        safe_line("nothing grows and nothing is lost" if not result.problems else ""),
    )


def _row(trend: Trend) -> tuple[str, ...]:
    numbers = (*trend.thirds, trend.slope, trend.slope_low, trend.slope_high)
    grows = "too short to tell" if trend.grows is None else "yes" if trend.grows else "no"
    return (trend.measure, trend.unit, *map(significant, numbers), grows)


def _figures(result: SoakResult) -> Iterator[tuple[str, str]]:
    audit = result.audit
    yield "rounds", f"{result.rounds:,}"
    yield "rounds that failed", f"{result.failed_rounds:,}"
    yield "processes of the daemon", f"{result.starts:,}"
    yield "jobs submitted", f"{result.submitted:,}"
    yield "of them with hostile text", f"{result.hostile:,}"
    yield "jobs that ended", f"{result.ended:,}"
    yield "operations carried out on jobs of the last days", f"{audit.carried_out:,}"
    yield "of them in the journal", f"{audit.written_down:,}"
    yield "operations that the journal does not have", f"{audit.unwritten:,}"
    yield "operations that only the journal has", f"{audit.made_up:,}"
    yield "operations without a result", f"{audit.open_intents:,}"
    yield "holds that are left", f"{audit.holds + audit.held_rows:,}"
    yield "requests that are left changed", f"{audit.requests:,}"
    yield "runs of which nothing was learnt", f"{audit.unlearnt:,}"
    yield "jobs that never end", f"{audit.lost:,}"
    for kind, count in result.faults.items():
        yield kind, f"{count:,}"


def soak_page(result: SoakResult, command: str, written: float) -> str:
    """Return one self-contained HTML file with the tables and a plot of each measure, written at that time (unix
    seconds)."""
    return render_page(
        "soak.html",
        title=soak_headline(result),
        written=written_at(written),
        problems=result.problems,
        headings=_COLUMNS,
        rows=[_row(trend) for trend in result.trends],
        figures=list(_figures(result)),
        plots=list(soak_plots(result)),
        terms=(_RULE, _LEFT),
        command=command,
    )


def soak_plots(result: SoakResult) -> Sequence[Plot]:
    """A plot of each measure over the whole time; the line is the end of the warm-up."""
    warm_up = (result.options.keep_days + 1) * _DAY
    return [
        Plot(
            measure.name,
            f"{measure.caption} Measured every simulated hour.",
            Axis("simulated time", 0.0, max(points[-1][0], 1.0), Unit.DURATION),
            Axis(f"{measure.name}, {measure.unit}" if measure.unit else measure.name, 0.0, _top(points)),
            curves({measure.name: steps(points)}, [measure.name]),
            x_level=(warm_up, "end of warm-up") if warm_up < points[-1][0] else None,
        )
        for measure in MEASURES
        if (points := result.samples.get(measure.name, ()))
    ]


def _top(points: Sequence[tuple[float, float]]) -> float:
    return 1.05 * max(value for _, value in points) or 1.0
