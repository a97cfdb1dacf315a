"""`synsched bench fragmentation`, `gavel`, `hadar` and `tesserae`: how long the papers' policies take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from slurmsched.bench.policies import (
    BENCHED_POLICIES,
    MatchingTime,
    growth,
    time_fractions,
    time_matching,
    time_placements,
    time_pricing,
)
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import with_progress
from slurmsched.knowledge import load_knowledge
from slurmsched.report.quantities import duration
from slurmsched.report.tables import Column, Listing


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
    "--policy", type=click.Choice(tuple(BENCHED_POLICIES)), default="las", show_default=True, help="What is shared."
)
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
    measured = time_fractions(rates, policy, jobs, with_progress(range(repeat), "sharing"))
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
    measured = time_pricing(jobs, with_progress(range(repeat), "deciding"))
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


_SIZE_DIVISORS: Final = (8, 4, 2, 1)
"""The growth is fitted to the size asked for, and to these parts of it."""


@click.command()
@click.option("--gpus", type=click.IntRange(min=8), required=True, metavar="N", help="GPUs, 8 to a node.")
@click.option("--jobs", type=click.IntRange(min=8), required=True, metavar="M", help="Active jobs.")
@click.option("--repeat", type=click.IntRange(min=1), default=20, show_default=True, help="How often to measure.")
@click.option("--as-published", is_flag=True, help="Place and pack anew every round, as the paper's text has it.")
@json_option
def tesserae(*, gpus: int, jobs: int, repeat: int, as_published: bool, as_json: bool) -> None:
    """Measure a decision that packs and renames.

    One round after the other on made-up jobs: order, place, pack, rename. How it grows is fitted twice: with the jobs
    on these GPUs, and with jobs and GPUs together.

    \b
    Example:
      synsched bench tesserae --gpus 256 --jobs 2048 --json
    """
    if gpus % 8:
        raise click.UsageError(f"{gpus} GPUs do not make nodes of 8: choose a multiple")

    def measured(nodes: int, queue: int) -> MatchingTime:
        times = with_progress(range(repeat), f"deciding for {queue} jobs")
        return time_matching(nodes, 8, queue, times, as_published=as_published)

    queues = [measured(gpus // 8, jobs // part) for part in _SIZE_DIVISORS]
    clusters = [measured(max(gpus // 8 // part, 1), jobs // part) for part in _SIZE_DIVISORS[:-1]]
    whole = queues[-1]
    by_jobs, by_size = growth(queues), growth([*clusters, whole])
    if as_json:
        print_json({**_time_as_json(whole), "growth_jobs": by_jobs, "growth_cluster": by_size,
                    "sizes": [_time_as_json(one) for one in (*queues, *clusters)]})  # fmt: skip
        return
    stages = tuple(whole.stages)
    columns = [Column("GPUS", right=True), Column("JOBS", right=True), Column("MEDIAN", right=True)]
    columns += [Column(stage.upper(), right=True) for stage in stages]
    rows = [
        (
            str(one.gpus),
            str(one.jobs),
            _milliseconds(one.median_s),
            *(_milliseconds(one.stages[stage]) for stage in stages),
        )
        for one in (*clusters, *queues)
    ]
    console().print(Listing(tuple(columns), rows))
    console().print(f"grows as jobs^{by_jobs:.2f} on these GPUs, as jobs^{by_size:.2f} with the cluster")


def _time_as_json(time: MatchingTime) -> dict[str, object]:
    return {
        "gpus": time.gpus,
        "jobs": time.jobs,
        "nodes": time.nodes,
        "repeat": time.repeat,
        "median_s": time.median_s,
        "p95_s": time.p95_s,
        **{f"{stage}_s": seconds for stage, seconds in time.stages.items()},
        "pairs": time.pairs,
        "moved": time.moved,
    }


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
