"""`synsched bench jobside`."""

from __future__ import annotations

from dataclasses import asdict

import click

from slurmsched.bench.consolidating import time_consolidation
from slurmsched.bench.jobside import time_jobside
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import size
from slurmsched.cli.progress import progress
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration, memory

__all__ = ["jobside"]


@click.command()
@click.option("--reports", type=click.IntRange(min=1), default=2000, show_default=True, help="Jobs that report.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds to read in.")
@click.option(
    "--model", type=size, default="64M", show_default=True, metavar="SIZE", help="A model forked three times."
)
@json_option
def jobside(*, reports: int, repeat: int, model: int, as_json: bool) -> None:
    """Measure what counting steps and saying so costs.

    A step costs the job, reports cost a round, and copies are put together.
    Their files take five times the model's size in $TMPDIR.

    \b
    Example:
      synsched bench jobside --model 10G --json
    """
    if model < 1:
        raise click.UsageError("a model has a MiB at least: write --model 64M")
    measured = time_jobside(reports, progress(range(repeat), "reading reports"))
    means = time_consolidation(model)
    if as_json:
        print_json({**asdict(measured), "consolidations": [asdict(mean) for mean in means]})
        return
    columns = (Column("FIGURE"), Column("VALUE", right=True))
    rows = [
        ("a step, in a tight loop", f"{measured.step_us:.3g} us"),
        ("a step, 5 ms apart", f"{measured.paced_us:.3g} us"),
        ("that is, of 5 ms", f"{measured.paced_percent:.2g} %"),
        (f"a round with {reports} reports", duration(measured.ingest_s)),
    ]
    for mean in means:
        name = f"{mean.copies} copies of {memory(model)} in one, {mean.form}"
        rows += [(name, duration(mean.seconds)), ("  memory", f"{mean.peak_own_mb:.0f} MB")]
        rows += [("  memory and mapped files", f"{mean.peak_mb:.0f} MB")]
    console().print(Listing(columns, rows))
