"""A table of pair rates with holes, filled as if few causes made it: Gavel's way and Quasar's (Gavel, section 3.3).

Soft-Impute (Mazumder, Hastie and Tibshirani, JMLR 2010, algorithm 1): the holes take what the table of smaller rank
has there, until nothing changes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["completed"]

Floats = NDArray[np.float64]

_STEPS: Final = 500
_STILL: Final = 1e-5
_SHRINK: Final = 0.05
"""Part of the largest singular value that each of them is shrunk by."""


def completed(table: Floats) -> Floats:
    """The table with its holes, which are NaN, filled; what was measured stays. Not all of it may be NaN."""
    known = ~np.isnan(table)
    mean = float(table[known].mean())
    filled: Floats = np.where(known, table, mean)
    for _ in range(_STEPS):
        left, values, right = np.linalg.svd(filled - mean, full_matrices=False)
        smaller = (left * np.maximum(values - _SHRINK * values.max(), 0.0)) @ right + mean
        better: Floats = np.where(known, table, smaller)
        change = float(np.abs(better - filled).max())
        filled = better
        if change < _STILL:
            break
    return filled
