"""`synsched fidelity`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import numpy as np

from slurmsched.backends.slurm import submitting
from slurmsched.cli.cluster import site
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.policy import policy_options, with_mode, with_policy
from slurmsched.daemon.scheduling import Site
from slurmsched.fidelity import measure, quickened, workload
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration
from slurmsched.settings.definition import Mode

__all__ = ["fidelity"]


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
    real = site(with_policy(invocation.settings, system, order))
    settings = with_mode(quickened(real.settings, period), Mode.ENFORCE.value)
    real = Site(settings, real.backend, real.knowledge)
    trace = workload(real.backend.observe().nodes, jobs, np.random.default_rng(seed))
    place = folder or Path.home() / "synsched-fidelity"
    place.mkdir(parents=True, exist_ok=True)
    conf = settings.cluster.slurm_conf
    found = measure(
        trace,
        real,
        folder=place.absolute(),
        submit=lambda options, script: submitting.submit(options, script, conf),
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
