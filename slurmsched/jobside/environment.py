"""What Slurm, or torchrun, tells a process of its job.

All ranks of a job do the same at the same step.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.jobside.errors import JobsideError

_PEAK_MEMORY = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_INDEX_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?\Z")


@dataclass(frozen=True, slots=True)
class SlurmEnvironment:
    """`job` is the number as squeue shows it, empty outside Slurm; `run` how often it was restarted.

    `rank` of `ranks` is this process among those of its step. `gpus` are Slurm's indices on `node`, where it says them.
    """

    job: str
    run: int
    rank: int
    ranks: int
    node: str
    gpus: tuple[int, ...]
    cpus: int


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """Task `number` of the array job `array`, which has these `tasks`."""

    array: str
    number: int
    tasks: tuple[int, ...]


def read_array_task(environment: Mapping[str, str]) -> ArrayTask | None:
    """What Slurm says of the array; None outside one, and where its tasks are not evenly numbered."""
    number, lowest, highest, count = (
        _first_count(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "MIN", "MAX", "COUNT")
    )
    if number is None or lowest is None or highest is None:
        return None
    tasks = range(lowest, highest + 1, _first_count(environment, "SLURM_ARRAY_TASK_STEP") or 1)
    if number not in tasks or len(tasks) != count:
        return None
    return ArrayTask(environment.get("SLURM_ARRAY_JOB_ID", ""), number, tuple(tasks))


def read_slurm_environment(environment: Mapping[str, str]) -> SlurmEnvironment:
    """Read from the environment of a process. What is missing or makes no sense counts as not said."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    job = f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
    ranks = _first_count(environment, "WORLD_SIZE", "SLURM_STEP_NUM_TASKS") or 1
    rank = _first_count(environment, "RANK", "SLURM_PROCID") if ranks > 1 else 0
    return SlurmEnvironment(
        job=job,
        run=_first_count(environment, "SLURM_RESTART_COUNT") or 0,
        rank=rank or 0,
        ranks=ranks,
        node=environment.get("SLURMD_NODENAME") or socket.gethostname(),
        gpus=_parse_indices(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""),
        cpus=_first_count(environment, "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)),
    )


def peak_memory() -> int:
    """MiB: the most that this program, or any of its children that have ended, ever held.

    What getrusage says of a process itself is at least what its launcher held when it started it.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    try:
        match = _PEAK_MEMORY.search(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
    except OSError:
        match = None
    return max(int(match[1]) if match else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, children) // 1024


def _first_count(environment: Mapping[str, str], *names: str) -> int | None:
    values = (environment[name] for name in names if name in environment)
    return next((int(word) for word in values if word.isascii() and word.isdecimal() and len(word) < 10), None)  # noqa: PLR2004  # no count of Slurm's is longer


def _parse_indices(text: str) -> tuple[int, ...]:
    """`0-1,3` as 0, 1, 3."""
    indices: list[int] = []
    for part in text.split(",") if text else ():
        match = _INDEX_RANGE.match(part)
        if match is None:
            return ()
        indices += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(indices)


AllReduceMax = Callable[[Sequence[int]], Sequence[int]]
"""The largest of each number over all ranks. Every rank has to call it, with as many numbers, or all wait."""

_TORCH: Final = "torch.distributed"


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process is number `rank` of `size`, and how they agree."""

    rank: int
    size: int
    all_reduce_max: AllReduceMax


def detect_ranks(environment: SlurmEnvironment, agree: AllReduceMax | None = None) -> Ranks:
    """The ranks of torch's process group where there is one, else those that Slurm or torchrun started.

    Raises JobsideError where there are several and no way to agree.
    """
    distributed = sys.modules.get(_TORCH)
    if agree is not None:
        return Ranks(environment.rank, environment.ranks, agree)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        size = int(distributed.get_world_size())
        return Ranks(int(distributed.get_rank()), size, _torch_all_reduce_max if size > 1 else _single_rank)
    if environment.ranks > 1:
        raise JobsideError(
            f"there are {environment.ranks} ranks: make the Training after init_process_group, or give it agree= (the"
            " largest over all ranks)"
        )
    return Ranks(0, 1, _single_rank)


def _single_rank(values: Sequence[int]) -> Sequence[int]:
    return values


def _torch_all_reduce_max(values: Sequence[int]) -> Sequence[int]:
    torch, distributed = sys.modules["torch"], sys.modules[_TORCH]
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    reduced = torch.tensor(list(values), dtype=torch.int64, device=device)
    distributed.all_reduce(reduced, op=distributed.ReduceOp.MAX)
    return [int(value) for value in reduced.tolist()]
