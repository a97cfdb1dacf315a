"""`synsched status`, `synsched free` and `synsched report`: the last round, read from our own files without asking
slurmctld."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from slurmsched.backends.slurm.hostlist import expand_hostlist
from slurmsched.cli.clusters import ALL, select_clusters
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import check_page_file, console, json_option, print_json, write_page
from slurmsched.cli.parameters import (
    complete_gpu_types,
    complete_partitions,
    complete_users,
    parse_job_ids,
    parse_mebibytes,
    split_names,
    user_name,
)
from slurmsched.daemon.process import step_back
from slurmsched.model import JobId, JobState, SynschedError
from slurmsched.report.free import DemandPerGpu, free_capacity, free_view
from slurmsched.report.queue import SHORT_STATES, JobFilter, first_jobs, format_jobs, jobs_view
from slurmsched.report.site import SiteStatus, site_jobs_view, site_view
from slurmsched.report.status import ClusterStatus, filter_status, status_view

if TYPE_CHECKING:
    from slurmsched.report.shares import TicketShares
    from slurmsched.report.site_shares import SiteShares

    SharesT = TypeVar("SharesT", TicketShares, SiteShares)

_MOST_ON_TERMINAL: Final = 50
"""Jobs that a terminal is shown without --limit."""


def _parse_states(value: str) -> frozenset[JobState]:
    """Returns states by squeue's short or long words, in any case; `all` are none in particular."""
    words = {short: state for state, short in SHORT_STATES.items()} | {state.name: state for state in JobState}
    names = [name.upper() for name in split_names(value)]
    if unknown := [name for name in names if name not in (*words, "ALL")]:
        raise click.BadParameter(
            f"no state '{unknown[0]}': write {', '.join(short for short in words if short != '-')}"
        )
    return frozenset() if "ALL" in names else frozenset(words[name] for name in names)


def _parse_hosts(value: str) -> frozenset[str]:
    """Returns the nodes of `n1,n[2-4]`."""
    try:
        return frozenset(expand_hostlist(value))
    except SynschedError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option(
    "-u",
    "--user",
    "users",
    type=split_names,
    default="",
    metavar="LIST",
    shell_complete=complete_users,
    help="Only jobs of these users.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=split_names,
    default="",
    metavar="LIST",
    shell_complete=complete_partitions,
    help="Only these partitions.",
)
@click.option("--me", is_flag=True, help="Only your own jobs.")
@click.option("-j", "--jobs", type=parse_job_ids, metavar="LIST", help="Only these jobs, or arrays.")
@click.option(
    "-t", "--states", type=_parse_states, default="", metavar="LIST", help="Only these states, as PD or running."
)
@click.option("-A", "--account", "accounts", type=split_names, default="", metavar="LIST", help="Only these accounts.")
@click.option("-n", "--name", "names", type=split_names, default="", metavar="LIST", help="Only jobs of these names.")
@click.option("-w", "--nodelist", type=_parse_hosts, default="", metavar="LIST", help="Only jobs on these nodes.")
@click.option(
    "-M", "--clusters", type=split_names, default="", metavar="LIST", help="These clusters of the site, or all."
)
@click.option(
    "-o", "--format", "template", metavar="FORMAT", help="Print jobs as squeue's FORMAT, such as '%i %T %M %r'."
)
@click.option("--noheader", is_flag=True, help="Print only the jobs, without headings.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="At most N jobs, 0 for all. Default: 50 on a terminal."
)
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
@json_option(
    "report.status:ClusterStatus",
    "report.shares:TicketShares",
    "report.site:SiteStatus",
    "report.site_shares:SiteShares",
)
@click.pass_obj
def status(
    invocation: Invocation,
    *,
    users: tuple[str, ...],
    partitions: tuple[str, ...],
    me: bool,
    jobs: tuple[JobId, ...] | None,
    states: frozenset[JobState],
    accounts: tuple[str, ...],
    names: tuple[str, ...],
    nodelist: frozenset[str],
    clusters: tuple[str, ...],
    template: str | None,
    noheader: bool,
    limit: int | None,
    every_node: bool,
    by_tickets: bool,
    watch: float | None,
    as_json: bool,
) -> None:
    """Show which jobs run, which wait and why.

    Shows the state of the last round. Reads only our own files and never asks slurmctld, so you may call it as often as
    you like. What PrivateData in slurm.conf hides from you is not shown. Only --shares of several clusters asks
    slurmdbd what their users used in the last seven days.

    Jobs are chosen as with squeue; TIME is how long a job has run, LIMIT its time limit. In a narrow terminal WHY is in
    short: 'synsched explain' has the sentence.

    \b
    Example:
      synsched status --me
      synsched status -t PD -o '%i %u %r'
      synsched status --watch
      synsched status --shares
      synsched status -M all
      synsched status -M all --shares
    """
    invocation.tolerate_mistakes()

    users = (*users, user_name()) if me else users
    chosen = JobFilter(
        users=frozenset(users),
        partitions=frozenset(partitions),
        accounts=frozenset(accounts),
        names=frozenset(names),
        nodes=nodelist,
        states=states,
        jobs=frozenset(jobs or ()),
    )
    limit = (_MOST_ON_TERMINAL if console().is_terminal else 0) if limit is None else limit

    def filtered() -> ClusterStatus | SiteStatus:
        if not clusters:
            return filter_status(invocation.status(), chosen)
        return select_clusters(invocation, clusters).status(invocation.now(), chosen)

    def current() -> ClusterStatus | TicketShares | SiteStatus | SiteShares:
        return _shares(invocation, clusters, users) if by_tickets else filtered()

    def view() -> RenderableType:
        if by_tickets:
            return _shares_view(_shares(invocation, clusters, users), invocation.now())
        return _filtered_view(filtered(), template, limit, headings=not noheader, every_node=every_node)

    if as_json:
        print_json(current())
    elif watch is None:
        console().print(view())
    else:
        _watch(invocation, view, watch)


def _filtered_view(
    shown: ClusterStatus | SiteStatus, template: str | None, limit: int, *, headings: bool, every_node: bool
) -> RenderableType:
    """The status of one cluster or of several, or only the jobs: in squeue's FORMAT, or without headings."""
    if isinstance(shown, SiteStatus):
        only_jobs = template is not None or not headings
        return site_jobs_view(shown, template, limit, headings=headings) if only_jobs else site_view(shown, limit)
    listed = first_jobs(shown.jobs, limit)
    if template is not None:
        return Text("\n".join(format_jobs(listed, shown.at, template, headings=headings)))
    return status_view(shown, every_node, limit) if headings else jobs_view(listed, shown.at, headings=False)


def _shares(invocation: Invocation, names: tuple[str, ...], users: tuple[str, ...]) -> TicketShares | SiteShares:
    """Returns the shares of these users, of all if there are none, on one cluster with its trades or on several."""
    from slurmsched.report.shares import ticket_shares  # noqa: PLC0415  # needs numpy: plain `status` starts without it

    only = invocation
    if names:
        selection = select_clusters(invocation, names)
        if selection.only is None:
            return _of_users(selection.shares(invocation.now(), None if ALL in names else frozenset(names)), users)
        only = selection.only
    with only.open_readable() as store:
        return _of_users(ticket_shares(store), users)


def _of_users(shares: SharesT, users: tuple[str, ...]) -> SharesT:
    """The shares of these users, of all if there are none."""
    return replace(shares, users=tuple(share for share in shares.users if not users or share.user in users))


def _shares_view(shares: TicketShares | SiteShares, now: float) -> RenderableType:
    from slurmsched.report.shares import TicketShares, ticket_shares_view  # noqa: PLC0415  # as above
    from slurmsched.report.site_shares import site_shares_view  # noqa: PLC0415  # as above

    return ticket_shares_view(shares, now) if isinstance(shares, TicketShares) else site_shares_view(shares)


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
@click.option("--gpu", "gpu_type", metavar="TYPE", shell_complete=complete_gpu_types, help="Only GPUs of this type.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=split_names,
    default="",
    metavar="LIST",
    shell_complete=complete_partitions,
    help="Only these partitions.",
)
@click.option(
    "--cpus-per-gpu", type=click.IntRange(min=1), default=1, metavar="N", help="CPUs that each GPU needs. Default: 1."
)
@click.option("--mem-per-gpu", type=parse_mebibytes, default="0", metavar="SIZE", help="Memory per GPU, such as 16G.")
@json_option("report.free:FreeCapacity")
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
    status = filter_status(everything, JobFilter(partitions=frozenset(partitions)))
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


@click.command()
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file. Default: print the page.")
@click.option(
    "--background", is_flag=True, help="At lowest priority, a page that loads itself: how the daemon calls it."
)
@click.pass_obj
def report(invocation: Invocation, *, out: Path | None, background: bool) -> None:
    """Write an HTML page of who runs, who waits and why.

    One file that loads nothing: the state of the last round, the GPUs of each node, expected starts, shares by tickets,
    and for who may read the database a history of GPUs in use and of waits. Whoever makes it, it shows what everybody
    may see. With storage.page set the daemon writes it after each round.

    \b
    Example:
      synsched report -o cluster.html
    """
    from slurmsched.report.live_page import current_page  # noqa: PLC0415  # plain `status` starts without it

    check_page_file(out)
    if background:
        step_back()
    page = current_page(invocation.settings, invocation.now(), kept_up=background)
    if out is None:
        click.echo(page, nl=False)
    else:
        write_page(out, page)
