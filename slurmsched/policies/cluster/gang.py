"""Gangs: a job as equal parts, all placed together, on one node or on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd

from slurmsched.knowledge import Profile
from slurmsched.model import Request


@dataclass(frozen=True, eq=False, slots=True)
class Gang:
    """Everything about a job that decides where it fits. Jobs with equal requests share one gang.

    It has `parts` of `gpus_per_part` GPUs and `tasks_per_part` whole tasks, which are never divided, on `min_nodes` to
    `max_nodes` nodes. `parts_per_node` is set where the request fixes it. `memory_per_node` is the least MiB on any
    node. A job with `shards` has so many of one GPU on each node, and no whole GPU; one without GPUs has neither. Both
    have one part on each of their nodes, with the CPUs and memory that they ask for. `memory_tunable` and
    `cpus_tunable` are the owner's hints. `has_checkpoint` says that the job writes a checkpoint when it is told to and
    may be requeued, so that what it does without now can be given back to it.

    `cpus_per_node` is the least number of CPUs on any node of a job with one task on each of its nodes, however many
    these are: Slurm gives each task the same CPUs, so that the node with the fewest parts decides. It is 0 for the
    others, whose CPUs go with their parts.
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
    memory_tunable: bool = False
    cpus_tunable: bool | None = None
    has_checkpoint: bool = False
    cpus_per_node: int = 0

    @property
    def memory_by_part(self) -> bool:
        """Whether each node has the memory of its own parts, as with memory by CPU or GPU."""
        return self.gpus_per_part > 0 and (self.request.memory_per_cpu > 0 or self.request.memory_per_gpu > 0)

    @property
    def max_parts_per_node(self) -> int:
        """The most parts on one node when the gang uses as few nodes as it may."""
        return self.parts_per_node or -(-self.parts // self.min_nodes)


def gang_of(
    request: Request,
    profile: Profile | None,
    memory_tunable: bool,
    cpus_tunable: bool | None = None,
    node_gpus: Sequence[int] = (),
    *,
    has_checkpoint: bool = False,
) -> Gang:
    """Divide a request into parts. Tasks are never divided, and a job uses several nodes only where it asked for them.

    GPUs per node that the request fixes are kept even if tasks do not divide evenly: these are rounded up on each node.
    A job with GPUs in all and no tasks of its own has a task on each of the fewest nodes that hold it; `node_gpus` are
    the GPUs of the nodes that it may use once these are empty, in the order to take them.
    """
    gpus, min_nodes = request.gpus, max(request.nodes, 1)
    if request.shards or not gpus:
        tasks, shards = -(-max(request.tasks, min_nodes) // min_nodes), -(-request.shards // min_nodes)
        memory = 0 if request.memory_unscheduled else request.memory
        return Gang(request, profile, min_nodes, 0, tasks, min_nodes, min_nodes, 1, memory, shards)
    fewest = fewest_nodes(request, node_gpus)
    uneven = fewest > 1 and not _is_even(gpus, node_gpus[:fewest])
    spreads = request.tasks <= min_nodes and (fewest > min_nodes or uneven)
    max_nodes = max(min_nodes, request.max_nodes or fewest)
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
    gang = Gang(
        request=request,
        profile=profile,
        parts=parts,
        gpus_per_part=part,
        tasks_per_part=-(-tasks * part // gpus),
        min_nodes=min_nodes,
        max_nodes=min(max_nodes, parts),
        parts_per_node=parts_per_node,
        memory_per_node=0 if memory_tunable or request.keeps_memory else request.memory,
        memory_tunable=memory_tunable,
        cpus_tunable=cpus_tunable,
        has_checkpoint=has_checkpoint,
    )
    return _spread_gang(gang, node_gpus[:fewest]) if spreads else gang


def leaves_node_count(request: Request) -> bool:
    """Whether Slurm chooses on how many nodes the job runs: it asks for GPUs in all, without a number of nodes or with
    a range of them."""
    if request.gpus_per_node or request.gpus <= 1:
        return False
    return request.nodes <= 1 if request.max_nodes is None else request.max_nodes > request.nodes


def unplannable_reason(request: Request) -> str:
    """Return why only Slurm can place such a gang, in the words of `--nodes=range` in the table of sbatch's options;
    empty if a round can."""
    open_number = request.max_nodes is not None and request.max_nodes > request.nodes >= request.tasks
    if request.gpus_per_node and open_number:
        return "it asks for GPUs on each node of a range (--nodes), so Slurm chooses how many nodes"
    return ""


def fewest_nodes(request: Request, node_gpus: Sequence[int]) -> int:
    """Return the fewest nodes that have the GPUs together, of those that the job may have; 0 where they never have, or
    where each of its nodes has as many as it asked for."""
    if request.gpus_per_node or len(node_gpus) < request.nodes:
        return 0
    most = request.max_nodes or (None if leaves_node_count(request) else request.nodes)
    sums = accumulate(node_gpus[:most])
    enough = next((count for count, gpus in enumerate(sums, 1) if gpus >= request.gpus), 0)
    return enough and max(enough, request.nodes)


def _is_even(gpus: int, node_gpus: Sequence[int]) -> bool:
    """Whether each of these nodes can have the same number of the GPUs."""
    return gpus % len(node_gpus) == 0 and min(node_gpus) >= gpus // len(node_gpus)


def _spread_gang(gang: Gang, node_gpus: Sequence[int]) -> Gang:
    """Return the gang with a task on each of its nodes, which are at least as many as these: in equal parts where these
    can have them, otherwise in single GPUs. Each task has as many CPUs as one asked for, or those of its GPUs."""
    request, gpus, fewest = gang.request, gang.request.gpus, len(node_gpus)
    even, cpus, of_task = _is_even(gpus, node_gpus), request.cpus, 0
    if not request.cpus_per_gpu:
        of_task = -(-request.cpus // max(request.tasks, 1))
        cpus = of_task * fewest if even else max(of_task // gpus, 1) * gpus
    parts, most = fewest if even else gpus, gpus if leaves_node_count(request) else fewest
    return replace(
        gang,
        request=replace(request, tasks=fewest, cpus=cpus),
        parts=parts,
        gpus_per_part=gpus // parts,
        tasks_per_part=1,
        min_nodes=fewest,
        max_nodes=fewest if even else min(request.max_nodes or most, gpus),
        parts_per_node=None,
        cpus_per_node=of_task,
    )


def why_single_type(request: Request, node_gpus: Sequence[int] = ()) -> str:
    """Return why the job cannot run on several GPU types on Slurm; empty if it can. `node_gpus` as in `gang_of`."""
    gang = gang_of(request, None, memory_tunable=False, node_gpus=node_gpus)
    if request.gpu_type is not None:
        return f"it asks for {request.gpu_type}"
    return "it asks for one node, and a node has one GPU type" if gang.max_nodes == 1 else ""
