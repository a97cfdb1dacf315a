"""What a job asks for on each of its nodes, as placing by fragments sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, overload

from slurmsched.model import MILLI, Request
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.placing.fragmentation import Task, Workload, commonest

__all__ = ["Asking", "asking", "usual_workload"]

_CORE: Final = 1000
"""Thousandths of a CPU."""

_NOTHING_KNOWN: Final = Workload((Task(_CORE, 0, 1, MILLI),), (1.0,))
"""Where nobody has asked for anything yet: a whole GPU with one CPU."""


@dataclass(frozen=True, slots=True)
class Tasks(Sequence[Task]):
    """A task for each node, by kind and number: a request for a million nodes takes no more memory than one for two."""

    kinds: tuple[tuple[Task, int], ...]

    def __len__(self) -> int:
        return sum(count for _, count in self.kinds)

    @overload
    def __getitem__(self, place: int) -> Task: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Task]: ...
    def __getitem__(self, place: int | slice) -> Task | Sequence[Task]:
        if isinstance(place, slice):
            return [self[own] for own in range(*place.indices(len(self)))]
        left = place if place >= 0 else place + len(self)
        for task, count in self.kinds:
            if 0 <= left < count:
                return task
            left -= count
        raise IndexError(place)


@dataclass(frozen=True, slots=True)
class Asking:
    """A task for each node, on as many different nodes as there are tasks. `shards` are those of each."""

    tasks: Tasks
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
        return Asking(Tasks(((task, nodes),)), each)
    if request.gpus_per_node:
        nodes = max(1, -(-request.gpus // request.gpus_per_node))
        return Asking(Tasks(((_task(request, nodes, request.gpus_per_node, MILLI, types), nodes),)))
    nodes = max(request.nodes, 1)
    if 0 < request.gpus < nodes:
        raise PolicyError(f"{request.gpus} GPUs on {nodes} nodes: every node of a job with GPUs has some")
    each, more = divmod(request.gpus, nodes)
    counts = [(each + 1, more), (each, nodes - more)] if more else [(each, nodes)]
    return Asking(Tasks(tuple((_task(request, nodes, gpus, MILLI if gpus else 0, types), n) for gpus, n in counts)))


def _task(request: Request, nodes: int, gpus: int, milli: int, types: tuple[str, ...]) -> Task:
    """CPUs are divided over the nodes, and rounded up, as Slurm has it; memory is per node already."""
    return Task(_CORE * -(-max(request.cpus, 1) // nodes), request.memory, gpus, milli, types if gpus else ())


def usual_workload(requests: Iterable[tuple[Request, int]], shards_per_gpu: int, nodes: int) -> Workload:
    """The target workload of what was asked for, each request as often as it came.

    What fits nowhere is left out: shards that no GPU has, or more nodes than there are.
    """
    counts = Counter[Task]()
    for request, times in requests:
        try:
            tasks = asking(request, shards_per_gpu).tasks
        except PolicyError:
            continue
        if len(tasks) <= nodes:
            for task, count in tasks.kinds:
                counts[task] += count * times
    return commonest(counts) if counts else _NOTHING_KNOWN
