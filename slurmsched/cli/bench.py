"""`synsched bench`: measures rounds, decisions, reports, the database, hostile input and long runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import click

from slurmsched.bench.decisions import time_decision, time_lengths
from slurmsched.bench.hostile_rounds import BOUND_MS, run_hostile
from slurmsched.bench.jobside import ConsolidationTime, JobsideTime, time_consolidation, time_jobside
from slurmsched.bench.store import time_accounting, time_store
from slurmsched.bench.workload import THREE_TYPES
from slurmsched.cli.bench_policies import fragmentation, gavel, hadar, tesserae
from slurmsched.cli.bench_sizes import sizes
from slurmsched.cli.bench_soak import soak
from slurmsched.cli.cluster import configured_knowledge, scheduler_context
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json, progress_reporter, with_progress
from slurmsched.cli.parameters import (
    MODE_CHOICE,
    complete_orders,
    complete_policies,
    parse_mebibytes,
    with_mode,
    with_policy,
)
from slurmsched.daemon.log import remarks
from slurmsched.daemon.single_round import run_once
from slurmsched.model import SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, memory
from slurmsched.report.tables import Column, Listing


class NotMeasuredError(SynschedError):
    """No round could be measured because another scheduler holds the lock."""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """A real round: seconds of its parts, Slurm commands that only read and that change something, and its size."""

    observe_s: float | None
    decide_s: float | None
    plan_s: float | None
    apply_s: float | None
    commands: int
    updates: int
    jobs: int
    nodes: int


@dataclass(frozen=True, slots=True)
class JobsideTimes(JobsideTime):
    """What job reports cost, and the merging of a model's copies by file format."""

    consolidations: tuple[ConsolidationTime, ...]


@click.command("round")
@click.option("--mode", type=MODE_CHOICE, help="Use this mode instead of rounds.mode.")
@json_option("cli.bench:RoundTimes")
@click.pass_obj
def round_(invocation: Invocation, *, mode: str | None, as_json: bool) -> None:
    """Measure one round on the cluster of the settings.

    This is a real round: in mode enforce it changes jobs.

    \b
    Example:
      synsched bench round --mode observe --json
    """
    report = run_once(
        lambda: scheduler_context(with_mode(invocation.settings, mode)),
        invocation.clock,
        lambda _settings: remarks(_print_remark),
    )
    if report is None:
        raise NotMeasuredError("another 'synsched run' is active: stop it, then measure again")
    tally = report.tally
    figures = RoundTimes(
        observe_s=tally.observe_s,
        decide_s=tally.decide_s,
        plan_s=tally.plan_s,
        apply_s=tally.apply_s,
        commands=tally.reads,
        updates=tally.writes,
        jobs=tally.jobs,
        nodes=tally.nodes,
    )
    if as_json:
        print_json(figures)
        return
    _print_figures((name, f"{value or 0:.6g}") for name, value in asdict(figures).items())


def _print_figures(rows: Iterable[tuple[str, str]]) -> None:
    columns = (Column("FIGURE"), Column("VALUE", right=True))
    console().print(Listing(columns, list(rows)))


def _print_remark(message: str) -> None:
    click.echo(f"synsched: {message}", err=True)


@click.command()
@click.option(
    "--policy", metavar="NAME", shell_complete=complete_policies, help="The policy to measure. Default: policy.system."
)
@click.option(
    "--order", metavar="NAME", shell_complete=complete_orders, help="The job order to measure. Default: policy.order."
)
@click.option("--gpus", type=click.IntRange(min=1), required=True, metavar="N", help="GPUs of the generated cluster.")
@click.option("--jobs", type=click.IntRange(min=1), required=True, metavar="M", help="Jobs in its queue.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="K", help="Nodes. Default: one for 8 GPUs.")
@click.option("--all-different", is_flag=True, help="No two jobs have the same rates.")
@click.option("--sizes-differ", is_flag=True, help="Hardly two jobs ask for as many CPUs.")
@click.option("--powering-up", is_flag=True, help="The nodes power up: no job can start on them.")
@click.option("--empty", is_flag=True, help="Nothing runs yet, as in a cluster's first round.")
@click.option(
    "--users",
    type=click.IntRange(min=1),
    default=THREE_TYPES.users,
    show_default=True,
    metavar="U",
    help="Users of the jobs.",
)
@click.option(
    "--accounts", type=click.IntRange(min=1), default=THREE_TYPES.accounts, show_default=True, metavar="A",
    help="Accounts of these users.",
)  # fmt: skip
@click.option("--repeat", type=click.IntRange(min=1), default=20, show_default=True, help="Repetitions.")
@json_option("bench.decisions:DecisionTime")
@click.pass_obj
def decide(
    invocation: Invocation,
    *,
    policy: str | None,
    order: str | None,
    gpus: int,
    jobs: int,
    nodes: int | None,
    all_different: bool,
    sizes_differ: bool,
    powering_up: bool,
    empty: bool,
    users: int,
    accounts: int,
    repeat: int,
    as_json: bool,
) -> None:
    """Measure one whole decision on a generated cluster.

    This is the policy's decision as the daemon's rounds call it, without reading from Slurm or changing anything. A
    third of the nodes has each of three GPU types. The cluster is full before the measurement starts, unless --empty.

    \b
    Example:
      synsched bench decide --policy synergy --gpus 256 --jobs 1000 --json
    """
    hosts = nodes or max(gpus // 8, 1)
    if gpus % hosts:
        raise click.UsageError(f"{gpus} GPUs cannot be divided among {hosts} nodes: choose a multiple of {hosts}")
    settings = with_policy(invocation.settings, policy, order)
    rounds = with_progress(range(repeat), "deciding")
    measured = time_decision(
        settings,
        configured_knowledge(settings),
        gpus=gpus,
        jobs=jobs,
        nodes=hosts,
        repetitions=rounds,
        shape=replace(
            THREE_TYPES,
            users=users,
            accounts=accounts,
            all_different=all_different,
            sizes_differ=sizes_differ,
            powering_up=powering_up,
        ),
        empty=empty,
    )
    if as_json:
        print_json(measured)
        return
    columns = (
        Column("POLICY"),
        Column("MEDIAN", right=True),
        Column("P95", right=True),
        Column("CPU", right=True),
        Column("PEAK MB", right=True),
    )
    times = (duration(measured.median_s), duration(measured.p95_s), duration(measured.cpu_s))
    row = (measured.policy, *times, f"{measured.peak_rss_mb:.0f}")
    console().print(Listing(columns, [row]))


@click.command()
@click.option("--reports", type=click.IntRange(min=1), default=2000, show_default=True, help="Jobs that report.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Repetitions.")
@click.option(
    "--model",
    type=parse_mebibytes,
    default="64M",
    show_default=True,
    metavar="SIZE",
    help="Size of the model whose three copies are merged.",
)
@json_option("cli.bench:JobsideTimes")
def jobside(*, reports: int, repeat: int, model: int, as_json: bool) -> None:
    """Measure what job reports cost.

    Measures the overhead per training step in the job, the time for the scheduler to read all reports, and the merging
    of a model's copies. The copies take five times the model's size in $TMPDIR.

    \b
    Example:
      synsched bench jobside --model 10G --json
    """
    if model < 1:
        raise click.UsageError("a model has at least 1 MiB: write --model 64M")
    measured = time_jobside(reports, with_progress(range(repeat), "reading reports"))
    means = time_consolidation(model)
    if as_json:
        print_json(JobsideTimes(**asdict(measured), consolidations=tuple(means)))
        return
    rows = [
        ("overhead per step, no pause between steps", f"{measured.step_us:.3g} us"),
        ("overhead per step, one step every 5 ms", f"{measured.paced_us:.3g} us"),
        ("the same as a part of 5 ms", f"{measured.paced_percent:.2g} %"),
        (f"reading {pluralise(reports, 'report')} in a round", duration(measured.ingest_s)),
    ]
    for mean in means:
        name = f"averaging {mean.copies} copies of {memory(model)}, {mean.form}"
        rows += [(name, duration(mean.seconds)), ("  peak memory", f"{mean.peak_own_mb:.0f} MB")]
        rows += [("  peak memory with mapped files", f"{mean.peak_mb:.0f} MB")]
    _print_figures(rows)


@click.command()
@click.option(
    "--jobs", type=click.IntRange(min=1), default=300_000, show_default=True, metavar="N", help="Finished jobs."
)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Repetitions.")
@json_option("bench.store:StoreTime")
def store(*, jobs: int, repeat: int, as_json: bool) -> None:
    """Measure a round's database work.

    The database holds two queued jobs and finished ones of the last 90 days, about 2 kB each in $TMPDIR.

    \b
    Example:
      synsched bench store --jobs 300000 --json
    """
    measured = time_store(jobs, with_progress(range(repeat), "recording rounds"))
    if as_json:
        print_json(measured)
        return
    rows = [
        ("record a poll", duration(measured.sight_s)),
        ("load the state", duration(measured.memory_s)),
        ("record a decision", duration(measured.remember_s)),
        ("prune old history", duration(measured.prune_s)),
        ("total", duration(measured.total_s)),
        (f"file size with {pluralise(measured.rows, 'finished job')}", f"{measured.file_mb:.0f} MB"),
    ]
    _print_figures(rows)


@click.command()
@click.option(
    "--finished", type=click.IntRange(min=1), default=300_000, show_default=True, metavar="N", help="Finished runs."
)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds of each kind.")
@json_option("bench.store:AccountingTime")
def accounting(*, finished: int, repeat: int, as_json: bool) -> None:
    """Measure what a round pays to learn of runs that have ended.

    What sacct would print is generated, two rows for each run; reading it and the database are real. slurmdbd's own
    time is not in it.

    \b
    Example:
      synsched bench accounting --finished 300000 --json
    """
    measured = time_accounting(finished, with_progress(range(repeat), "reading accounting"))
    if as_json:
        print_json(measured)
        return
    runs, pages = pluralise(measured.finished, "finished run"), pluralise(measured.pages, "page")
    rows = [
        (f"read {runs}, once, in {pages}", duration(measured.first_s)),
        ("the longest page", duration(measured.longest_page_s)),
        ("file size then", f"{measured.file_mb:.0f} MB"),
    ]
    for one in measured.rounds:
        rows += [
            (f"a round in which {pluralise(one.ended, 'run')} ended", duration(one.total_s)),
            (f"  read {one.mb:.1f} MB of sacct", duration(one.parse_s)),
            ("  store", duration(one.record_s)),
        ]
    _print_figures(rows)


@click.command()
@click.option(
    "--finished", type=click.IntRange(min=1), default=300_000, show_default=True, metavar="N", help="Finished runs."
)
@click.option("--jobs", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="M", help="Jobs.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds.")
@json_option("bench.decisions:LengthsTime")
def lengths(*, finished: int, jobs: int, repeat: int, as_json: bool) -> None:
    """Measure how long a round takes to forecast the lengths of jobs.

    The history is generated: runs of 500 users with 40 scripts each. Each round 500 more have ended.

    \b
    Example:
      synsched bench lengths --finished 300000 --jobs 10000 --json
    """
    measured = time_lengths(finished, jobs, with_progress(range(repeat), "forecasting lengths"))
    if as_json:
        print_json(measured)
        return
    rows = [
        (f"read {pluralise(measured.finished, 'finished run')}, once", duration(measured.read_s)),
        (f"add {pluralise(measured.ended_per_round, 'run')} that ended", duration(measured.add_s)),
        (f"forecast {pluralise(measured.jobs, 'job')}", duration(measured.forecast_s)),
        ("total of a round", duration(measured.round_s)),
        ("the same in CPU time", duration(measured.cpu_s)),
        ("peak memory", f"{measured.peak_rss_mb:.0f} MB"),
    ]
    _print_figures(rows)


class HostileInputError(SynschedError):
    """Hostile text of one user crashed the scheduler, changed another user's job, or took too long to parse."""


@click.command()
@click.option(
    "--records", type=click.IntRange(min=1), default=20_000, show_default=True, metavar="N", help="Hostile jobs."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Seed of the generator.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="W", help="Worker processes."
)
@json_option("bench.hostile_rounds:HostileResults")
def hostile(*, records: int, seed: int, workers: int, as_json: bool) -> None:
    """Test rounds with hostile text in job fields.

    Generated job records of three Slurm releases, in which users try to forge other jobs, are parsed and scheduled, and
    compared with the same jobs with harmless text. Fails if anything crashes, if another user's job is changed, or if
    one record takes more than 5 ms of CPU time.

    \b
    Example:
      synsched bench hostile --records 1000000 --workers 2 --json
    """
    with progress_reporter("parsing hostile text") as report_progress:
        result = run_hostile(records, seed, workers, report_progress)
    if as_json:
        print_json(result)
    else:
        figures = [(key, value) for key, value in asdict(result).items() if key != "examples"]
        _print_figures((key, f"{value:.6g}") for key, value in figures)
        for example in result.examples:
            click.echo(f"synsched: {example}", err=True)
    if result.crashes or result.changed_jobs or result.misread_jobs or result.lost_jobs:
        raise HostileInputError("hostile text did harm: the first cases are listed above")
    if result.slowest_ms > BOUND_MS:
        raise HostileInputError(f"a record took {result.slowest_ms:.1f} ms, more than {BOUND_MS:g} ms")


@click.group(
    commands=(
        round_,
        accounting,
        decide,
        fragmentation,
        tesserae,
        gavel,
        hadar,
        hostile,
        jobside,
        lengths,
        sizes,
        soak,
        store,
    )
)
def bench() -> None:
    """Measure rounds, decisions, reports and the database.

    \b
    Example:
      synsched bench decide --policy synergy --gpus 256 --jobs 1000
      synsched bench round --json
    """
