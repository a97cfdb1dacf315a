"""A training loop that is measured and can be moved: Synergy's iterator (section 4 of the paper).

training = Training(save=write_state, load=read_state)
for epoch in training.epochs(90):
    for images, labels in training.batches(loader):
        ...
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from signal import SIGTERM, SIGUSR1, Signals
from typing import Final, TypeVar

from slurmsched.jobside.checkpoints import Checkpoints
from slurmsched.jobside.environment import AllReduceMax, detect_ranks, read_slurm_environment
from slurmsched.jobside.errors import CheckpointError, JobsideError
from slurmsched.jobside.lease import Lease, LeaseAction, SignalHandler
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.reporter import JobReporter, Pace
from slurmsched.jobside.training_state import DataCursor, DistributedCheckpoints

T = TypeVar("T")

EXIT_TERMINATED: Final = 128 + SIGTERM
"""The exit status of who was ended by SIGTERM, as shells count: no success, so that a batch script goes no further."""

_POLL_SECONDS: Final = 0.1


class Training:
    """Counts steps, tells the scheduler how fast they go, saves when the lease ends and resumes where it was left.

    `save(path)` writes the state to a path that is not there yet, as a file or as a folder; `load(path)` reads it. The
    random generators of Python, numpy and torch are kept beside it. With several ranks, make it after
    `init_process_group`, or pass `agree`; the first rank saves, or with `every_rank` each.

    `folder` is for the checkpoints (SYNSCHED_CHECKPOINTS, else `checkpoints-JOBID` in the working directory). `every`
    are seconds between checkpoints that guard against crashes. `notice` is the signal that the hint `ckpt=` names, and
    `patience` the seconds to wait for the requeue after it before going on. `telling` may change what is reported.

    Raises JobsideError. With SYNSCHED_MEASURE=SECONDS nothing is read or saved, and the run ends after so much work.
    """

    def __init__(
        self,
        save: Callable[[Path], object],
        load: Callable[[Path], object],
        *,
        folder: Path | str | None = None,
        every: float | None = None,
        notice: Signals = SIGUSR1,
        patience: float = 300.0,
        agree: AllReduceMax | None = None,
        every_rank: bool = False,
        amend_report: Callable[[Report], Report] = lambda report: report,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = 0
        """Steps done in the whole life of the job."""
        slurm = read_slurm_environment(environment)
        ranks = detect_ranks(slurm, agree)
        limit = _profiling_seconds(environment)
        self._profiling, self._patience, self._clock = limit is not None, patience, clock
        self._signals, self._pace, self._cursor = SignalHandler(notice), Pace(), DataCursor()
        distributed = ranks.size > 1
        self._lease = Lease(
            self._signals, ranks.all_reduce_max, distributed=distributed, checkpoint_interval=every, time_limit=limit
        )
        self._single_rank = not distributed  # several ranks never act on a signal of one
        checkpoint_folder = Path(
            folder or environment.get("SYNSCHED_CHECKPOINTS") or f"checkpoints-{slurm.job or 'local'}"
        )
        self._checkpoints = DistributedCheckpoints(
            Checkpoints(checkpoint_folder), ranks.rank, ranks.all_reduce_max, every_rank, save, load
        )
        self._recorded_steps, self._last_checkpoint_step = 0, -1
        spool = environment.get("SYNSCHED_SPOOL", "") if ranks.rank == 0 else ""
        self._reporter = JobReporter(
            spool,
            slurm,
            ranks=ranks.size,
            pace=self._pace,
            progress=lambda: (self.steps, self._last_checkpoint_step),
            amend=amend_report,
        )
        self._resume()

    @property
    def epoch(self) -> int:
        """The epoch under way, or between two the next one; the first is 0."""
        return self._cursor.epoch

    @property
    def saved(self) -> int:
        """The step of the last checkpoint; -1 without one."""
        return self._last_checkpoint_step

    @property
    def pace(self) -> Pace:
        """How fast the steps of this run go."""
        return self._pace

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs up to `count`, from the one that was left."""
        return self._cursor.epochs(count)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of the epoch, from the one that was left; each is a step once the next one is asked for.

        A sampler with `set_epoch` is told the epoch.
        """
        return self._cursor.batches(loader, self.step)

    def step(self) -> None:
        """One step is done; for loops that go without `batches`. Raises SystemExit where the job has to leave."""
        self.steps += 1
        if self.steps >= self._lease.next_check or (self._single_rank and self._signals.pending):
            self._check_lease()

    def handle_signals(self) -> None:
        """Between steps, while nothing is computed: what signals have brought is obeyed, and the time is not counted.
        Raises SystemExit where the job has to leave."""
        self._pace.pause()
        if self._signals.pending:
            self._check_lease()
            self._pace.pause()

    def save(self) -> None:
        """Write a checkpoint now, on all ranks at the same step. Raises CheckpointError, and what the script's function
        raises."""
        self._pace.pause()
        self._checkpoints.save(self.steps, self._cursor.position())
        self._last_checkpoint_step = self.steps
        now = self._clock()
        self._lease.record_checkpoint(now)
        self._pace.resume(now)

    def try_save(self) -> bool:
        """The same where a disk that is full costs the checkpoint and not the job; whether it was written."""
        try:
            self.save()
        except (CheckpointError, OSError) as error:
            print(f"synsched: no checkpoint after {self.steps} steps: {error}", file=sys.stderr)  # noqa: T201 - into the job's own output
            return False
        return True

    def close(self, error: BaseException | None = None) -> None:
        """The training is over, by this error if there is one: no more signals are heeded and no more reports written.
        Also done at the exit, with the error that the script ended by."""
        self._signals.uninstall()
        full = ran_out_of_gpu_memory(error or getattr(sys, "last_value", None))
        self._reporter.stop(Stage.OUT_OF_MEMORY if full else None)
        atexit.unregister(self.close)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self.close(error)

    def _resume(self) -> None:
        self._signals.install()
        resumed = None if self._profiling else self._checkpoints.resume()
        if resumed is not None:
            self.steps, position = resumed
            self._cursor.resume(position)
            self._recorded_steps = self._last_checkpoint_step = self.steps
        now = self._clock()
        self._lease.begin(self.steps, now)
        self._pace.resume(now)
        self._reporter.start()
        atexit.register(self.close)

    def _check_lease(self) -> None:
        now, pace = self._clock(), self._pace
        pace.record_steps(self.steps - self._recorded_steps, now)
        self._recorded_steps = self.steps
        action = self._lease.check(self.steps, now, step_seconds=1 / pace.rate if pace.rate else 0.0, busy=pace.busy)
        if action is LeaseAction.CONTINUE:
            return
        saved = not self._profiling and self.try_save()
        if action is LeaseAction.EXIT:
            self._exit(Stage.CHECKPOINTED if saved else Stage.MEASURED if self._profiling else Stage.RUNNING)
        if action is LeaseAction.YIELD:
            self._wait_for_requeue(saved=saved)

    def _wait_for_requeue(self, *, saved: bool) -> None:
        """Nothing more is computed that the next run would compute again. Nobody comes: the training goes on."""
        self._pace.pause()
        if saved:
            self._reporter.report_stage(Stage.CHECKPOINTED)
            deadline = self._clock() + self._patience
            while not self._signals.terminating and self._clock() < deadline:
                time.sleep(_POLL_SECONDS)
            if self._signals.terminating:
                self._exit(Stage.CHECKPOINTED)
        self._signals.clear_checkpoint_request()
        self._reporter.report_stage(Stage.RUNNING)
        self._pace.resume(self._clock())

    def _exit(self, stage: Stage) -> None:
        self._reporter.report_stage(stage)
        self.close()
        raise SystemExit(0 if stage is Stage.MEASURED else EXIT_TERMINATED)


_OUT_OF_MEMORY_ERRORS: Final = frozenset({"OutOfMemoryError", "ResourceExhaustedError"})
"""Of torch and of TensorFlow, by name: neither is imported here."""
_OUT_OF_MEMORY_TEXT: Final = "out of memory"
"""What the messages of CUDA and JAX contain."""


def ran_out_of_gpu_memory(error: BaseException | None) -> bool:
    """Whether the error says that a GPU has no more memory."""
    if any(kind.__name__ in _OUT_OF_MEMORY_ERRORS for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY_TEXT in str(error).lower()


def _profiling_seconds(environment: Mapping[str, str]) -> float | None:
    """The seconds of a profiling run. Raises JobsideError."""
    text = environment.get("SYNSCHED_MEASURE")
    if text is None:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < inf:
            return seconds
    raise JobsideError(f"SYNSCHED_MEASURE={text!r}: expected seconds")
