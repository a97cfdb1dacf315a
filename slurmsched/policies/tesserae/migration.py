"""The fewest moves between two rounds (Tesserae, section 4.1, algorithm 2).

A placement is made without regard to the last one; then its nodes are named so that as few jobs as may be have moved.
Names are exchanged only between whole nodes, so a consolidated gang stays consolidated (appendix B shows how a matching
of single GPUs may tear it apart), and only between nodes that are alike: of one GPU type and size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from slurmsched.policies.pools import Ints
from slurmsched.policies.tesserae.layout import Layout
from slurmsched.policies.tesserae.overlap import Overlap, overlap

__all__ = ["Renaming", "moved", "renamed", "renaming_cost"]


@dataclass(frozen=True, slots=True)
class Renaming:
    """`names[n]` is the node on which what was planned for node n goes. `moved` are the jobs of both rounds that then
    still change their GPUs; `cost` is the paper's, in which a job of several nodes may move in part."""

    names: Ints
    moved: frozenset[int]
    cost: float


def renamed(before: Layout, after: Layout, alike: Ints) -> Renaming:
    """The cheapest names for the nodes of `after`. `alike` has a number for each node; names are exchanged between
    nodes of the same one. Never more jobs move than if every node kept its name.
    """
    before, after = _in_both(before, after)
    common = overlap(before, after, alike)
    saved = _saved(common, len(alike))
    names = _completed(dict(_matched(saved)), alike)
    found = Renaming(names, _moved(common, before, after, names), _cost(before, common, names))
    as_planned = np.arange(len(alike))
    unnamed = _moved(common, before, after, as_planned)
    if len(unnamed) < len(found.moved):
        return Renaming(as_planned, unnamed, _cost(before, common, as_planned))
    return found


def moved(before: Layout, after: Layout) -> frozenset[int]:
    """Jobs of both rounds that use other GPUs in the second (definition 1). GPUs of one node are as good as each other,
    except that jobs which shared theirs and no longer do cannot both have stayed."""
    before, after = _in_both(before, after)
    nodes = int(max(before.node.max(initial=-1), after.node.max(initial=-1))) + 1
    same = np.arange(nodes)
    return _moved(overlap(before, after, same), before, after, same)


def renaming_cost(before: Layout, after: Layout, names: Ints) -> float:
    """The paper's cost of these names: half for each move out and half for each move in, by GPUs of the job."""
    before, after = _in_both(before, after.renamed(names))
    same = np.arange(len(names))
    return _cost(before, overlap(before, after, same), same)


def _in_both(before: Layout, after: Layout) -> tuple[Layout, Layout]:
    """Line 2 of algorithm 2: who comes or goes is not moved."""
    both = np.intersect1d(before.jobs, after.jobs)
    return before.of_jobs(both), after.of_jobs(both)


def _saved(common: Overlap, nodes: int) -> csr_matrix:
    """What each name, by column, saves for each planned node, by row (lines 3 to 5)."""
    entries = (common.worth * common.kept, (common.after, common.before))
    return coo_matrix(entries, shape=(nodes, nodes)).tocsr()


def _matched(saved: csr_matrix) -> Iterator[tuple[int, int]]:
    """The assignment that saves most (lines 6 and 7): nodes that no chain of common jobs connects are apart, and two
    that have jobs in common with each other only are a pair."""
    whole, nodes = coo_matrix(saved), saved.shape[0]
    planned, named = np.bincount(whole.row, minlength=nodes), np.bincount(whole.col, minlength=nodes)
    pair = (planned[whole.row] == 1) & (named[whole.col] == 1)
    yield from zip(whole.row[pair].tolist(), whole.col[pair].tolist(), strict=True)
    links = (whole.data[~pair], (whole.row[~pair], whole.col[~pair] + nodes))
    count, part = connected_components(csr_matrix(links, shape=(2 * nodes, 2 * nodes)), directed=False)
    large = np.flatnonzero(np.bincount(part, minlength=count) > 1)
    for group in (np.flatnonzero(part == number) for number in large):
        planned, named = group[group < nodes], group[group >= nodes] - nodes
        chosen = linear_sum_assignment(saved[planned][:, named].toarray(), maximize=True)
        yield from zip(planned[chosen[0]].tolist(), named[chosen[1]].tolist(), strict=True)


def _completed(chosen: dict[int, int], alike: Ints) -> Ints:
    """Names for all: who is free to keep its own does, the others take what is left among those alike."""
    names: Ints = np.full(len(alike), -1)
    names[list(chosen)] = list(chosen.values())
    taken = set(chosen.values())
    for node in np.flatnonzero(names < 0).tolist():
        if node not in taken:
            names[node] = node
            taken.add(node)
    nameless, left = np.flatnonzero(names < 0), np.setdiff1d(np.arange(len(alike)), names)
    by_kind = nameless[np.argsort(alike[nameless], kind="stable")]
    names[by_kind] = left[np.argsort(alike[left], kind="stable")]
    return names


def _stays(common: Overlap, names: Ints) -> Ints:
    """Which of the pairs of rows come to lie on one node."""
    return np.flatnonzero(names[common.after] == common.before)


def _moved(common: Overlap, before: Layout, after: Layout, names: Ints) -> frozenset[int]:
    kept = np.zeros(len(common.kept), dtype=np.int64)
    stays = _stays(common, names)
    kept[stays] = common.kept[stays]
    jobs, place = np.unique(common.job, return_inverse=True)
    stayed = dict(zip(jobs.tolist(), np.bincount(place, weights=kept[common.pair]).tolist(), strict=True))
    had, now = before.widths(), after.widths()
    return frozenset(job for job in had if stayed.get(job, 0) < max(had[job], now[job]))


def _cost(before: Layout, common: Overlap, names: Ints) -> float:
    stays = _stays(common, names)
    return float(len(before.widths()) - (common.worth[stays] * common.kept[stays]).sum())
