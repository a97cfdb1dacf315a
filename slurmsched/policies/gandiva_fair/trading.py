"""Users exchange fast GPUs for slow ones where both gain (Gandiva_fair, slide 12).

A GPU of a faster type is worth its owner's speed-up in GPUs of the slowest one, the currency. The user with the highest
speed-up buys; the price is the second highest, as in a Vickrey auction. The slide sells from the lowest speed-up only.
Then a user in the middle gains by understating, to be the lowest; so here all below the price sell, each the same part
of what they can, and nobody's own word moves the price at which he trades. For the same reason the currency is divided
over the types beforehand, not spent on one after the other.

No rule that is truthful, leaves nobody worse and keeps GPUs what they are finds every gain (Myerson and Satterthwaite,
1983): who sets a price does not trade at it. It is repeated for every faster type, and with each round's holdings anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

__all__ = ["Trade", "Trader", "trade"]

_DUST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Trader:
    """A user at the market. `holdings` are the GPUs of each type that the user's tickets stand for now.

    `speedups` say how many GPUs of the slowest type one of each type is worth; a type that is missing is not traded.
    `room` is how many GPUs more than now the user's jobs could use, `usable` the most of each type, where that is known
    to be limited.
    """

    user: str
    holdings: Mapping[str, float]
    speedups: Mapping[str, float]
    room: float = float("inf")
    usable: Mapping[str, float] = field(default_factory=dict)

    @property
    def worth(self) -> float:
        """All holdings, in GPUs of the slowest type as this user's jobs see them."""
        return sum(gpus * self.speedups.get(kind, 1.0) for kind, gpus in self.holdings.items())


@dataclass(frozen=True, slots=True)
class Trade:
    """`seller` gives `gpus` of type `fast` for `price` of type `slow` each."""

    seller: str
    buyer: str
    fast: str
    slow: str
    gpus: float
    price: float


def trade(
    traders: Iterable[Trader], worth: Mapping[str, float], listed: Mapping[str, float] | None = None
) -> tuple[tuple[Trader, ...], tuple[Trade, ...]]:
    """The traders with what they hold afterwards, in their order, and the trades.

    `worth` says how the currency is divided over the faster types (a figure for each of them; the type that it leaves
    out is the slowest). `listed` are speed-ups that nobody of the traders has said: the price where there are two of
    them only, since the second highest would be the seller's own word.
    """
    people = {trader.user: trader for trader in traders}
    slowest = {kind for trader in people.values() for kind in trader.holdings} - worth.keys()
    if len(slowest) != 1:
        return tuple(people.values()), ()
    slow, whole, trades = slowest.pop(), sum(worth.values()), list[Trade]()
    at_first = dict(people)
    for fast, value in worth.items():
        said = [trader for trader in at_first.values() if trader.speedups.get(fast, 0.0) > 0]
        part = value / whole if whole else 0.0
        for one in _market(said, fast, slow, part, (listed or {}).get(fast)):
            trades.append(one)
            people[one.seller] = _with(people[one.seller], {fast: -one.gpus, slow: one.gpus * one.price})
            people[one.buyer] = _with(people[one.buyer], {fast: one.gpus, slow: -one.gpus * one.price})
    return tuple(people.values()), tuple(trades)


def _market(said: Sequence[Trader], fast: str, slow: str, part: float, listed: float | None) -> list[Trade]:
    """What is sold of one type. `part` is how much of the currency and of everybody's room counts here."""
    ranked = sorted(said, key=lambda trader: (-trader.speedups[fast], trader.user))
    if len(ranked) < 2:  # noqa: PLR2004  # a market has two sides
        return []
    buyer, others = ranked[0], ranked[1:]
    price = others[0].speedups[fast] if len(others) > 1 else (listed or 0.0)
    if not others[-1].speedups[fast] < price < buyer.speedups[fast]:
        return []
    sellers = {trader.user: _for_sale(trader, fast, price, part) for trader in others if trader.speedups[fast] < price}
    wanted = min(
        buyer.holdings.get(slow, 0.0) * part / price,
        max(0.0, buyer.usable.get(fast, float("inf")) - buyer.holdings.get(fast, 0.0)),
    )
    offered = sum(sellers.values())
    sold = min(wanted, offered)
    if sold <= _DUST:
        return []
    return [
        Trade(user, buyer.user, fast, slow, sold * gpus / offered, price) for user, gpus in sellers.items() if gpus > 0
    ]


def _for_sale(trader: Trader, fast: str, price: float, part: float) -> float:
    """No more than leaves the seller jobs for all that is got in exchange."""
    held = trader.holdings.get(fast, 0.0)
    return min(held, trader.room * part / (price - 1)) if price > 1 else held


def _with(trader: Trader, change: Mapping[str, float]) -> Trader:
    holdings = {kind: trader.holdings.get(kind, 0.0) + change.get(kind, 0.0) for kind in {**trader.holdings, **change}}
    return replace(trader, holdings=holdings)
