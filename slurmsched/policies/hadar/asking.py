"""A job as Hadar sees it (Sultana et al., section III-A, table I)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

__all__ = ["Allocation", "Ask", "Speeds"]

Allocation = tuple[tuple[int, int], ...]
"""Pools, ascending, and the GPUs that a gang has in each."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Iterations per second of a whole gang of `workers`, by type as the servers number them: X_j^r.

    `together` is on one server, `apart` on several; what it loses there is the cost of communication. 0.0 is a type
    that it cannot run on. It lies on `fewest` to `most` servers, and on several types only if it `mixes`. Jobs that are
    alike share the object.
    """

    workers: int
    together: tuple[float, ...]
    apart: tuple[float, ...]
    fewest: int = 1
    most: int | None = None
    mixes: bool = True

    @property
    def worst(self) -> float:
        """On the slowest type that it runs on at all."""
        return min((rate for rate in self.together if rate > 0), default=0.0)

    def of(self, types: Iterable[int], servers: int) -> float:
        """On these types: the slowest task holds the others back (equation 1b)."""
        rates = self.together if servers <= 1 else self.apart
        return min(rates[kind] for kind in types)


@dataclass(frozen=True, slots=True)
class Ask:
    """A job in the queue, running or not: `left` of its `total` iterations, `age` seconds after it arrived."""

    job: str
    speeds: Speeds
    left: float
    total: float
    age: float = 0.0

    @property
    def workers(self) -> int:
        """GPUs, all or none of them (equation 1e)."""
        return self.speeds.workers

    def completion(self, rate: float, delay: float = 0.0) -> float:
        """Seconds from arrival to end, f_j - a_j, if it works at this rate after a delay."""
        return self.age + delay + self.left / rate if rate > 0 else inf
