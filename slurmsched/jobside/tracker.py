"""The Job Tracker of a forked job (HadarE, section V): rounds, whose steps are counted once and exactly.

`FOLDER/round-000003/` says how many steps were done before round 3 and which copy shall do how many in it, and holds
the parameters that all begin with. Each copy saves into a folder of its own below. To end the round is to make the next
folder, whole, under another name, and to rename it: that happens or it does not, and it cannot happen twice. So what is
counted is what lay in the copies' folders when the round ended, whoever was killed when.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurmsched.jobside.averaging import Copy, average
from slurmsched.jobside.checkpoints import Checkpoints
from slurmsched.jobside.durable import sync, sync_tree
from slurmsched.jobside.errors import TrackerError
from slurmsched.jobside.portions import portions

__all__ = ["Fork", "JobTracker"]

_NAME: Final = re.compile(r"round-(\d{6})\Z")
_LEDGER: Final = "ledger.json"
_STATE: Final = "state"

Average = Callable[[Sequence[Copy], Path], None]


@dataclass(frozen=True, slots=True)
class Fork:
    """One round of a forked job: `done` steps of `target` were done before it, `given` are those of each copy in it.

    `counted` are those that each copy did in the round before. `word` is the scheduler's last one when it began.
    """

    folder: Path
    number: int
    target: int
    done: int
    given: tuple[int, ...]
    counted: tuple[int, ...] = ()
    word: int = 0

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
    def earlier(self) -> Path | None:
        """The parameters that the round before began with; None in the first two rounds."""
        path = self.folder.with_name(f"round-{self.number - 1:06}") / _STATE
        return path if path.exists() else None

    def reached(self, copy: int, steps: int) -> float:
        """Where the whole job is, in steps, once this copy has done so many of its own in this round. A schedule of the
        learning rate goes by it: a copy that counts its own steps never comes to the schedule's end."""
        own = self.given[copy]
        return self.done + (steps * sum(self.given) / own if own else 0.0)


class JobTracker:
    """The account of one forked job of `target` steps. Any process may hold one; all of them see the same.

    `consolidate` writes the mean of the copies' states: `average` for safetensors, `average_state_dicts` for torch.
    """

    def __init__(self, folder: Path, target: int, consolidate: Average = average) -> None:
        self._folder = folder
        self._target = target
        self._consolidate = consolidate

    def current(self) -> Fork | None:
        """The round under way, or the one after the last; None before the first. Raises TrackerError."""
        names = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        numbers = [int(match[1]) for name in names if (match := _NAME.match(name))]
        return self._read(max(numbers)) if numbers else None

    def advance(self, rates: Sequence[float], *, ending: int | None = None, word: int = 0) -> Fork:
        """End the round under way and begin the next, with the steps that are left divided by these rates, a rate for
        each copy; the first call begins the first. With `ending` only that round is ended: where somebody else has,
        nothing happens. Raises TrackerError, TensorError, CheckpointError."""
        before = self.current()
        if before is not None and (before.over or ending not in (None, before.number)):
            return before
        counted = self._counted(before) if before else ()
        done = (before.done if before else 0) + sum(steps for _, steps in counted)
        number = before.number + 1 if before else 1
        given = portions(self._target - done, rates)
        fresh = self._folder / f".round-{number:06}.{socket.gethostname()}.{os.getpid()}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        state = fresh / _STATE
        if any(steps for _, steps in counted):
            self._consolidate([Copy(path, steps) for path, steps in counted if path is not None], state)
        elif before is not None and before.state is not None:
            os.link(before.state, state)
        did = [steps for _, steps in counted]
        said = {"target": self._target, "done": done, "given": given, "counted": did, "word": word}
        (fresh / _LEDGER).write_text(json.dumps(said), encoding="utf-8")
        sync_tree(fresh)
        try:
            fresh.rename(self._path(number))
            sync(self._folder)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if not self._path(number).exists():
                raise TrackerError(f"cannot begin round {number} in {self._folder}: {error}") from error
        self._forget(number - 2)
        return self._read(number)  # ours, or that of who was faster

    def _counted(self, fork: Fork) -> list[tuple[Path | None, int]]:
        """For each copy the state and the steps that it has brought about in this round."""
        found: list[tuple[Path | None, int]] = []
        for copy, given in enumerate(fork.given):
            newest = Checkpoints(fork.checkpoints(copy)).newest()
            if newest is not None and newest.step > given:
                raise TrackerError(f"copy {copy} claims {newest.step} steps of {given}: {newest.folder}")
            found.append((newest.state, newest.step) if newest else (None, 0))
        return found

    def _forget(self, number: int) -> None:
        """Of a round that nobody is in any more only the account is kept: states are large."""
        for attempt in self._folder.glob(f".round-{number:06}.*"):
            shutil.rmtree(attempt, ignore_errors=True)
        folder = self._path(number)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LEDGER:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"round-{number:06}"

    def _read(self, number: int) -> Fork:
        folder = self._path(number)
        try:
            said: object = json.loads((folder / _LEDGER).read_bytes())
            if not isinstance(said, Mapping) or said["target"] != self._target:
                raise TrackerError(f"{folder} is the account of another job: give each its own folder")
            given, counted = tuple(said["given"]), tuple(said["counted"])
            return Fork(folder, number, said["target"], said["done"], given, counted, said.get("word", 0))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrackerError(f"{folder} is no account of a forked job: {error!r}") from error
