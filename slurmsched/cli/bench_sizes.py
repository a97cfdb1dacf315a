"""`synsched bench sizes`: what a decision of each policy takes on clusters of several sizes, and how that grows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, nan
from typing import Any, Final

import click
import numpy as np

from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import complete_policies
from slurmsched.model import SynschedError
from slurmsched.policies.policies import POLICIES
from slurmsched.report.quantities import duration, fixed
from slurmsched.report.tables import Column, Listing

_JOBS_PER_GPU: Final = 2
_USERS, _ACCOUNTS = 5000, 200
_WARM_UP: Final = 5.0
"""How many times the time limit of a decision a process may take: it also generates the cluster and fills it."""


@dataclass(frozen=True, slots=True)
class DecisionAtSize:
    """Processor seconds of one decision, and the peak memory in MB of a process that does nothing else; NaN where it
    gave no answer in time, or `failed`."""

    policy: str
    gpus: int
    seconds: float
    megabytes: float
    failed: str = ""


@dataclass(frozen=True, slots=True)
class DecisionSizes:
    """Decisions by policy and size, and by policy the exponent with which they grow."""

    decisions: tuple[DecisionAtSize, ...]
    growth: Mapping[str, float]


def growth_exponent(measured: Sequence[DecisionAtSize]) -> float:
    """Return the exponent k of seconds ~ GPUs^k, by least squares of the logarithms; NaN for fewer than two answers."""
    known = [one for one in measured if one.seconds > 0]
    if len({one.gpus for one in known}) < 2:  # noqa: PLR2004 a line needs two points
        return nan
    return float(np.polyfit([log(one.gpus) for one in known], [log(one.seconds) for one in known], 1)[0])


@click.command()
@click.option(
    "--policies", metavar="P,...", shell_complete=complete_policies, help="Policies to measure. Default: all of them."
)
@click.option(
    "--gpus", "sizes", metavar="N,...", default="1000,10000,100000", show_default=True, help="Sizes of the clusters."
)
@click.option(
    "--limit", type=click.FloatRange(min=1), default=60.0, show_default=True, metavar="SECONDS",
    help="Longest decision; beyond it the next size is not measured.",
)  # fmt: skip
@json_option("cli.bench_sizes:DecisionSizes")
def sizes(*, policies: str | None, sizes: str, limit: float, as_json: bool) -> None:
    """Measure decisions of all policies on clusters of several sizes.

    Each policy and size has a process of its own, one after the other. There are two jobs per GPU of 5,000 users in 200
    accounts, no two of them alike, and three GPU types. Seconds are processor time.

    \b
    Example:
      synsched bench sizes --policies synergy,unified --gpus 1000,10000
    """
    names = policies.split(",") if policies else list(POLICIES)
    if unknown := sorted(set(names) - POLICIES.keys()):
        raise click.UsageError(f"no policy {unknown[0]}: 'synsched bench sizes --policies ' and TAB lists them")
    gpus = sorted(_parse_sizes(sizes))
    measured = {name: list(_measure(name, gpus, limit)) for name in names}
    if as_json:
        decisions = tuple(one for of_policy in measured.values() for one in of_policy)
        print_json(DecisionSizes(decisions, {name: growth_exponent(of) for name, of in measured.items()}))
        return
    columns = [Column("POLICY")]
    for size in gpus:
        columns += [Column(f"{size:,} GPUS", right=True), Column("MB", right=True)]
    rows_shown = [_row(name, of_policy, gpus) for name, of_policy in measured.items()]
    console().print(Listing((*columns, Column("GROWTH", right=True)), rows_shown))


def _parse_sizes(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or any(size < 1 or size % 8 for size in found):
        raise click.UsageError(f"--gpus {text}: write multiples of 8, as in 1000,10000")
    return found


def _row(name: str, measured: Sequence[DecisionAtSize], sizes: Sequence[int]) -> tuple[str, ...]:
    by_size = {one.gpus: one for one in measured}
    cells = list[str]()
    for size in sizes:
        one = by_size.get(size)
        cells += ["-", "-"] if one is None else [one.failed, "-"] if one.failed else _figures(one)
    return name, *cells, fixed(growth_exponent(measured), 2)


def _figures(one: DecisionAtSize) -> list[str]:
    return [duration(one.seconds), f"{one.megabytes:.0f}"]


def _measure(policy: str, sizes: Sequence[int], limit: float) -> Iterator[DecisionAtSize]:
    for gpus in sizes:
        one = _measure_one(policy, gpus, limit)
        yield one
        if one.failed or one.seconds > limit:
            return


def _measure_one(policy: str, gpus: int, limit: float) -> DecisionAtSize:
    """Measure in a process of its own, so that memory is that of this policy and size alone."""
    command = [sys.executable, "-m", "slurmsched", "bench", "decide", "--policy", policy, "--gpus", str(gpus)]
    command += ["--jobs", str(_JOBS_PER_GPU * gpus), "--users", str(_USERS), "--accounts", str(_ACCOUNTS)]
    command += ["--all-different", "--repeat", "1", "--json"]
    longest = None if limit == inf else limit * _WARM_UP + gpus / 100
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=longest, check=False)
    except subprocess.TimeoutExpired:
        return DecisionAtSize(policy, gpus, nan, nan, f"over {duration(longest or 0.0)}")
    except OSError as error:
        raise SynschedError(f"cannot start {command[0]}: {error.strerror}") from error
    if said.returncode:
        return DecisionAtSize(policy, gpus, nan, nan, f"ended with status {said.returncode}")
    told: dict[str, Any] = json.loads(said.stdout)
    return DecisionAtSize(policy, gpus, told["cpu_s"], told["peak_rss_mb"])
