"""What two rounds have in common, for every pair of a node before and a node after (Tesserae, algorithm 3).

The paper fills a matrix of all GPUs of both nodes: half for each move out and each move in, divided by the GPUs of the
job. Here GPUs that the same jobs use are one row of a layout, pairs of nodes without a common job do not appear, and
what is counted is the cost that is saved: a GPU that keeps its job saves both halves. A row that meets one row only
needs no matching; the few that compete are matched by the Hungarian method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from slurmsched.policies.pools import Ints, Mask
from slurmsched.policies.tesserae.layout import Floats, Layout

__all__ = ["Overlap", "overlap"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Pairs of rows, one before and one after, with a job in common: their nodes, and how many GPUs the best matching
    of the two nodes lets them keep. `worth` is what is saved by each of those GPUs.

    `job` and `pair` say which jobs each pair of rows has in common: `job[i]` is one of those of pair `pair[i]`.
    """

    before: Ints
    after: Ints
    worth: Floats
    kept: Ints
    job: Ints
    pair: Ints


def overlap(before: Layout, after: Layout, alike: Ints) -> Overlap:
    """Of two layouts of the same jobs. Only nodes that are `alike`, by a number for each node, are compared."""
    had, now = before.widths(), after.widths()
    job, first, second = _common(before, after)
    same = alike[before.node[first]] == alike[after.node[second]]
    job, first, second = job[same], first[same], second[same]
    share = np.array([1.0 / max(had[number], now[number]) for number in job.tolist()])
    keys, pair = np.unique(first * len(after) + second, return_inverse=True)
    rows = keys // max(len(after), 1), keys % max(len(after), 1)
    worth = np.bincount(pair, weights=share, minlength=len(keys)).astype(np.float64)
    kept = _kept(before, after, rows, worth)
    return Overlap(before.node[rows[0]], after.node[rows[1]], worth, kept, job, pair)


def _common(before: Layout, after: Layout) -> tuple[Ints, Ints, Ints]:
    """Every job with every row it has before and every row it has after."""
    old, _, old_row = before.entries()
    new, _, new_row = after.entries()
    order = np.argsort(new, kind="stable")
    low, high = (np.searchsorted(new[order], old, side) for side in ("left", "right"))
    times = high - low
    each = np.repeat(np.arange(len(old)), times)
    behind = np.arange(len(each)) - np.repeat(np.cumsum(times) - times, times)
    return old[each], old_row[each], new_row[order[low[each] + behind]]


def _kept(before: Layout, after: Layout, rows: tuple[Ints, Ints], worth: Floats) -> Ints:
    """GPUs that each pair of rows keeps when their two nodes are matched best."""
    most: Ints = np.minimum(before.gpus[rows[0]], after.gpus[rows[1]])
    old, new = before.node[rows[0]], after.node[rows[1]]
    nodes = int(max(old.max(initial=0), new.max(initial=0))) + 1
    competes = _repeated(rows[0] * nodes + new) | _repeated(rows[1] * nodes + old)
    kept = np.where(competes, 0, most)
    places = np.flatnonzero(competes)
    together = (old * nodes + new)[places]
    order = np.argsort(together, kind="stable")
    for group in np.split(places[order], np.flatnonzero(np.diff(together[order])) + 1):
        if len(group):
            kept[group] = _matched(before, after, (rows[0][group], rows[1][group]), worth[group])
    return kept


def _repeated(keys: Ints) -> Mask:
    """Which of the keys stand there more than once."""
    _, place, times = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(times[place] > 1)


def _matched(before: Layout, after: Layout, rows: tuple[Ints, Ints], worth: Floats) -> Ints:
    """The matching within one pair of nodes, in units of the largest number of GPUs that divides every row."""
    old, at_old = np.unique(rows[0], return_inverse=True)
    new, at_new = np.unique(rows[1], return_inverse=True)
    unit = int(np.gcd.reduce(np.concatenate((before.gpus[old], after.gpus[new]))))
    saved, pair = np.zeros((len(old), len(new))), np.full((len(old), len(new)), -1)
    saved[at_old, at_new], pair[at_old, at_new] = worth, np.arange(len(worth))
    from_old = np.repeat(np.arange(len(old)), before.gpus[old] // unit)
    from_new = np.repeat(np.arange(len(new)), after.gpus[new] // unit)
    chosen = linear_sum_assignment(saved[np.ix_(from_old, from_new)], maximize=True)
    found = pair[from_old[chosen[0]], from_new[chosen[1]]]
    return np.bincount(found[found >= 0], minlength=len(worth)).astype(np.int64) * unit
