"""The parameters of forked copies put together: their mean, weighted by the steps each has done (HadarE, section V-B).

What is no floating-point number (a count of batches, a flag) comes from the copy with the most steps. The state of an
optimizer is tensors like any others: what a script saves with the parameters is averaged with them, and what it leaves
out starts anew in every round.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurmsched.jobside.durable import sync
from slurmsched.jobside.errors import TensorError
from slurmsched.jobside.tensors import Tensor, TensorFile, narrowed, open_tensors, widened

__all__ = ["Copy", "average", "counting", "weighted"]

_PIECE: Final = 1 << 18
"""Bytes of a tensor that are looked at together, of each copy."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What one copy has made of the parameters, in a file, by so many steps."""

    path: Path
    steps: int


def counting(copies: Sequence[Copy]) -> Sequence[Copy]:
    """Those that have done anything, the one with the most steps first. Raises TensorError where there is none."""
    worked = sorted((copy for copy in copies if copy.steps > 0), key=lambda copy: -copy.steps)
    if not worked:
        raise TensorError("no copy has done a step: there is nothing to average")
    return worked


def weighted(pieces: Sequence[NDArray[np.float64]], steps: Sequence[int]) -> NDArray[np.float64]:
    """The mean of as many pieces as there are counts of steps.

    As the first plus the parts by which the others differ: where all are equal, so is the mean, to the last bit.
    """
    whole, first = sum(steps), pieces[0]
    mean = first.copy()
    for piece, count in zip(pieces[1:], steps[1:], strict=True):
        mean += (piece - first) * (count / whole)
    return mean


def average(copies: Sequence[Copy], target: Path) -> None:
    """Write the mean of files in the safetensors form, a few hundred KiB of each copy in memory at a time.

    Raises TensorError where they do not hold the same tensors, and OSError where the target cannot be written.
    """
    worked = counting(copies)
    files = [open_tensors(copy.path) for copy in worked]
    for other in files[1:]:
        _alike(files[0], other)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(files[0].header)
        for tensors in zip(*(each.tensors for each in files), strict=True):
            several = files if tensors[0].averages else files[:1]
            sources = [each.pieces(tensor, _PIECE) for each, tensor in zip(several, tensors, strict=False)]
            for pieces in zip(*sources, strict=True):
                file.write(_mean(pieces, tensors[0], [copy.steps for copy in worked]))
    sync(fresh)
    fresh.replace(target)
    sync(target.parent)


def _mean(pieces: Sequence[bytes], tensor: Tensor, steps: Sequence[int]) -> bytes:
    if len(pieces) == 1:
        return pieces[0]
    return narrowed(weighted([widened(piece, tensor.dtype) for piece in pieces], steps), tensor.dtype)


def _alike(one: TensorFile, other: TensorFile) -> None:
    if one.tensors != other.tensors:
        raise TensorError(f"{other.path} holds other tensors than {one.path}, or in another order: one model for all")
