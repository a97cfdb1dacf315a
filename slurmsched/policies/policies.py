"""The policies by name, each a row of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Final

from slurmsched.policies.backfill import EasyBackfill
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd import FragmentationDescent
from slurmsched.policies.gandiva_fair import GandivaFair
from slurmsched.policies.gavel.policy import Gavel
from slurmsched.policies.hadar.policy import HadarPolicy
from slurmsched.policies.hadare.policy import HadarE
from slurmsched.policies.orders import (
    DominantResourceFairness,
    FinishTimeFairness,
    FirstInFirstOut,
    LeastAttainedService,
    ShortestRemainingTime,
    TetrisAlignment,
)
from slurmsched.policies.pipeline import FINISH_STEPS, Pipeline
from slurmsched.policies.place.placement import CONSOLIDATED, FIRST_FIT
from slurmsched.policies.sizes import AsRequested, Greedy, Proportional, Tune
from slurmsched.policies.stages import Order, Policy
from slurmsched.policies.tesserae.migration import rename_nodes
from slurmsched.policies.tesserae.share_gpu import TesseraePacked

TIRESIAS: Final = LeastAttainedService((3600.0,), promotion_factor=inf, name="tiresias")
"""Two queues, as Hadar compares with it (section V of its paper): nobody is promoted."""

YARN: Final = FirstInFirstOut(name="yarn-cs")
"""YARN's capacity scheduler with one queue: nobody is displaced."""


def _tesserae(name: str, order: Order) -> Pipeline:
    return Pipeline(name, order, Proportional(), CONSOLIDATED, (*FINISH_STEPS, rename_nodes))


# fmt: off
POLICIES: Final[Mapping[str, Callable[[Order], Policy]]] = {
    # name                                                     who comes first  CPUs and memory nodes
    "synergy":        lambda order: Pipeline("synergy",        order,           Tune(),         CONSOLIDATED),
    "synergy-greedy": lambda order: Pipeline("synergy-greedy", order,           Greedy(),       CONSOLIDATED),
    "proportional":   lambda order: Pipeline("proportional",   order,           Proportional(), CONSOLIDATED),
    "drf":            lambda _:     Pipeline("drf",            DominantResourceFairness(), Greedy(), CONSOLIDATED),
    "tetris":         lambda _:     Pipeline("tetris",         TetrisAlignment(), Greedy(),        CONSOLIDATED),
    "tesserae":       lambda order: _tesserae("tesserae",      order),                      # proportional  fewest moves
    "tesserae-ftf":   lambda _:     _tesserae("tesserae-ftf",  FinishTimeFairness()),
    "tesserae-packed": TesseraePacked,                                        # as requested   pairs on halves of GPUs
    "fgd":            FragmentationDescent,                                   # as requested   fewest fragments
    "tiresias":       lambda _:     Pipeline("tiresias",       TIRESIAS,        Proportional(), CONSOLIDATED),
    "yarn-cs":        lambda _:     Pipeline("yarn-cs",        YARN,            AsRequested(),  FIRST_FIT),
    "gavel":          lambda _:     Gavel(),                   # its picks      proportional    consolidated
    "hadar":          lambda _:     HadarPolicy(),             # payoff         proportional    consolidated
    "hadare":         lambda _:     HadarE(),                  # payoff         proportional    copies on every node
    "gandiva-fair":   lambda _:     GandivaFair(),             # split stride    proportional    balanced by tickets
    "slurm":          lambda _:     EasyBackfill(),            # its priority   as requested    first fit
}
"""Every policy by name."""

SHARD_POLICIES: Final = frozenset({"fgd", "tesserae-packed"})
"""Those that also place jobs with parts of GPUs (`gres/shard`), and jobs without any."""

FIXED_ORDER_POLICIES: Final = frozenset({
    "drf", "tetris", "tesserae-ftf", "tiresias", "yarn-cs", "gavel", "hadar", "hadare", "gandiva-fair", "slurm",
})
"""Those that no other order can be chosen for."""

ORDERS: Final[Mapping[str, Callable[[Sequence[float]], Order]]] = {
    "fifo": lambda _:      FirstInFirstOut(),
    "srtf": lambda _:      ShortestRemainingTime(),
    "las":  lambda queues: LeastAttainedService(tuple(queues)),
    "ftf":  lambda _:      FinishTimeFairness(),
}
"""Every order by name, given the bounds of the queues of las."""
# fmt: on

DEFAULT_LAS_QUEUES: Final = (3600.0, 14400.0, 86400.0)


def policy(
    name: str, order: str = "las", las_queues: Sequence[float] = DEFAULT_LAS_QUEUES, *, defragment: bool = False
) -> Policy:
    """The system of this name, with jobs in this order; `slurm` keeps Slurm's own order. With `defragment` one that
    places parts of GPUs moves running jobs where that lets a waiting one start.

    `las_queues` are in GPU-seconds attained; none make plain las. Raises PolicyError for an unknown name or bounds that
    do not ascend.
    """
    if name not in POLICIES:
        raise PolicyError(f"there is no system {name!r}: known are {', '.join(POLICIES)}")
    if order not in ORDERS:
        raise PolicyError(f"there is no order {order!r}: known are {', '.join(ORDERS)}")
    if any(later <= earlier for earlier, later in pairwise((0.0, *las_queues))):
        raise PolicyError(f"las_queues must ascend from above 0, not {', '.join(f'{bound:g}' for bound in las_queues)}")
    chosen = POLICIES[name](ORDERS[order](las_queues))
    return replace(chosen, defragments=defragment) if isinstance(chosen, FragmentationDescent) else chosen
