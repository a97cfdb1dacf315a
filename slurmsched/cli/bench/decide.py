"""`synsched bench decide`."""

from __future__ import annotations

import click

from slurmsched.bench.deciding import time_decision
from slurmsched.cli.cluster import knowledge
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.policy import with_policy
from slurmsched.cli.progress import progress
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration

__all__ = ["decide"]


@click.command()
@click.option("--policy", metavar="NAME", help="The system to measure; the settings' own without it.")
@click.option("--order", metavar="NAME", help="The order to measure; the settings' own without it.")
@click.option("--gpus", type=click.IntRange(min=1), required=True, metavar="N", help="GPUs of the made-up cluster.")
@click.option("--jobs", type=click.IntRange(min=1), required=True, metavar="M", help="Jobs in its queue.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="K", help="Nodes; 8 GPUs on each without it.")
@click.option("--repeat", type=click.IntRange(min=1), default=20, show_default=True, help="How often to measure.")
@json_option
@click.pass_obj
def decide(
    invocation: Invocation,
    *,
    policy: str | None,
    order: str | None,
    gpus: int,
    jobs: int,
    nodes: int | None,
    repeat: int,
    as_json: bool,
) -> None:
    """Measure one whole decision on a made-up cluster.

    All nodes are equal; the cluster is full before the clock starts.

    \b
    Example:
      synsched bench decide --policy synergy --gpus 256 --jobs 1000 --json
    """
    hosts = nodes or max(gpus // 8, 1)
    if gpus % hosts:
        raise click.UsageError(f"{gpus} GPUs do not divide over {hosts} nodes: choose a multiple")
    settings = with_policy(invocation.settings, policy, order)
    times = progress(range(repeat), "deciding")
    measured = time_decision(settings, knowledge(settings), gpus=gpus, jobs=jobs, nodes=hosts, times=times)
    if as_json:
        print_json(measured)
        return
    columns = (Column("POLICY"), Column("MEDIAN", right=True), Column("P95", right=True), Column("PEAK MB", right=True))
    row = (measured.policy, duration(measured.median_s), duration(measured.p95_s), f"{measured.peak_rss_mb:.0f}")
    console().print(Listing(columns, [row]))
