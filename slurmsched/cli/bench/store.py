"""`synsched bench store`."""

from __future__ import annotations

import click

from slurmsched.bench.storing import time_store
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import progress
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration

__all__ = ["store"]


@click.command()
@click.option(
    "--jobs", type=click.IntRange(min=1), default=300_000, show_default=True, metavar="N", help="Finished jobs."
)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="How often to measure.")
@json_option
def store(*, jobs: int, repeat: int, as_json: bool) -> None:
    """Measure a round's part in the database.

    Two jobs are in the queue beside finished ones of 90 days, about 2 kB each in $TMPDIR.

    \b
    Example:
      synsched bench store --jobs 300000 --json
    """
    measured = time_store(jobs, progress(range(repeat), "recording rounds"))
    if as_json:
        print_json(measured)
        return
    columns = (Column("FIGURE"), Column("VALUE", right=True))
    rows = [
        ("a poll is written down", duration(measured.sight_s)),
        ("what earlier rounds left", duration(measured.memory_s)),
        ("a decision is written down", duration(measured.remember_s)),
        ("old history is dropped", duration(measured.prune_s)),
        ("all of it", duration(measured.total_s)),
        (f"the file, {measured.rows} finished jobs", f"{measured.file_mb:.0f} MB"),
    ]
    console().print(Listing(columns, rows))
