"""The named systems, each a row of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Final

from slurmsched.policies.allocating import AsRequested, Greedy, Proportional, Tune
from slurmsched.policies.backfilling import Backfilling
from slurmsched.policies.composed import FINISHING, Composed
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd import FragmentationDescent
from slurmsched.policies.gandiva_fair import GandivaFair
from slurmsched.policies.gavel.live import Gavel
from slurmsched.policies.hadar.live import HadarSystem
from slurmsched.policies.hadare.live import HadarE
from slurmsched.policies.ordering import (
    Alignment,
    DominantShare,
    FinishTimeFairness,
    FirstInFirstOut,
    LeastAttainedService,
    ShortestRemainingTime,
)
from slurmsched.policies.placing import CONSOLIDATED, FIRST_FIT
from slurmsched.policies.protocol import Ordering, System
from slurmsched.policies.tesserae.naming import rename_nodes
from slurmsched.policies.tesserae.packed import Packed

__all__ = ["ORDERS", "OWN_ORDER", "PARTS", "SYSTEMS", "system"]

TIRESIAS: Final = LeastAttainedService((3600.0,), patience=inf, name="tiresias")
"""Two queues, as Hadar compares with it (section V of its paper): nobody is promoted."""

YARN: Final = FirstInFirstOut(name="yarn-cs")
"""YARN's capacity scheduler with one queue: nobody is displaced."""


def _renaming(name: str, order: Ordering) -> Composed:
    return Composed(name, order, Proportional(), CONSOLIDATED, (*FINISHING, rename_nodes))


# fmt: off
SYSTEMS: Final[Mapping[str, Callable[[Ordering], System]]] = {
    # name                                                     who comes first  CPUs and memory nodes
    "synergy":        lambda order: Composed("synergy",        order,           Tune(),         CONSOLIDATED),
    "synergy-greedy": lambda order: Composed("synergy-greedy", order,           Greedy(),       CONSOLIDATED),
    "proportional":   lambda order: Composed("proportional",   order,           Proportional(), CONSOLIDATED),
    "drf":            lambda _:     Composed("drf",            DominantShare(), Greedy(),       CONSOLIDATED),
    "tetris":         lambda _:     Composed("tetris",         Alignment(),     Greedy(),       CONSOLIDATED),
    "tesserae":       lambda order: _renaming("tesserae",      order),                      # proportional  fewest moves
    "tesserae-ftf":   lambda _:     _renaming("tesserae-ftf",  FinishTimeFairness()),
    "tesserae-packed": Packed,                                                # as requested   pairs on halves of GPUs
    "fgd":            FragmentationDescent,                                   # as requested   fewest fragments
    "tiresias":       lambda _:     Composed("tiresias",       TIRESIAS,        Proportional(), CONSOLIDATED),
    "yarn-cs":        lambda _:     Composed("yarn-cs",        YARN,            AsRequested(),  FIRST_FIT),
    "gavel":          lambda _:     Gavel(),                   # its picks      proportional    consolidated
    "hadar":          lambda _:     HadarSystem(),             # payoff         proportional    consolidated
    "hadare":         lambda _:     HadarE(),                  # payoff         proportional    copies on every node
    "gandiva-fair":   lambda _:     GandivaFair(),             # split stride    proportional    balanced by tickets
    "slurm":          lambda _:     Backfilling(),             # its priority   as requested    first fit
}
"""Every system by name."""

PARTS: Final = frozenset({"fgd", "tesserae-packed"})
"""Those that also place jobs with parts of GPUs (`gres/shard`), and jobs without any."""

OWN_ORDER: Final = frozenset({
    "drf", "tetris", "tesserae-ftf", "tiresias", "yarn-cs", "gavel", "hadar", "hadare", "gandiva-fair", "slurm",
})
"""Those that no other order can be chosen for."""

ORDERS: Final[Mapping[str, Callable[[Sequence[float]], Ordering]]] = {
    "fifo": lambda _:      FirstInFirstOut(),
    "srtf": lambda _:      ShortestRemainingTime(),
    "las":  lambda queues: LeastAttainedService(tuple(queues)),
    "ftf":  lambda _:      FinishTimeFairness(),
}
"""Every order by name, given the bounds of the queues of las."""
# fmt: on

DEFAULT_QUEUES: Final = (3600.0, 14400.0, 86400.0)


def system(
    name: str, order: str = "las", las_queues: Sequence[float] = DEFAULT_QUEUES, *, defragment: bool = False
) -> System:
    """The system of this name, with jobs in this order; `slurm` keeps Slurm's own order. With `defragment` one that
    places parts of GPUs moves running jobs where that lets a waiting one start.

    `las_queues` are in GPU-seconds attained; none make plain las. Raises PolicyError for an unknown name or bounds that
    do not ascend.
    """
    if name not in SYSTEMS:
        raise PolicyError(f"there is no system {name!r}: known are {', '.join(SYSTEMS)}")
    if order not in ORDERS:
        raise PolicyError(f"there is no order {order!r}: known are {', '.join(ORDERS)}")
    if any(later <= earlier for earlier, later in pairwise((0.0, *las_queues))):
        raise PolicyError(f"las_queues must ascend from above 0, not {', '.join(f'{bound:g}' for bound in las_queues)}")
    made = SYSTEMS[name](ORDERS[order](las_queues))
    return replace(made, defragments=defragment) if isinstance(made, FragmentationDescent) else made
