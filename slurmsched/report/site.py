"""`synsched status -M all`: the clusters of one site in one view, each as its own daemon tells it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.model import JobState
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration
from slurmsched.report.queue import first_jobs, format_jobs, jobs_view, more_jobs_line
from slurmsched.report.status import ClusterStatus
from slurmsched.report.tables import Column, Listing, safe_line

_NAMELESS: Final = "(no name)"


@dataclass(frozen=True, slots=True)
class UnreadCluster:
    """A cluster of which nothing can be told: the file of its settings, and why."""

    file: str
    error: str


@dataclass(frozen=True, slots=True)
class UserTotal:
    """What a user has on all clusters of the site together: GPUs in use, and jobs that run and wait."""

    user: str
    gpus: int
    running: int
    waiting: int
    by_cluster: dict[str, int] = field(default_factory=dict)
    """GPUs in use, by cluster; those with none are left out."""


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """The status of several clusters as of `at` (unix seconds): as their daemons recorded it, none is asked."""

    at: float
    clusters: tuple[ClusterStatus, ...]
    unread: tuple[UnreadCluster, ...]
    users: tuple[UserTotal, ...]


def site_status(at: float, clusters: Sequence[ClusterStatus], unread: Sequence[UnreadCluster]) -> SiteStatus:
    """The status of these clusters at `at`, with the sums of their users: who has most GPUs first."""
    gpus: defaultdict[str, dict[str, int]] = defaultdict(dict)
    running, waiting = defaultdict[str, int](int), defaultdict[str, int](int)
    for cluster in clusters:
        name = cluster.cluster or _NAMELESS
        for job in cluster.jobs:
            by_cluster = gpus[job.user]
            if job.state is JobState.RUNNING:
                by_cluster[name] = by_cluster.get(name, 0) + job.gpus
                running[job.user] += 1
            waiting[job.user] += job.state is JobState.PENDING
    users = (
        UserTotal(user, sum(held.values()), running[user], waiting[user], {k: v for k, v in held.items() if v})
        for user, held in gpus.items()
    )
    return SiteStatus(
        at, tuple(clusters), tuple(unread), tuple(sorted(users, key=lambda total: (-total.gpus, total.user)))
    )


def site_view(site: SiteStatus, limit: int = 0) -> RenderableType:
    """One line per cluster and per user, then each cluster's jobs, at most `limit` of them; all if it is 0."""
    parts: list[RenderableType] = [_clusters_table(site.clusters)]
    parts += [safe_line(f"{one.file}: {one.error}", "bold red") for one in site.unread]
    if site.users:
        parts += ["", _users_table(site.users)]
    for cluster in site.clusters:
        listed = first_jobs(cluster.jobs, limit)
        if listed:
            parts += ["", _heading(cluster), jobs_view(listed, cluster.at)]
        if len(listed) < len(cluster.jobs):
            parts.append(more_jobs_line(len(cluster.jobs) - len(listed)))
    return Group(*parts)


def site_jobs_view(site: SiteStatus, template: str | None, limit: int, *, headings: bool) -> RenderableType:
    """Only the jobs, each cluster's below its name as squeue prints them; in squeue's FORMAT if one is given."""
    parts: list[RenderableType] = []
    for cluster in site.clusters:
        listed = first_jobs(cluster.jobs, limit)
        parts += [_heading(cluster)] if headings else []
        if template is not None:
            parts += [Text(line) for line in format_jobs(listed, cluster.at, template, headings=headings)]
        elif listed:
            parts.append(jobs_view(listed, cluster.at, headings=headings))
    return Group(*parts)


def _heading(cluster: ClusterStatus) -> Text:
    return safe_line(f"CLUSTER: {cluster.cluster or _NAMELESS}", "bold")


def _clusters_table(clusters: Sequence[ClusterStatus]) -> RenderableType:
    columns = (
        *(Column("CLUSTER"), Column("MODE"), Column("GPUS", right=True), Column("RUNNING", right=True)),
        *(Column("WAITING", right=True), Column("ROUND"), Column("STATE")),
    )
    return Listing(columns, [_cluster_row(cluster) for cluster in clusters], wrapped=True)


def _cluster_row(cluster: ClusterStatus) -> Sequence[RenderableType]:
    total = sum(len(node.gpus) for node in cluster.nodes)
    used = total - sum(node.idle_gpus() for node in cluster.nodes)
    age = cluster.liveness.round_age
    problems = f"{pluralise(len(cluster.problems), 'problem')}: 'synsched status -M {cluster.cluster}' names them"
    state = cluster.paused or ("" if cluster.liveness.healthy else cluster.liveness.sentence)
    state = state or (problems if cluster.problems else "well")
    return (
        *(cluster.cluster or _NAMELESS, cluster.mode, f"{used}/{total}", f"{cluster.running}", f"{cluster.waiting}"),
        *("-" if age is None else f"{duration(age)} ago", state),
    )


def _users_table(users: Sequence[UserTotal]) -> RenderableType:
    columns = (
        *(Column("USER"), Column("GPUS", right=True), Column("RUNNING", right=True), Column("WAITING", right=True)),
        Column("WHERE"),
    )
    rows = [
        (total.user, f"{total.gpus}", f"{total.running}", f"{total.waiting}", _where(total.by_cluster))
        for total in users
    ]
    return Listing(columns, rows)


def _where(by_cluster: dict[str, int]) -> str:
    return ", ".join(f"{name} {gpus}" for name, gpus in by_cluster.items()) or "-"
