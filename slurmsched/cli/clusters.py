"""The clusters of one site: this one, and those whose settings files `cluster.others` names. None is asked, only the
files of their daemons are read; of usage slurmdbd is asked, which has that of all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from slurmsched.backends.protocol import BackendError
from slurmsched.backends.slurm.accounting import read_usage
from slurmsched.backends.slurm.commands import Commands
from slurmsched.cli.invocation import Invocation
from slurmsched.model import SynschedError
from slurmsched.report.queue import JobFilter
from slurmsched.report.site import SiteStatus, UnreadCluster, site_status
from slurmsched.report.status import ClusterStatus, filter_status

if TYPE_CHECKING:
    from slurmsched.report.site_shares import SiteShares

ALL: Final = "all"
_USAGE_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class ClusterSelection:
    """The clusters that somebody chose by name. `unread` are those of which nothing can be told, where all were
    chosen."""

    invocations: tuple[Invocation, ...]
    statuses: tuple[ClusterStatus, ...]
    unread: tuple[UnreadCluster, ...] = ()

    @property
    def only(self) -> Invocation | None:
        """The one cluster that was chosen; None for several."""
        return self.invocations[0] if len(self.invocations) == 1 and not self.unread else None

    def status(self, at: float, chosen: JobFilter) -> ClusterStatus | SiteStatus:
        """The status of the one cluster, or of several as of `at` (unix seconds), with these jobs."""
        filtered = [filter_status(status, chosen) for status in self.statuses]
        return site_status(at, filtered, self.unread) if self.only is None else filtered[0]

    def shares(self, at: float, names: Collection[str] | None) -> SiteShares:
        """What users are entitled to on these clusters and used in the week before `at` (unix seconds).

        Usage counts on the clusters of these `names`, on all that slurmdbd has for None; why there is none is told.
        Raises StoreError, ExportError.
        """
        from slurmsched.report.shares import NoTicketsError, TicketShares, ticket_shares  # noqa: PLC0415  # need numpy
        from slurmsched.report.site_shares import site_shares  # noqa: PLC0415  # as above

        tickets = dict[str, TicketShares | None]()
        for invocation, status in zip(self.invocations, self.statuses, strict=True):
            with invocation.open_readable() as store:
                try:
                    tickets[status.cluster] = ticket_shares(store)
                except NoTicketsError:
                    tickets[status.cluster] = None
        period, cluster = (at - _USAGE_SECONDS, at), self.invocations[0].settings.cluster
        try:
            read, unknown = read_usage(Commands(cluster.timeout, cluster.slurm_conf), *period), ""
        except BackendError as error:
            read, unknown = {}, str(error)
        chosen = (
            (user, {name: used[name] for name in used if names is None or name in names}) for user, used in read.items()
        )
        usage = {user: used for user, used in chosen if used}
        return site_shares(tickets, usage, period, unread=self.unread, unknown=unknown)


def select_clusters(invocation: Invocation, names: Collection[str]) -> ClusterSelection:
    """The clusters of these names, or all of the site. Raises BadParameter for a name that none has, and what reading
    this cluster raises where there is no other."""
    others = tuple(_others(invocation))
    if not others:
        return _checked(invocation, names)
    read, unread = list[tuple[Invocation, ClusterStatus]](), list[UnreadCluster]()
    for one in (invocation, *others):
        try:
            if one is not invocation:
                one.tolerate_mistakes(quietly=True)
            read.append((one, one.status()))
        except SynschedError as error:
            unread.append(UnreadCluster(str(one.config or "this cluster"), str(error)))
    every = ALL in names
    known = {status.cluster for _, status in read}
    if unknown := sorted(set(names) - known - {ALL}):
        missing = "".join(f"; {one.file} cannot be read: {one.error}" for one in unread)
        raise click.BadParameter(f"no cluster '{unknown[0]}' here: known are {', '.join(sorted(known))}{missing}")
    chosen = [(one, status) for one, status in read if every or status.cluster in names]
    invocations = tuple(one for one, _ in chosen)
    return ClusterSelection(invocations, tuple(status for _, status in chosen), tuple(unread) if every else ())


def _others(invocation: Invocation) -> list[Invocation]:
    """The other clusters; a list that all of them share may name this one too."""
    own = invocation.loaded.file
    paths = (Path(name) for name in invocation.settings.cluster.others)
    return [
        Invocation(path, invocation.clock) for path in paths if own is None or path.resolve() != Path(own).resolve()
    ]


def _checked(invocation: Invocation, names: Collection[str]) -> ClusterSelection:
    status = invocation.status()
    if unknown := [name for name in names if name not in (ALL, status.cluster)]:
        raise click.BadParameter(f"no cluster '{unknown[0]}' here: this is {status.cluster or 'one without a name'}")
    return ClusterSelection((invocation,), (status,))
