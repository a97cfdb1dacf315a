"""The `JobSpec` of a request, of a target or of a running job, and whether two specs are equivalent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurmsched.model import Job, JobSpec, Node, NodeAllocation, Request


def spec_of(request: Request) -> JobSpec:
    """The spec of this request, with the owner's pinned nodes; `max_nodes` only if it exceeds the node count."""
    max_nodes = request.max_nodes
    return JobSpec(
        nodes=tuple(sorted(request.pinned)),
        node_count=request.nodes,
        gpus=request.gpus,
        gpus_per_node=request.gpus_per_node,
        gpu_type=request.gpu_type,
        cpus=-(-request.cpus // max(request.nodes, 1)),
        memory=request.memory,
        tasks=request.tasks,
        max_nodes=max_nodes if max_nodes is not None and max_nodes > request.nodes else None,
    )


def pinned_spec(allocations: Sequence[NodeAllocation], request: Request, nodes: Mapping[str, Node]) -> JobSpec:
    """The request pinned to exactly these allocations.

    The GPU type is named if the request names one or a node has several types. Slurm makes an uneven split itself: CPUs
    are then the mean per node (Slurm divides them by task), and memory is the most that any node needs.
    """
    ordered = sorted(allocations, key=lambda allocation: allocation.node)
    gpus = [allocation.resources.gpus for allocation in ordered]
    types = {allocation.gpu_type for allocation in ordered if allocation.gpu_type}
    names_type = request.gpu_type is not None or any(
        len(nodes[a.node].gpu_types) > 1 for a in ordered if a.node in nodes
    )
    return JobSpec(
        nodes=tuple(allocation.node for allocation in ordered),
        node_count=len(ordered),
        gpus=sum(gpus),
        gpus_per_node=gpus[0] if len(set(gpus)) == 1 else None,
        gpu_type=next(iter(types)) if names_type and len(types) == 1 else request.gpu_type,
        cpus=sum(allocation.resources.cpus for allocation in ordered) // max(len(ordered), 1),
        memory=max((allocation.resources.memory for allocation in ordered), default=0),
        tasks=request.tasks,
    )


def running_spec(job: Job, nodes: Mapping[str, Node]) -> JobSpec:
    """The spec that would start a running job again exactly where it runs."""
    return pinned_spec(job.allocations, job.original_request, nodes)


def equivalent(first: JobSpec, second: JobSpec) -> bool:
    """Whether Slurm treats both alike; `gpus_per_node` is ignored if one of them has none."""
    if None in (first.gpus_per_node, second.gpus_per_node):
        first, second = replace(first, gpus_per_node=None), replace(second, gpus_per_node=None)
    return first == second
