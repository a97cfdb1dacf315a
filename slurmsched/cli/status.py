"""`synsched status` and `synsched free`: the last round, read from our own files without asking slurmctld."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.live import Live

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import parse_mebibytes, split_names
from slurmsched.model import JobState
from slurmsched.report.free import DemandPerGpu, free_capacity, free_view
from slurmsched.report.status import ClusterStatus, filter_status, jobs_view, status_view

if TYPE_CHECKING:
    from slurmsched.report.shares import TicketShares


@click.command()
@click.option("-u", "--user", "users", type=split_names, default="", metavar="LIST", help="Only jobs of these users.")
@click.option(
    "-p", "--partition", "partitions", type=split_names, default="", metavar="LIST", help="Only these partitions."
)
@click.option("-n", "--noheader", is_flag=True, help="Print only the jobs, without headings.")
@click.option("--nodes", "every_node", is_flag=True, help="Draw every node, however many there are.")
@click.option("--shares", "by_tickets", is_flag=True, help="Show each user's entitlement by tickets, usage and trades.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=5.0,
    metavar="[SECONDS]",
    help="Repeat every SECONDS until Ctrl-C. Default: 5.",
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
    by_tickets: bool,
    watch: float | None,
    as_json: bool,
) -> None:
    """Show which jobs run, which wait and why.

    Shows the state of the last round. Reads only our own files and never asks slurmctld, so you may call it as often as
    you like. What PrivateData in slurm.conf hides from you is not shown.

    \b
    Example:
      synsched status -u $USER
      synsched status --watch
      synsched status --shares
    """
    invocation.tolerate_mistakes()

    def current() -> ClusterStatus | TicketShares:
        return (
            _ticket_shares(invocation, users) if by_tickets else filter_status(invocation.status(), users, partitions)
        )

    def view() -> RenderableType:
        if by_tickets:
            return _ticket_shares_view(invocation, users)
        filtered = filter_status(invocation.status(), users, partitions)
        return jobs_view(filtered.jobs, filtered.at, headings=False) if noheader else status_view(filtered, every_node)

    if as_json:
        print_json(current())
    elif watch is None:
        console().print(view())
    else:
        _watch(invocation, view, watch)


def _ticket_shares(invocation: Invocation, users: tuple[str, ...]) -> TicketShares:
    """Returns the shares of these users, of all if there are none, and every trade."""
    from slurmsched.report.shares import ticket_shares  # noqa: PLC0415  # needs numpy: plain `status` starts without it

    with invocation.open_readable() as store:
        shares = ticket_shares(store)
    return replace(shares, users=tuple(share for share in shares.users if not users or share.user in users))


def _ticket_shares_view(invocation: Invocation, users: tuple[str, ...]) -> RenderableType:
    from slurmsched.report.shares import ticket_shares_view  # noqa: PLC0415  # as above

    return ticket_shares_view(_ticket_shares(invocation, users), invocation.now())


def _watch(invocation: Invocation, view: Callable[[], RenderableType], interval: float) -> None:
    """Repeats the view until Ctrl-C, which is no error. Without a terminal, prints one report after the other."""
    screen = console()
    try:
        if screen.is_terminal and not screen.is_dumb_terminal:
            with Live(view(), console=screen, screen=True, auto_refresh=False) as live:
                while True:
                    invocation.clock.sleep(interval)
                    live.update(view(), refresh=True)
        while True:
            screen.print(view())
            invocation.clock.sleep(interval)
            screen.print()
    except KeyboardInterrupt:
        return


@click.command()
@click.option("--gpu", "gpu_type", metavar="TYPE", help="Only GPUs of this type.")
@click.option(
    "-p", "--partition", "partitions", type=split_names, default="", metavar="LIST", help="Only these partitions."
)
@click.option(
    "--cpus-per-gpu", type=click.IntRange(min=1), default=1, metavar="N", help="CPUs that each GPU needs. Default: 1."
)
@click.option("--mem-per-gpu", type=parse_mebibytes, default="0", metavar="SIZE", help="Memory per GPU, such as 16G.")
@json_option
@click.pass_obj
def free(
    invocation: Invocation,
    *,
    gpu_type: str | None,
    partitions: tuple[str, ...],
    cpus_per_gpu: int,
    mem_per_gpu: int,
    as_json: bool,
) -> None:
    """Show what could start right now.

    Shows the largest job that fits for each GPU type, the idle GPUs of each node, and why some of them are stranded.

    \b
    Example:
      synsched free --gpu v100 --cpus-per-gpu 3
    """
    invocation.tolerate_mistakes()
    everything = invocation.status()
    names = {name for node in everything.nodes for name in node.partitions}
    if missing := sorted(set(partitions) - names):
        raise click.BadParameter(f"no partition '{missing[0]}' here; partitions: {', '.join(sorted(names)) or 'none'}")
    status = filter_status(everything, partitions=partitions)
    known = sorted({gpu.type for node in status.nodes for gpu in node.gpus})
    if gpu_type is not None and gpu_type not in known:
        raise click.BadParameter(f"no GPU of type '{gpu_type}' here; types: {', '.join(known) or 'none'}")
    waiting = sum(job.state is JobState.PENDING for job in status.jobs)
    demand = DemandPerGpu(gpu_type, cpus_per_gpu, mem_per_gpu)
    capacity = free_capacity(status.nodes, status.surveyed, waiting, demand, status.fragments)
    if as_json:
        print_json(capacity)
    else:
        console().print(free_view(capacity, status.at))
