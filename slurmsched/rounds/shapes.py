"""From what was asked, decided or allocated to the `Shape` that a RESHAPE sets, and whether two are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurmsched.model import Job, Node, Request, Shape, Share

__all__ = ["assigned", "leased", "same", "shape_of"]


def shape_of(request: Request) -> Shape:
    """What Slurm would give for this request. The owner's pins stay; `max_nodes` only where there is a choice."""
    most = request.max_nodes
    return Shape(
        nodes=tuple(sorted(request.pinned)),
        node_count=request.nodes,
        gpus=request.gpus,
        gpus_per_node=request.gpus_per_node,
        gpu_type=request.gpu_type,
        cpus=-(-request.cpus // max(request.nodes, 1)),
        memory=request.memory,
        tasks=request.tasks,
        max_nodes=most if most is not None and most > request.nodes else None,
    )


def assigned(shares: Sequence[Share], request: Request, nodes: Mapping[str, Node]) -> Shape:
    """The request pinned to exactly these shares.

    The GPU type is named where the request names one or where a node has several. Where the split is uneven Slurm
    makes it: CPUs are the mean per node (Slurm divides them by task), memory is the most any node needs.
    """
    ordered = sorted(shares, key=lambda share: share.node)
    gpus = [share.resources.gpus for share in ordered]
    types = {share.gpu_type for share in ordered if share.gpu_type}
    named = request.gpu_type is not None or any(len(nodes[s.node].gpu_types) > 1 for s in ordered if s.node in nodes)
    return Shape(
        nodes=tuple(share.node for share in ordered),
        node_count=len(ordered),
        gpus=sum(gpus),
        gpus_per_node=gpus[0] if len(set(gpus)) == 1 else None,
        gpu_type=next(iter(types)) if named and len(types) == 1 else request.gpu_type,
        cpus=sum(share.resources.cpus for share in ordered) // max(len(ordered), 1),
        memory=max((share.resources.memory for share in ordered), default=0),
        tasks=request.tasks,
    )


def leased(job: Job, nodes: Mapping[str, Node]) -> Shape:
    """What would start a running job again exactly where it runs."""
    return assigned(job.shares, job.request, nodes)


def same(one: Shape, other: Shape) -> bool:
    """Whether Slurm would do the same for both: GPUs asked for in total or per node count as alike."""
    if None in (one.gpus_per_node, other.gpus_per_node):
        one, other = replace(one, gpus_per_node=None), replace(other, gpus_per_node=None)
    return one == other
