"""`synsched status --shares`: what users are due by their tickets, what they received, and their trades."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, RenderableType

from slurmsched.model import SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.policies.state import Trade, decode_state
from slurmsched.policies.unified import MarketState
from slurmsched.report.quantities import duration, fixed, percent, significant
from slurmsched.report.tables import Column, Listing, safe_line
from slurmsched.store.publication import TICKET_POLICIES
from slurmsched.store.read_only import ReadOnlyStore

_UNITS: Final = {"gandiva-fair": "the slowest type", "unified": "the mean GPU"}
"""The GPU whose hours a policy counts."""


class NoTicketsError(SynschedError):
    """No round has run a policy with tickets."""


@dataclass(frozen=True, slots=True)
class UserShare:
    """A user's entitlement: `due` and received (`had`) GPU-seconds.

    Under gandiva-fair in GPUs of the slowest type by the speedups of the user's jobs, since the oldest of their present
    jobs arrived; `holdings` are GPUs by type after trading, `speedups` the value of one GPU of each type. Under unified
    in GPUs of the mean worth, those of a day ago counted half; `holdings` are GPUs of any type.
    """

    user: str
    due: float
    had: float
    holdings: Mapping[str, float]
    speedups: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TicketShares:
    """Shares as of `time`, the last round of `policy` (unix seconds).

    `prices` are those of GPU types, and of a `CPU` and a `GiB` more for a GPU, where jobs bid for them; 1 is what a job
    with one GPU-hour to go bids.
    """

    time: float
    users: tuple[UserShare, ...]
    trades: tuple[Trade, ...]
    policy: str = "gandiva-fair"
    prices: Mapping[str, float] = field(default_factory=dict)


def ticket_shares(store: ReadOnlyStore) -> TicketShares:
    """The shares of all users, sorted by name, by the policy with tickets that ran last. Raises NoTicketsError,
    StoreError."""
    states = {policy: decode_state(MarketState, store.policy_state(policy)) for policy in TICKET_POLICIES}
    times = {policy: state.time for policy, state in states.items() if state.time is not None}
    if not times:
        raise NoTicketsError(
            f"no round has used tickets yet: set system = {json.dumps(TICKET_POLICIES[0])} under [policy],"
            f" or {json.dumps(TICKET_POLICIES[1])}"
        )
    policy = max(times, key=times.__getitem__)
    state = states[policy]
    users = (
        UserShare(user, account.due, account.received, account.holdings, account.speedups)
        for user, account in sorted(state.accounts.items())
    )
    return TicketShares(times[policy], tuple(users), tuple(state.trades), policy, state.prices)


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
            held_text(share.holdings),
        )
        for share in shares.users
    ]
    since, unit = duration(now - shares.time), _UNITS.get(shares.policy, "the mean GPU")
    head = safe_line(f"shares as of {since} ago, in GPU-hours of {unit}", "bold")
    parts: list[RenderableType] = [head, Listing(columns, rows)]
    if shares.trades:
        parts += ["", safe_line(pluralise(len(shares.trades), "trade"), "bold")]
        parts += (safe_line(f"  {_trade_text(trade)}") for trade in shares.trades)
    if shares.prices:
        parts += ["", *(safe_line(line) for line in _price_lines(shares.prices))]
    return Group(*parts)


_EXTRAS: Final = ("CPU", "GiB")
"""Prices that are not those of a GPU type."""


def _price_lines(prices: Mapping[str, float]) -> Iterator[str]:
    kinds = {kind: price for kind, price in prices.items() if kind not in _EXTRAS}
    yield "prices (1: what a job with one GPU-hour to go bids for a GPU)"
    cost = ", ".join(f"{kind} {significant(price, 2)}" for kind, price in kinds.items())
    yield f"  a GPU costs: {cost}" if cost else "  GPUs cost nothing: no job waits for them"
    yield "  one more for a GPU is worth: " + ", ".join(
        f"{what} {significant(prices.get(what, 0.0), 2)}" for what in _EXTRAS
    )


def held_text(holdings: Mapping[str, float]) -> str:
    """GPUs by type: `2.50 v100, 4.00 k80`."""
    return ", ".join(f"{fixed(gpus, 2)} {kind}" for kind, gpus in holdings.items() if gpus >= _SMALLEST_SHOWN) or "-"


def _trade_text(trade: Trade) -> str:
    gpus, price, whole = (fixed(number, 2) for number in (trade.gpus, trade.price, trade.gpus * trade.price))
    return f"{trade.seller} gives {trade.buyer} {gpus} {trade.fast} for {price} {trade.slow} each, {whole} in all"
