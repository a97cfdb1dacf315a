"""Which of several pools that all fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from slurmsched.policies.ledger import Ledger
from slurmsched.policies.pools import Ints

__all__ = ["CONSOLIDATED", "FIRST_FIT", "Choosing"]


class Choosing(Protocol):
    """A preference among pools."""

    @property
    def name(self) -> str: ...

    def choose(self, ledger: Ledger, fitting: Ints, count: int) -> Ints:
        """The `count` pools to take, best first, out of at least as many ascending ones."""


@dataclass(frozen=True, slots=True)
class _FewestFree:
    """The server with the least free resources just enough (Synergy, section 4.2): GPUs, then CPUs, then memory; of
    equal ones the first. Whole servers stay free for the jobs that need them."""

    name: str = "fewest free resources that fit"

    def choose(self, ledger: Ledger, fitting: Ints, count: int) -> Ints:
        nodes = ledger.pools.node_of
        if count > 1:
            on = nodes[fitting]
            return fitting[np.lexsort((ledger.memory[on], ledger.cpus[on], ledger.gpus[fitting]))[:count]]
        fitting = _lowest(fitting, ledger.gpus[fitting])
        fitting = _lowest(fitting, ledger.cpus[nodes[fitting]])
        return _lowest(fitting, ledger.memory[nodes[fitting]])[:1]


def _lowest(pools: Ints, free: Ints) -> Ints:
    return cast(Ints, pools[free == free.min()])


@dataclass(frozen=True, slots=True)
class _FirstFit:
    """The first by position, as Slurm goes through nodes of one weight."""

    name: str = "first fit"

    def choose(self, ledger: Ledger, fitting: Ints, count: int) -> Ints:  # noqa: ARG002 as the protocol has it
        return fitting[:count]


CONSOLIDATED: Choosing = _FewestFree()
FIRST_FIT: Choosing = _FirstFit()
