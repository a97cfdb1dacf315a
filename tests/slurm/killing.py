"""`synsched` that kills itself, as `kill -9` would, at the Nth step of its journal.

    python -m tests.slurm.killing N run --once

A step is a moment before or after the journal is written, and before or after the cluster is changed. With N = 0 it
lives, and the last line of standard error says how many steps there were.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.cli import main
from slurmsched.store.journal import Journal


class Steps:
    """Counts steps, and dies at one of them."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self._fatal = fatal

    def step(self) -> None:
        self.count += 1
        if self.count == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def stepping(*arguments: Any, **options: Any) -> Any:
            self.step()
            result = work(*arguments, **options)
            self.step()
            return result

        return stepping


def run(fatal: int, words: list[str]) -> int:
    steps = Steps(fatal)
    for writing in (
        Journal.begin_round, Journal.record_intents, Journal.record_outcomes, Journal.record_skipped,
        Journal.record_blocked, Journal.mark_undone, Journal.finish_round,
    ):  # fmt: skip
        setattr(Journal, writing.__name__, steps.around(writing))
    SlurmBackend.execute = steps.around(SlurmBackend.execute)  # type: ignore[method-assign] # that is the point
    try:
        main(words, standalone_mode=True)
    except SystemExit as end:
        print(f"steps {steps.count}", file=sys.stderr)
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
