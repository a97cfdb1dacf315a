"""`synsched explain` and `synsched history`: one job, now and before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import click
from rich.console import RenderableType

from slurmsched.backends.protocol import BackendError
from slurmsched.cli.cluster import connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import parse_job_ids
from slurmsched.model import Explanation, JobId
from slurmsched.report.job_view import (
    JobNotSeenError,
    expand_array,
    explain_job,
    explanation_view,
    history_view,
    job_history,
)
from slurmsched.report.tables import safe_line
from slurmsched.rounds.explainer import explain_unseen
from slurmsched.store.read_only import ReadOnlyStore

T = TypeVar("T")


@click.command()
@click.argument("jobs", type=parse_job_ids, metavar="JOBID[,JOBID...]")
@json_option
@click.pass_obj
def explain(invocation: Invocation, *, jobs: tuple[JobId, ...], as_json: bool) -> None:
    """Explain why a job waits, or runs where it does.

    Shows its position in the queue, what would change the decision, and the figures behind it, as of the last round.

    \b
    Example:
      synsched explain 1234
      synsched explain 1234_[0-3]
    """
    with invocation.open_readable(history=True) as store:
        explained, unknown = _of_each(store, jobs, explain_job)
        others = _explain_now(invocation, store, unknown) if unknown else {}
        now = invocation.now()
        if as_json:
            print_json({"jobs": explained, "others": _each(others)})
        else:
            _print_each([explanation_view(one, now) for one in explained] + _headlines(others))
        _raise_for({job: error for job, error in unknown.items() if job not in others})


@click.command()
@click.argument("jobs", type=parse_job_ids, metavar="JOBID[,JOBID...]")
@click.option("--commands", is_flag=True, help="Also the exact Slurm commands that were run.")
@json_option
@click.pass_obj
def history(invocation: Invocation, *, jobs: tuple[JobId, ...], commands: bool, as_json: bool) -> None:
    """Show what happened to a job.

    Kept for storage.keep_days, long after squeue has forgotten the job. Users who may not read the database see jobs
    that ended within storage.export_ended.

    \b
    Example:
      synsched history 1234 --commands
    """
    with invocation.open_readable(history=True) as store:
        histories, unknown = _of_each(store, jobs, job_history)
        others = _explain_now(invocation, store, unknown) if unknown else {}
        if as_json:
            print_json({"jobs": histories, "others": _each(others)})
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
    settings, last = invocation.settings, store.last_round()
    try:
        snapshot = connect_backend(settings).observe()
    except BackendError:
        return {}
    ended = last.finished if last else None
    return {job: found for job in unknown if (found := explain_unseen(snapshot, job, settings, ended))}


def _each(others: Mapping[JobId, tuple[Explanation, ...]]) -> list[Explanation]:
    return [one for found in others.values() for one in found]


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
