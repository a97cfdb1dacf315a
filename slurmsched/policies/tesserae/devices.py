"""Devices that are cut into shards, in one round: where Slurm's choice among them is certain.

A round names nodes; Slurm takes the first device, by index, that has enough shards left, and starts the jobs of one
round in an order of its own. So nothing may depend on that order: a node cuts or shares one device a round, and only
where no job of whole GPUs that starts there too could change which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import MILLI, Share
from slurmsched.policies.fgd import FragmentedCluster
from slurmsched.policies.placing.fragmentation import Task

__all__ = ["HALF", "Devices"]

Mask = NDArray[np.bool_]

HALF: Final = MILLI // 2


class Devices:
    """The devices as the round found them, and on which nodes it starts jobs with shards."""

    def __init__(self, cluster: FragmentedCluster) -> None:
        self.number = {node.name: place for place, node in enumerate(cluster.nodes)}
        self._idle = cluster.idle
        self._before = cluster.idle.gpus.copy()
        self._starting: Mask = np.zeros(len(cluster.nodes), dtype=np.bool_)

    def places(self, shares: Sequence[Share]) -> list[int]:
        """The nodes of these shares, by their places in the cluster."""
        return [self.number[share.node] for share in shares]

    def alone(self, task: Task) -> Mask:
        """Nodes where the task gets a device to itself, whichever one that is; [nodes]"""
        return ~self._starting & ~self._shared(task).any(axis=1)

    def half_open(self, share: Share) -> bool:
        """Whether half of a share's one device is idle, and another half that is sent to the node gets it."""
        node = self.number[share.node]
        first = int((self._before[node] >= HALF).argmax())
        return not self._starting[node] and share.indices == (first,) and bool(self._before[node, first] == HALF)

    def start(self, shares: Sequence[Share]) -> None:
        """A job with these shares starts in this round."""
        self._starting[self.places(shares)] = True

    def in_the_way(self, task: Task, nodes: Mask) -> tuple[int, int] | None:
        """A node that Slurm may put the task beside somebody on, and the device there; None where there is none."""
        found = np.argwhere(self._shared(task) & nodes[:, None])
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    def taking_turns(self, nodes: Mask) -> int | None:
        """A node that still has an idle device, and starts others in this round; None where there is none."""
        found = np.flatnonzero(nodes & self._starting & (self._idle.gpus == MILLI).any(axis=1))
        return int(found[0]) if len(found) else None

    def _shared(self, task: Task) -> Mask:
        return np.asarray((self._before >= task.milli) & (self._before < MILLI), dtype=np.bool_)
