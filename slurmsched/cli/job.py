"""`synsched explain` and `synsched history`: one job, now and before."""

from __future__ import annotations

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import parse_job_ids
from slurmsched.model import JobId
from slurmsched.report.job_view import expand_array, explain_job, explanation_view, history_view, job_history


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
        explanations = [explain_job(store, task) for job in jobs for task in expand_array(store, job)]
    if as_json:
        print_json({"jobs": explanations})
        return
    screen = console()
    for index, explanation in enumerate(explanations):
        screen.print(*[""] * bool(index), explanation_view(explanation, invocation.now()), sep="\n")


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
        histories = [job_history(store, task) for job in jobs for task in expand_array(store, job)]
    if as_json:
        print_json({"jobs": histories})
        return
    screen = console()
    for index, events in enumerate(histories):
        screen.print(*[""] * bool(index), history_view(events, commands), sep="\n")
