"""What Slurm, or torchrun, tells a process of its job."""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ArrayTask", "Surroundings", "array_task", "peak_memory", "surroundings"]

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?\Z")


@dataclass(frozen=True, slots=True)
class Surroundings:
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


def array_task(environment: Mapping[str, str]) -> ArrayTask | None:
    """What Slurm says of the array; None outside one, and where its tasks are not evenly numbered."""
    number, least, most, count = (
        _first(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "MIN", "MAX", "COUNT")
    )
    if number is None or least is None or most is None:
        return None
    tasks = range(least, most + 1, _first(environment, "SLURM_ARRAY_TASK_STEP") or 1)
    if number not in tasks or len(tasks) != count:
        return None
    return ArrayTask(environment.get("SLURM_ARRAY_JOB_ID", ""), number, tuple(tasks))


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """Read from the environment of a process. What is missing or makes no sense counts as not said."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    job = f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
    ranks = _first(environment, "WORLD_SIZE", "SLURM_STEP_NUM_TASKS") or 1
    rank = _first(environment, "RANK", "SLURM_PROCID") if ranks > 1 else 0
    return Surroundings(
        job=job,
        run=_first(environment, "SLURM_RESTART_COUNT") or 0,
        rank=rank or 0,
        ranks=ranks,
        node=environment.get("SLURMD_NODENAME") or socket.gethostname(),
        gpus=_indices(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""),
        cpus=_first(environment, "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)),
    )


def peak_memory() -> int:
    """MiB: the most that this program, or any of its children that have ended, ever held.

    What getrusage says of a process itself is at least what its launcher held when it started it.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    try:
        said = _PEAK.search(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
    except OSError:
        said = None
    return max(int(said[1]) if said else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, ended) // 1024


def _first(environment: Mapping[str, str], *names: str) -> int | None:
    words = (environment[name] for name in names if name in environment)
    return next((int(word) for word in words if word.isascii() and word.isdecimal() and len(word) < 10), None)  # noqa: PLR2004  # no count of Slurm's is longer


def _indices(text: str) -> tuple[int, ...]:
    """`0-1,3` as 0, 1, 3."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        match = _RANGE.match(part)
        if match is None:
            return ()
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)
