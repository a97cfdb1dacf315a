"""`synsched bench fragmentation`."""

from __future__ import annotations

from pathlib import Path

import click

from slurmsched.bench.fragmentation import time_placements
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import progress
from slurmsched.report.listing import Column, Listing

__all__ = ["fragmentation"]


@click.command()
@click.option(
    "--data",
    envvar="SLURMSCHED_DATA",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder of public data sets; $SLURMSCHED_DATA without it.",
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="K", help="Nodes; as many as openb has without it.")
@click.option("--priced", is_flag=True, help="The variant that prices what is left of a GPU.")
@json_option
def fragmentation(*, data: Path, nodes: int | None, priced: bool, as_json: bool) -> None:
    """Measure placing by fragmentation gradient descent.

    Openb's nodes, their list repeated or cut, are filled with its tasks to 130 % of the GPUs.

    \b
    Example:
      synsched bench fragmentation --data ~/data --nodes 10000 --json
    """
    measured = time_placements(
        data / "fgd", nodes, priced=priced, tracked=lambda count: progress(range(count), "placing")
    )
    if as_json:
        print_json(measured)
        return
    columns = (
        Column("POLICY"),
        Column("NODES", right=True),
        Column("DECISIONS", right=True),
        Column("MEDIAN", right=True),
        Column("P99", right=True),
        Column("CPU", right=True),
        Column("PEAK MB", right=True),
    )
    row = (
        measured.policy,
        str(measured.nodes),
        str(measured.decisions),
        f"{1000 * measured.median_s:.2f} ms",
        f"{1000 * measured.p99_s:.2f} ms",
        f"{measured.total_cpu_s:.1f} s",
        f"{measured.peak_rss_mb:.0f}",
    )
    console().print(Listing(columns, [row]))
