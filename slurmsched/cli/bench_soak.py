"""`synsched bench soak`: weeks of rounds on a simulated cluster with faults."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import (
    check_page_file,
    console,
    json_option,
    print_json,
    progress_reporter,
    typed_command,
    write_page,
)
from slurmsched.cli.parameters import complete_policies
from slurmsched.endurance.soak import SoakError, SoakOptions, run_soak
from slurmsched.report.soak import soak_page, soak_view


@click.command()
@click.option(
    "--days", type=click.FloatRange(min=0.25), default=30.0, show_default=True, metavar="D", help="Simulated days."
)
@click.option("--seed", type=int, default=1, show_default=True, metavar="S", help="Seed of jobs and faults.")
@click.option(
    "--policy", metavar="NAME", default=SoakOptions().policy, show_default=True, shell_complete=complete_policies,
    help="The policy of the rounds.",
)  # fmt: skip
@click.option(
    "--keep-days", type=click.IntRange(min=1), default=7, show_default=True, metavar="K",
    help="storage.keep_days; the warm-up is a day more.",
)  # fmt: skip
@click.option(
    "--round", "period", type=click.FloatRange(min=60), default=300.0, show_default=True, metavar="SECONDS",
    help="Length of a round.",
)  # fmt: skip
@click.option(
    "--load", type=click.FloatRange(min=0.1, max=0.95), default=0.7, show_default=True, metavar="PART",
    help="Part of the GPUs that the jobs keep busy.",
)  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report with plots to this file.")
@json_option("endurance.soak:SoakResult+problems")
@click.pass_obj
def soak(
    invocation: Invocation,
    *,
    days: float,
    seed: int,
    policy: str,
    keep_days: int,
    period: float,
    load: float,
    html: Path | None,
    as_json: bool,
) -> None:
    """Run weeks of rounds with faults, and find out what grows.

    The daemon's own loop runs under a compressed clock on a simulated cluster, with its database in $TMPDIR. Nodes,
    slurmctld, accounting, database, disk and clock fail, the daemon is killed in the middle of rounds, and some users
    are hostile. Fails if memory, database, log or the time of rounds grow, if the journal differs from what the cluster
    did, or if a job or a hold is left behind. A simulated day takes half a minute or more.

    \b
    Example:
      synsched bench soak --days 30 --html soak.html
      synsched bench soak --days 1 --keep-days 1 --json
    """
    check_page_file(html)
    options = SoakOptions(days, seed, policy, keep_days, period, load)
    with tempfile.TemporaryDirectory(prefix="synsched-soak-") as folder, progress_reporter("soaking") as tell:
        result = run_soak(options, Path(folder), tell)
    if html is not None:
        write_page(html, soak_page(result, typed_command(), invocation.now()))
    if as_json:
        print_json(result, "problems")
    else:
        console().print(soak_view(result))
    if result.problems:
        raise SoakError(f"the soak failed: {'; '.join(result.problems)}")
