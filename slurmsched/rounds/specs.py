"""From what was asked, decided or allocated to the `Shape` that a RESHAPE sets, and whether two are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurmsched.model import Job, JobSpec, Node, NodeAllocation, Request


def spec_of(request: Request) -> JobSpec:
    """What Slurm would give for this request. The owner's pins stay; `max_nodes` only where there is a choice."""
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
    """The request pinned to exactly these shares.

    The GPU type is named where the request names one or where a node has several. Where the split is uneven Slurm
    makes it: CPUs are the mean per node (Slurm divides them by task), memory is the most any node needs.
    """
    ordered = sorted(allocations, key=lambda share: share.node)
    gpus = [share.resources.gpus for share in ordered]
    types = {share.gpu_type for share in ordered if share.gpu_type}
    names_type = request.gpu_type is not None or any(
        len(nodes[s.node].gpu_types) > 1 for s in ordered if s.node in nodes
    )
    return JobSpec(
        nodes=tuple(share.node for share in ordered),
        node_count=len(ordered),
        gpus=sum(gpus),
        gpus_per_node=gpus[0] if len(set(gpus)) == 1 else None,
        gpu_type=next(iter(types)) if names_type and len(types) == 1 else request.gpu_type,
        cpus=sum(share.resources.cpus for share in ordered) // max(len(ordered), 1),
        memory=max((share.resources.memory for share in ordered), default=0),
        tasks=request.tasks,
    )


def running_spec(job: Job, nodes: Mapping[str, Node]) -> JobSpec:
    """What would start a running job again exactly where it runs."""
    return pinned_spec(job.allocations, job.original_request, nodes)


def equivalent(first: JobSpec, second: JobSpec) -> bool:
    """Whether Slurm would do the same for both: GPUs asked for in total or per node count as alike."""
    if None in (first.gpus_per_node, second.gpus_per_node):
        first, second = replace(first, gpus_per_node=None), replace(second, gpus_per_node=None)
    return first == second
