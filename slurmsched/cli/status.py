"""`synsched status`."""

from __future__ import annotations

from collections.abc import Callable

import click
from rich.console import RenderableType
from rich.live import Live

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import names
from slurmsched.report.status import Status, chosen
from slurmsched.report.status_view import jobs_view, status_view

__all__ = ["status"]


@click.command()
@click.option("-u", "--user", "users", type=names, default="", metavar="LIST", help="Only jobs of these users.")
@click.option("-p", "--partition", "partitions", type=names, default="", metavar="LIST", help="Only these partitions.")
@click.option("-n", "--noheader", is_flag=True, help="Only the lines of jobs, without headings.")
@click.option("--nodes", "every_node", is_flag=True, help="Draw every node, however many there are.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=5.0,
    metavar="[SECONDS]",
    help="Show it again every so many seconds (5), until Ctrl-C.",
)
@json_option
@click.pass_obj
def status(
    invocation: Invocation,
    *,
    users: tuple[str, ...],
    partitions: tuple[str, ...],
    noheader: bool,
    every_node: bool,
    watch: float | None,
    as_json: bool,
) -> None:
    """Show who runs, who waits and why.

    Reads our own database, so it may be called as often as you like: slurmctld is not asked.

    \b
    Example:
      synsched status -u $USER
      synsched status --watch
    """

    def current() -> Status:
        return chosen(invocation.status(), users, partitions)

    def view() -> RenderableType:
        shown = current()
        return jobs_view(shown.jobs, headings=False) if noheader else status_view(shown, every_node)

    if as_json:
        print_json(current())
    elif watch is None:
        console().print(view())
    else:
        _watch(invocation, view, watch)


def _watch(invocation: Invocation, view: Callable[[], RenderableType], every: float) -> None:
    """Until Ctrl-C, which is the way to end it and no error. What is no screen gets one report after the other."""
    screen = console()
    try:
        if screen.is_terminal and not screen.is_dumb_terminal:
            with Live(view(), console=screen, screen=True, auto_refresh=False) as live:
                while True:
                    invocation.clock.sleep(every)
                    live.update(view(), refresh=True)
        while True:
            screen.print(view())
            invocation.clock.sleep(every)
            screen.print()
    except KeyboardInterrupt:
        return
