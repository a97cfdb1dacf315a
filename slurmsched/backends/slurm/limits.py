"""What a job can ask for at most: what the cluster has. Nothing is allocated for a number before this is checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.hostlist import MOST
from slurmsched.model import Request, Resources

__all__ = ["NO_LIMITS", "Limits", "limits_of"]

_LARGEST: Final = 2**31
"""No count of a real cluster reaches this, nor its memory in MiB (2 EiB)."""
_FORMER_NODES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The cluster's totals: nodes, GPUs, CPUs and memory in MiB."""

    nodes: int = _LARGEST
    gpus: int = _LARGEST
    cpus: int = _LARGEST
    memory: int = _LARGEST

    @property
    def names(self) -> int:
        """How many nodes a list may name: those there are, and some that were there when it was written."""
        return min(self.nodes + _FORMER_NODES, MOST)

    def check(self, request: Request) -> None:
        """Raises NotUnderstoodError where all nodes together have less than the request, or it is below zero."""
        asked = {
            "nodes": (request.nodes, self.nodes),
            "GPUs": (max(request.gpus, request.gpus_per_node or 0), self.gpus),
            "CPUs": (request.cpus, self.cpus),
            "MiB of memory on each node": (request.memory, self.memory),
            "tasks": (request.tasks, _LARGEST),
            "shards": (request.shards, _LARGEST),
        }
        for what, (amount, most) in asked.items():
            if amount < 0 or amount > most:
                raise NotUnderstoodError(f"it asks for {amount} {what}, and the cluster has {most}")


NO_LIMITS: Final = Limits()
"""Where the cluster's nodes are not known."""


def limits_of(totals: Iterable[Resources]) -> Limits:
    """What nodes with these totals have together; no limits where there are none, as nothing is known then."""
    known = tuple(totals)
    if not known:
        return NO_LIMITS
    return Limits(
        nodes=len(known),
        gpus=sum(total.gpus for total in known),
        cpus=sum(total.cpus for total in known),
        memory=sum(total.memory for total in known),
    )
