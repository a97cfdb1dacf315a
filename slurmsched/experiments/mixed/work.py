"""A job of a replay: so many steps at a rate that depends on the GPU type, and how far it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

__all__ = ["Active", "Work", "rate"]


@dataclass(frozen=True, slots=True)
class Work:
    """A job. `rates`: steps per second of the whole job on `width` GPUs of each type, 0 where it cannot run.

    `beside`: by GPU type, what part of its rate it keeps while a job of another model shares its GPUs; a model that is
    not named cannot share them. `arrival` in seconds from the start. `weight`: its priority weight.
    """

    id: str
    width: int
    steps: int
    rates: Mapping[str, float]
    arrival: float = 0.0
    model: str = ""
    weight: float = 1.0
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Active:
    """A job that has arrived and not ended. `seconds`: how long it has run; `attained`: GPU-seconds it has held.

    `workers`: those it had in the last round, in all its copies; empty where it had none.
    """

    work: Work
    done: int = 0
    seconds: float = 0.0
    attained: float = 0.0
    workers: tuple[int, ...] = ()

    @property
    def remaining(self) -> int:
        return self.work.steps - self.done


def rate(work: Work, kinds: Collection[str], partner: Work | None = None) -> float:
    """Steps per second on GPUs of these types: the slowest holds the others back, and the partner all of them."""
    alone = min((work.rates.get(kind, 0.0) for kind in kinds), default=0.0)
    if partner is None:
        return alone
    return alone * min((work.beside.get(kind, {}).get(partner.model, 0.0) for kind in kinds), default=0.0)
