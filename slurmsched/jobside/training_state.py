"""The states of the random generators that a training script uses: Python's, numpy's and torch's, where it has them.

As JSON, not as a pickle: a checkpoint is data.

A checkpoint of all ranks: the script's state, and where each rank stands.

The way through the data: which epoch, which batch, and how to come back to it.

Saving and loading for plain PyTorch: everything that has a `state_dict`, in one file.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from slurmsched.jobside.checkpoints import Checkpoint, Checkpoints
from slurmsched.jobside.environment import AllReduceMax
from slurmsched.jobside.errors import CheckpointError

RandomStates = Mapping[str, object]
"""Generator to state, fit for JSON."""


def capture_random_states() -> RandomStates:
    """The states now."""
    version, state, gauss = random.getstate()
    states: dict[str, object] = {"python": [version, list(state), gauss]}
    if numpy := sys.modules.get("numpy"):
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        states["numpy"] = [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    if torch := sys.modules.get("torch"):
        states["torch"] = bytes(torch.get_rng_state().numpy()).hex()
        if torch.cuda.is_available():
            states["cuda"] = [bytes(state.numpy()).hex() for state in torch.cuda.get_rng_state_all()]
    return states


def restore_random_states(states: RandomStates) -> None:
    """Go on as if nothing had been in between. A generator that was not captured, or that is gone, is left alone, and
    so are the GPUs' where their number has changed."""
    if isinstance(saved := states.get("python"), list):
        version, state, gauss = saved
        random.setstate((version, tuple(state), gauss))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy and isinstance(saved := states.get("numpy"), list):
        kind, keys, *rest = saved
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if torch and isinstance(saved := states.get("torch"), str):
        torch.set_rng_state(_byte_tensor(saved))
    if torch and isinstance(saved := states.get("cuda"), list) and len(saved) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_byte_tensor(text) for text in saved])


def _byte_tensor(text: str) -> object:
    return sys.modules["torch"].frombuffer(bytearray.fromhex(text), dtype=sys.modules["torch"].uint8)


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Where a rank stands: after `batch` batches of an epoch, and the states of its random generators now and, for the
    order of the batches, when the epoch began."""

    epoch: int = 0
    batch: int = 0
    now: RandomStates = field(default_factory=dict)
    at_start: RandomStates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DistributedCheckpoints:
    """Writes and reads checkpoints by the script's own functions; all ranks call each method at the same step.

    One rank writes the state, or with `every_rank` each of them into the same path, which then is a folder.
    """

    checkpoints: Checkpoints
    rank: int
    all_reduce_max: AllReduceMax
    every_rank: bool
    write_state: Callable[[Path], object]
    read_state: Callable[[Path], object]

    def save(self, step: int, position: DataPosition) -> None:
        """What one rank's function raises is raised there, and CheckpointError on the others: all of them go on, or
        none."""
        self._run_on_all_ranks(self._begin, step)
        self._run_on_all_ranks(lambda at: self._write(at, position), step)
        self._run_on_all_ranks(self._commit, step)

    def resume(self) -> tuple[int, DataPosition] | None:
        """Have the script read the newest checkpoint; its step, and where this rank stood. None where there is none.

        Raises CheckpointError, and what the script's function raises.
        """
        newest = self.checkpoints.newest() if self.rank == 0 else None
        (step,) = self.all_reduce_max((newest.step if newest else -1,))
        if step < 0:
            return None
        checkpoint = self.checkpoints.at(step)
        self.read_state(checkpoint.state)
        return step, _read_position(checkpoint, self.rank)

    def _begin(self, step: int) -> None:
        if self.rank == 0:
            self.checkpoints.begin(step)

    def _write(self, step: int, position: DataPosition) -> None:
        unfinished = self.checkpoints.unfinished(step)
        if self.rank == 0 or self.every_rank:
            self.write_state(unfinished.state)
        _position_file(unfinished, self.rank).write_text(json.dumps(asdict(position)), encoding="utf-8")

    def _commit(self, step: int) -> None:
        if self.rank == 0:
            self.checkpoints.commit(step)

    def _run_on_all_ranks(self, act: Callable[[int], None], step: int) -> None:
        done = False
        try:
            act(step)
            done = True
        finally:  # on the way out of an error as well: the others wait for our word
            (failed,) = self.all_reduce_max((int(not done),))
        if failed:
            raise CheckpointError(f"another rank could not save step {step}: see its output")


def _position_file(checkpoint: Checkpoint, rank: int) -> Path:
    return checkpoint.folder / f"rank-{rank}.json"


def _read_position(checkpoint: Checkpoint, rank: int) -> DataPosition:
    """A rank that was not there then starts where the first one stood, with its own random numbers."""
    file = _position_file(checkpoint, rank)
    try:
        fields: object = json.loads((file if file.exists() else _position_file(checkpoint, 0)).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.folder} says not where its ranks stood: move it away ({error})") from error
    if not isinstance(fields, Mapping):
        raise CheckpointError(f"{checkpoint.folder} says not where its ranks stood: move it away")
    position = DataPosition(**fields)
    return position if file.exists() else DataPosition(position.epoch, position.batch)


T = TypeVar("T")


class DataCursor:
    """Batches in the order in which an undisturbed run would meet them.

    An epoch that was left half-way begins with the random generators as they were when it began, so that a loader
    shuffles as it did; the batches done are read and dropped; then the generators are as they were after the last.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._batch = 0
        self._epoch_start: RandomStates | None = None
        self._resumed: RandomStates | None = None

    def position(self) -> DataPosition:
        """Where we are now."""
        return DataPosition(self.epoch, self._batch, capture_random_states(), self._epoch_start or {})

    def resume(self, position: DataPosition) -> None:
        """Be there from now on."""
        self.epoch, self._batch = position.epoch, position.batch
        self._epoch_start, self._resumed = position.at_start or None, position.now
        restore_random_states(position.now)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs up to `count` that are not over."""
        while self.epoch < count:
            before = self.epoch
            yield before
            if self.epoch == before:  # whoever goes through the data by himself
                self.epoch += 1

    def batches(self, loader: Iterable[T], step: Callable[[], None]) -> Iterator[T]:
        """The batches of this epoch that are not done; `step` is called after each."""
        set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if self._epoch_start is None:
            self._epoch_start = capture_random_states()
        else:
            restore_random_states(self._epoch_start)
        try:
            batches = iter(loader)
            for _ in range(self._batch):
                next(batches, None)
            if self._resumed is not None:
                restore_random_states(self._resumed)
            self._resumed = None
            for batch in batches:
                yield batch
                self._batch += 1
                step()
        finally:  # also where the loop was left early: that was the epoch then
            self.epoch += 1
            self._batch, self._epoch_start = 0, None


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler."""

    def state_dict(self) -> Mapping[str, Any]:
        """Its state; what is in it only it knows, hence `Any`."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Take a state up again."""


def torch_state(**parts: Stateful) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    """`save` and `load` for a Training: `Training(*torch_state(model=model, optimizer=optimizer))`.

    Tensors are loaded to the CPU; each part takes them to its own device. Only data is read, no code.
    """

    def save(path: Path) -> None:
        import_torch().save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(path: Path) -> None:
        held = import_torch().load(path, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(held[name])

    return save, load


def import_torch() -> ModuleType:
    """PyTorch, imported only where a script has it. Raises ImportError."""
    return sys.modules.get("torch") or import_module("torch")
