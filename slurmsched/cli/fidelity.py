"""`synsched fidelity`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import numpy as np

from slurmsched.backends.slurm import submission
from slurmsched.cli.cluster import scheduler_context
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import policy_options, with_mode, with_policy
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.fidelity import generate_workload, measure_fidelity, shorten_period
from slurmsched.report.quantities import duration
from slurmsched.report.tables import Column, Listing
from slurmsched.settings.definition import Mode


@click.command()
@click.option("--jobs", type=click.IntRange(min=2, max=500), default=30, show_default=True, help="How many.")
@click.option("--round", "period", default=15.0, show_default=True, metavar="SECONDS", help="Between two rounds.")
@click.option("--seed", default=1, show_default=True, help="Another number, other jobs.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where all nodes can write; a folder in your home without it.",
)
@policy_options
@json_option
@click.pass_obj
def fidelity(
    invocation: Invocation,
    /,
    *,
    jobs: int,
    period: float,
    seed: int,
    folder: Path | None,
    system: str | None,
    order: str | None,
    as_json: bool,
) -> None:
    """Hold the simulator against this Slurm.

    For a test cluster that runs nothing else. Jobs that only sleep are submitted, rounds run in mode enforce until all
    have ended, some ten minutes for thirty jobs; then the same is simulated. Stop the daemon first. Exit status 1 when
    mean JCT or makespan are more than 5 % apart.

    \b
    Example:
      synsched fidelity --jobs 30
    """
    context = scheduler_context(with_policy(invocation.settings, system, order))
    settings = with_mode(shorten_period(context.settings, period), Mode.ENFORCE.value)
    context = SchedulerContext(settings, context.backend, context.knowledge)
    trace = generate_workload(context.backend.observe().nodes, jobs, np.random.default_rng(seed))
    target_folder = folder or Path.home() / "synsched-fidelity"
    target_folder.mkdir(parents=True, exist_ok=True)
    conf = settings.cluster.slurm_conf
    found = measure_fidelity(
        trace,
        context,
        folder=target_folder.absolute(),
        submit=lambda options, script: submission.submit(options, script, conf),
        clock=invocation.clock,
        say=lambda line: click.echo(f"synsched: {line}", err=True),
    )
    if as_json:
        print_json({**asdict(found), "ok": found.ok})
    else:
        columns = (
            Column("FIGURE"),
            Column("SLURM", right=True),
            Column("SIMULATED", right=True),
            Column("RATIO", right=True),
        )
        rows = [
            (
                "mean JCT",
                duration(found.live_avg_jct_s),
                duration(found.simulated_avg_jct_s),
                f"{found.avg_jct_ratio:.3f}",
            ),
            (
                "makespan",
                duration(found.live_makespan_s),
                duration(found.simulated_makespan_s),
                f"{found.makespan_ratio:.3f}",
            ),
            ("restarts", str(found.live_restarts), str(found.simulated_restarts), ""),
        ]
        console().print(Listing(columns, rows))
        click.echo(f"\n{found.ended} of {found.jobs} jobs ended; {'within' if found.ok else 'not within'} 5 %.")
    if not found.ok:
        click.get_current_context().exit(1)
