"""Sweeps too large for one machine, as a job array on Slurm itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from slurmsched.backends.slurm import submitting
from slurmsched.backends.slurm.commands import Commands
from slurmsched.comparing.folder import Folder
from slurmsched.comparing.sweep import Sweep
from slurmsched.daemon.clock import Clock
from slurmsched.model import JobId
from slurmsched.rendering import render

__all__ = ["Array", "submit", "wait"]

_EVERY: Final = 5.0


@dataclass(frozen=True, slots=True)
class Array:
    """How the tasks are submitted: options of sbatch, and how many may run at once."""

    partition: str = ""
    limit: str = "4:00:00"
    at_once: int = 0

    def options(self, folder: Folder, tasks: Sequence[int]) -> tuple[str, ...]:
        """sbatch's, for these tasks."""
        throttle = f"%{self.at_once}" if self.at_once else ""
        return (
            "--job-name=synsched-compare",
            f"--array={','.join(map(str, tasks))}{throttle}",
            "--cpus-per-task=1",
            f"--time={self.limit}",
            f"--chdir={folder.path}",
            f"--output={folder.path}/cell-%a.log",
            *([f"--partition={self.partition}"] if self.partition else []),
        )


def submit(folder: Folder, sweep: Sweep, array: Array, slurm_conf: str = "") -> JobId | None:
    """Queue a task for each cell without a result; None where all have one. Raises BackendError, FolderError."""
    tasks = folder.missing(sweep)
    if not tasks:
        return None
    script = render("compare-array.sh", command=shlex.join((sys.executable, "-m", "slurmsched")), folder=folder.path)
    return submitting.submit(array.options(folder, tasks), script, slurm_conf)


def wait(job: JobId, commands: Commands, clock: Clock, *, on_poll: Callable[[], None], every: float = _EVERY) -> None:
    """Until no task is left in the queue: one question for all of them. Raises BackendError."""
    while job in commands.read("squeue", "--noheader", "--me", "--format=%F").split():
        on_poll()
        clock.sleep(every)
