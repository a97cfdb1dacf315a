"""What a round's policy is asked and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurmsched.experiments.mixed.work import Active
from slurmsched.experiments.mixed.workers import Workers

__all__ = ["Grant", "Question", "RoundPolicy", "Served"]


@dataclass(frozen=True, slots=True)
class Grant:
    """These workers, ascending, for one round, to one job or to two that share them.

    A job in several grants runs as so many copies, whose steps add up.
    """

    jobs: tuple[str, ...]
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """What became of a grant: seconds it kept its workers busy, of a pair the longer, and which jobs ended."""

    grant: Grant
    seconds: float
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """One round's question. `jobs` by id, in order of arrival; `last`: what became of the last round's grants.

    `time` in seconds from the start; the round lasts `period` seconds at most. A start on other workers than in the
    last round costs `overhead` seconds of it.
    """

    number: int
    time: float
    period: float
    overhead: float
    jobs: Mapping[str, Active]
    workers: Workers
    last: tuple[Served, ...] = ()


class RoundPolicy(Protocol):
    """Who runs on which workers in the coming round. It may remember: one object serves one replay."""

    @property
    def name(self) -> str: ...

    def decide(self, question: Question) -> Sequence[Grant]:
        """The coming round's grants. No worker is in two of them."""
