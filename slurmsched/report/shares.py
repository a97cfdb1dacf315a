"""What `status --shares` tells: what users are due by their tickets, what they had, what they trade.

`synsched status --shares` on a screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType

from slurmsched.model import SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.policies.gandiva_fair.accounts import GandivaFairState
from slurmsched.policies.gandiva_fair.trading import Trade
from slurmsched.report.quantities import duration, percent
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.store.read_only import ReadOnlyStore

_POLICY: Final = "gandiva-fair"


class NoTicketsError(SynschedError):
    """No round has gone by tickets."""


@dataclass(frozen=True, slots=True)
class UserShare:
    """`due` and `had` are GPU-seconds in GPUs of the slowest type as the user's jobs see them, since the user's first
    job of now came. `holdings` are GPUs by type after trading, `speedups` what one of each is worth."""

    user: str
    due: float
    had: float
    holdings: Mapping[str, float]
    speedups: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TicketShares:
    """As of `time`, the last round that went by tickets (unix seconds)."""

    time: float
    users: tuple[UserShare, ...]
    trades: tuple[Trade, ...]


def ticket_shares(store: ReadOnlyStore) -> TicketShares:
    """Users by name. Raises NoSharesError, StoreError."""
    past = GandivaFairState.decode(store.policy_state(_POLICY))
    if past.time is None:
        raise NoTicketsError(f'no round has gone by tickets yet: set system = "{_POLICY}" under [policy]')
    users = (
        UserShare(user, own.due, own.received, own.holdings, own.speedups)
        for user, own in sorted(past.accounts.items())
    )
    return TicketShares(past.time, tuple(users), tuple(past.trades))


_HOUR: Final = 3600.0
_SMALLEST_SHOWN: Final = 0.005


def ticket_shares_view(shares: TicketShares, now: float) -> RenderableType:
    """A line for each user, then one for each trade of the last round."""
    columns = (
        Column("USER"),
        Column("DUE", right=True),
        Column("HAD", right=True),
        Column("PART", right=True),
        Column("HOLDS"),
    )
    rows = [
        (
            own.user,
            f"{own.due / _HOUR:.1f}",
            f"{own.had / _HOUR:.1f}",
            percent(own.had / own.due if own.due else float("nan")),
            _gpus(own.holdings),
        )
        for own in shares.users
    ]
    head = safe_line(f"shares as of {duration(now - shares.time)} ago, in hours of the slowest GPU", "bold")
    parts: list[RenderableType] = [head, Listing(columns, rows)]
    if shares.trades:
        parts += ["", safe_line(pluralise(len(shares.trades), "trade"), "bold")]
        parts += (safe_line(f"  {_trade_text(trade)}") for trade in shares.trades)
    return Group(*parts)


def _gpus(holdings: Mapping[str, float]) -> str:
    return ", ".join(f"{gpus:.2f} {kind}" for kind, gpus in holdings.items() if gpus >= _SMALLEST_SHOWN) or "-"


def _trade_text(trade: Trade) -> str:
    return (
        f"{trade.seller} gives {trade.buyer} {trade.gpus:.2f} {trade.fast} for {trade.price:.2f} {trade.slow} each,"
        f" {trade.gpus * trade.price:.2f} in all"
    )
