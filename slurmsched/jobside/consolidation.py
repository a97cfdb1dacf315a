"""The parameters of forked copies put together: their mean, weighted by the steps each has done (HadarE, section V-B).

What is no floating-point number (a count of batches, a flag) comes from the copy with the most steps. The state of an
optimizer is tensors like any others: what a script saves with the parameters is averaged with them, and what it leaves
out starts anew in every round.

The same mean over what `torch.save` has written: state dicts, one in another as they may be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.jobside.atomic_files import fsync_path
from slurmsched.jobside.errors import TensorError
from slurmsched.jobside.tensors import Tensor, TensorFile, decode_floats, encode_floats, open_tensor_file
from slurmsched.jobside.training_state import import_torch

_CHUNK_BYTES: Final = 1 << 18
"""Bytes of a tensor that are looked at together, of each copy."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """What one copy has made of the parameters, in a file, by so many steps."""

    path: Path
    steps: int


def copies_with_steps(copies: Sequence[CopyState]) -> Sequence[CopyState]:
    """Those that have done anything, the one with the most steps first. Raises TensorError where there is none."""
    active = sorted((copy for copy in copies if copy.steps > 0), key=lambda copy: -copy.steps)
    if not active:
        raise TensorError("no copy has done a step: there is nothing to average")
    return active


def weighted_mean(chunks: Sequence[NDArray[np.float64]], steps: Sequence[int]) -> NDArray[np.float64]:
    """The mean of as many pieces as there are counts of steps.

    As the first plus the parts by which the others differ: where all are equal, so is the mean, to the last bit.
    """
    total, first = sum(steps), chunks[0]
    mean = first.copy()
    for chunk, copy_steps in zip(chunks[1:], steps[1:], strict=True):
        mean += (chunk - first) * (copy_steps / total)
    return mean


def average(copies: Sequence[CopyState], target: Path) -> None:
    """Write the mean of files in the safetensors form, a few hundred KiB of each copy in memory at a time.

    Raises TensorError where they do not hold the same tensors, and OSError where the target cannot be written.
    """
    active = copies_with_steps(copies)
    files = [open_tensor_file(copy.path) for copy in active]
    for other in files[1:]:
        _check_same_tensors(files[0], other)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(files[0].header)
        for tensors in zip(*(each.tensors for each in files), strict=True):
            averaged = files if tensors[0].is_floating_point else files[:1]
            sources = [each.chunks(tensor, _CHUNK_BYTES) for each, tensor in zip(averaged, tensors, strict=False)]
            for chunks in zip(*sources, strict=True):
                file.write(_mean_chunk(chunks, tensors[0], [copy.steps for copy in active]))
    fsync_path(temporary)
    temporary.replace(target)
    fsync_path(target.parent)


def _mean_chunk(chunks: Sequence[bytes], tensor: Tensor, steps: Sequence[int]) -> bytes:
    if len(chunks) == 1:
        return chunks[0]
    return encode_floats(weighted_mean([decode_floats(piece, tensor.dtype) for piece in chunks], steps), tensor.dtype)


def _check_same_tensors(first: TensorFile, other: TensorFile) -> None:
    if first.tensors != other.tensors:
        raise TensorError(f"{other.path} holds other tensors than {first.path}, or in another order: one model for all")


_CHUNK_NUMBERS: Final = 1 << 14
"""Numbers of a tensor that are looked at together, of each copy: few enough that the processor's cache holds them."""


def average_state_dicts(copies: Sequence[CopyState], target: Path) -> None:
    """Write the mean of files of `torch.save`, mapped into memory and not read into it.

    What the process holds of its own stays within some MiB, but pages of all files count as its memory until the kernel
    takes them back, which it does where memory is short. On disk the target's size is needed twice.

    Raises TensorError where they do not hold the same tensors, and OSError where the target cannot be written.
    """
    torch, active = import_torch(), copies_with_steps(copies)
    state_dicts = [torch.load(copy.path, map_location="cpu", mmap=True, weights_only=True) for copy in active]
    with TemporaryDirectory(dir=target.parent, prefix=".averaging-") as folder:
        mean = _StateDictMean(torch, [copy.steps for copy in active], Path(folder)).of(state_dicts)
        temporary = Path(folder) / target.name
        torch.save(mean, temporary)
        fsync_path(temporary)
        temporary.replace(target)
    fsync_path(target.parent)


class _StateDictMean:
    """Walks through all copies at once. Results lie in files below `folder`, of which memory holds what is in use."""

    def __init__(self, torch: ModuleType, steps: Sequence[int], folder: Path) -> None:
        self._torch = torch
        self._steps = steps
        self._folder = folder
        self._file_numbers = count()

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
        return self._tensor_mean(values) if first.is_floating_point() and first.numel() else first

    def _tensor_mean(self, tensors: Sequence[Any]) -> Any:
        torch, first = self._torch, tensors[0]
        file = str(self._folder / str(next(self._file_numbers)))
        mean = torch.from_file(file, shared=True, size=first.numel(), dtype=first.dtype)
        flat = [tensor.reshape(-1) for tensor in tensors]
        for start in range(0, first.numel(), _CHUNK_NUMBERS):
            chunks = [tensor[start : start + _CHUNK_NUMBERS].to(torch.float64).numpy() for tensor in flat]
            mean[start : start + _CHUNK_NUMBERS] = torch.from_numpy(weighted_mean(chunks, self._steps))
        return mean.view(first.shape)
