"""What a job asks for on each of its nodes, as placing by fragments sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from slurmsched.model import MILLI, Request
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.placing.fragmentation import Task, Workload, typical

__all__ = ["Asking", "asking", "usual_workload"]

_CORE: Final = 1000
"""Thousandths of a CPU."""

_NOTHING_KNOWN: Final = Workload((Task(_CORE, 0, 1, MILLI),), (1.0,))
"""Where nobody has asked for anything yet: a whole GPU with one CPU."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A task for each node, on as many different nodes as there are tasks. `shards` are those of each."""

    tasks: tuple[Task, ...]
    shards: int = 0


def asking(request: Request, shards_per_gpu: int) -> Asking:
    """The tasks of a request on nodes whose GPUs have so many shards. Raises PolicyError where no node of that kind
    could ever do: shards of one job lie on one GPU of each node, and no node of a job with GPUs is without."""
    types = (request.gpu_type,) if request.gpu_type else ()
    if request.shards:
        nodes = max(request.nodes, 1)
        each = -(-request.shards // nodes)
        if not 0 < each <= shards_per_gpu:
            raise PolicyError(f"{each} shards of one GPU; the GPUs there have {shards_per_gpu}")
        task = _task(request, nodes, 1, MILLI * each // shards_per_gpu, types)
        return Asking((task,) * nodes, each)
    if request.gpus_per_node:
        nodes = max(1, -(-request.gpus // request.gpus_per_node))
        return Asking((_task(request, nodes, request.gpus_per_node, MILLI, types),) * nodes)
    nodes = max(request.nodes, 1)
    if 0 < request.gpus < nodes:
        raise PolicyError(f"{request.gpus} GPUs on {nodes} nodes: every node of a job with GPUs has some")
    each, more = divmod(request.gpus, nodes)
    counts = [each + (place < more) for place in range(nodes)]
    return Asking(tuple(_task(request, nodes, gpus, MILLI if gpus else 0, types) for gpus in counts))


def _task(request: Request, nodes: int, gpus: int, milli: int, types: tuple[str, ...]) -> Task:
    """CPUs are divided over the nodes, and rounded up, as Slurm has it; memory is per node already."""
    return Task(_CORE * -(-max(request.cpus, 1) // nodes), request.memory, gpus, milli, types if gpus else ())


def usual_workload(requests: Iterable[tuple[Request, int]], shards_per_gpu: int) -> Workload:
    """The target workload of what was asked for, each request as often as it came; what fits nowhere is left out."""
    tasks = list(_tasks(requests, shards_per_gpu))
    return typical(tasks) if tasks else _NOTHING_KNOWN


def _tasks(requests: Iterable[tuple[Request, int]], shards_per_gpu: int) -> Iterator[Task]:
    for request, times in requests:
        try:
            yield from asking(request, shards_per_gpu).tasks * times
        except PolicyError:
            continue
