"""`synsched fidelity`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import numpy as np

from slurmsched.backends.slurm import submission
from slurmsched.cli.cluster import scheduler_context
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import policy_options, with_mode, with_policy
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.fidelity.validation import (
    USUAL_ROUND,
    JobFidelity,
    generate_workload,
    measure_fidelity,
    shorten_period,
)
from slurmsched.report.quantities import duration
from slurmsched.report.tables import Column, Listing
from slurmsched.settings.definition import Mode

_MOST_APART: Final = 5
"""Jobs shown, those first whose ends differ most."""
_JOB_COLUMNS: Final = (
    Column("JOB"),
    Column("GPUS", right=True),
    Column("SUBMITTED", right=True),
    Column("ENDED", right=True),
    Column("SIMULATED", right=True),
    Column("RESTARTS", right=True),
    Column("SIMULATED", right=True),
)


def _job_row(job: JobFidelity) -> tuple[str, ...]:
    times = (job.submitted_s, job.live_end_s, job.simulated_end_s)
    restarts = (str(job.live_restarts), str(job.simulated_restarts))
    return (job.job, f"{job.gpus:g}", *(f"{seconds:.0f} s" for seconds in times), *restarts)


def _range(simulated: tuple[float, float], live: float) -> str:
    low, high = (seconds / live for seconds in simulated)
    return f"{low:.3f} to {high:.3f}"


@click.command()
@click.option("--jobs", type=click.IntRange(min=2, max=500), default=30, show_default=True, help="Jobs to run.")
@click.option(
    "--round",
    "period",
    default=USUAL_ROUND,
    show_default=True,
    metavar="SECONDS",
    help="Length of a round. Jobs last as long in proportion: the longer, the less matters what seconds decide.",
)
@click.option("--seed", default=1, show_default=True, help="Seed of the generated jobs.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that all nodes can write to. Default: ~/synsched-fidelity.",
)
@policy_options
@json_option("fidelity.validation:Fidelity+ok")
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
    """Compare the simulator with this Slurm.

    For a test cluster that runs nothing else. Submits jobs that only sleep, runs the daemon in mode enforce until all
    have ended (about ten minutes for thirty jobs), then simulates the same, and again with launches of jobs that take
    up to 2.5 s, as by chance they do: RANGE. Stop the daemon first. Exits 1 if the mean JCT or the makespan is more
    than 5 % outside that range.

    \b
    Example:
      synsched fidelity --jobs 30
    """
    context = scheduler_context(with_policy(invocation.settings, system, order))
    settings = with_mode(shorten_period(context.settings, period), Mode.ENFORCE.value)
    context = SchedulerContext(settings, context.backend, context.knowledge)
    trace = generate_workload(context.backend.observe().nodes, jobs, np.random.default_rng(seed), period)
    target_folder = folder or Path.home() / "synsched-fidelity"
    target_folder.mkdir(parents=True, exist_ok=True)
    conf = settings.cluster.slurm_conf
    measured = measure_fidelity(
        trace,
        context,
        folder=target_folder.absolute(),
        submit=lambda options, script: submission.submit(options, script, conf),
        clock=invocation.clock,
        say=lambda line: click.echo(f"synsched: {line}", err=True),
    )
    if as_json:
        print_json(measured, "ok")
    else:
        columns = (
            Column("FIGURE"),
            Column("SLURM", right=True),
            Column("SIMULATED", right=True),
            Column("RATIO", right=True),
            Column("RANGE", right=True),
        )
        rows = [
            (
                "mean JCT",
                duration(measured.live_avg_jct_s),
                duration(measured.simulated_avg_jct_s),
                f"{measured.avg_jct_ratio:.3f}",
                _range(measured.avg_jct_range_s, measured.live_avg_jct_s),
            ),
            (
                "makespan",
                duration(measured.live_makespan_s),
                duration(measured.simulated_makespan_s),
                f"{measured.makespan_ratio:.3f}",
                _range(measured.makespan_range_s, measured.live_makespan_s),
            ),
            ("restarts", str(measured.live_restarts), str(measured.simulated_restarts), "", ""),
        ]
        console().print(Listing(columns, rows))
        verdict = "at most 5 % outside the range" if measured.ok else "more than 5 % outside the range"
        apart = sorted(measured.by_job, key=lambda job: -abs(job.difference_s))[:_MOST_APART]
        console().print()
        console().print(Listing(_JOB_COLUMNS, [_job_row(job) for job in apart]))
        click.echo(f"\n{measured.ended} of {measured.jobs} jobs ended; this Slurm was {verdict}.")
    if not measured.ok:
        click.get_current_context().exit(1)
