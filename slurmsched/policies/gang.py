"""A job as placing sees it: equal parts that may lie on one node or on several."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from slurmsched.knowledge import Profile
from slurmsched.model import Request

__all__ = ["Gang", "gang_of"]


@dataclass(frozen=True, eq=False, slots=True)
class Gang:
    """Everything of a job that decides where it fits. One gang stands for all jobs that ask alike.

    `parts` of `gpus` GPUs and `tasks` whole tasks each are never divided; they lie on `fewest` to `most` nodes, with
    `each` of them on every node where the owner fixed that. `memory` is the least MiB on any node.
    """

    request: Request
    profile: Profile | None
    parts: int
    gpus: int
    tasks: int
    fewest: int
    most: int
    each: int | None
    memory: int

    @property
    def crowded(self) -> int:
        """Most parts that one node must hold when the gang lies on as few nodes as it may."""
        return self.each or -(-self.parts // self.fewest)


def gang_of(request: Request, profile: Profile | None, memory_tunable: bool) -> Gang:
    """Divide a request. A node never gets a part of a task, and only jobs that asked for it lie on several nodes.

    A split that the owner fixed stands even where tasks do not divide evenly: then they are rounded up on each node.
    """
    gpus, fewest = max(request.gpus, 1), max(request.nodes, 1)
    most = max(fewest, request.max_nodes or fewest)
    tasks = max(request.tasks, fewest)
    if request.gpus_per_node:
        part = gcd(request.gpus_per_node, gpus)
        fewest = most = max(1, gpus // request.gpus_per_node)
    else:
        part = gpus // gcd(gpus, tasks)
        part = gcd(part, gpus // fewest) if gpus % fewest == 0 else part
        part = part if gpus // part >= fewest else 1
    parts = gpus // part
    each = request.gpus_per_node // part if request.gpus_per_node else None
    return Gang(
        request=request,
        profile=profile,
        parts=parts,
        gpus=part,
        tasks=-(-tasks * part // gpus),
        fewest=fewest,
        most=min(most, parts),
        each=each,
        memory=0 if memory_tunable else request.memory,
    )
