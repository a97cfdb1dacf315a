"""`synsched bench hadar`."""

from __future__ import annotations

import click

from slurmsched.bench.pricing import time_pricing
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import progress
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration

__all__ = ["hadar"]


@click.command()
@click.option("--jobs", type=click.IntRange(min=1), required=True, metavar="N", help="Active jobs.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="How often to measure.")
@json_option
def hadar(*, jobs: int, repeat: int, as_json: bool) -> None:
    """Measure a decision by Hadar's prices.

    The made-up cluster grows with the queue: a GPU for 8 jobs, of three types.

    \b
    Example:
      synsched bench hadar --jobs 2048 --json
    """
    measured = time_pricing(jobs, progress(range(repeat), "deciding"))
    if as_json:
        print_json(measured)
        return
    columns = (
        Column("JOBS", right=True),
        Column("GPUS", right=True),
        Column("MEDIAN", right=True),
        Column("P95", right=True),
        Column("PEAK MB", right=True),
    )
    times = (duration(measured.median_s), duration(measured.p95_s))
    console().print(Listing(columns, [(str(jobs), str(measured.gpus), *times, f"{measured.peak_rss_mb:.0f}")]))
