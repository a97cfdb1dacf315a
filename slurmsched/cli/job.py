"""`synsched explain`, `history` and `advise`: a job now and before, and what others like it used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import click
from rich.console import RenderableType

from slurmsched.backends.protocol import BackendError
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import complete_jobs, parse_job_ids, user_name
from slurmsched.model import Explanation, IdleGpus, JobId
from slurmsched.report.job_view import (
    JobExplanation,
    JobHistory,
    JobNotSeenError,
    expand_array,
    explain_job,
    explanation_view,
    history_view,
    job_history,
)
from slurmsched.report.tables import safe_line
from slurmsched.store.read_only import ReadOnlyStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExplainedJobs:
    """Managed jobs as the last round explains them, and what Slurm shows now of jobs that no round has seen."""

    jobs: tuple[JobExplanation, ...]
    others: tuple[Explanation, ...]


@dataclass(frozen=True, slots=True)
class JobHistories:
    """What happened to managed jobs, and what Slurm shows now of jobs that no round has seen."""

    jobs: tuple[JobHistory, ...]
    others: tuple[Explanation, ...]


@click.command()
@click.argument("jobs", type=parse_job_ids, metavar="JOBID[,JOBID...]", shell_complete=complete_jobs)
@json_option("cli.job:ExplainedJobs")
@click.pass_obj
def explain(invocation: Invocation, *, jobs: tuple[JobId, ...], as_json: bool) -> None:
    """Explain why a job waits, or runs where it does.

    Shows its position in the queue, what would change the decision, and the figures behind it, as of the last round.

    \b
    Example:
      synsched explain 1234
      synsched explain 1234_[0-3]
    """
    invocation.tolerate_mistakes()
    with invocation.open_readable(history=True) as store:
        explained, unknown = _of_each(store, jobs, explain_job)
        others = _explain_now(invocation, store, unknown) if unknown else {}
        now = invocation.now()
        if as_json:
            print_json(ExplainedJobs(tuple(explained), _each(others)))
        else:
            _print_each([explanation_view(one, now) for one in explained] + _headlines(others))
        _raise_for({job: error for job, error in unknown.items() if job not in others})


def _parse_subject(value: str) -> str | tuple[JobId, ...]:
    """Returns job ids, or the name of a user."""
    try:
        return parse_job_ids(value)
    except click.BadParameter:
        return value


@click.command()
@click.argument("subject", type=_parse_subject, required=False, metavar="[USER|JOBID]", shell_complete=complete_jobs)
@json_option("report.advice:AdvisedWorks", "report.advice:WeekSummary")
@click.pass_obj
def advise(invocation: Invocation, *, subject: str | tuple[JobId, ...] | None, as_json: bool) -> None:
    """Tell what jobs used of what they asked for.

    Compares time limit, CPUs, memory and GPUs with what earlier runs of the same work used, and prints the options for
    sbatch; --cpus-per-gpu is to replace --cpus-per-task. Nothing is advised from fewer than 3 runs, or where Slurm did
    not gather it. Users see their own runs, which the daemon on this host tells them. Who may read the database, and
    Slurm's Operators, see those of all, and without USER the last week by user, the most idle GPU-hours first.

    \b
    Example:
      synsched advise
      synsched advise alice
      synsched advise 1234
    """
    from slurmsched.report import advice  # noqa: PLC0415 (numpy: `explain` and `history` start without it)

    invocation.tolerate_mistakes()
    idle: tuple[IdleGpus, ...] = ()
    with invocation.open_runs() as (store, everyone):
        now, caller = invocation.now(), user_name()
        if subject is None and everyone:
            week = advice.week_summary(store, now)
            _print(week, advice.week_view(week), as_json)
            return
        if subject is None or isinstance(subject, str):
            user = subject or caller
            if user != caller and not everyone:
                raise advice.NothingLearntError(
                    f"what was learnt of {user} is shown to {user} and to administrators alone"
                )
            idle = advice.idle_now(store, now, user)
            works = advice.advise_user(store, user, now, required=not idle)
        else:
            works = tuple(advice.advise_job(store, job, now) for job in subject)
    _print(advice.AdvisedWorks(works, idle), advice.advice_view(works, now, idle), as_json)


def _print(data: object, view: RenderableType, as_json: bool) -> None:
    if as_json:
        print_json(data)
    else:
        console().print(view)


@click.command()
@click.argument("jobs", type=parse_job_ids, metavar="JOBID[,JOBID...]", shell_complete=complete_jobs)
@click.option("--commands", is_flag=True, help="Also the exact Slurm commands that were run.")
@json_option("cli.job:JobHistories")
@click.pass_obj
def history(invocation: Invocation, *, jobs: tuple[JobId, ...], commands: bool, as_json: bool) -> None:
    """Show what happened to a job.

    Kept for storage.keep_days, long after squeue has forgotten the job. Users who may not read the database see jobs
    that ended within storage.export_ended.

    \b
    Example:
      synsched history 1234 --commands
    """
    invocation.tolerate_mistakes()
    with invocation.open_readable(history=True) as store:
        histories, unknown = _of_each(store, jobs, job_history)
        others = _explain_now(invocation, store, unknown) if unknown else {}
        if as_json:
            print_json(JobHistories(tuple(histories), _each(others)))
        else:
            _print_each([history_view(events, commands) for events in histories] + _headlines(others))
        _raise_for({job: error for job, error in unknown.items() if job not in others})


def _of_each(
    store: ReadOnlyStore, jobs: Iterable[JobId], read: Callable[[ReadOnlyStore, JobId], T]
) -> tuple[list[T], dict[JobId, JobNotSeenError]]:
    """Return what is stored of each job, array tasks included, and the jobs of which nothing is."""
    found, unknown = list[T](), dict[JobId, JobNotSeenError]()
    for asked in jobs:
        for job in expand_array(store, asked):
            try:
                found.append(read(store, job))
            except JobNotSeenError as error:
                unknown[job] = error
    return found, unknown


def _explain_now(
    invocation: Invocation, store: ReadOnlyStore, unknown: Iterable[JobId]
) -> dict[JobId, tuple[Explanation, ...]]:
    """Return what Slurm shows this user of the jobs now: those that are not managed, or that no round has seen."""
    from slurmsched.cli.cluster import connect_backend  # noqa: PLC0415 (numpy: only where the database does not tell)
    from slurmsched.rounds.explainer import explain_unseen  # noqa: PLC0415 (as above)

    settings, last = invocation.settings, store.last_round()
    try:
        snapshot = connect_backend(settings).observe()
    except BackendError:
        return {}
    ended = last.finished if last else None
    return {job: found for job in unknown if (found := explain_unseen(snapshot, job, settings, ended))}


def _each(others: Mapping[JobId, tuple[Explanation, ...]]) -> tuple[Explanation, ...]:
    return tuple(one for found in others.values() for one in found)


def _headlines(others: Mapping[JobId, tuple[Explanation, ...]]) -> list[RenderableType]:
    return [safe_line(one.headline, "bold") for one in _each(others)]


def _print_each(views: Sequence[RenderableType]) -> None:
    screen = console()
    for index, view in enumerate(views):
        screen.print(*[""] * bool(index), view, sep="\n")


def _raise_for(unknown: Mapping[JobId, JobNotSeenError]) -> None:
    """Raise JobNotSeenError for jobs of which nothing is known, once the others were shown."""
    if unknown:
        raise JobNotSeenError("; ".join(map(str, unknown.values())))
