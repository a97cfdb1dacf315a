"""Migration (Tesserae, section 4.1, algorithms 2 and 3): renames the nodes of a placement so that the fewest jobs move
between two rounds.

A placement is computed without regard to the last one; then its nodes are permuted by a minimum-cost matching. Only
whole nodes are exchanged, so a consolidated gang stays consolidated (appendix B shows how a matching of single GPUs can
split it), and only nodes of the same class, i.e. of equal GPU type and size.

The paper's matching of two nodes (algorithm 3) is over all their GPUs and counts half a move out and half a move in,
over the GPUs of the job. Here GPUs that the same jobs use are one row, pairs of nodes without a common job are left
out, and the saved cost is counted: a GPU that keeps its job saves both halves. A row that meets only one other row
needs no matching; the others are matched by the Hungarian method.

In a live round a job that keeps its allocation stays on its nodes. So nodes are exchanged only if all their jobs leave
or start, if they are equal in everything that a job may request of a node, and if no job includes or excludes them by
name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from slurmsched.arrays import Floats, Ints, Mask
from slurmsched.model import Job, JobId, Node, Resources
from slurmsched.policies.session import Session

NO_JOB = -1
"""Stands for the missing second job on GPUs that only one job uses."""


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The jobs on the GPUs of a round: one row for each set of GPUs of one node that the same jobs use, with the node's
    number, the number of GPUs, and the numbers of one or two jobs (`NO_JOB` for a missing second one).

    Idle GPUs have no row. The indices of the GPUs are not part of it, since Slurm chooses them.
    """

    node: Ints
    gpus: Ints
    jobs: Ints
    """Shape [rows, 2], two jobs ascending."""

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, tuple[int, ...]]]) -> PlacementPlan:
        """Returns the plan of rows of node, GPUs and jobs."""
        given = [(node, gpus, min(jobs), max(jobs) if len(jobs) > 1 else NO_JOB) for node, gpus, jobs in rows]
        table = np.array(given, dtype=np.int64).reshape(-1, 4)
        return merge_rows(table[:, 0], table[:, 1], table[:, 2:])

    def __len__(self) -> int:
        return len(self.node)

    def gpus_by_job(self) -> dict[int, int]:
        """Returns the GPUs of each job on all its nodes."""
        jobs, gpus = self.entries()[:2]
        numbers, index = np.unique(jobs, return_inverse=True)
        totals = np.bincount(index, weights=gpus, minlength=len(numbers))
        return dict(zip(numbers.tolist(), totals.astype(int).tolist(), strict=True))

    def entries(self) -> tuple[Ints, Ints, Ints]:
        """Returns job, GPUs and row, for each job in each row that has it."""
        row, index = np.nonzero(self.jobs != NO_JOB)
        return self.jobs[row, index], self.gpus[row], row

    def restricted_to(self, kept: Ints) -> PlacementPlan:
        """Returns the plan of these jobs only; GPUs without one of them are idle."""
        stays: Mask = np.isin(self.jobs, kept)
        jobs = np.where(stays, self.jobs, NO_JOB)
        jobs = np.where(jobs[:, :1] == NO_JOB, jobs[:, ::-1], jobs)
        used = jobs[:, 0] != NO_JOB
        return merge_rows(self.node[used], self.gpus[used], jobs[used])

    def with_renamed_nodes(self, node_map: Ints) -> PlacementPlan:
        """Returns the plan with every node n replaced by `node_map[n]`."""
        return PlacementPlan(node_map[self.node], self.gpus, self.jobs)


def merge_rows(node: Ints, gpus: Ints, jobs: Ints) -> PlacementPlan:
    """Returns the plan of rows, of which those of one node with the same jobs are merged."""
    keys, index = np.unique(np.column_stack((node, jobs)), axis=0, return_inverse=True)
    summed = np.bincount(index.ravel(), weights=gpus, minlength=len(keys)).astype(np.int64)
    return PlacementPlan(keys[:, 0], summed, keys[:, 1:])


@dataclass(frozen=True, slots=True)
class PlanOverlap:
    """Pairs of rows, one of each plan, with a common job: their nodes, the GPUs that the best matching of the two nodes
    lets them keep, and the cost saved by each of these GPUs.

    `job[i]` is a common job of the pair of rows `pair[i]`.
    """

    node_before: Ints
    node_after: Ints
    saved_cost: Floats
    kept_gpus: Ints
    job: Ints
    pair: Ints


def compute_overlap(before: PlacementPlan, after: PlacementPlan, node_class: Ints) -> PlanOverlap:
    """Returns the overlap of two plans of the same jobs, over pairs of nodes with equal `node_class`."""
    had, now = before.gpus_by_job(), after.gpus_by_job()
    job, first, second = _common_rows(before, after)
    same = node_class[before.node[first]] == node_class[after.node[second]]
    job, first, second = job[same], first[same], second[same]
    share = np.array([1.0 / max(had[number], now[number]) for number in job.tolist()])
    keys, pair = np.unique(first * len(after) + second, return_inverse=True)
    rows = keys // max(len(after), 1), keys % max(len(after), 1)
    saved = np.bincount(pair, weights=share, minlength=len(keys)).astype(np.float64)
    kept = _kept_gpus(before, after, rows, saved)
    return PlanOverlap(before.node[rows[0]], after.node[rows[1]], saved, kept, job, pair)


def _common_rows(before: PlacementPlan, after: PlacementPlan) -> tuple[Ints, Ints, Ints]:
    """Returns job, row before and row after, for every pair of rows with a common job."""
    old, _, old_row = before.entries()
    new, _, new_row = after.entries()
    order = np.argsort(new, kind="stable")
    low, high = (np.searchsorted(new[order], old, side) for side in ("left", "right"))
    times = high - low
    each = np.repeat(np.arange(len(old)), times)
    offset = np.arange(len(each)) - np.repeat(np.cumsum(times) - times, times)
    return old[each], old_row[each], new_row[order[low[each] + offset]]


def _kept_gpus(before: PlacementPlan, after: PlacementPlan, rows: tuple[Ints, Ints], cost_saved: Floats) -> Ints:
    """Returns the GPUs that each pair of rows keeps in the best matching of its two nodes."""
    most: Ints = np.minimum(before.gpus[rows[0]], after.gpus[rows[1]])
    old, new = before.node[rows[0]], after.node[rows[1]]
    nodes = int(max(old.max(initial=0), new.max(initial=0))) + 1
    competes = _is_repeated(rows[0] * nodes + new) | _is_repeated(rows[1] * nodes + old)
    kept = np.where(competes, 0, most)
    competing = np.flatnonzero(competes)
    node_pair = (old * nodes + new)[competing]
    order = np.argsort(node_pair, kind="stable")
    for group in np.split(competing[order], np.flatnonzero(np.diff(node_pair[order])) + 1):
        if len(group):
            kept[group] = _match_gpus(before, after, (rows[0][group], rows[1][group]), cost_saved[group])
    return kept


def _is_repeated(keys: Ints) -> Mask:
    """Returns the mask of keys that occur more than once."""
    _, index, times = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(times[index] > 1)


def _match_gpus(before: PlacementPlan, after: PlacementPlan, rows: tuple[Ints, Ints], cost_saved: Floats) -> Ints:
    """Returns the GPUs kept in one pair of nodes, matched in units of the greatest common divisor of the rows."""
    old, at_old = np.unique(rows[0], return_inverse=True)
    new, at_new = np.unique(rows[1], return_inverse=True)
    unit = int(np.gcd.reduce(np.concatenate((before.gpus[old], after.gpus[new]))))
    saved, pair = np.zeros((len(old), len(new))), np.full((len(old), len(new)), -1)
    saved[at_old, at_new], pair[at_old, at_new] = cost_saved, np.arange(len(cost_saved))
    from_old = np.repeat(np.arange(len(old)), before.gpus[old] // unit)
    from_new = np.repeat(np.arange(len(new)), after.gpus[new] // unit)
    chosen = linear_sum_assignment(saved[np.ix_(from_old, from_new)], maximize=True)
    matched = pair[from_old[chosen[0]], from_new[chosen[1]]]
    return np.bincount(matched[matched >= 0], minlength=len(cost_saved)).astype(np.int64) * unit


@dataclass(frozen=True, slots=True)
class NodeRenaming:
    """`node_map[n]` is the node that replaces planned node n. `migrated` are the jobs of both rounds that still change
    GPUs; `cost` is the paper's, in which a job of several nodes may move in part."""

    node_map: Ints
    migrated: frozenset[int]
    cost: float


def find_renaming(before: PlacementPlan, after: PlacementPlan, node_class: Ints) -> NodeRenaming:
    """Returns the cheapest renaming of the nodes of `after`, within nodes of equal `node_class` (algorithm 2).

    Never more jobs move than without renaming.
    """
    before, after = _common_jobs(before, after)
    common = compute_overlap(before, after, node_class)
    saved = _saved_costs(common, len(node_class))
    node_map = _complete_renaming(dict(_match_nodes(saved)), node_class)
    migrated = _migrated(common, before, after, node_map)
    identity = np.arange(len(node_class))
    migrated_unrenamed = _migrated(common, before, after, identity)
    if len(migrated_unrenamed) < len(migrated):
        node_map, migrated = identity, migrated_unrenamed
    return NodeRenaming(node_map, migrated, _migration_cost(before, common, node_map))


def migrated_jobs(before: PlacementPlan, after: PlacementPlan) -> frozenset[int]:
    """Returns the jobs of both rounds that use other GPUs in the second (definition 1).

    GPUs of one node are interchangeable, except that of two jobs that no longer share theirs one has moved.
    """
    before, after = _common_jobs(before, after)
    nodes = int(max(before.node.max(initial=-1), after.node.max(initial=-1))) + 1
    same = np.arange(nodes)
    return _migrated(compute_overlap(before, after, same), before, after, same)


def migration_cost(before: PlacementPlan, after: PlacementPlan, node_map: Ints) -> float:
    """Returns the paper's cost of a renaming: half a move out and half a move in, over the GPUs of the job."""
    before, after = _common_jobs(before, after.with_renamed_nodes(node_map))
    same = np.arange(len(node_map))
    return _migration_cost(before, compute_overlap(before, after, same), same)


def _common_jobs(before: PlacementPlan, after: PlacementPlan) -> tuple[PlacementPlan, PlacementPlan]:
    """Returns both plans without jobs that start or end, which do not migrate (algorithm 2, line 2)."""
    both = np.intersect1d(before.jobs, after.jobs)
    return before.restricted_to(both), after.restricted_to(both)


def _saved_costs(common: PlanOverlap, nodes: int) -> csr_matrix:
    """Returns the cost saved by each new node (column) for each planned node (row); algorithm 2, lines 3 to 5."""
    entries = (common.saved_cost * common.kept_gpus, (common.node_after, common.node_before))
    return coo_matrix(entries, shape=(nodes, nodes)).tocsr()


def _match_nodes(saved: csr_matrix) -> Iterator[tuple[int, int]]:
    """Yields planned and new node of the assignment that saves most (algorithm 2, lines 6 and 7).

    Every connected component of nodes with common jobs is solved by itself; a component of two nodes is a pair.
    """
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


def _complete_renaming(chosen: dict[int, int], node_class: Ints) -> Ints:
    """Returns the map of all nodes: unmatched nodes map to themselves if free, else to a free node of their class."""
    node_map: Ints = np.full(len(node_class), -1)
    node_map[list(chosen)] = list(chosen.values())
    taken = set(chosen.values())
    for node in np.flatnonzero(node_map < 0).tolist():
        if node not in taken:
            node_map[node] = node
            taken.add(node)
    unmapped, free = np.flatnonzero(node_map < 0), np.setdiff1d(np.arange(len(node_class)), node_map)
    by_class = unmapped[np.argsort(node_class[unmapped], kind="stable")]
    node_map[by_class] = free[np.argsort(node_class[free], kind="stable")]
    return node_map


def _rows_in_place(common: PlanOverlap, node_map: Ints) -> Ints:
    """Returns the pairs of rows that are on the same node after renaming."""
    return np.flatnonzero(node_map[common.node_after] == common.node_before)


def _migrated(common: PlanOverlap, before: PlacementPlan, after: PlacementPlan, node_map: Ints) -> frozenset[int]:
    kept = np.zeros(len(common.kept_gpus), dtype=np.int64)
    stays = _rows_in_place(common, node_map)
    kept[stays] = common.kept_gpus[stays]
    jobs, index = np.unique(common.job, return_inverse=True)
    stayed = dict(zip(jobs.tolist(), np.bincount(index, weights=kept[common.pair]).tolist(), strict=True))
    had, now = before.gpus_by_job(), after.gpus_by_job()
    return frozenset(job for job in had if stayed.get(job, 0) < max(had[job], now[job]))


def _migration_cost(before: PlacementPlan, common: PlanOverlap, node_map: Ints) -> float:
    stays = _rows_in_place(common, node_map)
    return float(len(before.gpus_by_job()) - (common.saved_cost[stays] * common.kept_gpus[stays]).sum())


def rename_nodes(session: Session) -> None:
    """Finish step: exchanges nodes between the session's placements so that the fewest running jobs move."""
    number = {job: index for index, job in enumerate(session.placements)}
    if session.victims.keys().isdisjoint(number):
        return
    before, after = _placement_plan(_previous_rows(session, number)), _placement_plan(_planned_rows(session, number))
    node_map = find_renaming(before, after, _node_classes(session)).node_map
    if (node_map == np.arange(len(node_map))).all():
        return
    for placement in session.placements.values():
        for free in (session.free_at_minimum, session.free_as_planned):
            free.release(placement.allocation(session.pools))
    for job, placement in session.placements.items():
        pools = tuple(_pool_on_new_node(session, pool, node_map) for pool in placement.pools)
        renamed = replace(placement, pools=pools, devices=())
        session.placements[job] = renamed.with_devices(session.free_at_minimum)
        for free in (session.free_at_minimum, session.free_as_planned):
            free.allocate(session.placements[job].allocation(session.pools))


_Row = tuple[int, int, int]
"""Node, GPUs and the job's number."""


def _previous_rows(session: Session, number: dict[JobId, int]) -> Iterator[_Row]:
    for victim in session.victims.keys() & number.keys():
        allocation = session.pools.allocation(session.jobs[victim].allocations)
        for pool, gpus in zip(allocation.pools, allocation.gpus, strict=True):
            if gpus:
                yield int(session.pools.node_of[pool]), gpus, number[victim]


def _planned_rows(session: Session, number: dict[JobId, int]) -> Iterator[_Row]:
    for job, placement in session.placements.items():
        for pool, parts in zip(placement.pools, placement.parts, strict=True):
            if placement.gang.gpus_per_part:
                yield int(session.pools.node_of[pool]), parts * placement.gang.gpus_per_part, number[job]


def _placement_plan(rows: Iterator[_Row]) -> PlacementPlan:
    return PlacementPlan.from_rows((node, gpus, (job,)) for node, gpus, job in rows)


def _pool_on_new_node(session: Session, pool: int, node_map: Ints) -> int:
    """Returns the pool of the same GPU type on the new node."""
    node = int(session.pools.node_of[pool])
    first, new_first = (int(np.flatnonzero(session.pools.node_of == n)[0]) for n in (node, node_map[node]))
    return pool - first + new_first


def _node_classes(session: Session) -> Ints:
    """Returns the class of each node: equal for nodes that may be exchanged, unique for fixed nodes."""
    nodes, fixed = session.pools.nodes, _fixed_nodes(session)
    numbers: dict[Hashable, int] = {}
    keys: list[Hashable] = [node.name if node.name in fixed else _node_key(session, node) for node in nodes]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _node_key(session: Session, node: Node) -> Hashable:
    """Returns everything that decides whether a job may be placed on the node."""
    usable = frozenset(partition for partition, names in session.situation.open_nodes.items() if node.name in names)
    gpus = tuple((gpu.type, gpu.shards) for gpu in node.gpus)
    return gpus, node.total, node.state, node.features, node.partitions, node.reservation, node.weight, usable


def _fixed_nodes(session: Session) -> set[str]:
    """Returns nodes on which a job stays, that a job requires, or that have a new job which names or excludes nodes."""
    left = {node.name: Resources() for node in session.pools.nodes}
    for victim in session.victims:
        for share in session.jobs[victim].allocations:
            left[share.node] = left.get(share.node, Resources()) + share.resources
    staying = {node.name for node in session.pools.nodes if node.used != left[node.name]}
    named = {
        session.pools.node(pool).name
        for job, placement in session.placements.items()
        if _names_nodes(session.jobs[job])
        for pool in placement.pools
    }
    return staying | named | {node for job in session.jobs.values() for node in job.original_request.pinned}


def _names_nodes(job: Job) -> bool:
    return bool(job.original_request.pinned or job.original_request.excluded)
