"""Files of tensors in the safetensors form, read piece by piece.

Eight bytes that say how long the header is, the header in JSON (name to type, shape and place), then the numbers. The
`safetensors` library writes whole tensors from memory; here a file is made whose tensors are never held as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.jobside.errors import TensorError

__all__ = ["Tensor", "TensorFile", "narrowed", "open_tensors", "widened"]

LONGEST_HEADER: Final = 100_000_000
"""Bytes, as the library allows."""

_LENGTH: Final = 8
_SIZES: Final[Mapping[str, int]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_FLOATS: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its type as the header names it, its shape, and the bytes of its numbers after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def averages(self) -> bool:
        """Whether a mean of it makes sense: it holds numbers that are no counts and no flags."""
        return self.dtype in _FLOATS or self.dtype == "BF16"


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An opened file: `header` is what it begins with, length and all."""

    path: Path
    header: bytes
    tensors: tuple[Tensor, ...]

    def pieces(self, tensor: Tensor, most: int) -> Iterator[bytes]:
        """The bytes of a tensor, `most` at a time (a multiple of eight). Raises TensorError."""
        try:
            with self.path.open("rb") as file:
                file.seek(len(self.header) + tensor.begin)
                for at in range(tensor.begin, tensor.end, most):
                    wanted = min(most, tensor.end - at)
                    piece = file.read(wanted)
                    if len(piece) != wanted:
                        raise TensorError(f"{self.path} ends within {tensor.name}: it was cut off")
                    yield piece
        except OSError as error:
            raise TensorError(f"cannot read {self.path}: {error.strerror}") from error


def open_tensors(path: Path) -> TensorFile:
    """A file of tensors. Raises TensorError where it is none."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(start := file.read(_LENGTH), "little")
            text = file.read(length) if length <= LONGEST_HEADER else b""
        size = path.stat().st_size
    except OSError as error:
        raise TensorError(f"cannot read {path}: {error.strerror}") from error
    try:
        said: object = json.loads(text)
        if not isinstance(said, dict):
            raise TypeError("its header is no table")
        tensors = sorted(
            (_tensor(name, entry) for name, entry in said.items() if name != "__metadata__"),
            key=lambda tensor: (tensor.begin, tensor.end),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TensorError(f"{path} is no safetensors file: {error}") from error
    places = [0, *(place for tensor in tensors for place in (tensor.begin, tensor.end)), size - _LENGTH - length]
    if any(end != begin for end, begin in list(pairwise(places))[::2]):
        raise TensorError(f"{path} is no whole safetensors file: its tensors leave gaps or end too early")
    return TensorFile(path, start + text, tuple(tensors))


def widened(piece: bytes, dtype: str) -> NDArray[np.float64]:
    """Floating-point numbers of a type of the header, as float64."""
    if dtype == "BF16":  # the upper half of a float32
        upper = np.frombuffer(piece, dtype="<u2").astype(np.uint32) << 16
        return upper.view(np.float32).astype(np.float64)
    return np.frombuffer(piece, dtype=_FLOATS[dtype]).astype(np.float64)


def narrowed(numbers: NDArray[np.float64], dtype: str) -> bytes:
    """The same in a type of the header, rounded to the nearest."""
    if dtype != "BF16":
        return numbers.astype(_FLOATS[dtype]).tobytes()
    single = numbers.astype(np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded).astype("<u2").tobytes()


def _tensor(name: str, entry: object) -> Tensor:
    if not isinstance(entry, dict):
        raise TypeError(f"{name} is no entry")
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"{name} has no shape or no place")
    if end - begin != prod(shape) * _SIZES[entry["dtype"]]:
        raise ValueError(f"{name} has not the size of its shape")
    return Tensor(name, entry["dtype"], shape, begin, end)
