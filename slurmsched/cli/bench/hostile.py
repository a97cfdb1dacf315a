"""`synsched bench hostile`."""

from __future__ import annotations

from dataclasses import asdict

import click

from slurmsched.bench.hostile_rounds import BOUND_MS, feed_hostile
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import advancing
from slurmsched.model import SynschedError
from slurmsched.report.listing import Column, Listing

__all__ = ["hostile"]


class MisledError(SynschedError):
    """Text of one owner crashed something, changed another's job, or took too long to read."""


@click.command()
@click.option(
    "--records", type=click.IntRange(min=1), default=20_000, show_default=True, metavar="N", help="Hostile jobs."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Another seed, other text.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="W", help="Processes.")
@json_option
def hostile(*, records: int, seed: int, workers: int, as_json: bool) -> None:
    """Feed rounds with jobs whose owners pose as others.

    Made-up text of three releases of Slurm goes through reading and deciding, beside the same jobs with harmless text.
    Fails where anything crashes, another owner's job comes out otherwise, or one record takes 5 ms of the processor.

    \b
    Example:
      synsched bench hostile --records 1000000 --workers 2 --json
    """
    with advancing("reading hostile text") as tell:
        found = feed_hostile(records, seed, workers, tell)
    if as_json:
        print_json(found)
    else:
        columns = (Column("FIGURE"), Column("VALUE", right=True))
        figures = [(key, value) for key, value in asdict(found).items() if key != "examples"]
        console().print(Listing(columns, [(key, f"{value:.6g}") for key, value in figures]))
        for example in found.examples:
            click.echo(f"synsched: {example}", err=True)
    if found.crashes or found.changed_jobs or found.misread_jobs or found.lost_jobs:
        raise MisledError("hostile text was not harmless: the first cases are named above")
    if found.slowest_ms > BOUND_MS:
        raise MisledError(f"a record took {found.slowest_ms:.1f} ms, more than {BOUND_MS:g} ms")
