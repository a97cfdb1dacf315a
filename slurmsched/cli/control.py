"""`synsched pause`, `resume` and `release`: the commands that stop scheduling."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

import click

from slurmsched.cli.cluster import connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import json_option, print_json
from slurmsched.cli.parameters import complete_jobs, parse_job_ids, user_name
from slurmsched.daemon.cleanup import ReleaseResult, no_scheduler_alive, open_store_if_usable, release_all
from slurmsched.daemon.log import journal_if_any
from slurmsched.model import JobId, Outcome, Result, SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration
from slurmsched.store.publication import ask_to_forget, export_folder
from slurmsched.store.store import Store

_SUCCESSFUL = frozenset({Result.DONE, Result.OVERTAKEN})


class NotReleasedError(SynschedError):
    """Some jobs were not given back to Slurm."""


class NotAllowedError(SynschedError):
    """Users may ask for themselves only."""


@dataclass(frozen=True, slots=True)
class ReleasedJobs:
    """Jobs that were given back to Slurm, what became of each operation, and what could not be read or recorded."""

    released: tuple[JobId, ...]
    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgottenUser:
    """What was deleted of a user, rows by kind; nothing yet where the daemon was asked to do it."""

    user: str
    asked: bool
    deleted: Mapping[str, int] = field(default_factory=dict)


@click.command()
@click.option("--reason", default="", metavar="TEXT", help="The reason that 'synsched status' shows.")
@click.pass_obj
def pause(invocation: Invocation, *, reason: str) -> None:
    """Change nothing until resumed.

    Rounds still decide and record, but change no job. Held jobs stay held; 'synsched release' gives them back.

    \b
    Example:
      synsched pause --reason "upgrade of slurmctld"
    """
    with closing(Store.open(invocation.database_path, invocation.now())) as store:
        store.switches.pause(_calling_user(), reason, invocation.now())
    click.echo("paused: nothing is changed until 'synsched resume'")


@click.command()
@click.pass_obj
def resume(invocation: Invocation) -> None:
    """Resume after a pause.

    \b
    Example:
      synsched resume
    """
    with closing(Store.open(invocation.database_path, invocation.now())) as store:
        paused = store.switches.current_pause()
        store.switches.resume()
    if paused is None:
        click.echo("nothing was paused")
    else:
        click.echo(f"resumed: {paused.sentence}, {duration(invocation.now() - paused.since)} ago")


@click.command()
@click.argument("jobs", nargs=-1, type=parse_job_ids, metavar="[JOBID...]", shell_complete=complete_jobs)
@click.option("--if-stale", is_flag=True, help="Only if no scheduler runs any more.")
@json_option("cli.control:ReleasedJobs")
@click.pass_obj
def release(invocation: Invocation, *, jobs: tuple[tuple[JobId, ...], ...], if_stale: bool, as_json: bool) -> None:
    """Give jobs back to Slurm as they were submitted.

    Undoes every hold, request and nice value that synsched set, or only those of the jobs given. Works without the
    daemon and without the database; other holds stay. Running rounds would manage the jobs again: pause them first.

    \b
    Example:
      synsched release
      synsched release 1234,1235
    """
    invocation.tolerate_mistakes()
    settings, now = invocation.settings, invocation.now()
    alive = not no_scheduler_alive(settings.hook, now)
    if if_stale and alive:
        return
    store, store_warning = open_store_if_usable(invocation.database_path, now)
    try:
        only = {job for group in jobs for job in group} or None
        log, timeout = journal_if_any(settings), settings.rounds.settle_timeout
        log.event(f"{_calling_user()} runs 'synsched release'", verb="release")
        released = release_all(connect_backend(settings), store, invocation.clock, timeout, only, log=log)
        paused = store is not None and store.switches.current_pause() is not None
    finally:
        if store is not None:
            store.close()
    if as_json:
        print_json(ReleasedJobs(released.jobs, released.outcomes, released.warnings))
    elif released.jobs or not if_stale:
        click.echo(f"{pluralise(len(released.jobs), 'job')} given back to Slurm")
    for warning in filter(None, (store_warning, *released.warnings)):
        click.echo(f"synsched: {warning}", err=True)
    if alive and released.jobs and not paused and settings.rounds.mode == "enforce":
        click.echo("synsched: rounds still run and will manage these jobs again: run 'synsched pause' first", err=True)
    _check_released(released)


@click.command()
@click.argument("user", metavar="[USER]", required=False)
@json_option("cli.control:ForgottenUser")
@click.pass_obj
def forget(invocation: Invocation, *, user: str | None, as_json: bool) -> None:
    """Delete what was learnt of a user.

    Runs that have ended, measured rates, reports and complaints go for good; the same runs are not learnt again.
    Events, operations and recordings of rounds stay, as long as history is kept. Who may write the database may name
    any user. Others ask for themselves: the daemon on this host does it after its next round, and 'synsched advise'
    then knows nothing of them.

    \b
    Example:
      synsched forget
      synsched forget alice
    """
    caller = user_name()
    user = user or caller
    if not invocation.may_write:
        if user != caller:
            raise NotAllowedError(f"only administrators delete what was learnt of {user}; you may ask for {caller}")
        ask_to_forget(export_folder(invocation.settings.storage))
        if as_json:
            print_json(ForgottenUser(user, asked=True))
        else:
            click.echo(f"asked: what was learnt of {user} is deleted after the next round")
        return
    with closing(Store.open(invocation.database_path, invocation.now())) as store:
        deleted = store.finished_runs.forget(user, invocation.now())
    if as_json:
        print_json(ForgottenUser(user, asked=False, deleted=deleted))
        return
    found = [f"{what} {count}" for what, count in deleted.items() if count]
    click.echo(f"of {user} deleted: {', '.join(found)}" if found else f"nothing was learnt of {user}")


def _check_released(released: ReleaseResult) -> None:
    failed = [outcome for outcome in released.outcomes if outcome.result not in _SUCCESSFUL]
    if failed:
        raise NotReleasedError(f"{pluralise(len(failed), 'operation')} failed: {_failure_text(failed[0])}")


def _failure_text(outcome: Outcome) -> str:
    operation = outcome.operation
    return f"{operation.verb.value} of {operation.subject} was {outcome.result.value}: {outcome.detail}"


def _calling_user() -> str:
    """Returns the user's name, under sudo that of the user who called it."""
    return os.environ.get("SUDO_USER") or getpass.getuser()
