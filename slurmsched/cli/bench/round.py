"""`synsched bench round`."""

from __future__ import annotations

import click

from slurmsched.cli.cluster import site
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.policy import MODE, with_mode
from slurmsched.daemon.running import once
from slurmsched.model import SynschedError
from slurmsched.report.listing import Column, Listing

__all__ = ["round_"]


class NotMeasuredError(SynschedError):
    """There was no round of our own to measure."""


@click.command("round")
@click.option("--mode", type=MODE, help="Another mode than the settings name.")
@json_option
@click.pass_obj
def round_(invocation: Invocation, *, mode: str | None, as_json: bool) -> None:
    """Measure one round on the cluster that the settings name.

    It is a round like any other: in mode enforce it changes what a round changes.

    \b
    Example:
      synsched bench round --mode observe --json
    """
    report = once(lambda: site(with_mode(invocation.settings, mode)), invocation.clock, _say)
    if report is None:
        raise NotMeasuredError("another 'synsched run' is at work: stop it, then measure")
    tally = report.tally
    figures = {
        "observe_s": tally.observe_s,
        "decide_s": tally.decide_s,
        "plan_s": tally.plan_s,
        "apply_s": tally.apply_s,
        "commands": tally.reads,
        "updates": tally.writes,
        "jobs": tally.jobs,
        "nodes": tally.nodes,
    }
    if as_json:
        print_json(figures)
        return
    columns = (Column("FIGURE"), Column("VALUE", right=True))
    console().print(Listing(columns, [(name, f"{value or 0:.6g}") for name, value in figures.items()]))


def _say(message: str) -> None:
    click.echo(f"synsched: {message}", err=True)
