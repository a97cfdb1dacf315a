"""`synsched plan`, `synsched forecast` and `synsched submit --dry-run`: what a round would do now, and what is expected
to follow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from slurmsched.backends.protocol import Backend
from slurmsched.backends.recorded import RecordedBackend, Recording, RecordingError, read_recording, unpack_recording
from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.errors import UnforeseenSubmissionError
from slurmsched.backends.slurm.sbatch_options import read_options
from slurmsched.cli.cluster import configured_knowledge, connect_backend, stored_state, with_lengths
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import (
    MODE_CHOICE,
    complete_jobs,
    parse_job_ids,
    parse_seconds,
    policy_options,
    user_name,
    with_defragmentation,
    with_mode,
    with_policy,
)
from slurmsched.daemon.clock import RealClock
from slurmsched.daemon.config_fragments import render_fragments
from slurmsched.daemon.process import ClockWhileParentLives, step_back
from slurmsched.knowledge.lengths import JobLengths, unfinished_jobs
from slurmsched.model import (
    ExpectedLength,
    ExpectedTime,
    Hold,
    Job,
    JobId,
    JobState,
    QueueForecast,
    SchedulerState,
    Snapshot,
    StartRanges,
    SynschedError,
    encode,
    parse_hints,
    render_hints,
)
from slurmsched.model.hints import is_hint_word
from slurmsched.policies.limits import LimitAccount
from slurmsched.report.job_view import (
    ForecastJob,
    ForecastRequest,
    JobNotSeenError,
    SubmissionForecast,
    calibration_view,
    forecast_view,
    submission_view,
)
from slurmsched.report.rounds import plan_view, planned_round
from slurmsched.report.tables import printable
from slurmsched.rounds.round import run_round
from slurmsched.rounds.scope import partition_totals, unmanaged_reason
from slurmsched.settings.definition import Mode, Settings
from slurmsched.simulation.start_forecast import (
    DRAWS,
    forecast_starts,
    forecast_submission,
    length_of_variant,
    request_variants,
)
from slurmsched.store.errors import StoreError
from slurmsched.store.rows import StartCalibration


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
@json_option("report.rounds:PlannedRound")
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
      synsched plan --from monday.round --system hadar
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


@dataclass(frozen=True, slots=True)
class ForecastCalibration:
    """How often starts came within the ranges that were told, and by how much ranges are widened or narrowed."""

    calibration: tuple[StartCalibration, ...]
    ranges: StartRanges


@click.command()
@click.argument("jobs", nargs=-1, type=parse_job_ids, metavar="[JOBID[,JOBID...]]", shell_complete=complete_jobs)
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
@json_option("model.overview:QueueForecast", "cli.plan:ForecastCalibration")
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
    runs took. Prints medians and the ranges into which 8 of 10 starts are to fall: those of the draws, corrected by how
    the daemon's earlier forecasts turned out; with --from by nothing. In modes observe and advise, and with --system
    slurm, Slurm starts the jobs. For who may read the database; changes and writes nothing. What the daemon forecasts
    by itself every user sees in 'synsched status' and 'synsched explain'.

    \b
    Example:
      synsched forecast
      synsched forecast 1234 --budget 1m
      synsched forecast --from monday.round --system slurm
      synsched forecast --calibration
    """
    if calibration:
        with invocation.open_database() as store:
            turned_out, ranges = store.start_calibration(), store.start_ranges()
        if as_json:
            print_json(ForecastCalibration(turned_out, ranges))
        else:
            console().print(calibration_view(turned_out, ranges))
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
    if background:  # as the daemon runs and reads it; it corrects the ranges
        click.echo(encode(told))
        return
    if recording is None:
        with invocation.open_database() as store:
            told = store.start_ranges().applied(told)
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


_BUDGET = 20.0
"""Seconds for a dry run where the daemon is not to forecast."""
_HIDDEN = frozenset({"jobs", "nodes", "partitions", "reservations"})
"""Words of PrivateData by which Slurm hides what decides on starts."""


def forecast_dry_run(
    invocation: Invocation, command: Sequence[str], extra_env: Mapping[str, str], *, as_json: bool
) -> None:
    """Prints when the job of this `sbatch` command would start and end, and what other GPUs would change.

    Nothing is submitted or written. Raises SubmissionRejectedError if Slurm would refuse the job, BackendError if
    nothing can be told of it.
    """
    settings = invocation.settings
    cluster = settings.cluster
    submission.check_accepted(command, cluster.slurm_conf, cluster.timeout, extra_env=extra_env)
    try:
        options = read_options(command[1:], os.environ)
        with console(to_errors=True).status("simulating"):
            told = _forecast_unsubmitted(invocation, options)
    except UnforeseenSubmissionError as error:
        raise UnforeseenSubmissionError(
            printable(f"Slurm would take the job, but its start is not told: {error}")
        ) from error
    if as_json:
        print_json(told)
    else:
        console().print(submission_view(told, invocation.now()))


def _forecast_unsubmitted(invocation: Invocation, options: Mapping[str, str]) -> SubmissionForecast:
    settings, knowledge = invocation.settings, configured_knowledge(invocation.settings)
    snapshot, state, by_slurm = _observation(invocation)
    commands = Commands(settings.cluster.timeout, settings.cluster.slurm_conf)
    asked = submission.unsubmitted_job(options, user_name(), snapshot, submission.read_partition_defaults(commands))
    if reached := LimitAccount(snapshot).reached(asked.job):
        raise UnforeseenSubmissionError(f"it would wait for a limit: {reached.sentence}")
    job = _as_the_hook_leaves_it(asked.job, snapshot, settings)
    variants = request_variants(job, snapshot)
    jobs = [variant.job for variant in variants]
    state, learnt = _learnt(invocation, snapshot, state, jobs)
    lengths = [
        length_of_variant(job, one, (learnt[0], of_one), knowledge, snapshot.time)
        for one, of_one in zip(jobs, learnt, strict=True)
    ]
    forecasts = forecast_submission(
        [(one, length) for one, (length, _) in zip(jobs, lengths, strict=True)],
        snapshot,
        state,
        settings,
        knowledge,
        generator=np.random.default_rng(int(snapshot.time)),
        draws=DRAWS,
        budget=settings.learning.forecast_budget or _BUDGET,
        clock=RealClock(),
    )
    told = zip(variants, forecasts, (by for _, by in lengths), strict=True)
    return SubmissionForecast(
        forecasts[0].at,
        forecasts[0].until,
        forecasts[0].draws,
        tuple(_request(variant.name, variant.job, forecast, by) for variant, forecast, by in told),
        (*asked.assumed, *by_slurm),
        forecasts[0].remarks,
    )


def _request(name: str, job: Job, forecast: QueueForecast, length: str) -> ForecastRequest:
    request = job.original_request
    if not forecast.jobs:
        return ForecastRequest(name, request.gpus, request.gpu_type, None, None, why=forecast.left_out[job.id])
    (one,) = forecast.jobs
    end = one.end if length else None if job.time_limit is None else _by_limit(one.start, job.time_limit)
    return ForecastRequest(name, request.gpus, request.gpu_type, one.start, end, length)


def _by_limit(start: ExpectedTime, limit: int) -> ExpectedTime:
    """When a job that starts then ends at the latest."""
    low, median, high = (None if time is None else time + limit for time in (start.low, start.median, start.high))
    return ExpectedTime(low, median, high)


def _observation(invocation: Invocation) -> tuple[Snapshot, SchedulerState, tuple[str, ...]]:
    """The last full round as `forecast` takes it, or for those who may not read it what Slurm shows them now, and that
    in a sentence. Raises BackendError."""
    settings = invocation.settings
    if os.access(invocation.database_path, os.R_OK):
        try:
            round_ = _last_round(invocation)
        except (RecordingError, StoreError):
            pass
        else:
            if invocation.now() - round_.snapshot.time <= _ROUNDS_OF_AGE * settings.rounds.period:
                return round_.snapshot, round_.memory, ()
    snapshot = connect_backend(settings).observe()
    if snapshot.private_data & _HIDDEN and os.geteuid() and user_name() not in snapshot.operators:
        raise UnforeseenSubmissionError("Slurm hides jobs or nodes of others from you (PrivateData)")
    return snapshot, SchedulerState(), ("by what Slurm shows: hints and time limits tell how long others' jobs run",)


_ROUNDS_OF_AGE = 2
"""Periods after which the last full round tells nothing of now."""


def _learnt(
    invocation: Invocation, snapshot: Snapshot, state: SchedulerState, jobs: Sequence[Job]
) -> tuple[SchedulerState, Sequence[ExpectedLength | None]]:
    """Returns the state with how long jobs run by what earlier runs took, and that for each of `jobs`.

    Those who may not read the database have it of their own runs, as the daemon tells them, and not of other jobs.
    """
    numbered = [replace(job, id=str(int(job.id) + place)) for place, job in enumerate(jobs)]
    with_jobs = replace(snapshot, jobs=(*snapshot.jobs, *numbered))
    if os.access(invocation.database_path, os.R_OK):
        known = with_lengths(invocation.database_path, with_jobs, state, invocation.settings).lengths
    else:
        known = _by_own_runs(invocation, with_jobs)
    learnt = [known.get(job.id) for job in numbered]
    others = {job: length for job, length in known.items() if job in snapshot.jobs_by_id}
    return replace(state, lengths=others), [one if one is not None and one.runs else None for one in learnt]


def _by_own_runs(invocation: Invocation, snapshot: Snapshot) -> Mapping[JobId, ExpectedLength]:
    """How long the caller's jobs still run, by the caller's runs; nothing where the daemon does not tell these."""
    lengths, owner = JobLengths(), user_name()
    try:
        with invocation.open_runs() as (store, _):
            for run in store.finished_runs(0.0, owner):
                lengths.ended(run)
    except SynschedError:
        return {}
    own = replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.user == owner))
    known = lengths.of(unfinished_jobs(own, {}, {}), snapshot.time)
    return {job: length for job, length in known.items() if length.runs}


def _as_the_hook_leaves_it(job: Job, snapshot: Snapshot, settings: Settings) -> Job:
    """Returns the job held by the submit hook if rounds start it, and otherwise as it is."""
    if settings.rounds.mode is not Mode.ENFORCE or unmanaged_reason(job, settings, partition_totals(snapshot)):
        return job
    hints = replace(job.hints, given=True, held_by_hook=True, marks_only=not job.hints.opts_in)
    words = (render_hints(hints), *(word for word in job.comment.split() if not is_hint_word(word)))
    comment = " ".join(words)
    return replace(job, hold=Hold.USER, comment=comment, hints=parse_hints(comment))
