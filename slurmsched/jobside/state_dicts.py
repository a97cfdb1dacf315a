"""The same mean over what `torch.save` has written: state dicts, one in another as they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

from slurmsched.jobside.averaging import Copy, counting, weighted
from slurmsched.jobside.durable import sync
from slurmsched.jobside.errors import TensorError
from slurmsched.jobside.torch_state import torch_module

__all__ = ["average_state_dicts"]

_PIECE: Final = 1 << 14
"""Numbers of a tensor that are looked at together, of each copy: few enough that the processor's cache holds them."""


def average_state_dicts(copies: Sequence[Copy], target: Path) -> None:
    """Write the mean of files of `torch.save`, mapped into memory and not read into it.

    What the process holds of its own stays within some MiB, but pages of all files count as its memory until the kernel
    takes them back, which it does where memory is short. On disk the target's size is needed twice.

    Raises TensorError where they do not hold the same tensors, and OSError where the target cannot be written.
    """
    torch, worked = torch_module(), counting(copies)
    held = [torch.load(copy.path, map_location="cpu", mmap=True, weights_only=True) for copy in worked]
    with TemporaryDirectory(dir=target.parent, prefix=".averaging-") as folder:
        mean = _Mean(torch, [copy.steps for copy in worked], Path(folder)).of(held)
        fresh = Path(folder) / target.name
        torch.save(mean, fresh)
        sync(fresh)
        fresh.replace(target)
    sync(target.parent)


class _Mean:
    """Walks through all copies at once. Results lie in files below `folder`, of which memory holds what is in use."""

    def __init__(self, torch: ModuleType, steps: Sequence[int], folder: Path) -> None:
        self._torch = torch
        self._steps = steps
        self._folder = folder
        self._numbers = count()

    def of(self, values: Sequence[Any], name: str = "") -> Any:
        """The mean of these: tensors, or tables and lists of them; of anything else the first.

        What lies in a state dict only torch knows, hence `Any`.
        """
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise TensorError(f"the copies differ in kind at {name or 'the top'}: one model for all")
        if isinstance(first, Mapping):
            if any(value.keys() != first.keys() for value in values):
                raise TensorError(f"the copies hold other tensors at {name or 'the top'}: one model for all")
            return {key: self.of([value[key] for value in values], f"{name}.{key}") for key in first}
        if isinstance(first, list | tuple):
            if any(len(value) != len(first) for value in values):
                raise TensorError(f"the copies hold other tensors at {name or 'the top'}: one model for all")
            return type(first)(self.of(each, f"{name}.{place}") for place, each in enumerate(zip(*values, strict=True)))
        if not isinstance(first, self._torch.Tensor):
            return first
        if any(value.shape != first.shape or value.dtype != first.dtype for value in values):
            raise TensorError(f"the copies differ in shape at {name}: one model for all")
        return self._tensor(values) if first.is_floating_point() and first.numel() else first

    def _tensor(self, tensors: Sequence[Any]) -> Any:
        torch, first = self._torch, tensors[0]
        file = str(self._folder / str(next(self._numbers)))
        mean = torch.from_file(file, shared=True, size=first.numel(), dtype=first.dtype)
        flat = [tensor.reshape(-1) for tensor in tensors]
        for at in range(0, first.numel(), _PIECE):
            pieces = [tensor[at : at + _PIECE].to(torch.float64).numpy() for tensor in flat]
            mean[at : at + _PIECE] = torch.from_numpy(weighted(pieces, self._steps))
        return mean.view(first.shape)
