"""Files of tensors in the safetensors form, read piece by piece.

Eight bytes that say how long the header is, the header in JSON (name to type, shape and place), then the numbers. The
`safetensors` library writes whole tensors from memory; here a file is made whose tensors are never held as a whole.

Numpy arrays in one file of the safetensors form, for models that need no more than numpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.jobside.errors import TensorError

MAX_HEADER_BYTES: Final = 100_000_000
"""Bytes, as the library allows."""

_LENGTH_BYTES: Final = 8
_ITEM_BYTES: Final[Mapping[str, int]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_FLOAT_TYPES: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its type as the header names it, its shape, and the bytes of its numbers after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def is_floating_point(self) -> bool:
        """Whether a mean of it makes sense: it holds numbers that are no counts and no flags."""
        return self.dtype in _FLOAT_TYPES or self.dtype == "BF16"


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An opened file: `header` is what it begins with, length and all."""

    path: Path
    header: bytes
    tensors: tuple[Tensor, ...]

    def chunks(self, tensor: Tensor, max_bytes: int) -> Iterator[bytes]:
        """The bytes of a tensor, `most` at a time (a multiple of eight). Raises TensorError."""
        try:
            with self.path.open("rb") as file:
                file.seek(len(self.header) + tensor.begin)
                for at in range(tensor.begin, tensor.end, max_bytes):
                    size = min(max_bytes, tensor.end - at)
                    chunk = file.read(size)
                    if len(chunk) != size:
                        raise TensorError(f"{self.path} ends within {tensor.name}: it was cut off")
                    yield chunk
        except OSError as error:
            raise TensorError(f"cannot read {self.path}: {error.strerror}") from error


def open_tensor_file(path: Path) -> TensorFile:
    """A file of tensors. Raises TensorError where it is none."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(start := file.read(_LENGTH_BYTES), "little")
            text = file.read(length) if length <= MAX_HEADER_BYTES else b""
        size = path.stat().st_size
    except OSError as error:
        raise TensorError(f"cannot read {path}: {error.strerror}") from error
    try:
        entries: object = json.loads(text)
        if not isinstance(entries, dict):
            raise TypeError("its header is no table")
        tensors = sorted(
            (_parse_tensor(name, entry) for name, entry in entries.items() if name != "__metadata__"),
            key=lambda tensor: (tensor.begin, tensor.end),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TensorError(f"{path} is no safetensors file: {error}") from error
    offsets = [0, *(place for tensor in tensors for place in (tensor.begin, tensor.end)), size - _LENGTH_BYTES - length]
    if any(end != begin for end, begin in list(pairwise(offsets))[::2]):
        raise TensorError(f"{path} is no whole safetensors file: its tensors leave gaps or end too early")
    return TensorFile(path, start + text, tuple(tensors))


def decode_floats(chunk: bytes, dtype: str) -> NDArray[np.float64]:
    """Floating-point numbers of a type of the header, as float64."""
    if dtype == "BF16":  # the upper half of a float32
        upper = np.frombuffer(chunk, dtype="<u2").astype(np.uint32) << 16
        return upper.view(np.float32).astype(np.float64)
    return np.frombuffer(chunk, dtype=_FLOAT_TYPES[dtype]).astype(np.float64)


def encode_floats(numbers: NDArray[np.float64], dtype: str) -> bytes:
    """The same in a type of the header, rounded to the nearest."""
    if dtype != "BF16":
        return numbers.astype(_FLOAT_TYPES[dtype]).tobytes()
    single = numbers.astype(np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded).astype("<u2").tobytes()


def _parse_tensor(name: str, entry: object) -> Tensor:
    if not isinstance(entry, dict):
        raise TypeError(f"{name} is no entry")
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"{name} has no shape or no place")
    if end - begin != prod(shape) * _ITEM_BYTES[entry["dtype"]]:
        raise ValueError(f"{name} has not the size of its shape")
    return Tensor(name, entry["dtype"], shape, begin, end)


_NUMPY_TYPES: Final[Mapping[str, str]] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_TENSOR_TYPES: Final = {numpy: name for name, numpy in _NUMPY_TYPES.items()}
_WHOLE_TENSOR: Final = 1 << 62
"""More bytes than any array has: read in one piece."""


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of any shapes and types that the form has names for. Raises TensorError for others, and OSError."""
    entries: dict[str, object] = {}
    end = 0
    for name, array in arrays.items():
        if array.dtype.str not in _TENSOR_TYPES:
            raise TensorError(f"{name} is of {array.dtype}: a file of tensors holds numbers and truths")
        offsets = [end, end := end + array.nbytes]
        entries[name] = {"dtype": _TENSOR_TYPES[array.dtype.str], "shape": array.shape, "data_offsets": offsets}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays by name, to be written to as one likes. Raises TensorError."""
    file, arrays = open_tensor_file(path), dict[str, NDArray[Any]]()
    for tensor in file.tensors:
        if tensor.dtype not in _NUMPY_TYPES:
            raise TensorError(f"{path} holds {tensor.name} of {tensor.dtype}, which numpy has not")
        numbers = np.frombuffer(b"".join(file.chunks(tensor, _WHOLE_TENSOR)), _NUMPY_TYPES[tensor.dtype])
        arrays[tensor.name] = numbers.reshape(tensor.shape).copy()
    return arrays
