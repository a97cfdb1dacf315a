"""The clusters of one site: this one, and those whose settings files `cluster.others` names. None is asked, only the
files of their daemons are read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.model import SynschedError
from slurmsched.report.queue import JobFilter
from slurmsched.report.site import SiteStatus, UnreadCluster, site_status
from slurmsched.report.status import ClusterStatus, filter_status

ALL = "all"


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
