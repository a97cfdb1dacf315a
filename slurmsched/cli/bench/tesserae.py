"""`synsched bench tesserae`."""

from __future__ import annotations

from typing import Final

import click

from slurmsched.bench.matching import MatchingTime, growth, time_matching
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import progress
from slurmsched.report.listing import Column, Listing

__all__ = ["tesserae"]

_PARTS: Final = (8, 4, 2, 1)
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
        times = progress(range(repeat), f"deciding for {queue} jobs")
        return time_matching(nodes, 8, queue, times, as_published=as_published)

    queues = [measured(gpus // 8, jobs // part) for part in _PARTS]
    clusters = [measured(max(gpus // 8 // part, 1), jobs // part) for part in _PARTS[:-1]]
    whole = queues[-1]
    by_jobs, by_size = growth(queues), growth([*clusters, whole])
    if as_json:
        print_json({**_figures(whole), "growth_jobs": by_jobs, "growth_cluster": by_size,
                    "sizes": [_figures(one) for one in (*queues, *clusters)]})  # fmt: skip
        return
    stages = tuple(whole.stages)
    columns = [Column("GPUS", right=True), Column("JOBS", right=True), Column("MEDIAN", right=True)]
    columns += [Column(stage.upper(), right=True) for stage in stages]
    rows = [
        (str(one.gpus), str(one.jobs), _ms(one.median_s), *(_ms(one.stages[stage]) for stage in stages))
        for one in (*clusters, *queues)
    ]
    console().print(Listing(tuple(columns), rows))
    console().print(f"grows as jobs^{by_jobs:.2f} on these GPUs, as jobs^{by_size:.2f} with the cluster")


def _figures(one: MatchingTime) -> dict[str, object]:
    return {
        "gpus": one.gpus,
        "jobs": one.jobs,
        "nodes": one.nodes,
        "repeat": one.repeat,
        "median_s": one.median_s,
        "p95_s": one.p95_s,
        **{f"{stage}_s": seconds for stage, seconds in one.stages.items()},
        "pairs": one.pairs,
        "moved": one.moved,
    }


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
