"""Plots of a comparison, each an SVG text of its own that needs nothing else."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from slurmsched.comparing import Result
from slurmsched.model import SynschedError
from slurmsched.report.comparison import Comparison, entitlement
from slurmsched.simulation.figures import cdf, fairness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["NoPlotsError", "Plot", "plots"]

HOUR: Final = 3600.0
MOST_USERS: Final = 12

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Okabe and Ito's, which people with any kind of colour vision can tell apart."""


class NoPlotsError(SynschedError):
    """matplotlib is not installed."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture, what it shows for those who cannot see it, and what it is called."""

    title: str
    caption: str
    svg: str


def plots(results: Sequence[Result], comparison: Comparison) -> tuple[Plot, ...]:
    """All that there is data for. Raises NoPlotsError."""
    colour = {policy: _COLOURS[place % len(_COLOURS)] for place, policy in enumerate(comparison.policies)}
    top = max(comparison.loads, default=None)
    shown: dict[str, Result] = {}
    for result in results:
        if result.cell.load == top:
            shown.setdefault(result.cell.policy.name, result)
    at = "" if top is None else f" at {top:g} jobs an hour"
    made = [
        _plot(
            "Job completion times",
            f"Part of the jobs that ended within a time{at}; further left is better.",
            lambda axes: _completion(axes, shown, colour),
        ),
        _plot("GPUs in use", f"GPUs that jobs hold, over time{at}.", lambda axes: _use(axes, shown, colour, "gpus")),
        _plot("CPUs in use", f"CPUs that jobs hold, over time{at}.", lambda axes: _use(axes, shown, colour, "cpus")),
        _plot(
            "Finish-time fairness",
            f"Part of the jobs within a slowdown against an even part of the cluster{at}; further left is better.",
            lambda axes: _fairness(axes, shown, colour),
        ),
    ]
    if len(comparison.loads) > 1:
        made.insert(
            1,
            _plot(
                "Load",
                "Mean job completion time by jobs per hour; lower is better.",
                lambda axes: _load(axes, comparison, colour),
            ),
        )
    shares = entitlement(list(shown.values()))
    if any(len(users) > 1 for users in shares.values()):
        made.append(
            _plot(
                "Shares of users",
                f"GPU time of each user against an even share{at}; 1 is even.",
                lambda axes: _shares(axes, shares, colour),
            )
        )
    return tuple(made)


def _plot(title: str, caption: str, draw: Callable[[Axes], None]) -> Plot:
    with _figure() as (figure, axes):
        draw(axes)
        axes.grid(visible=True, alpha=0.3)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids are made unique per picture, and black becomes the page's own colour, so that it is read in the dark as well.
    prefix = re.sub(r"\W", "", title)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", svg).replace("#000000", "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return Plot(title, f"{caption} Simulated.", svg)


@contextmanager
def _figure() -> Iterator[tuple[Any, Axes]]:
    try:
        from matplotlib import rc_context  # noqa: PLC0415  # an extra that most commands do without
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise NoPlotsError("the report needs matplotlib: pip install 'slurmsched[plots]'") from error
    with rc_context({"svg.hashsalt": "synsched", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        yield figure, figure.subplots()


def _completion(axes: Axes, shown: dict[str, Result], colour: dict[str, str]) -> None:
    for policy, result in shown.items():
        times, parts = cdf(result.run)
        axes.step(times / HOUR, parts, where="post", label=policy, color=colour[policy])
    axes.set(xscale="log", xlabel="hours", ylabel="part of the jobs", ylim=(0, 1))


def _fairness(axes: Axes, shown: dict[str, Result], colour: dict[str, str]) -> None:
    for policy, result in shown.items():
        rho = np.sort(fairness(result.run))
        axes.step(rho, np.arange(1, len(rho) + 1) / max(len(rho), 1), where="post", label=policy, color=colour[policy])
    axes.axvline(1, color="gray", linewidth=1)
    axes.set(xlabel="slowdown against an even part", ylabel="part of the jobs", ylim=(0, 1))


def _use(axes: Axes, shown: dict[str, Result], colour: dict[str, str], what: str) -> None:
    for policy, result in shown.items():
        times = [sample.time / HOUR for sample in result.run.samples]
        axes.step(
            times,
            [getattr(sample, what) for sample in result.run.samples],
            where="post",
            label=policy,
            color=colour[policy],
            linewidth=1,
        )
    total = max((getattr(result.run, f"total_{what}") for result in shown.values()), default=0.0)
    axes.axhline(total, color="gray", linewidth=1)
    axes.set(xlabel="hours", ylabel=what.upper()[:-1] + "s", ylim=(0, None))


def _load(axes: Axes, comparison: Comparison, colour: dict[str, str]) -> None:
    for policy in comparison.policies:
        points = sorted(
            (row.load, row.avg_jct_s / HOUR) for row in comparison.rows if row.policy == policy and row.load
        )
        axes.plot(
            [load for load, _ in points], [jct for _, jct in points], marker="o", label=policy, color=colour[policy]
        )
    axes.set(xlabel="jobs per hour", ylabel="mean JCT, hours", ylim=(0, None))


def _shares(axes: Axes, by_policy: Mapping[str, Mapping[str, float]], colour: dict[str, str]) -> None:
    users = sorted({user for got in by_policy.values() for user in got})[:MOST_USERS]
    width = 0.8 / max(len(by_policy), 1)
    for place, (policy, got) in enumerate(by_policy.items()):
        left = np.arange(len(users)) + width * (place - (len(by_policy) - 1) / 2)
        axes.bar(left, [got.get(user, 0.0) for user in users], width, label=policy, color=colour[policy])
    axes.axhline(1, color="gray", linewidth=1)
    axes.set_xticks(range(len(users)), [user[:12] for user in users], rotation=30, ha="right")
    axes.set(ylabel="of an even share")
