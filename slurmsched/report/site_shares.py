"""`synsched status -M all --shares`: what users are entitled to and used on all clusters of a site together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType

from slurmsched.report.quantities import duration, fixed, percent
from slurmsched.report.shares import TicketShares
from slurmsched.report.site import UnreadCluster
from slurmsched.report.tables import Column, Listing, safe_line

_HOUR: Final = 3600.0
_SMALLEST_SHOWN: Final = 0.05


@dataclass(frozen=True, slots=True)
class SiteShare:
    """A user's GPUs by cluster: `entitled` to now by the tickets of each, and GPU-seconds `used`."""

    user: str
    entitled: Mapping[str, float]
    used: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SiteShares:
    """Shares over several clusters from `since` to `at` (unix seconds).

    `ticketless` are clusters whose rounds use no tickets: nobody is entitled there. `unknown` says why slurmdbd's usage
    is missing.
    """

    at: float
    since: float
    users: tuple[SiteShare, ...]
    ticketless: tuple[str, ...] = ()
    unread: tuple[UnreadCluster, ...] = ()
    unknown: str = ""


def site_shares(
    tickets: Mapping[str, TicketShares | None],
    usage: Mapping[str, Mapping[str, float]],
    period: tuple[float, float],
    *,
    unread: Sequence[UnreadCluster] = (),
    unknown: str = "",
) -> SiteShares:
    """The shares by cluster, None where no round used tickets, and GPU-seconds by user and cluster in this period (unix
    seconds), of one site: who used most first."""
    entitled: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for cluster, shares in tickets.items():
        for share in shares.users if shares else ():
            entitled[share.user][cluster] = sum(share.holdings.values())
    users = (SiteShare(user, entitled.get(user, {}), usage.get(user, {})) for user in {*entitled, *usage})
    ordered = sorted(users, key=lambda one: (-sum(one.used.values()), -sum(one.entitled.values()), one.user))
    ticketless = tuple(cluster for cluster, shares in tickets.items() if shares is None)
    return SiteShares(period[1], period[0], tuple(ordered), ticketless, tuple(unread), unknown)


def site_shares_view(shares: SiteShares) -> RenderableType:
    """One line per user, and below it one per cluster: GPUs that the user is entitled to, GPU-hours used, and the part
    of all that was used there."""
    columns = (
        *(Column("USER"), Column("CLUSTER"), Column("ENTITLED", right=True), Column("GPU-HOURS", right=True)),
        Column("PART", right=True),
    )
    totals = defaultdict[str, float](float)
    for one in shares.users:
        for cluster, seconds in one.used.items():
            totals[cluster] += seconds

    def row(user: str, cluster: str, entitled: float, used: float, total: float) -> tuple[str, ...]:
        part = percent(used / total if total else float("nan"))
        return (
            *(user, cluster, fixed(entitled) if entitled >= _SMALLEST_SHOWN else "-"),
            *("-" if shares.unknown else fixed(used / _HOUR), part),
        )

    rows: list[tuple[str, ...]] = []
    for one in shares.users:
        rows.append(row(one.user, "all", sum(one.entitled.values()), sum(one.used.values()), sum(totals.values())))
        for cluster in sorted({*one.entitled, *one.used}):
            entitled, used = one.entitled.get(cluster, 0.0), one.used.get(cluster, 0.0)
            if entitled >= _SMALLEST_SHOWN or used:
                rows.append(row("", cluster, entitled, used, totals[cluster]))
    head = (
        f"GPUs by tickets now, and GPU-hours of {duration(shares.at - shares.since)} to the last full hour by slurmdbd"
    )
    parts: list[RenderableType] = [safe_line(head, "bold"), Listing(columns, rows)]
    parts += [safe_line(f"{cluster}: no round has used tickets") for cluster in shares.ticketless]
    parts += [safe_line(f"usage is unknown: {shares.unknown}", "bold red")] if shares.unknown else []
    parts += [safe_line(f"{one.file}: {one.error}", "bold red") for one in shares.unread]
    return Group(*parts)
