"""What `status --shares` tells: what users are due by their tickets, what they had, what they trade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.model import SynschedError
from slurmsched.policies.gandiva_fair import Past, Trade
from slurmsched.store.reading import Reading

__all__ = ["NoSharesError", "Shares", "UserShare", "shares"]

_SYSTEM: Final = "gandiva-fair"


class NoSharesError(SynschedError):
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
class Shares:
    """As of `time`, the last round that went by tickets (unix seconds)."""

    time: float
    users: tuple[UserShare, ...]
    trades: tuple[Trade, ...]


def shares(reading: Reading) -> Shares:
    """Users by name. Raises NoSharesError, StoreError."""
    past = Past.read(reading.policy_state(_SYSTEM))
    if past.time is None:
        raise NoSharesError(f'no round has gone by tickets yet: set system = "{_SYSTEM}" under [policy]')
    users = (UserShare(user, own.due, own.had, own.holdings, own.speedups) for user, own in sorted(past.users.items()))
    return Shares(past.time, tuple(users), tuple(past.trades))
