"""`synsched plan` and `synsched forecast`: what a round would do now, and what is expected to follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from slurmsched.backends.protocol import Backend
from slurmsched.backends.recorded import RecordedBackend, Recording, RecordingError, read_recording, unpack_recording
from slurmsched.cli.cluster import configured_knowledge, connect_backend, stored_state, with_lengths
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import (
    MODE_CHOICE,
    parse_job_ids,
    parse_seconds,
    policy_options,
    with_defragmentation,
    with_mode,
    with_policy,
)
from slurmsched.daemon.clock import RealClock
from slurmsched.daemon.config_fragments import render_fragments
from slurmsched.daemon.process import ClockWhileParentLives, step_back
from slurmsched.model import JobId, JobState, QueueForecast, Snapshot, encode
from slurmsched.report.job_view import ForecastJob, JobNotSeenError, calibration_view, forecast_view
from slurmsched.report.rounds import plan_view, planned_round
from slurmsched.rounds.round import run_round
from slurmsched.simulation.start_forecast import DRAWS, forecast_starts


@click.command()
@click.option(
    "--from",
    "recording",
    type=click.Path(path_type=Path),
    metavar="FILE.round",
    help="Decide this recording instead of the current cluster.",
)
@policy_options
@click.option("--defrag", is_flag=True, help="Also move running jobs to make room for waiting ones.")
@click.option("--commands", is_flag=True, help="Also show the exact Slurm commands.")
@json_option
@click.pass_obj
def plan(
    invocation: Invocation,
    *,
    recording: Path | None,
    system: str | None,
    order: str | None,
    defrag: bool,
    commands: bool,
    as_json: bool,
) -> None:
    """Show what a round would do now.

    Asks Slurm once, decides and plans, but changes and writes nothing. With --defrag the plan also has the fewest moves
    that let waiting jobs start, with their cost; 'synsched run --once --defrag' carries it out.

    \b
    Example:
      synsched plan --commands
      synsched plan --from monday.round --order srtf
    """
    settings = with_defragmentation(with_policy(invocation.settings, system, order), requested=defrag)
    cluster: Backend
    if recording is not None:
        recorded = read_recording(recording)
        cluster, snapshot, state = RecordedBackend([recorded]), recorded.snapshot, recorded.memory
    else:
        cluster = connect_backend(settings)
        with console(to_errors=True).status("asking Slurm"):
            snapshot = cluster.observe()
        state = stored_state(invocation.database_path, snapshot, settings)
    files = () if recording is not None else render_fragments(settings, snapshot)
    result = run_round(
        snapshot, state, settings, configured_knowledge(settings), cluster.identity(), config_fragments=files
    )
    planned = planned_round(result, settings, cluster.commands)
    if as_json:
        print_json(planned)
    else:
        console().print(plan_view(planned, commands))


@click.command()
@click.argument("jobs", nargs=-1, type=parse_job_ids, metavar="[JOBID[,JOBID...]]")
@click.option(
    "--from",
    "recording",
    type=click.Path(path_type=Path),
    metavar="FILE.round",
    help="Forecast this recording instead of the last full round.",
)
@policy_options
@click.option("--mode", type=MODE_CHOICE, help="Use this mode instead of rounds.mode.")
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=DRAWS,
    metavar="N",
    help=f"Most draws of how long jobs run. Default: {DRAWS}.",
)
@click.option("--budget", type=parse_seconds, default="20s", metavar="TIME", help="Stop after this time. Default: 20s.")
@click.option("--calibration", is_flag=True, help="Show how starts turned out against what the daemon had told.")
@click.option("--background", is_flag=True, help="At lowest priority, as JSON: how the daemon calls it.")
@json_option
@click.pass_obj
def forecast(
    invocation: Invocation,
    *,
    jobs: tuple[tuple[JobId, ...], ...],
    recording: Path | None,
    system: str | None,
    order: str | None,
    mode: str | None,
    draws: int,
    budget: int,
    calibration: bool,
    background: bool,
    as_json: bool,
) -> None:
    """Tell when waiting jobs will start and end.

    Runs the rounds on from the last full one in a simulation, many times, with lengths of jobs drawn from what earlier
    runs took. Prints medians and the ranges into which 8 of 10 draws fall. In modes observe and advise, and with
    --system slurm, Slurm starts the jobs. For who may read the database; changes and writes nothing. What the daemon
    forecasts by itself every user sees in 'synsched status' and 'synsched explain'.

    \b
    Example:
      synsched forecast
      synsched forecast 1234 --budget 1m
      synsched forecast --from monday.round --system slurm
      synsched forecast --calibration
    """
    if calibration:
        with invocation.open_database() as store:
            turned_out = store.start_calibration()
        if as_json:
            print_json({"calibration": turned_out})
        else:
            console().print(calibration_view(turned_out))
        return
    clock = ClockWhileParentLives() if background else RealClock()
    settings = with_mode(with_policy(invocation.settings, system, order), mode)
    round_ = read_recording(recording) if recording is not None else _last_round(invocation)
    snapshot, state = round_.snapshot, round_.memory
    if recording is None:
        state = with_lengths(invocation.database_path, snapshot, state, settings)
    if background:  # only now: who waits for a lock of the database would wait for a process of low priority
        step_back()
    with console(to_errors=True).status("simulating"):
        told = forecast_starts(
            snapshot,
            state,
            settings,
            configured_knowledge(settings),
            np.random.default_rng(int(snapshot.time)),
            draws=draws,
            budget=budget,
            clock=clock,
        )
    if background:  # as the daemon runs and reads it
        click.echo(encode(told))
        return
    wanted = {job for asked in jobs for job in asked}
    told = _only(told, snapshot, wanted) if wanted else told
    if as_json:
        print_json(told)
        return
    shown = {
        job.id: ForecastJob(job.user, snapshot.part_of_gpu(job) or job.gpus)
        for job in snapshot.jobs_in_state(JobState.PENDING)
    }
    console().print(forecast_view(told, shown, snapshot.time if recording is not None else invocation.now()))


def _last_round(invocation: Invocation) -> Recording:
    """Returns the last round of which the database keeps the recording. Raises StoreError, RecordingError."""
    with invocation.open_database() as store:
        stored = store.recording()
    if stored is None:
        raise RecordingError("no round is kept: set storage.keep_snapshots, or name a recording by --from")
    return unpack_recording(stored[1])


def _only(told: QueueForecast, snapshot: Snapshot, wanted: set[JobId]) -> QueueForecast:
    """Returns the forecast of these jobs, or arrays, alone. Raises JobNotSeenError for one that does not wait."""
    waiting = {job.id: {job.id, job.array_job} for job in snapshot.jobs_in_state(JobState.PENDING)}
    if missing := sorted(wanted - {name for names in waiting.values() for name in names}):
        raise JobNotSeenError(f"job {missing[0]} did not wait in that round")
    chosen = {job for job, names in waiting.items() if names & wanted}
    return replace(
        told,
        jobs=tuple(one for one in told.jobs if one.job in chosen),
        left_out={job: why for job, why in told.left_out.items() if job in chosen},
    )
