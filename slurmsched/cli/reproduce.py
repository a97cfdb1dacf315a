"""`synsched reproduce`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.progress import with_progress
from slurmsched.experiments.experiment import ExperimentSetup, FigureRow
from slurmsched.experiments.registry import EXPERIMENTS
from slurmsched.experiments.registry import run_experiment as run
from slurmsched.report.experiments import outcome_view

MAX_SEEDS: Final = 1000
_SEEDS = re.compile(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?\Z")


def _parse_seeds(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Parses `42`, `42..44` or `1,5,7..9`. Raises click.BadParameter."""
    seeds: list[int] = []
    for part in value.split(","):
        match = _SEEDS.match(part)
        last = int(match[2] or match[1]) if match else -1
        if match is None or not 0 <= last - int(match[1]) < MAX_SEEDS:
            raise click.BadParameter(f"'{part}' is not a seed: write 42 or 42..44")
        seeds += range(int(match[1]), last + 1)
    return tuple(dict.fromkeys(seeds))


_EXPERIMENT_LIST = "\n".join(f"  {name:<19} {entry.summary}" for name, entry in EXPERIMENTS.items())


@click.command(epilog="\b\nExperiments:\n" + _EXPERIMENT_LIST)
@click.argument("name", metavar="EXPERIMENT")
@click.option(
    "--data",
    envvar="SLURMSCHED_DATA",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the public data sets, if the experiment needs one. Default: $SLURMSCHED_DATA.",
)
@click.option("--seeds", default="42", show_default=True, callback=_parse_seeds, help="As 42, 42..44 or 1,5.")
@click.option("--quick", is_flag=True, help="Run the small version, if there is one.")
@click.option("--trace", metavar="FILE", help="synergy-replay: the trace.")
@click.option("--order", metavar="NAME", help="synergy-replay: fifo, srtf, las or ftf.")
@click.option("--round", metavar="SECONDS", help="synergy-replay: length of a round.")
@click.option("--profiles", metavar="FILE", help="synergy-replay: profiles, in the data set's format.")
@click.option("--variant", metavar="NAME", help="fgd-variant: gpushare100, multigpu20 or gpuspec10.")
@click.option("--pods", metavar="FILE", help="fgd-variant: a list of pods in that format.")
@click.option("--vectors", metavar="FILE", help="gavel-vectors: the test cases. Default: those of the data set.")
@json_option
@click.pass_context
def reproduce(
    context: click.Context,
    /,
    *,
    name: str,
    data: Path | None,
    seeds: tuple[int, ...],
    quick: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Reproduce a published figure.

    Prints each measured figure beside the paper's and, if known, the result of the authors' code. All experiments are
    simulations except hadare-quality, which trains models. Exits 1 if a figure is outside its tolerance.

    \b
    Example:
      synsched reproduce synergy-static --data ~/data
      synsched reproduce synergy-replay --trace jobs.csv --order srtf --json
    """
    given_options = {option: value for option, value in options.items() if value is not None}
    outcome = run(name, ExperimentSetup(data, seeds, quick, given_options, with_progress))
    if as_json:
        rows, series = [_row_as_json(row) for row in outcome.rows], dict(outcome.series)
        print_json({"experiment": outcome.experiment, "rows": rows, "series": series, "ok": outcome.ok})
    else:
        console().print(outcome_view(outcome))
    if not outcome.ok:
        context.exit(1)


def _row_as_json(row: FigureRow) -> dict[str, object]:
    return {
        "metric": row.metric,
        "unit": row.unit,
        "published": row.published,
        "reference": row.reference,
        "measured": row.measured,
        "ratio": row.ratio,
        "tolerance": row.tolerance,
        "ok": row.ok,
        "bound": row.bound.value,
        "note": row.note,
    }
