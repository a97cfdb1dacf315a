"""What the policy remembers from round to round: passes, homes, what users were due and had. JSON-safe.

It comes back from a database that others may have written: what does not make sense counts as never said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeGuard

from slurmsched.model import JobId
from slurmsched.policies.gandiva_fair.trading import Trade

__all__ = ["Account", "Past", "Remembered"]


@dataclass(frozen=True, slots=True)
class Remembered:
    """Of a job: its pass, the GPU-seconds it had attained by then, and its home as `node type` (empty for none)."""

    passed: float
    attained: float
    home: str


@dataclass(frozen=True, slots=True)
class Account:
    """Of a user. `due` and `had` are GPU-seconds in GPUs of the slowest type, since the user's first job of now came.

    `holdings` are the GPUs of each type that the user's tickets stand for after trading, `speedups` what one of each is
    worth to the user. `owed` are GPU-seconds of each type by which what was had fell short lately, below zero for more.
    """

    due: float = 0.0
    had: float = 0.0
    holdings: Mapping[str, float] = field(default_factory=dict)
    speedups: Mapping[str, float] = field(default_factory=dict)
    owed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Past:
    """All of it, as of `time` (unix seconds; None before the first round). `best` are the highest rates measured, by
    `model type`."""

    time: float | None = None
    jobs: Mapping[JobId, Remembered] = field(default_factory=dict)
    users: Mapping[str, Account] = field(default_factory=dict)
    trades: Sequence[Trade] = ()
    best: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, state: Mapping[str, object]) -> Past:
        """Raises nothing."""
        time = state.get("time")
        return cls(
            time=float(time) if _number(time) else None,
            jobs=_jobs(state.get("jobs")),
            users={user: _account(said) for user, said in _mapping(state.get("users")).items()},
            trades=tuple(filter(None, map(_trade, _list(state.get("trades"))))),
            best=_numbers(state.get("best")),
        )

    def written(self) -> Mapping[str, object]:
        """As the store keeps it; jobs as columns, for there may be many."""
        jobs = self.jobs.values()
        return {
            "time": self.time,
            "jobs": {
                "id": [*self.jobs],
                "pass": [round(job.passed, 3) for job in jobs],
                "attained": [job.attained for job in jobs],
                "home": [job.home for job in jobs],
            },
            "users": {user: _plain(account) for user, account in self.users.items()},
            "trades": [
                {
                    "seller": one.seller,
                    "buyer": one.buyer,
                    "fast": one.fast,
                    "slow": one.slow,
                    "gpus": one.gpus,
                    "price": one.price,
                }
                for one in self.trades
            ],
            "best": dict(self.best),
        }


def _plain(account: Account) -> Mapping[str, object]:
    return {
        "due": account.due,
        "had": account.had,
        "holdings": dict(account.holdings),
        "speedups": dict(account.speedups),
        "owed": dict(account.owed),
    }


def _jobs(said: object) -> Mapping[JobId, Remembered]:
    columns = [_list(_mapping(said).get(key)) for key in ("id", "pass", "attained", "home")]
    if len({len(column) for column in columns}) != 1:
        return {}
    return {
        job: Remembered(float(passed), float(attained), home)
        for job, passed, attained, home in zip(*columns, strict=True)
        if isinstance(job, str) and isinstance(home, str) and _number(passed) and _number(attained)
    }


def _account(said: object) -> Account:
    own = _mapping(said)
    due, had = own.get("due"), own.get("had")
    return Account(
        float(due) if _number(due) else 0.0,
        float(had) if _number(had) else 0.0,
        _numbers(own.get("holdings")),
        _numbers(own.get("speedups")),
        _numbers(own.get("owed")),
    )


def _trade(said: object) -> Trade | None:
    own = _mapping(said)
    match [own.get(key) for key in ("seller", "buyer", "fast", "slow", "gpus", "price")]:
        case [str(seller), str(buyer), str(fast), str(slow), float(gpus) | int(gpus), float(price) | int(price)]:
            return Trade(seller, buyer, fast, slow, gpus, price)
    return None


def _mapping(said: object) -> Mapping[str, object]:
    return said if isinstance(said, dict) else {}


def _list(said: object) -> Sequence[object]:
    return said if isinstance(said, list) else ()


def _numbers(said: object) -> Mapping[str, float]:
    return {key: float(value) for key, value in _mapping(said).items() if _number(value)}


def _number(said: object) -> TypeGuard[float]:
    return isinstance(said, (int, float)) and not isinstance(said, bool) and isfinite(said)
