"""What asks for a part of a node, and what usually does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from slurmsched.model import MILLI
from slurmsched.policies.errors import PolicyError

__all__ = ["COVER", "Task", "Workload", "commonest", "typical"]

COVER = 0.95
"""The part of all tasks that the typical ones stand for."""


@dataclass(frozen=True)
class Task:
    """What one task takes on one node: CPUs in thousandths of a core, memory in MiB, GPUs, and `milli` of each of them.

    `types` are the GPU types it runs on, none for any. Raises PolicyError for what is no task.
    """

    cpu: int
    memory: int
    gpus: int
    milli: int
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        part = 0 < self.milli <= MILLI if self.gpus else self.milli == 0
        if not part or min(self.cpu, self.memory, self.gpus) < 0:
            raise PolicyError(f"{self} is no task: it takes 1 to {MILLI} of each GPU, and nothing is below 0")

    @cached_property
    def partial(self) -> bool:
        """Whether it takes a part of one GPU, so that it matters of which."""
        return self.gpus == 1 and self.milli < MILLI

    @cached_property
    def demand(self) -> int:
        """GPUs in all, in milli-GPU."""
        return self.gpus * self.milli


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks and how likely each is to be the next that comes, together 1: the target workload M (section 3.2)."""

    tasks: tuple[Task, ...]
    popularity: tuple[float, ...]


def typical(tasks: Iterable[Task], cover: float = COVER) -> Workload:
    """The commonest kinds of task that together are `cover` of all; memory makes no difference.

    Kinds as common as each other come in the order of their CPUs, GPU parts, GPUs and types, the largest first. Raises
    PolicyError where there is no task.
    """
    return commonest(Counter(tasks), cover)


def commonest(tasks: Mapping[Task, int], cover: float = COVER) -> Workload:
    """The same of tasks and how often each came. Raises PolicyError where there is no task."""
    counts = Counter[Task]()
    for task, count in tasks.items():
        counts[Task(task.cpu, 0, task.gpus, task.milli, task.types)] += count
    if not counts:
        raise PolicyError("there is no typical workload: no task is known")
    ranked = sorted(counts, key=lambda t: (counts[t], t.cpu, t.milli, t.gpus, t.types), reverse=True)
    enough, total, chosen = cover * counts.total(), 0, list[Task]()
    for task in ranked:
        if total >= enough:
            break
        chosen.append(task)
        total += counts[task]
    return Workload(tuple(chosen), tuple(counts[task] / total for task in chosen))
