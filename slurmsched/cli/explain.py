"""`synsched explain`."""

from __future__ import annotations

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import parse_job_ids
from slurmsched.model import JobId
from slurmsched.report.history import expand_array
from slurmsched.report.job_view import explain_job, explanation_view


@click.command()
@click.argument("jobs", type=parse_job_ids, metavar="JOBID[,JOBID...]")
@json_option
@click.pass_obj
def explain(invocation: Invocation, *, jobs: tuple[JobId, ...], as_json: bool) -> None:
    """Tell why a job runs where it does, or waits.

    What it is ordered behind, what would change it, and the figures behind that, as of the last round.

    \b
    Example:
      synsched explain 1234
      synsched explain 1234_[0-3]
    """
    with invocation.open_readable(history=True) as reading:
        found = [explain_job(reading, task) for job in jobs for task in expand_array(reading, job)]
    if as_json:
        print_json({"jobs": found})
        return
    screen = console()
    for position, one in enumerate(found):
        screen.print(*[""] * bool(position), explanation_view(one, invocation.now()), sep="\n")
