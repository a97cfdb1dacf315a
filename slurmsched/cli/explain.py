"""`synsched explain`."""

from __future__ import annotations

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import parse_job_ids
from slurmsched.model import JobId
from slurmsched.report.job_view import expand_array, explain_job, explanation_view


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
