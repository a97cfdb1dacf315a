"""Who runs in the coming round, and where: Gavel's greedy pass over priorities (section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from slurmsched.policies.gavel.books import Books, Entry
from slurmsched.policies.gavel.problem import Floats, Ints

__all__ = ["by_priority", "picked"]


def picked(
    books: Books, runs: NDArray[np.bool_], widths: Floats, gpus: Sequence[int], types: Iterable[int]
) -> dict[int, list[Entry]]:
    """The entries that run on each type, which are gone through in the order of `types`.

    On each type by priority; who is too wide for what is left is passed over. `runs[e, w]`: whether the entry can run
    there; `widths[e]`: its GPUs. An entry of priority 0 comes last but is not left out, so no GPU idles that somebody
    can use.
    """
    busy = set[str]()
    chosen: dict[int, list[Entry]] = {}
    for kind in types:
        left = gpus[kind]
        chosen[kind] = []
        for row in by_priority(books, runs, kind):
            entry = books.entries[row]
            if left <= 0:
                break
            if runs[row, kind] and widths[row] <= left and busy.isdisjoint(entry):
                left -= int(widths[row])
                busy.update(entry)
                chosen[kind].append(entry)
    return chosen


def by_priority(books: Books, runs: NDArray[np.bool_], kind: int) -> Ints:
    """The rows of all entries, who comes first on this GPU type first: by priority, then deficit, then share, the
    highest first. Rows whose `runs` is not set have none."""
    priority, share = books.priorities(runs)[:, kind], np.nan_to_num(books.share[:, kind])
    return np.asarray(np.lexsort((-share, -books.deficit[:, kind], -priority)), dtype=np.int64)
