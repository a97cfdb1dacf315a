"""A checkpoint of all ranks: the script's state, and where each rank stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slurmsched.jobside.checkpoints import Checkpoint, Checkpoints
from slurmsched.jobside.errors import CheckpointError
from slurmsched.jobside.randomness import Randomness
from slurmsched.jobside.ranks import Agree

__all__ = ["Position", "Saving"]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank stands: after `batch` batches of an epoch, and the states of its random generators now and, for the
    order of the batches, when the epoch began."""

    epoch: int = 0
    batch: int = 0
    now: Randomness = field(default_factory=dict)
    at_start: Randomness = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Saving:
    """Writes and reads checkpoints by the script's own functions; all ranks call each method at the same step.

    One rank writes the state, or with `every_rank` each of them into the same path, which then is a folder.
    """

    checkpoints: Checkpoints
    rank: int
    agree: Agree
    every_rank: bool
    write: Callable[[Path], object]
    read: Callable[[Path], object]

    def save(self, step: int, position: Position) -> None:
        """What one rank's function raises is raised there, and CheckpointError on the others: all of them go on, or
        none."""
        self._phase(self._begin, step)
        self._phase(lambda at: self._write(at, position), step)
        self._phase(self._commit, step)

    def resume(self) -> tuple[int, Position] | None:
        """Have the script read the newest checkpoint; its step, and where this rank stood. None where there is none.

        Raises CheckpointError, and what the script's function raises.
        """
        newest = self.checkpoints.newest() if self.rank == 0 else None
        (step,) = self.agree((newest.step if newest else -1,))
        if step < 0:
            return None
        found = self.checkpoints.at(step)
        self.read(found.state)
        return step, _position(found, self.rank)

    def _begin(self, step: int) -> None:
        if self.rank == 0:
            self.checkpoints.begin(step)

    def _write(self, step: int, position: Position) -> None:
        fresh = self.checkpoints.unfinished(step)
        if self.rank == 0 or self.every_rank:
            self.write(fresh.state)
        _note(fresh, self.rank).write_text(json.dumps(asdict(position)), encoding="utf-8")

    def _commit(self, step: int) -> None:
        if self.rank == 0:
            self.checkpoints.commit(step)

    def _phase(self, act: Callable[[int], None], step: int) -> None:
        done = False
        try:
            act(step)
            done = True
        finally:  # on the way out of an error as well: the others wait for our word
            (failed,) = self.agree((int(not done),))
        if failed:
            raise CheckpointError(f"another rank could not save step {step}: see its output")


def _note(checkpoint: Checkpoint, rank: int) -> Path:
    return checkpoint.folder / f"rank-{rank}.json"


def _position(found: Checkpoint, rank: int) -> Position:
    """A rank that was not there then starts where the first one stood, with its own random numbers."""
    own = _note(found, rank)
    try:
        said: object = json.loads((own if own.exists() else _note(found, 0)).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{found.folder} says not where its ranks stood: move it away ({error})") from error
    if not isinstance(said, Mapping):
        raise CheckpointError(f"{found.folder} says not where its ranks stood: move it away")
    position = Position(**said)
    return position if own.exists() else Position(position.epoch, position.batch)
