"""Steps divided among copies by their speed, to the last one (HadarE, section V-B).

The Job Tracker of a forked job (HadarE, section V): rounds, whose steps are counted once and exactly.

`FOLDER/round-000003/` says how many steps were done before round 3 and which copy shall do how many in it, and holds
the parameters that all begin with. Each copy saves into a folder of its own below. To end the round is to make the next
folder, whole, under another name, and to rename it: that happens or it does not, and it cannot happen twice. So what is
counted is what lay in the copies' folders when the round ended, whoever was killed when.

Where the copies of a forked job meet at the end of a round: small files in its folder, which stay.

How the steps of a forked job's next round are divided: as the scheduler says, else by the copies' measured speed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Final

from slurmsched.jobside.atomic_files import fsync_path, fsync_tree
from slurmsched.jobside.checkpoints import Checkpoints
from slurmsched.jobside.consolidation import CopyState, average
from slurmsched.jobside.dispatch import Dispatch, read_dispatch
from slurmsched.jobside.environment import ArrayTask
from slurmsched.jobside.errors import TrackerError


def divide_steps(steps: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers that sum to `steps`, in proportion to the rates: what rounding leaves goes to those it took most
    from, the faster one first. Raises TrackerError where no rate is above zero."""
    if not all(isfinite(rate) and rate >= 0 for rate in rates) or not any(rates):
        raise TrackerError("steps are divided by speed: one of the copies has to have some")
    speeds = [Fraction(rate) for rate in rates]
    exact = [steps * speed / sum(speeds) for speed in speeds]
    assigned = [int(share) for share in exact]
    order = sorted(range(len(rates)), key=lambda copy: (assigned[copy] - exact[copy], -rates[copy], copy))
    for copy in order[: steps - sum(assigned)]:
        assigned[copy] += 1
    return tuple(assigned)


_ROUND_NAME: Final = re.compile(r"round-(\d{6})\Z")
_LEDGER: Final = "ledger.json"
_STATE: Final = "state"

Consolidate = Callable[[Sequence[CopyState], Path], None]


@dataclass(frozen=True, slots=True)
class ForkedRound:
    """One round of a forked job: `done` steps of `target` were done before it, `given` are those of each copy in it.

    `counted` are those that each copy did in the round before. `word` is the scheduler's last one when it began.
    """

    folder: Path
    number: int
    target: int
    done: int
    assigned: tuple[int, ...]
    previous_steps: tuple[int, ...] = ()
    dispatch_number: int = 0

    @property
    def over(self) -> bool:
        """Whether all steps are done."""
        return self.done >= self.target

    @property
    def state(self) -> Path | None:
        """The parameters that all copies begin with; None in the first round."""
        path = self.folder / _STATE
        return path if path.exists() else None

    def checkpoints(self, copy: int) -> Path:
        """Where a copy saves its state, by the steps it has done in this round."""
        return self.folder / f"copy-{copy}"

    @property
    def previous_state(self) -> Path | None:
        """The parameters that the round before began with; None in the first two rounds."""
        path = self.folder.with_name(f"round-{self.number - 1:06}") / _STATE
        return path if path.exists() else None

    def reached(self, copy: int, steps: int) -> float:
        """Where the whole job is, in steps, once this copy has done so many of its own in this round. A schedule of the
        learning rate goes by it: a copy that counts its own steps never comes to the schedule's end."""
        assigned = self.assigned[copy]
        return self.done + (steps * sum(self.assigned) / assigned if assigned else 0.0)


class ForkedJobTracker:
    """The account of one forked job of `target` steps. Any process may hold one; all of them see the same.

    `consolidate` writes the mean of the copies' states: `average` for safetensors, `average_state_dicts` for torch.
    """

    def __init__(self, folder: Path, target: int, consolidate: Consolidate = average) -> None:
        self._folder = folder
        self._target = target
        self._consolidate = consolidate

    def current(self) -> ForkedRound | None:
        """The round under way, or the one after the last; None before the first. Raises TrackerError."""
        names = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        numbers = [int(match[1]) for name in names if (match := _ROUND_NAME.match(name))]
        return self._read_round(max(numbers)) if numbers else None

    def advance(
        self, rates: Sequence[float], *, expected_round: int | None = None, dispatch_number: int = 0
    ) -> ForkedRound:
        """End the round under way and begin the next, with the steps that are left divided by these rates, a rate for
        each copy; the first call begins the first. With `ending` only that round is ended: where somebody else has,
        nothing happens. Raises TrackerError, TensorError, CheckpointError."""
        before = self.current()
        if before is not None and (before.over or expected_round not in (None, before.number)):
            return before
        results = self._round_results(before) if before else ()
        done = (before.done if before else 0) + sum(steps for _, steps in results)
        number = before.number + 1 if before else 1
        assigned = divide_steps(self._target - done, rates)
        temporary = self._folder / f".round-{number:06}.{socket.gethostname()}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        state = temporary / _STATE
        if any(steps for _, steps in results):
            self._consolidate([CopyState(path, steps) for path, steps in results if path is not None], state)
        elif before is not None and before.state is not None:
            os.link(before.state, state)
        previous_steps = [steps for _, steps in results]
        ledger = {
            "target": self._target,
            "done": done,
            "given": assigned,
            "counted": previous_steps,
            "word": dispatch_number,
        }
        (temporary / _LEDGER).write_text(json.dumps(ledger), encoding="utf-8")
        fsync_tree(temporary)
        try:
            temporary.rename(self._round_folder(number))
            fsync_path(self._folder)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not self._round_folder(number).exists():
                raise TrackerError(f"cannot begin round {number} in {self._folder}: {error}") from error
        self._prune_round(number - 2)
        return self._read_round(number)  # ours, or that of who was faster

    def _round_results(self, forked_round: ForkedRound) -> list[tuple[Path | None, int]]:
        """For each copy the state and the steps that it has brought about in this round."""
        results: list[tuple[Path | None, int]] = []
        for copy, assigned in enumerate(forked_round.assigned):
            newest = Checkpoints(forked_round.checkpoints(copy)).newest()
            if newest is not None and newest.step > assigned:
                raise TrackerError(f"copy {copy} claims {newest.step} steps of {assigned}: {newest.folder}")
            results.append((newest.state, newest.step) if newest else (None, 0))
        return results

    def _prune_round(self, number: int) -> None:
        """Of a round that nobody is in any more only the account is kept: states are large."""
        for attempt in self._folder.glob(f".round-{number:06}.*"):
            shutil.rmtree(attempt, ignore_errors=True)
        folder = self._round_folder(number)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LEDGER:
                path.unlink(missing_ok=True)

    def _round_folder(self, number: int) -> Path:
        return self._folder / f"round-{number:06}"

    def _read_round(self, number: int) -> ForkedRound:
        folder = self._round_folder(number)
        try:
            ledger: object = json.loads((folder / _LEDGER).read_bytes())
            if not isinstance(ledger, Mapping) or ledger["target"] != self._target:
                raise TrackerError(f"{folder} is the account of another job: give each its own folder")
            assigned, previous_steps = tuple(ledger["given"]), tuple(ledger["counted"])
            return ForkedRound(
                folder, number, ledger["target"], ledger["done"], assigned, previous_steps, ledger.get("word", 0)
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrackerError(f"{folder} is no account of a forked job: {error!r}") from error


_ENDING: Final = "ending"
_READY: Final = re.compile(r"ready-(\d{1,9})\Z")
_JOINED: Final = re.compile(r"joined-(\d{1,9})\Z")


class RoundBarrier:
    """One round's. A folder that is gone is a round that is long over: nothing is there, and nothing is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def end_requested(self) -> bool:
        """Whether somebody wants the round to end."""
        return (self._folder / _ENDING).exists()

    def request_end(self) -> None:
        """All shall save what they have done, and come."""
        self._write(_ENDING, "")

    def join(self, copy: int) -> None:
        """This copy takes part, and is waited for."""
        self._write(f"joined-{copy}", "")

    def mark_ready(self, copy: int, rate: float) -> None:
        """It has saved its last step of this round, and did so many a second; 0 where it does not know."""
        self._write(f"ready-{copy}", repr(rate))

    def joined(self) -> frozenset[int]:
        """Who takes part."""
        return frozenset(int(match[1]) for name in self._names() if (match := _JOINED.match(name)))

    def ready_rates(self) -> Mapping[int, float]:
        """Who is ready, and its steps per second."""
        names = {int(match[1]): name for name in self._names() if (match := _READY.match(name))}
        return {copy: self._read_rate(name) for copy, name in names.items()}

    def _names(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []

    def _read_rate(self, name: str) -> float:
        with suppress(OSError, ValueError):
            rate = float((self._folder / name).read_text(encoding="utf-8"))
            return rate if isfinite(rate) and rate > 0 else 0.0
        return 0.0

    def _write(self, name: str, text: str) -> None:
        with suppress(OSError):
            (self._folder / name).write_text(text, encoding="utf-8")


class StepDivider:
    """For the copies of one array. `spool` is where the scheduler speaks, empty for nowhere."""

    def __init__(self, spool: str, task: ArrayTask) -> None:
        self._spool = spool
        self._task = task

    def read_dispatch(self) -> Dispatch | None:
        """What the scheduler says now."""
        if not self._spool or not self._task.array:
            return None
        return read_dispatch(Path(self._spool), self._task.array, time.time())

    def is_running(self, copy: int, dispatch: Dispatch | None) -> bool:
        """Whether this copy runs, as far as the scheduler says anything of that."""
        return dispatch is None or self._task.tasks[copy] in dispatch.steps

    def next_rates(self, forked_round: ForkedRound | None) -> tuple[Sequence[float], int]:
        """By what numbers to divide after this round, and the number of the word that is known then. Each word divides
        once: a round that ends before the next word was badly divided by it."""
        known = forked_round.dispatch_number if forked_round else 0
        ready = RoundBarrier(forked_round.folder).ready_rates() if forked_round else {}
        return rates_of_next_round(self._task.tasks, self.read_dispatch(), known, ready)


def rates_of_next_round(
    tasks: Sequence[int], dispatch: Dispatch | None, known: int, ready: Mapping[int, float]
) -> tuple[Sequence[float], int]:
    """Return by what numbers the copies divide the steps of the next round, and the number of the last dispatch then.

    By a dispatch that is newer than number `known`, else by the steps per second of the copies that are `ready`, by
    index in `tasks`, else equally. Who is not ready gets nothing; who has not measured itself, with 0, counts as the
    others do on average.
    """
    number = max(known, dispatch.number if dispatch else 0)
    if dispatch is not None and dispatch.number > known:
        steps = [float(dispatch.steps.get(task, 0)) for task in tasks]
        if any(steps):
            return steps, number
    rates = {copy: rate for copy, rate in ready.items() if copy < len(tasks)}
    if not rates:
        return [1.0] * len(tasks), number
    measured = [rate for rate in rates.values() if rate]
    average = sum(measured) / len(measured) if measured else 1.0
    return [(rates[copy] or average) if copy in rates else 0.0 for copy in range(len(tasks))], number
