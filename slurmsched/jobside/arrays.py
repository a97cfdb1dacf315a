"""Numpy arrays in one file of the safetensors form, for models that need no more than numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.jobside.errors import TensorError
from slurmsched.jobside.tensors import open_tensors

__all__ = ["read_arrays", "write_arrays"]

_TYPES: Final[Mapping[str, str]] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_NAMES: Final = {numpy: name for name, numpy in _TYPES.items()}
_ALL: Final = 1 << 62
"""More bytes than any array has: read in one piece."""


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of any shapes and types that the form has names for. Raises TensorError for others, and OSError."""
    entries: dict[str, object] = {}
    at = 0
    for name, array in arrays.items():
        if array.dtype.str not in _NAMES:
            raise TensorError(f"{name} is of {array.dtype}: a file of tensors holds numbers and truths")
        place = [at, at := at + array.nbytes]
        entries[name] = {"dtype": _NAMES[array.dtype.str], "shape": array.shape, "data_offsets": place}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays by name, to be written to as one likes. Raises TensorError."""
    file, found = open_tensors(path), dict[str, NDArray[Any]]()
    for tensor in file.tensors:
        if tensor.dtype not in _TYPES:
            raise TensorError(f"{path} holds {tensor.name} of {tensor.dtype}, which numpy has not")
        numbers = np.frombuffer(b"".join(file.pieces(tensor, _ALL)), _TYPES[tensor.dtype])
        found[tensor.name] = numbers.reshape(tensor.shape).copy()
    return found
