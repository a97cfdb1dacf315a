"""Scripts that tests run as jobs: in processes of their own, with what Slurm would tell them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["CHECKOUT", "COUNTING", "Job", "until"]

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
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", self.script, *self.arguments], cwd=self.folder, env=surroundings, stdout=log
            )

    def preempt(self, process: subprocess.Popen[bytes]) -> int:
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
