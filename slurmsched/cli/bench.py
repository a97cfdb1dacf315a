"""`synsched bench`: how long the parts of a round take."""

from __future__ import annotations

from dataclasses import asdict

import click

from slurmsched.bench.consolidation import time_consolidation
from slurmsched.bench.decision import time_decision
from slurmsched.bench.hostile_rounds import BOUND_MS, run_hostile
from slurmsched.bench.jobside import time_jobside
from slurmsched.bench.store import time_store
from slurmsched.cli.bench_policies import fragmentation, gavel, hadar, tesserae
from slurmsched.cli.cluster import configured_knowledge, scheduler_context
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import MODE_CHOICE, parse_mebibytes, with_mode, with_policy
from slurmsched.cli.progress import progress_reporter, with_progress
from slurmsched.daemon.loop import run_once
from slurmsched.model import SynschedError
from slurmsched.report.quantities import duration, memory
from slurmsched.report.tables import Column, Listing


class NotMeasuredError(SynschedError):
    """There was no round of our own to measure."""


@click.command("round")
@click.option("--mode", type=MODE_CHOICE, help="Another mode than the settings name.")
@json_option
@click.pass_obj
def round_(invocation: Invocation, *, mode: str | None, as_json: bool) -> None:
    """Measure one round on the cluster that the settings name.

    It is a round like any other: in mode enforce it changes what a round changes.

    \b
    Example:
      synsched bench round --mode observe --json
    """
    report = run_once(lambda: scheduler_context(with_mode(invocation.settings, mode)), invocation.clock, _log_line)
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


def _log_line(message: str) -> None:
    click.echo(f"synsched: {message}", err=True)


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
    times = with_progress(range(repeat), "deciding")
    measured = time_decision(
        settings, configured_knowledge(settings), gpus=gpus, jobs=jobs, nodes=hosts, repetitions=times
    )
    if as_json:
        print_json(measured)
        return
    columns = (Column("POLICY"), Column("MEDIAN", right=True), Column("P95", right=True), Column("PEAK MB", right=True))
    row = (measured.policy, duration(measured.median_s), duration(measured.p95_s), f"{measured.peak_rss_mb:.0f}")
    console().print(Listing(columns, [row]))


@click.command()
@click.option("--reports", type=click.IntRange(min=1), default=2000, show_default=True, help="Jobs that report.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds to read in.")
@click.option(
    "--model",
    type=parse_mebibytes,
    default="64M",
    show_default=True,
    metavar="SIZE",
    help="A model forked three times.",
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
    measured = time_jobside(reports, with_progress(range(repeat), "reading reports"))
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
    measured = time_store(jobs, with_progress(range(repeat), "recording rounds"))
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


class HostileInputError(SynschedError):
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
    with progress_reporter("reading hostile text") as tell:
        found = run_hostile(records, seed, workers, tell)
    if as_json:
        print_json(found)
    else:
        columns = (Column("FIGURE"), Column("VALUE", right=True))
        figures = [(key, value) for key, value in asdict(found).items() if key != "examples"]
        console().print(Listing(columns, [(key, f"{value:.6g}") for key, value in figures]))
        for example in found.examples:
            click.echo(f"synsched: {example}", err=True)
    if found.crashes or found.changed_jobs or found.misread_jobs or found.lost_jobs:
        raise HostileInputError("hostile text was not harmless: the first cases are named above")
    if found.slowest_ms > BOUND_MS:
        raise HostileInputError(f"a record took {found.slowest_ms:.1f} ms, more than {BOUND_MS:g} ms")


@click.group(commands=(round_, decide, fragmentation, tesserae, gavel, hadar, hostile, jobside, store))
def bench() -> None:
    """Measure rounds, decisions, placements, the wrapper of jobs, the database.

    \b
    Example:
      synsched bench decide --policy synergy --gpus 256 --jobs 1000
      synsched bench round --json
    """
