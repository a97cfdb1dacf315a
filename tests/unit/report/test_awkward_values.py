"""Every view with what people meet least often, in a window of 80 columns and in one of 200, in colour and without."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console, RenderableType

from slurmsched.comparison.tryout import Window
from slurmsched.daemon.scheduler import RoundReport
from slurmsched.doctor.finding import Finding, finding_view
from slurmsched.knowledge.optimistic_profiling import ProfilingAccuracy
from slurmsched.model import GpuUsage, IdleGpus, Outcome, QueueForecast, StartRanges
from slurmsched.model.reasons import format_duration, format_percent, pluralise
from slurmsched.report import (
    advice,
    comparison,
    free,
    job_view,
    profiles,
    queue,
    rounds,
    shares,
    site,
    site_shares,
    soak,
    status,
    traces,
    tryout,
)
from slurmsched.report.quantities import (
    amount,
    fixed,
    from_now,
    local_time,
    memory,
    per_gpu,
    signed_percent,
    significant,
)
from slurmsched.store.journal import RoundStatistics
from tests.awkward import Awkward

View = Callable[[Awkward], RenderableType]
NOW: Final = 1_790_000_000.0
SEEDS: Final = 8


def forecast(values: Awkward) -> RenderableType:
    made = values.of(QueueForecast)
    jobs = {job: values.of(job_view.ForecastJob) for job in (*(one.job for one in made.jobs), *made.left_out)}
    return job_view.forecast_view(made, jobs, NOW)


def submission(values: Awkward) -> RenderableType:
    requests = tuple(values.of(job_view.ForecastRequest) for _ in range(3))
    return job_view.submission_view(values.of(job_view.SubmissionForecast, requests=requests), NOW)


def calibration(values: Awkward) -> RenderableType:
    rows = values.value(tuple[job_view.StartCalibration, ...])
    return job_view.calibration_view(rows, values.of(StartRanges))


def round_(values: Awkward) -> RenderableType:
    outcomes, tally = values.value(tuple[Outcome, ...]), values.of(RoundStatistics)
    return rounds.round_view(RoundReport(7, None, outcomes, None, tally))  # type: ignore[arg-type]  # not shown


def profiling_errors(values: Awkward) -> RenderableType:
    return profiles.profiling_errors_view({str(index): values.of(ProfilingAccuracy) for index in range(3)})


def tried(values: Awkward) -> RenderableType:
    columns = tuple(values.of(tryout.TryoutColumn) for _ in range(3))
    ranges = tuple(values.of(tryout.ChangeRange, measure=measure) for measure in ("mean", "median", "p99", "wait"))
    figures = values.of(tryout.TryoutFigures, columns=columns, ranges=ranges)
    run = values.of(tryout.TryoutRun, outcomes=(), simulated=(values.of(Window),))
    return tryout.tryout_view(values.of(tryout.Tryout, figures=figures, run=run))


VIEWS: Final[Mapping[str, View]] = {
    "advice.advice_view": lambda values: advice.advice_view(
        values.value(tuple[advice.WorkAdvice, ...]), NOW, values.value(tuple[IdleGpus, ...])
    ),
    "advice.week_view": lambda values: advice.week_view(values.of(advice.WeekSummary)),
    "comparison.comparison_view": lambda values: comparison.comparison_view(
        comparison.Comparison(tuple(values.of(comparison.ComparisonRow, load=None) for _ in range(3)), ())
    ),
    "comparison.figures_view": lambda values: comparison.figures_view(values.of(comparison.RunMetrics)),
    "traces.trace_view": lambda values: traces.trace_view(values.of(traces.TraceSummary)),
    "traces.formats_view": lambda _values: traces.formats_view(),
    "finding.finding_view": lambda values: finding_view(values.of(Finding)),
    "free.free_view": lambda values: free.free_view(values.of(free.FreeCapacity), NOW),
    "job_view.calibration_view": calibration,
    "job_view.explanation_view": lambda values: job_view.explanation_view(values.of(job_view.JobExplanation), NOW),
    "job_view.forecast_view": forecast,
    "job_view.history_view": lambda values: job_view.history_view(values.of(job_view.JobHistory), with_commands=True),
    "job_view.submission_view": submission,
    "profiles.drift_view": lambda values: profiles.drift_view(values.value(tuple[profiles.ProfileDrift, ...])),
    "profiles.profiling_errors_view": profiling_errors,
    "rounds.plan_view": lambda values: rounds.plan_view(values.of(rounds.PlannedRound), with_commands=True),
    "rounds.replay_view": lambda values: rounds.replay_view(values.value(tuple[rounds.ReplayedRound, ...])),
    "rounds.round_view": round_,
    "shares.ticket_shares_view": lambda values: shares.ticket_shares_view(values.of(shares.TicketShares), NOW),
    "site_shares.site_shares_view": lambda values: site_shares.site_shares_view(values.of(site_shares.SiteShares)),
    "soak.soak_view": lambda values: soak.soak_view(values.of(soak.SoakResult)),
    "tryout.tryout_view": tried,
    "site.site_view": lambda values: site.site_view(values.of(site.SiteStatus), limit=1),
    "site.site_jobs_view": lambda values: site.site_jobs_view(values.of(site.SiteStatus), None, 0, headings=True),
    "status.header_view": lambda values: status.header_view(values.of(status.ClusterStatus)),
    "status.idle_view": lambda values: status.idle_view(values.value(tuple[IdleGpus, ...])),
    "queue.jobs_view": lambda values: queue.jobs_view(values.value(tuple[queue.JobStatus, ...]), NOW),
    "status.nodes_view": lambda values: status.nodes_view(values.value(tuple[status.NodeUsage, ...])),
    "status.status_view": lambda values: status.status_view(values.of(status.ClusterStatus)),
}


def awkward(seed: int) -> Awkward:
    return Awkward(seed, gpus_of_node=(GpuUsage("v100", 0),), at=NOW - 86400.0, last_seen=NOW - 1.0)


def rendered(view: RenderableType, width: int, *, colour: bool = False, encoding: str = "utf-8") -> str:
    class Stream(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]  # as a terminal says it
            return encoding

    stream = Stream()
    system = "truecolor" if colour else None
    screen = Console(
        file=stream, width=width, markup=False, emoji=False, highlight=False, force_terminal=colour, color_system=system
    )
    screen.print(view)
    return stream.getvalue()


ESCAPES: Final = re.compile(r"\x1b\[([0-9;]*)m([^\x1b]*)")
MEANING: Final = frozenset({"31", "32", "33"})
"""Red, green and yellow."""


@pytest.mark.parametrize("name", VIEWS)
def test_every_line_fits_the_window_and_nothing_is_cut_where_there_is_room(name: str) -> None:
    for seed in range(SEEDS):
        for width in (80, 200):
            shown = rendered(VIEWS[name](awkward(seed)), width)
            assert [line for line in shown.splitlines() if len(line) > width] == [], seed
        assert "…" not in rendered(VIEWS[name](awkward(seed)), 5000), seed


@pytest.mark.parametrize("name", VIEWS)
def test_colour_says_nothing_that_a_sign_or_a_word_does_not_say(name: str) -> None:
    """The text is the same with colour and without, and no text stands in two colours, or in one and in none."""
    for seed in range(SEEDS):
        coloured = rendered(VIEWS[name](awkward(seed)), 120, colour=True)
        assert ESCAPES.sub(r"\2", coloured) == rendered(VIEWS[name](awkward(seed)), 120), seed
        colours: dict[str, set[str]] = {}
        for codes, text in ESCAPES.findall(coloured):
            if text.strip():
                colours.setdefault(text.strip(), set()).add(",".join(sorted(MEANING.intersection(codes.split(";")))))
        assert {text: found for text, found in colours.items() if len(found) > 1} == {}, seed


def test_no_view_is_forgotten() -> None:
    """But those of experiments, which are for people who compare figures, and of the demo, which draws a cluster."""
    modules = sorted((Path(__file__).parents[3] / "slurmsched" / "report").glob("*.py"))
    names = {path.stem for path in modules} - {"__init__", "experiments", "mixed", "demo"}
    defined = {
        f"{name}.{word}"
        for name in names
        for word in re.findall(r"^def (\w+_view)\(", (modules[0].parent / f"{name}.py").read_text(), re.MULTILINE)
    }
    assert defined - {"profiles.profiles_view", "profiles.profile_view"} == VIEWS.keys() - {"finding.finding_view"}


NOUNS = (
    "job|GPU|CPU|task|node|move|time|run|draw|restart|step|shard|round|problem|line|row|day|hour|operation|other job"
)
FORBIDDEN: Final = re.compile(
    rf"\bnan\b|\binf\b|\bNone\b|\d[eE][+-]?\d\d|(?<![\d.,/_-])1 (?:{NOUNS})s\b|(?<![\d\w])-0(?![\d.])"
)


@pytest.mark.parametrize("name", VIEWS)
def test_no_view_says_nan_inf_none_or_1_jobs_nor_obeys_a_text(name: str) -> None:
    for seed in range(SEEDS):
        shown = rendered(VIEWS[name](awkward(seed)), 200)
        assert FORBIDDEN.findall(shown) == [], seed
        assert [sign for sign in shown if not sign.isprintable() and sign != "\n"] == [], seed


INF, NAN = float("inf"), float("nan")
AMOUNTS: list[tuple[str, list[str]]] = [
    ("duration", [format_duration(value) for value in (0, 1, 59, 86400, 1e6, 90, 599.9, 600, 3661, INF, NAN)]),
    ("percent", [format_percent(value) for value in (0, 1, 59, 86400, 1e6, 0.005, 0.425, INF, NAN)]),
    ("change", [signed_percent(value) for value in (0, 1, -0.03, 0.001, -0.001, INF, NAN)]),
    ("amount", [amount(value) for value in (0, 1, 59, 86400, 1e6, 2.5, -0.01, INF, NAN)]),
    ("fixed", [fixed(value) for value in (0, 1, 59, 86400, 1e6, INF, NAN)]),
    ("significant", [significant(value) for value in (0, 1, 59, 86400, 1e6, 0.000123456, 2.34567, 123456.7, INF, NAN)]),
    ("memory", [memory(value) for value in (0, 1, 59, 86400, 1_000_000)]),
    ("per GPU", [per_gpu(value, 8) for value in (0, 1, 59, 86400, 1_000_000)]),
    ("count", [pluralise(value, "job") for value in (0, 1, 59, 1_000_000)]),
    ("from now", [from_now(value, 0.0) for value in (0, 59, 60, 86400, 1e6, INF, NAN, None)]),
    ("time", [local_time(value) for value in (None, INF, NAN, 1e18)]),
]
WORDS: Final[Mapping[str, str]] = {
    "duration": "0 s|1 s|59 s|1 d|11 d 13 h|1 min 30 s|9 min 59 s|10 min|1 h 1 min|unknown time|-",
    "percent": "0 %|100 %|5900 %|8640000 %|100000000 %|0 %|42 %|-|-",
    "change": "0 %|+100 %|-3 %|0 %|0 %|-|-",
    "amount": "0|1|59|86400|1000000|2.5|0|-|-",
    "fixed": "0.0|1.0|59.0|86400.0|1000000.0|-|-",
    "significant": "0|1|59|86400|1000000|0.000123|2.35|123000|-|-",
    "memory": "0M|1M|59M|84.4G|976.6G",
    "per GPU": "0|0.1|7.4|10800|125000",
    "count": "0 jobs|1 job|59 jobs|1000000 jobs",
    "from now": "now|now|1 min|24.0 h|11.6 d|later|-|later",
    "time": "-|-|-|-",
}


@pytest.mark.parametrize(("name", "texts"), AMOUNTS, ids=[name for name, _ in AMOUNTS])
def test_amounts_in_words(name: str, texts: list[str]) -> None:
    assert "|".join(texts) == WORDS[name]
