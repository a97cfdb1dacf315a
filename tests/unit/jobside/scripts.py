"""Scripts that tests run as jobs: in processes of their own, with what Slurm would tell them."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Final
from unittest.mock import patch

__all__ = ["CHECKOUT", "COUNTING", "Forked", "Job", "until"]

CHECKOUT: Final = Path(__file__).parents[3]

COUNTING: Final = """
import random, sys, time
from pathlib import Path
from slurmsched.jobside import Training

total = [0.0]

def load(path):
    total[0] = float(path.read_text())

training = Training(lambda path: path.write_text(repr(total[0])), load)
random.seed(0) if not training.steps else None
for epoch in training.epochs(3):
    order = list(range(40))
    class Loader:
        def __iter__(self):
            random.shuffle(order)
            return iter(order)
    for number in training.batches(Loader()):
        total[0] = total[0] * 0.9 + number * random.random()
        time.sleep(float(sys.argv[1]))
        print(training.steps, repr(total[0]), flush=True)
training.close()
"""
"""An average of shuffled numbers, each with a random weight: any batch, order or draw that is lost shows in it."""


@cache
def _with_torch() -> ForkServerContext:
    """Makes processes out of one that has imported PyTorch with all that an optimizer needs of it, which takes 3 s."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo"])
    with patch.dict(os.environ, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


class Forked:
    """A script in a process of its own that has PyTorch already, with as much of `Popen` as is asked of it here."""

    def __init__(
        self, script: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
    ) -> None:
        given = (script, tuple(arguments), str(folder), dict(environment), str(log))
        self._process: ForkServerProcess = _with_torch().Process(target=_run_script, args=given, daemon=True)
        self._process.start()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"not within {timeout:.0f} s"
        return code


def _run_script(script: str, arguments: tuple[str, ...], folder: str, environment: dict[str, str], log: str) -> None:
    """As `python -c SCRIPT ARGUMENTS` does it."""
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    try:
        exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 the tests' own scripts
    finally:
        atexit._run_exitfuncs()


@dataclass
class Job:
    """A script as job 7, restarted under the same number, in a folder of its own."""

    folder: Path
    script: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    restarts: int = 0

    @property
    def report(self) -> Path:
        return self.folder / "spool" / str(os.getuid()) / "7.json"

    @property
    def steps(self) -> int:
        """Steps that the script has printed so far."""
        log = self.folder / "log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def start(self) -> subprocess.Popen[bytes]:
        """By an interpreter of its own, as Slurm does it."""
        environment = self._next_environment()
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-c", self.script, *self.arguments]
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log)

    def fork(self) -> Forked:
        """In a process that has PyTorch already."""
        return Forked(self.script, self.arguments, self.folder, self._next_environment(), self.folder / "log")

    def _next_environment(self) -> dict[str, str]:
        (self.folder / "spool").mkdir(exist_ok=True)
        surroundings = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "SLURM_JOB_ID": "7",
            "SLURM_RESTART_COUNT": str(self.restarts),
            "SYNSCHED_SPOOL": str(self.folder / "spool"),
            "SYNSCHED_CHECKPOINTS": str(self.folder / "checkpoints"),
            "OMP_NUM_THREADS": "1",
            **self.environment,
        }
        self.restarts += 1
        return surroundings

    def preempt(self, process: subprocess.Popen[bytes] | Forked) -> int:
        """As a round does it: the signal, the checkpoint, then the requeue's SIGTERM; the exit status."""
        process.send_signal(signal.SIGUSR1)
        until(lambda: b'"checkpointed"' in self.report.read_bytes())
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=20)


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(0.005)
