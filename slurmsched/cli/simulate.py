"""`synsched simulate`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from slurmsched.cli.output import check_page_file, console, json_option, print_json, progress_reporter, write_page
from slurmsched.cli.parameters import complete_files, complete_formats, complete_orders, complete_policies
from slurmsched.model import encode
from slurmsched.policies.policies import order_read
from slurmsched.report.comparison import figures_view
from slurmsched.settings.definition import RoundSettings
from slurmsched.simulation import PolicyChoice, SimulationOptions, parse_policy, run_metrics
from slurmsched.simulation.engine import simulate as run
from slurmsched.simulation.inputs import load_scenario, load_trace
from slurmsched.simulation.submissions import unknown_models

_WINDOW = re.compile(r"(\d{1,7}):(\d{1,7})\Z")


def parse_window(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parses `1000:2000`, without the last. Raises click.BadParameter."""
    if value is None:
        return None
    match = _WINDOW.match(value)
    if match is None or int(match[1]) >= int(match[2]):
        raise click.BadParameter(f"'{value}' is not a window: write FIRST:END, as in 1000:2000")
    return int(match[1]), int(match[2])


def say_what_ignores_the_order(chosen: Sequence[PolicyChoice]) -> None:
    """Says on standard error which policies have an order of their own, if --order was given."""
    given = click.get_current_context().get_parameter_source("order") is not ParameterSource.DEFAULT
    without = [choice.name for choice in chosen if not order_read(choice.system, choice.order)]
    if given and without:
        how = "has an order of its own" if len(without) == 1 else "have orders of their own"
        click.echo(f"synsched: --order means nothing to {', '.join(without)}, which {how}", err=True)


early_option: Final = click.option(
    "--early",
    type=click.FloatRange(min=0),
    default=RoundSettings().early_interval,
    show_default=True,
    metavar="SECONDS",
    help="From what happens to an early round; 0 for none.",
)


@click.command()
@click.option(
    "--cluster",
    required=True,
    metavar="C",
    shell_complete=complete_files,
    help="TYPE:NODESxGPUS[:CPUS[:MEMORY]],... or a file.",
)
@click.option(
    "--trace",
    required=True,
    metavar="T",
    shell_complete=complete_files,
    help="A file, or a workload such as synergy:400@6.",
)
@click.option(
    "--policy",
    required=True,
    metavar="P",
    shell_complete=complete_policies,
    help="A policy, as NAME or NAME/ORDER; slurm has no rounds.",
)
@click.option(
    "--order",
    default="las",
    show_default=True,
    shell_complete=complete_orders,
    help="fifo, srtf, las or ftf, if P has none.",
)
@click.option(
    "--profiles",
    metavar="F",
    shell_complete=complete_files,
    help="Throughputs of the models. Default: the shipped profiles.",
)
@click.option(
    "--format",
    "form",
    metavar="NAME",
    shell_complete=complete_formats,
    help="The trace's format, if it is not recognised.",
)
@click.option("--round", "period", default=300.0, show_default=True, metavar="SECONDS", help="Length of a round.")
@early_option
@click.option("--overhead", default=60.0, show_default=True, metavar="SECONDS", help="Time that a restart costs a job.")
@click.option("--lead", default=0, show_default=True, metavar="SECONDS", help="From checkpoint signal to requeue.")
@click.option("--quantised", is_flag=True, help="Let jobs end only at the ends of rounds.")
@click.option("--window", callback=parse_window, metavar="A:B", help="Measure these jobs, in order of arrival.")
@click.option("--failures", default=0.0, metavar="RATE", help="Failures per node and hour.")
@click.option("--seed", default=1, show_default=True, help="Seed of generated jobs and failures.")
@click.option("--exchange", default=5.0, show_default=True, metavar="SECONDS", help="Averaging copies' parameters.")
@click.option("--no-fork", "forking", is_flag=True, default=True, flag_value=False, help="Run forked jobs as one job.")
@click.option("--skip-impossible", is_flag=True, help="Leave out jobs that could never run.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the whole run to this file as JSON."
)
@json_option("simulation.results:RunMetrics")
def simulate(
    *,
    cluster: str,
    trace: str,
    policy: str,
    order: str,
    profiles: str | None,
    form: str | None,
    period: float,
    early: float,
    overhead: float,
    lead: int,
    quantised: bool,
    window: tuple[int, int] | None,
    failures: float,
    seed: int,
    exchange: float,
    forking: bool,
    skip_impossible: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a trace through a policy on a virtual cluster.

    Rounds run the same code as on a real cluster; the cluster and the clock are simulated.

    \b
    Example:
      synsched simulate --cluster v100:16x8 --trace jobs.csv --policy synergy
      synsched simulate --cluster v100:4x8 --trace synergy:200@2 --policy slurm
    """
    if period < 1 or min(overhead, lead, failures, exchange) < 0:
        raise click.UsageError(
            "--round must be at least 1 second; --overhead, --lead, --failures and --exchange at least 0"
        )
    options = SimulationOptions(
        period=period,
        early=0.0 if quantised else early,
        overhead=overhead,
        lead=lead,
        quantised=quantised,
        window=window,
        failures=failures,
        seed=seed,
        exchange=exchange,
        forking=forking,
        skip_impossible=skip_impossible,
    )
    check_page_file(out)
    chosen = parse_policy(policy, order)
    say_what_ignores_the_order([chosen])
    world = load_scenario(cluster, load_trace(trace, profiles=profiles, form=form, seed=seed).trace, profiles)
    if profiles and (problem := unknown_models(world.trace, world.knowledge)):
        click.echo(f"synsched: {problem}", err=True)
    with progress_reporter("simulating") as report_progress:
        result = run(world, chosen, options, on_round=report_progress)
    if out is not None:
        write_page(out, encode(result))
    if as_json:
        print_json(run_metrics(result))
    else:
        console().print(figures_view(run_metrics(result)))
