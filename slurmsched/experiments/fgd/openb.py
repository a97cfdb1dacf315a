"""The openb trace as the experiment takes it: tasks and servers, times left out."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slurmsched.model import MILLI
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.placing.fragmentation import Server, Task
from slurmsched.traces.lines import Line, lines, read_text

__all__ = ["read_servers", "read_tasks"]

_TASK: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_SERVER: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def read_tasks(path: Path) -> tuple[Task, ...]:
    """A list of pods, those without GPUs included. Raises TraceError."""
    return tuple(_task(line) for line in lines(read_text(path), path.name, _TASK))


def _task(line: Line) -> Task:
    gpus = line.whole("num_gpu")
    types = tuple(part for part in line.text("gpu_spec").split("|") if part)
    try:
        return Task(
            line.whole("cpu_milli"), line.whole("memory_mib"), gpus, line.whole("gpu_milli") if gpus else 0, types
        )
    except PolicyError:
        raise line.mistake("gpu_milli", f"1 to {MILLI} of each GPU") from None


def read_servers(path: Path) -> tuple[Server, ...]:
    """A list of nodes, all of them idle. Raises TraceError."""
    return tuple(
        Server(
            cpu=line.whole("cpu_milli"),
            memory=line.whole("memory_mib"),
            gpus=(MILLI,) * line.whole("gpu"),
            gpu_type=line.text("model"),
        )
        for line in lines(read_text(path), path.name, _SERVER)
    )
