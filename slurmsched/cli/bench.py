"""`synsched bench`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from slurmsched.bench.consolidating import time_consolidation
from slurmsched.bench.deciding import time_decision
from slurmsched.bench.fragmentation import time_placements
from slurmsched.bench.jobside import time_jobside
from slurmsched.bench.pricing import time_pricing
from slurmsched.bench.shares import BENCHED, time_shares
from slurmsched.cli.cluster import knowledge, site
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.matching import tesserae
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import size
from slurmsched.cli.policy import MODE, with_mode, with_policy
from slurmsched.cli.progress import progress
from slurmsched.daemon.running import once
from slurmsched.knowledge import load_knowledge
from slurmsched.model import SynschedError
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration, memory

__all__ = ["bench"]


class NotMeasuredError(SynschedError):
    """There was no round of our own to measure."""


@click.group()
def bench() -> None:
    """Measure a round on the cluster, a decision, a placement, the wrapper of jobs.

    \b
    Example:
      synsched bench decide --policy synergy --gpus 256 --jobs 1000
      synsched bench round --json
    """


@bench.command("round")
@click.option("--mode", type=MODE, help="Another mode than the settings name.")
@json_option
@click.pass_obj
def round_(invocation: Invocation, *, mode: str | None, as_json: bool) -> None:
    """Measure one round on the cluster that the settings name.

    It is a round like any other: in mode enforce it changes what a round changes.

    \b
    Example:
      synsched bench round --mode observe --json
    """
    report = once(lambda: site(with_mode(invocation.settings, mode)), invocation.clock, _say)
    if report is None:
        raise NotMeasuredError("another 'synsched run' is at work: stop it, then measure")
    tally = report.tally
    figures = {
        "observe_s": tally.observe_s,
        "decide_s": tally.decide_s,
        "plan_s": tally.plan_s,
        "apply_s": tally.apply_s,
        "commands": tally.reads,
        "updates": tally.writes,
        "jobs": tally.jobs,
        "nodes": tally.nodes,
    }
    if as_json:
        print_json(figures)
        return
    columns = (Column("FIGURE"), Column("VALUE", right=True))
    console().print(Listing(columns, [(name, f"{value or 0:.6g}") for name, value in figures.items()]))


@bench.command()
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


@bench.command()
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


bench.add_command(tesserae)


@bench.command()
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


@bench.command()
@click.option("--jobs", type=click.IntRange(min=1), required=True, metavar="N", help="Active jobs.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="How often to measure.")
@json_option
def hadar(*, jobs: int, repeat: int, as_json: bool) -> None:
    """Measure a decision of Hadar's on a made-up cluster that grows with the queue: a GPU for 8 jobs, of three types.

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


@bench.command()
@click.option("--reports", type=click.IntRange(min=1), default=2000, show_default=True, help="Jobs that report.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds to read in.")
@click.option(
    "--model", type=size, default="64M", show_default=True, metavar="SIZE", help="A model forked three times."
)
@json_option
def jobside(*, reports: int, repeat: int, model: int, as_json: bool) -> None:
    """Measure what counting steps costs a job, what its jobs' reports cost a round, and consolidating copies.

    The copies' files take five times the model's size in $TMPDIR.

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


def _say(message: str) -> None:
    click.echo(f"synsched: {message}", err=True)
