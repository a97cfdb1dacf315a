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
from slurmsched.jobside.errors import CheckpointError, JobsideError
from slurmsched.jobside.lease import Lease, Wish
from slurmsched.jobside.notice import Notice
from slurmsched.jobside.pace import Pace
from slurmsched.jobside.passage import Passage
from slurmsched.jobside.ranks import Agree, ranks_of
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.saving import Saving
from slurmsched.jobside.surroundings import surroundings
from slurmsched.jobside.telling import Telling

__all__ = ["Training"]

T = TypeVar("T")

TERMINATED: Final = 128 + SIGTERM
"""The exit status of who was ended by SIGTERM, as shells count: no success, so that a batch script goes no further."""

_NAP: Final = 0.1


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
        agree: Agree | None = None,
        every_rank: bool = False,
        telling: Callable[[Report], Report] = lambda report: report,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = 0
        """Steps done in the whole life of the job."""
        where = surroundings(environment)
        ranks = ranks_of(where, agree)
        limit = _limit(environment)
        self._profiling, self._patience, self._clock = limit is not None, patience, clock
        self._notice, self._pace, self._passage = Notice(notice), Pace(), Passage()
        together = ranks.size > 1
        self._lease = Lease(self._notice, ranks.agree, together=together, every=every, limit=limit)
        self._alone = not together  # several ranks never act on a signal of one
        kept = Path(folder or environment.get("SYNSCHED_CHECKPOINTS") or f"checkpoints-{where.job or 'local'}")
        self._saving = Saving(Checkpoints(kept), ranks.rank, ranks.agree, every_rank, save, load)
        self._counted, self._saved = 0, -1
        spool = environment.get("SYNSCHED_SPOOL", "") if ranks.rank == 0 else ""
        self._telling = Telling(
            spool,
            where,
            ranks=ranks.size,
            pace=self._pace,
            standing=lambda: (self.steps, self._saved),
            change=telling,
        )
        self._begin()

    @property
    def epoch(self) -> int:
        """The epoch under way, or between two the next one; the first is 0."""
        return self._passage.epoch

    @property
    def saved(self) -> int:
        """The step of the last checkpoint; -1 without one."""
        return self._saved

    @property
    def pace(self) -> Pace:
        """How fast the steps of this run go."""
        return self._pace

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs up to `count`, from the one that was left."""
        return self._passage.epochs(count)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of the epoch, from the one that was left; each is a step once the next one is asked for.

        A sampler with `set_epoch` is told the epoch.
        """
        return self._passage.batches(loader, self.step)

    def step(self) -> None:
        """One step is done; for loops that go without `batches`. Raises SystemExit where the job has to leave."""
        self.steps += 1
        if self.steps >= self._lease.next_look or (self._alone and self._notice.rung):
            self._look()

    def heed(self) -> None:
        """Between steps, while nothing is computed: what signals have brought is obeyed, and the time is not counted.
        Raises SystemExit where the job has to leave."""
        self._pace.pause()
        if self._notice.rung:
            self._look()
            self._pace.pause()

    def save(self) -> None:
        """Write a checkpoint now, on all ranks at the same step. Raises CheckpointError, and what the script's function
        raises."""
        self._pace.pause()
        self._saving.save(self.steps, self._passage.position())
        self._saved = self.steps
        now = self._clock()
        self._lease.saved(now)
        self._pace.resume(now)

    def save_or_tell(self) -> bool:
        """The same where a disk that is full costs the checkpoint and not the job; whether it was written."""
        try:
            self.save()
        except (CheckpointError, OSError) as error:
            print(f"synsched: no checkpoint after {self.steps} steps: {error}", file=sys.stderr)  # noqa: T201 - into the job's own output
            return False
        return True

    def close(self) -> None:
        """The training is over: no more signals are heeded and no more reports written. Also done at the exit."""
        self._notice.withdraw()
        self._telling.stop()
        atexit.unregister(self.close)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._notice.listen()
        left = None if self._profiling else self._saving.resume()
        if left is not None:
            self.steps, position = left
            self._passage.resume(position)
            self._counted = self._saved = self.steps
        now = self._clock()
        self._lease.begin(self.steps, now)
        self._pace.resume(now)
        self._telling.start()
        atexit.register(self.close)

    def _look(self) -> None:
        now, pace = self._clock(), self._pace
        pace.look(self.steps - self._counted, now)
        self._counted = self.steps
        wish = self._lease.look(self.steps, now, step_seconds=1 / pace.rate if pace.rate else 0.0, busy=pace.busy)
        if wish is Wish.GO_ON:
            return
        saved = not self._profiling and self.save_or_tell()
        if wish is Wish.END:
            self._leave(Stage.CHECKPOINTED if saved else Stage.MEASURED if self._profiling else Stage.RUNNING)
        if wish is Wish.YIELD:
            self._wait_for_the_requeue(saved=saved)

    def _wait_for_the_requeue(self, *, saved: bool) -> None:
        """Nothing more is computed that the next run would compute again. Nobody comes: the training goes on."""
        self._pace.pause()
        if saved:
            self._telling.say(Stage.CHECKPOINTED)
            deadline = self._clock() + self._patience
            while not self._notice.leaving and self._clock() < deadline:
                time.sleep(_NAP)
            if self._notice.leaving:
                self._leave(Stage.CHECKPOINTED)
        self._notice.go_on()
        self._telling.say(Stage.RUNNING)
        self._pace.resume(self._clock())

    def _leave(self, stage: Stage) -> None:
        self._telling.say(stage)
        self.close()
        raise SystemExit(0 if stage is Stage.MEASURED else TERMINATED)


def _limit(environment: Mapping[str, str]) -> float | None:
    """The seconds of a profiling run. Raises JobsideError."""
    said = environment.get("SYNSCHED_MEASURE")
    if said is None:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(said)) < inf:
            return seconds
    raise JobsideError(f"SYNSCHED_MEASURE={said!r}: expected seconds")
