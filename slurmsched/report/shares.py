"""`synsched status --shares`: what users are due by their tickets, what they received, and their trades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType

from slurmsched.model import SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.policies.state import TicketAccounts, Trade, decode_state
from slurmsched.report.quantities import duration, fixed, percent
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.store.read_only import ReadOnlyStore

_POLICY: Final = "gandiva-fair"


class NoTicketsError(SynschedError):
    """No round has run the policy gandiva-fair."""


@dataclass(frozen=True, slots=True)
class UserShare:
    """A user's entitlement: `due` and received (`had`) GPU-seconds, in GPUs of the slowest type by the speedups of the
    user's jobs, since the oldest of their present jobs arrived. `holdings` are GPUs by type after trading, `speedups`
    the value of one GPU of each type."""

    user: str
    due: float
    had: float
    holdings: Mapping[str, float]
    speedups: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TicketShares:
    """Shares as of `time`, the last round of gandiva-fair (unix seconds)."""

    time: float
    users: tuple[UserShare, ...]
    trades: tuple[Trade, ...]


def ticket_shares(store: ReadOnlyStore) -> TicketShares:
    """The shares of all users, sorted by name. Raises NoTicketsError, StoreError."""
    state = decode_state(TicketAccounts, store.policy_state(_POLICY))
    if state.time is None:
        raise NoTicketsError(f'no round has used tickets yet: set system = "{_POLICY}" under [policy]')
    users = (
        UserShare(user, account.due, account.received, account.holdings, account.speedups)
        for user, account in sorted(state.accounts.items())
    )
    return TicketShares(state.time, tuple(users), tuple(state.trades))


_HOUR: Final = 3600.0
_SMALLEST_SHOWN: Final = 0.005


def ticket_shares_view(shares: TicketShares, now: float) -> RenderableType:
    """One line per user, then one per trade of the last round."""
    columns = (
        Column("USER"),
        Column("DUE", right=True),
        Column("HAD", right=True),
        Column("PART", right=True),
        Column("ENTITLED TO"),
    )
    rows = [
        (
            share.user,
            fixed(share.due / _HOUR),
            fixed(share.had / _HOUR),
            percent(share.had / share.due if share.due else float("nan")),
            _gpus(share.holdings),
        )
        for share in shares.users
    ]
    head = safe_line(f"shares as of {duration(now - shares.time)} ago, in GPU-hours of the slowest type", "bold")
    parts: list[RenderableType] = [head, Listing(columns, rows)]
    if shares.trades:
        parts += ["", safe_line(pluralise(len(shares.trades), "trade"), "bold")]
        parts += (safe_line(f"  {_trade_text(trade)}") for trade in shares.trades)
    return Group(*parts)


def _gpus(holdings: Mapping[str, float]) -> str:
    return ", ".join(f"{fixed(gpus, 2)} {kind}" for kind, gpus in holdings.items() if gpus >= _SMALLEST_SHOWN) or "-"


def _trade_text(trade: Trade) -> str:
    gpus, price, whole = (fixed(number, 2) for number in (trade.gpus, trade.price, trade.gpus * trade.price))
    return f"{trade.seller} gives {trade.buyer} {gpus} {trade.fast} for {price} {trade.slow} each, {whole} in all"
