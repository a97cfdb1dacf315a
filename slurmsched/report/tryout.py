"""The page "is it for my cluster?": the terminal's view, the HTML page and the object for programs of a tryout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.arrays import Floats
from slurmsched.comparison.site_shape import SiteShape
from slurmsched.comparison.tryout import DAY, TryoutRun, WindowOutcome
from slurmsched.comparison.tryout_figures import ChangeRange, GroupGain, JobLoss, TryoutColumn, TryoutFigures
from slurmsched.model.reasons import pluralise
from slurmsched.report.comparison import distribution
from slurmsched.report.page import Plot, Unit, render_page, written_at
from slurmsched.report.quantities import duration, fixed, percent, signed_percent
from slurmsched.report.tables import Column, Listing, printable, safe_line
from slurmsched.traces.accounting import Accounting, counted

_FAR: Final = 0.25
"""The part by which plain Slurm, simulated, may differ from what the accounting records before a notice says so."""
_HARDLY: Final = 60.0  # seconds of mean wait below which there is no queue to speak of
_GROUPS: Final = 5
_KINDS: Final = {"user": "By user", "name": "By job name", "size": "By size"}
_LONGEST_NAME: Final = 24


@dataclass(frozen=True, slots=True)
class Tryout:
    """All that a page shows. `file` is the name of what was read; `written` is in unix seconds."""

    accounting: Accounting
    shape: SiteShape
    run: TryoutRun
    figures: TryoutFigures
    file: str
    command: str
    written: float
    most_held: int

    @property
    def policy(self) -> str:
        return self.run.options.policy

    @property
    def headline(self) -> str:
        """The answer in one or two sentences."""
        figures, name = self.figures, self.policy
        mean = figures.range_of("mean")
        if figures.same_times:
            return f"{name} would have changed nothing: every job starts when it does under plain Slurm."
        if not isfinite(mean.change):
            return f"Nothing can be said of {name}: jobs took no time."
        if not (figures.sooner or figures.later or figures.policy.restarts):
            return f"Under {name} no job would have ended a minute sooner or later than under plain Slurm."
        amount = percent(abs(mean.change))
        if abs(mean.change) < 0.005:  # noqa: PLR2004  # shown as 0 %
            what = f"Under {name} the mean job would have ended neither sooner nor later than under plain Slurm"
        else:
            word = "sooner" if mean.change < 0 else "later"
            what = f"Under {name} the mean job would have ended {amount} {word} than under plain Slurm"
        if not mean.is_known:
            sure = "how sure that is cannot be told from so few jobs"
        elif mean.is_sure or amount == "0 %":
            sure = f"90 % range {_range_text(mean)}"
        else:
            sure = f"no sure difference: 90 % range {_range_text(mean)}"
        moved = pluralise(figures.policy.restarts, "restart")
        return (
            f"{what} ({sure}). {pluralise(figures.sooner, 'job')} would have ended at least a minute sooner,"
            f" {figures.later} later, with {moved} of running jobs.{self._slowest}"
        )

    @property
    def _slowest(self) -> str:
        """What becomes of the slowest jobs, if they end later."""
        known = self.figures.range_of("p99")
        if not known.change >= 0.005:  # noqa: PLR2004  # shown as 0 %
            return ""
        took, sure = (
            duration(self.figures.policy.p99_s),
            f" (90 % range {_range_text(known)})" if known.is_known else "",
        )
        return f" The slowest job in a hundred would have taken {took}, {percent(known.change)} longer{sure}."


def _range_text(known: ChangeRange) -> str:
    return f"{signed_percent(known.low)} to {signed_percent(known.high)}"


@dataclass(frozen=True, slots=True)
class _Row:
    """A measure: how it is called, what it means, its values by column and its range, if there is one."""

    name: str
    meaning: str
    value: Callable[[TryoutColumn], float]
    text: Callable[[float], str]
    measure: str = ""
    recorded: bool = True


_ROWS: Final = (
    _Row("mean completion", "from when a job could start to its end", lambda of: of.mean_s, duration, "mean"),
    _Row("median completion", "half of the jobs end within it", lambda of: of.median_s, duration, "median"),
    _Row("p99 completion", "one job in a hundred takes longer", lambda of: of.p99_s, duration, "p99"),
    _Row("mean wait", "from when a job could start to its first start", lambda of: of.mean_wait_s, duration, "wait"),
    _Row("p99 wait", "one job in a hundred waits longer", lambda of: of.p99_wait_s, duration),
    _Row("makespan", "from the start of a window to the end of its last job", lambda of: of.makespan_s, duration),
    _Row(
        "slowdown p99",
        "completion over that with an even share of the cluster (finish-time fairness): one job in a hundred is above",
        lambda of: of.fairness_p99,
        lambda value: fixed(value, 2),
    ),
    _Row(
        "users alike",
        "Jain's index of the users' mean slowdowns: 1 if all users have the same",
        lambda of: of.users_even,
        lambda value: fixed(value, 2),
    ),
    _Row("GPUs idle", "of all GPUs, over the time in which jobs arrived", lambda of: of.idle, percent),
    _Row(
        "idle while jobs wait",
        "of all GPUs, over the time in which jobs waited",
        lambda of: of.idle_beside_waiting,
        percent,
    ),
    _Row("jobs waiting", "for their first start, mean number", lambda of: of.waiting, lambda value: fixed(value, 1)),
    _Row(
        "restarts",
        "of running jobs, by checkpoint and requeue",
        lambda of: float(of.restarts),
        lambda value: fixed(value, 0),
        recorded=False,
    ),
)


def _cells(row: _Row, figures: TryoutFigures) -> list[str]:
    shown = [row.text(row.value(column)) for column in figures.columns]
    if not row.recorded:
        shown[0] = "-"
    return shown


def _change_cell(row: _Row, figures: TryoutFigures) -> str:
    if not row.measure:
        return ""
    known = figures.range_of(row.measure)
    text = signed_percent(known.change) if isfinite(known.change) else "-"
    return f"{text} ({_range_text(known)})" if known.is_known else text


def settings_lines(tryout: Tryout) -> tuple[str, ...]:
    """The lines of synsched.toml that make a site what was simulated."""
    partitions = sorted({job.partition for job in tryout.accounting.jobs if job.partition}) or ["gpu"]
    named = [name for of in partitions for name in of.split(",")]
    system, _, order = tryout.policy.partition("/")
    return (
        "[manage]",
        f"partitions = {json.dumps(sorted(set(named)), ensure_ascii=True)}",
        "",
        "[policy]",
        f'system = "{system}"',
        *([f'order = "{order}"'] if order else []),
        "",
        "[learning]",
        "lengths = true",
        "",
        "[rounds]",
        'mode = "observe"   # changes nothing; later "enforce"',
    )


def notices(tryout: Tryout) -> Iterator[str]:
    """What a reader must know before believing a figure."""
    run, figures, shape = tryout.run, tryout.figures, tryout.shape
    if len(run.simulated) < run.windows:
        yield (
            f"Simulated were {len(run.simulated)} of {run.windows} windows of"
            f" {duration(run.simulated[0].end - run.simulated[0].start)}, drawn at random (seed {run.options.seed}):"
            " as many as there was time for; a larger --minutes gives more."
        )
    if tryout.most_held > shape.gpus:
        yield (
            f"sacct shows {pluralise(tryout.most_held, 'GPU')} in use at once, and this cluster has {shape.gpus}:"
            " it is not the one that the jobs ran on."
        )
    recorded, slurm, waited = figures.recorded.mean_s, figures.slurm.mean_s, figures.recorded.mean_wait_s
    is_far = recorded > 0 and abs(slurm / recorded - 1) > _FAR
    if is_far:
        yield (
            "What really happened is not what plain Slurm does in the simulation: the mean completion that sacct"
            f" records is {duration(recorded)}, simulated {duration(slurm)} ({signed_percent(slurm / recorded - 1)})."
            f" {_DIFFERENCES}"
        )
    if figures.slurm.mean_wait_s < _HARDLY:
        beside = f", though by sacct they waited {duration(waited)} on average" if waited >= _HARDLY else ""
        yield (
            f"Under plain Slurm, simulated, jobs hardly wait{beside}: there is no queue for a policy to order better."
            + (f" {_DIFFERENCES}" if beside and not is_far else "")
        )
    elif not tryout.run.options.checkpoints and not figures.policy.restarts:
        hinted = sum("ckpt=" in job.comment for job in tryout.accounting.jobs)
        yield (
            f"{_hinted(hinted)} by a hint that a checkpoint can be asked for, and only such jobs may be preempted."
            " With --checkpoints all jobs are taken to be like that."
        )


def _hinted(count: int) -> str:
    return "No job said" if not count else f"{pluralise(count, 'job')} said"


_DIFFERENCES: Final = (
    "The simulation has no priorities, partitions, QOS and limits of accounts, reservations, throttles of arrays and"
    " failures of nodes: compare the policy with plain Slurm as simulated."
)


def terms(tryout: Tryout) -> Iterator[str]:
    """How the figures came about, a sentence or two each."""
    run, figures = tryout.run, tryout.figures
    options = run.options
    start, end = run.simulated[0].start, run.simulated[-1].end
    yield (
        f"{pluralise(figures.jobs, 'job')} from {_day(start)} to {_day(end)}, in"
        f" {pluralise(len(run.simulated), 'window')} of {run.windows}. Cluster: {tryout.shape.source}."
    )
    yield (
        "slurm is Slurm's scheduler as the simulator has it: in order of submission, with EASY backfill."
        f" {tryout.policy} is the real code on a virtual cluster: rounds every {duration(options.period)} and at most"
        f" every {duration(options.early or 0.0)} in between; jobs that all fit start 3 s after they come, without a"
        " round. Nobody is told how long a job runs: time limits, hints and earlier jobs of the same owner tell it."
    )
    who = "All jobs are taken to write" if options.checkpoints else "Jobs whose hints say so write"
    costs = duration(options.overhead)
    yield f"{who} a checkpoint before a restart, which costs {costs}; the others are never preempted."
    if run.windows > 1:
        yield (
            "A window begins with the jobs that sacct shows then; they hold their GPUs as long as they did and do not"
            " count. No more jobs arrive after it, and its jobs run to their end: what a queue does to the next window"
            " is not seen, and long jobs have less company at their end than they had."
        )
    if any(known.is_known for known in figures.ranges):
        yield (
            f"Ranges: the jobs are cut into {figures.blocks} blocks by time of arrival, and blocks are drawn again 400"
            " times with replacement, the same for both (block bootstrap); 90 % of the changes are within the range."
            " That tells what other days like these would have given. It does not tell what the simulation gets wrong."
        )
    else:
        yield "Ranges are not told: there are too few jobs, or too few times at which they arrived."
    yield f"It took {duration(run.seconds)}, and {duration(run.core_seconds)} of one core."


def _day(at: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "-"


def left_out_lines(tryout: Tryout) -> Iterator[str]:
    """What the figures do not count, and what was taken for granted, with numbers."""
    for reason, count in tryout.accounting.left_out.items():
        yield f"left out: {counted(reason, count)}"
    for reason, count in list(tryout.run.impossible.items())[:_GROUPS]:
        yield f"left out: {pluralise(count, 'job')} that this cluster cannot hold: {printable(reason)}"
    if more := sum(list(tryout.run.impossible.values())[_GROUPS:]):
        yield f"left out: {pluralise(more, 'more job')} that this cluster cannot hold"
    if tryout.run.began_before:
        yield f"{pluralise(tryout.run.began_before, 'job')} came before the period: load, but not counted"
    yield from (*tryout.accounting.notes, *tryout.shape.notes)


def tryout_view(tryout: Tryout) -> RenderableType:
    """The page for a terminal of 80 columns."""
    figures = tryout.figures
    columns = (
        Column(""),
        Column("SACCT", True),
        Column("SLURM", True),
        Column(tryout.policy.upper(), True),
        Column("CHANGE"),
    )
    rows = [[row.name, *_cells(row, figures), _change_cell(row, figures)] for row in _ROWS]
    parts: list[RenderableType] = [safe_line(tryout.headline, "bold"), Text()]
    for line in notices(tryout):
        parts += [safe_line(f"! {line}"), Text()]
    parts += [Listing(columns, rows, shrinking=4), Text()]
    parts.append(
        safe_line("SACCT is what really happened; the others are simulated. CHANGE: policy against SLURM, 90 % range.")
    )
    for kind, title in _KINDS.items():
        parts += [Text(), _groups_listing(title, figures.groups(kind), tryout.policy)]
    parts += _loss_lines(tryout)
    parts += [Text(), safe_line("What to set (synsched.toml):", "bold"), Text()]
    parts += [safe_line(f"    {line}") for line in settings_lines(tryout)]
    parts += [Text(), safe_line("How this was found:", "bold")]
    parts += [safe_line(f"- {line}") for line in (*terms(tryout), *left_out_lines(tryout))]
    return Group(*parts)


def shown_groups(groups: Sequence[GroupGain]) -> tuple[GroupGain, ...]:
    """Those that gain most and those that lose most, in order of what they gain."""
    ordered = sorted(groups, key=lambda group: -group.hours_sooner)
    if len(ordered) <= 2 * _GROUPS:
        return tuple(ordered)
    return (*ordered[:_GROUPS], *ordered[-_GROUPS:])


def _groups_listing(title: str, groups: Sequence[GroupGain], policy: str) -> RenderableType:
    columns = (Column(title), *(Column(head, True) for head in ("JOBS", "SLURM", policy.upper(), "SOONER")))
    rows = [
        [
            _short(group.name),
            str(group.jobs),
            duration(group.slurm_s),
            duration(group.policy_s),
            _hours(group.hours_sooner),
        ]
        for group in shown_groups(groups)
    ]
    return Listing(columns, rows, shrinking=0)


def _short(name: str) -> str:
    shown = printable(name)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 3]}..."


def _hours(hours: float) -> str:
    return f"{hours + 0.0:+,.1f} h" if abs(hours) >= 0.05 else "0 h"  # noqa: PLR2004  # shown as 0.1


def _loss_lines(tryout: Tryout) -> list[RenderableType]:
    if not tryout.figures.losses:
        return [Text(), safe_line(f"No job would have ended a minute later under {tryout.policy}.")]
    lines = [
        f"job {loss.job} of {loss.user or 'nobody'} ({_short(loss.name)}, {pluralise(loss.gpus, 'GPU')}):"
        f" {duration(loss.later_s)} later"
        for loss in tryout.figures.losses
    ]
    return [Text(), safe_line("Those that would have lost most:"), *(safe_line(f"  {line}") for line in lines)]


def tryout_page(tryout: Tryout) -> str:
    """One self-contained HTML file."""
    figures = tryout.figures
    return render_page(
        "tryout.html",
        title=tryout.headline,
        written=written_at(tryout.written),
        policy=tryout.policy,
        source=printable(tryout.file),
        notices=list(notices(tryout)),
        rows=[
            {
                "name": row.name,
                "meaning": row.meaning,
                "cells": _cells(row, figures),
                "change": _change_cell(row, figures),
            }
            for row in _ROWS
        ],
        plots=_plots(tryout),
        groups=[
            {
                "title": title,
                "rows": [
                    {
                        "name": printable(group.name),
                        "jobs": group.jobs,
                        "slurm": duration(group.slurm_s),
                        "policy": duration(group.policy_s),
                        "hours": group.hours_sooner,
                        "text": _hours(group.hours_sooner),
                    }
                    for group in shown_groups(figures.groups(kind))
                ],
            }
            for kind, title in _KINDS.items()
        ],
        losses=[
            {
                "job": printable(loss.job),
                "user": printable(loss.user),
                "name": printable(loss.name),
                "gpus": loss.gpus,
                "later": duration(loss.later_s),
            }
            for loss in figures.losses
        ],
        settings="\n".join(settings_lines(tryout)),
        terms=list(terms(tryout)),
        left_out=[printable(line) for line in left_out_lines(tryout)],
        command=printable(tryout.command),
    )


def _plots(tryout: Tryout) -> list[Plot]:
    names = [column.policy for column in tryout.figures.columns]
    shown: Mapping[str, Callable[[WindowOutcome], Floats]] = {
        "Job completion times": lambda of: of.completions,
        "Waiting times": lambda of: of.waits,
    }
    plots = list[Plot]()
    for title, of in shown.items():
        values = {name: np.sort(tryout.run.joined(name, of)) for name in names}
        drawn = distribution(values, names, "time", Unit.DURATION)
        if drawn is not None:
            what = "from arrival to end" if title.startswith("Job") else "from arrival to the first start"
            caption = f"Part of the jobs that took at most so long, {what}. Higher is better."
            plots.append(Plot(title, caption, drawn.x, drawn.y, drawn.curves))
    return plots


@dataclass(frozen=True, slots=True)
class WindowSimulated:
    """A part of the period that was simulated."""

    start: float
    end: float
    jobs: int
    carried: int


@dataclass(frozen=True, slots=True)
class TryoutReport:
    """What `--json` prints of a tryout."""

    headline: str
    policy: str
    jobs: int
    columns: tuple[TryoutColumn, ...]
    changes: tuple[ChangeRange, ...]
    blocks: int
    ended_sooner: int
    ended_later: int
    same_times: bool
    gains: tuple[GroupGain, ...]
    losses: tuple[JobLoss, ...]
    windows: tuple[WindowSimulated, ...]
    windows_in_period: int
    days: float
    cluster: str
    gpus: int
    most_gpus_recorded: int
    left_out: Mapping[str, int]
    impossible: Mapping[str, int]
    began_before: int
    notices: tuple[str, ...]
    notes: tuple[str, ...]
    settings: str
    seed: int
    wall_s: float
    cpu_s: float


def tryout_report(tryout: Tryout) -> TryoutReport:
    """Returns what `--json` prints."""
    run, figures = tryout.run, tryout.figures
    return TryoutReport(
        headline=tryout.headline,
        policy=tryout.policy,
        jobs=figures.jobs,
        columns=figures.columns,
        changes=figures.ranges,
        blocks=figures.blocks,
        ended_sooner=figures.sooner,
        ended_later=figures.later,
        same_times=figures.same_times,
        gains=figures.gains,
        losses=figures.losses,
        windows=tuple(
            WindowSimulated(window.start, window.end, len(window.measured), window.carried) for window in run.simulated
        ),
        windows_in_period=run.windows,
        days=sum(window.end - window.start for window in run.simulated) / DAY,
        cluster=tryout.shape.source,
        gpus=tryout.shape.gpus,
        most_gpus_recorded=tryout.most_held,
        left_out=dict(tryout.accounting.left_out),
        impossible=dict(run.impossible),
        began_before=run.began_before,
        notices=tuple(notices(tryout)),
        notes=(*terms(tryout), *left_out_lines(tryout)),
        settings="\n".join(settings_lines(tryout)),
        seed=run.options.seed,
        wall_s=run.seconds,
        cpu_s=run.core_seconds,
    )
