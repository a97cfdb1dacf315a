"""`synsched bench gavel`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from slurmsched.bench.shares import BENCHED, time_shares
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import progress
from slurmsched.knowledge import load_knowledge
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration

__all__ = ["gavel"]


@click.command()
@click.option("--policy", type=click.Choice(tuple(BENCHED)), default="las", show_default=True, help="What is shared.")
@click.option("--jobs", type=click.IntRange(min=1), required=True, metavar="N", help="Active jobs.")
@click.option("--profiles", metavar="FILE", help="Gavel's throughputs.json; that of $SLURMSCHED_DATA without it.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="How often to measure.")
@json_option
def gavel(*, policy: str, jobs: int, profiles: str | None, repeat: int, as_json: bool) -> None:
    """Measure Gavel's shares of 256 GPUs of three types.

    \b
    Example:
      synsched bench gavel --policy las --jobs 2048 --json
    """
    data = os.environ.get("SLURMSCHED_DATA")
    if profiles is None and data is None:
        raise click.UsageError("say where Gavel's rates are: --profiles FILE, or SLURMSCHED_DATA in the environment")
    rates = load_knowledge(profiles or Path(data or "") / "gavel" / "throughputs.json")
    measured = time_shares(rates, policy, jobs, progress(range(repeat), "sharing"))
    if as_json:
        print_json(measured)
        return
    columns = (
        Column("POLICY"),
        Column("JOBS", right=True),
        Column("MEDIAN", right=True),
        Column("PEAK MB", right=True),
    )
    row = (measured.policy, str(jobs), duration(measured.median_s), f"{measured.peak_rss_mb:.0f}")
    console().print(Listing(columns, [row]))
