"""`synsched bench fragmentation`, `gavel`, `hadar` and `tesserae`: measure the decisions of single policies."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import click

from slurmsched.bench.decisions import DecisionTime, time_decision
from slurmsched.bench.policies import (
    BENCHED_POLICIES,
    MatchingTime,
    growth,
    time_fractions,
    time_matching,
    time_placements,
    time_pricing,
)
from slurmsched.bench.workload import THREE_TYPES
from slurmsched.cli.cluster import configured_knowledge
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json, with_progress
from slurmsched.cli.parameters import complete_files, with_policy
from slurmsched.knowledge import load_knowledge
from slurmsched.report.quantities import duration
from slurmsched.report.tables import Column, Listing


@click.command()
@click.option(
    "--data",
    envvar="SLURMSCHED_DATA",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of the public data sets. Default: $SLURMSCHED_DATA.",
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="K", help="Nodes. Default: those of openb.")
@click.option("--priced", is_flag=True, help="The variant that prices the unallocated part of a GPU.")
@json_option("bench.policies:PlacementTime")
def fragmentation(*, data: Path, nodes: int | None, priced: bool, as_json: bool) -> None:
    """Measure placement by fragmentation gradient descent.

    Tasks of the openb trace are placed on its nodes (repeated or cut to --nodes) until they ask for 130 % of the GPUs.

    \b
    Example:
      synsched bench fragmentation --data ~/data --nodes 10000 --json
    """
    measured = time_placements(
        data / "fgd", nodes, priced=priced, track_progress=lambda count: with_progress(range(count), "placing")
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


@click.command()
@click.option(
    "--policy", type=click.Choice(tuple(BENCHED_POLICIES)), default="las", show_default=True, help="Gavel's objective."
)
@click.option("--jobs", type=click.IntRange(min=1), required=True, metavar="N", help="Active jobs.")
@click.option(
    "--profiles",
    metavar="FILE",
    shell_complete=complete_files,
    help="Gavel's throughputs.json. Default: that in $SLURMSCHED_DATA.",
)
@click.option("--all-different", is_flag=True, help="No two jobs have the same rates.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Repetitions.")
@json_option("bench.policies:TimeFractionsTime")
def gavel(*, policy: str, jobs: int, profiles: str | None, all_different: bool, repeat: int, as_json: bool) -> None:
    """Measure Gavel's allocation of 256 GPUs of three types.

    This is its linear program alone. The decision that the daemon calls is that of 'bench decide --policy gavel'.

    \b
    Example:
      synsched bench gavel --policy las --jobs 2048 --json
    """
    data = os.environ.get("SLURMSCHED_DATA")
    if profiles is None and data is None:
        raise click.UsageError("Gavel's throughputs are needed: give --profiles FILE or set SLURMSCHED_DATA")
    rates = load_knowledge(profiles or Path(data or "") / "gavel" / "throughputs.json")
    times = with_progress(range(repeat), "solving")
    measured = time_fractions(rates, policy, jobs, times, all_different=all_different)
    if as_json:
        print_json(measured)
        return
    columns = (
        Column("POLICY"),
        Column("JOBS", right=True),
        Column("MEDIAN", right=True),
        Column("CPU", right=True),
        Column("PEAK MB", right=True),
    )
    medians = (duration(measured.median_s), duration(measured.cpu_s))
    row = (measured.policy, str(jobs), *medians, f"{measured.peak_rss_mb:.0f}")
    console().print(Listing(columns, [row]))


@click.command()
@click.option("--jobs", type=click.IntRange(min=1), required=True, metavar="N", help="Active jobs.")
@click.option("--all-different", is_flag=True, help="No two jobs have the same rates.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Repetitions.")
@json_option("bench.policies:PricingTime")
def hadar(*, jobs: int, all_different: bool, repeat: int, as_json: bool) -> None:
    """Measure a decision of Hadar.

    The generated cluster has three GPU types and grows with the queue: one GPU for 8 jobs. This is its choice of GPUs
    alone. The decision that the daemon calls is that of 'bench decide --policy hadar'.

    \b
    Example:
      synsched bench hadar --jobs 2048 --json
    """
    measured = time_pricing(jobs, with_progress(range(repeat), "deciding"), all_different=all_different)
    if as_json:
        print_json(measured)
        return
    columns = (
        Column("JOBS", right=True),
        Column("GPUS", right=True),
        Column("MEDIAN", right=True),
        Column("P95", right=True),
        Column("CPU", right=True),
        Column("PEAK MB", right=True),
    )
    times = (duration(measured.median_s), duration(measured.p95_s), duration(measured.cpu_s))
    console().print(Listing(columns, [(str(jobs), str(measured.gpus), *times, f"{measured.peak_rss_mb:.0f}")]))


_PACKING_POLICY: Final = "tesserae-packed"
_SHARDS_PER_GPU: Final = 10

_SIZE_DIVISORS: Final = (8, 4, 2, 1)
"""The growth is fitted to the given size divided by each of these."""


@click.command()
@click.option("--gpus", type=click.IntRange(min=8), required=True, metavar="N", help="GPUs, 8 on each node.")
@click.option("--jobs", type=click.IntRange(min=8), required=True, metavar="M", help="Active jobs.")
@click.option("--repeat", type=click.IntRange(min=1), default=20, show_default=True, help="Repetitions.")
@click.option("--as-published", is_flag=True, help="Place and pack anew in every round, as in the paper's text.")
@click.option("--all-different", is_flag=True, help="In the live decision no two jobs have the same rates.")
@json_option("cli.bench_policies:MatchingTimes")
@click.pass_obj
def tesserae(
    invocation: Invocation,
    *,
    gpus: int,
    jobs: int,
    repeat: int,
    as_published: bool,
    all_different: bool,
    as_json: bool,
) -> None:
    """Measure a decision of Tesserae.

    Rounds on generated jobs: order, place, pack, and relabel nodes to avoid migrations. The growth of the time is
    fitted twice: with the jobs on a fixed cluster, and with jobs and GPUs together. These are the stages of the
    experiments. Measured beside them is the live policy that packs, as the daemon's rounds call it: three GPU types,
    500 users in 20 accounts, and jobs of one GPU that ask for half of one.

    \b
    Example:
      synsched bench tesserae --gpus 256 --jobs 2048 --json
    """
    if gpus % 8:
        raise click.UsageError(f"{gpus} GPUs are no multiple of 8, and each node has 8: choose a multiple")

    def measured(nodes: int, queue: int) -> MatchingTime:
        times = with_progress(range(repeat), f"deciding for {queue} jobs")
        return time_matching(nodes, 8, queue, times, as_published=as_published)

    queues = [measured(gpus // 8, jobs // part) for part in _SIZE_DIVISORS]
    clusters = [measured(max(gpus // 8 // part, 1), jobs // part) for part in _SIZE_DIVISORS[:-1]]
    whole = queues[-1]
    by_jobs, by_size = growth(queues), growth([*clusters, whole])
    settings = with_policy(invocation.settings, _PACKING_POLICY, None)
    live = time_decision(
        settings,
        configured_knowledge(settings),
        gpus=gpus,
        jobs=jobs,
        nodes=gpus // 8,
        repetitions=with_progress(range(repeat), f"deciding live for {jobs} jobs"),
        shape=replace(THREE_TYPES, all_different=all_different, shards_per_gpu=_SHARDS_PER_GPU),
    )
    if as_json:
        sizes = tuple(map(_stage_times, (*queues, *clusters)))
        print_json(MatchingTimes(**asdict(_stage_times(whole)), growth_jobs=by_jobs, growth_cluster=by_size,
                                 sizes=sizes, live=live))  # fmt: skip
        return
    stages = tuple(whole.stages)
    columns = [Column("GPUS", right=True), Column("JOBS", right=True), Column("MEDIAN", right=True)]
    columns += [Column(stage.upper(), right=True) for stage in stages]
    rows = [
        (
            str(time.gpus),
            str(time.jobs),
            _milliseconds(time.median_s),
            *(_milliseconds(time.stages[stage]) for stage in stages),
        )
        for time in (*clusters, *queues)
    ]
    console().print(Listing(tuple(columns), rows))
    console().print(f"time grows as jobs^{by_jobs:.2f} on a fixed cluster, as jobs^{by_size:.2f} with jobs and GPUs")
    times = f"{_milliseconds(live.median_s)}, {_milliseconds(live.cpu_s)} of CPU"
    console().print(f"live {live.policy} with {live.running} jobs running: {times}")


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Median seconds of one of Tesserae's decisions and of its stages; pairs and moved jobs are means of a round."""

    gpus: int
    jobs: int
    nodes: int
    repeat: int
    median_s: float
    p95_s: float
    order_s: float
    place_s: float
    pack_s: float
    rename_s: float
    pairs: float
    moved: float


@dataclass(frozen=True, slots=True)
class MatchingTimes(StageTimes):
    """The times at the full size, those of smaller sizes, how time grows, and a decision as a site runs it."""

    growth_jobs: float
    growth_cluster: float
    sizes: tuple[StageTimes, ...]
    live: DecisionTime


def _stage_times(time: MatchingTime) -> StageTimes:
    return StageTimes(
        time.gpus,
        time.jobs,
        time.nodes,
        time.repeat,
        time.median_s,
        time.p95_s,
        order_s=time.stages["order"],
        place_s=time.stages["place"],
        pack_s=time.stages["pack"],
        rename_s=time.stages["rename"],
        pairs=time.pairs,
        moved=time.moved,
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
