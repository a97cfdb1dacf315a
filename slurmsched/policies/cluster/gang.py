"""Gangs: a job as equal parts, all placed together, on one node or on several."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from slurmsched.knowledge import Profile
from slurmsched.model import Request


@dataclass(frozen=True, eq=False, slots=True)
class Gang:
    """Everything about a job that decides where it fits. Jobs with equal requests share one gang.

    It has `parts` of `gpus_per_part` GPUs and `tasks_per_part` whole tasks, which are never divided, on `min_nodes` to
    `max_nodes` nodes. `parts_per_node` is set where the request fixes it. `memory_per_node` is the least MiB on any
    node. A job with `shards` has so many of one GPU on each node, and no whole GPU; one without GPUs has neither. Both
    have one part on each of their nodes, with the CPUs and memory that they ask for.
    """

    request: Request
    profile: Profile | None
    parts: int
    gpus_per_part: int
    tasks_per_part: int
    min_nodes: int
    max_nodes: int
    parts_per_node: int | None
    memory_per_node: int
    shards: int = 0

    @property
    def max_parts_per_node(self) -> int:
        """The most parts on one node when the gang uses as few nodes as it may."""
        return self.parts_per_node or -(-self.parts // self.min_nodes)


def gang_of(request: Request, profile: Profile | None, memory_tunable: bool) -> Gang:
    """Divide a request into parts. Tasks are never divided, and a job uses several nodes only where it asked for them.

    GPUs per node that the request fixes are kept even if tasks do not divide evenly: these are rounded up on each node.
    """
    gpus, min_nodes = request.gpus, max(request.nodes, 1)
    if request.shards or not gpus:
        tasks, shards = -(-max(request.tasks, min_nodes) // min_nodes), -(-request.shards // min_nodes)
        return Gang(request, profile, min_nodes, 0, tasks, min_nodes, min_nodes, 1, request.memory, shards)
    max_nodes = max(min_nodes, request.max_nodes or min_nodes)
    tasks = max(request.tasks, min_nodes)
    if request.gpus_per_node:
        part = gcd(request.gpus_per_node, gpus)
        min_nodes = max_nodes = max(1, gpus // request.gpus_per_node)
    else:
        part = gpus // gcd(gpus, tasks)
        part = gcd(part, gpus // min_nodes) if gpus % min_nodes == 0 else part
        part = part if gpus // part >= min_nodes else 1
    parts = gpus // part
    parts_per_node = request.gpus_per_node // part if request.gpus_per_node else None
    return Gang(
        request=request,
        profile=profile,
        parts=parts,
        gpus_per_part=part,
        tasks_per_part=-(-tasks * part // gpus),
        min_nodes=min_nodes,
        max_nodes=min(max_nodes, parts),
        parts_per_node=parts_per_node,
        memory_per_node=0 if memory_tunable else request.memory,
    )


def why_single_type(request: Request) -> str:
    """Returns why the job cannot run on several GPU types on Slurm; empty if it can."""
    gang = gang_of(request, None, memory_tunable=False)
    if request.gpu_type is not None:
        return f"it asks for {request.gpu_type}"
    return "it asks for one node, and a node has one GPU type" if gang.max_nodes == 1 else ""
