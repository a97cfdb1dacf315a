"""How the steps of a forked job's next round are divided: as the scheduler says, else by the copies' measured speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from slurmsched.jobside.dispatch import Dispatch, read_dispatch
from slurmsched.jobside.meeting import Meeting
from slurmsched.jobside.surroundings import ArrayTask
from slurmsched.jobside.tracker import Fork

__all__ = ["Dividing"]


class Dividing:
    """For the copies of one array. `spool` is where the scheduler speaks, empty for nowhere."""

    def __init__(self, spool: str, task: ArrayTask) -> None:
        self._spool = spool
        self._task = task

    def word(self) -> Dispatch | None:
        """What the scheduler says now."""
        if not self._spool or not self._task.array:
            return None
        return read_dispatch(Path(self._spool), self._task.array, time.time())

    def runs(self, copy: int, word: Dispatch | None) -> bool:
        """Whether this copy runs, as far as the scheduler says anything of that."""
        return word is None or self._task.tasks[copy] in word.steps

    def after(self, fork: Fork | None) -> tuple[Sequence[float], int]:
        """By what numbers to divide after this round, and the number of the word that is known then. Each word divides
        once: a round that ends before the next word was badly divided by it."""
        word, known = self.word(), fork.word if fork else 0
        said = self._said(word) if word is not None and word.number > known else None
        measured = self._measured(Meeting(fork.folder)) if fork else None
        return said or measured or [1.0] * len(self._task.tasks), max(known, word.number if word else 0)

    def _said(self, word: Dispatch) -> Sequence[float] | None:
        steps = [float(word.steps.get(task, 0)) for task in self._task.tasks]
        return steps if any(steps) else None

    def _measured(self, meeting: Meeting) -> Sequence[float] | None:
        """Who is not there gets nothing; who has not measured itself counts as the others do on average."""
        rates = {copy: rate for copy, rate in meeting.rates().items() if copy < len(self._task.tasks)}
        known = [rate for rate in rates.values() if rate]
        if not rates:
            return None
        usual = sum(known) / len(known) if known else 1.0
        return [(rates[copy] or usual) if copy in rates else 0.0 for copy in range(len(self._task.tasks))]
