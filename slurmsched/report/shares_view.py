"""`synsched status --shares` on a screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Group, RenderableType

from slurmsched.policies.gandiva_fair import Trade
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import count, duration, percent
from slurmsched.report.shares import Shares
from slurmsched.report.words import line

__all__ = ["shares_view"]

_HOUR: Final = 3600.0
_DUST: Final = 0.005


def shares_view(shares: Shares, now: float) -> RenderableType:
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
    head = line(f"shares as of {duration(now - shares.time)} ago, in hours of the slowest GPU", "bold")
    parts: list[RenderableType] = [head, Listing(columns, rows)]
    if shares.trades:
        parts += ["", line(count(len(shares.trades), "trade"), "bold")]
        parts += (line(f"  {_said(trade)}") for trade in shares.trades)
    return Group(*parts)


def _gpus(holdings: Mapping[str, float]) -> str:
    return ", ".join(f"{gpus:.2f} {kind}" for kind, gpus in holdings.items() if gpus >= _DUST) or "-"


def _said(trade: Trade) -> str:
    return (
        f"{trade.seller} gives {trade.buyer} {trade.gpus:.2f} {trade.fast} for {trade.price:.2f} {trade.slow} each,"
        f" {trade.gpus * trade.price:.2f} in all"
    )
