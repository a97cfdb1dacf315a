"""Who is on which GPUs in one round.

What two rounds have in common, for every pair of a node before and a node after (Tesserae, algorithm 3).

The paper fills a matrix of all GPUs of both nodes: half for each move out and each move in, divided by the GPUs of the
job. Here GPUs that the same jobs use are one row of a layout, pairs of nodes without a common job do not appear, and
what is counted is the cost that is saved: a GPU that keeps its job saves both halves. A row that meets one row only
needs no matching; the few that compete are matched by the Hungarian method.

The fewest moves between two rounds (Tesserae, section 4.1, algorithm 2).

A placement is made without regard to the last one; then its nodes are named so that as few jobs as may be have moved.
Names are exchanged only between whole nodes, so a consolidated gang stays consolidated (appendix B shows how a matching
of single GPUs may tear it apart), and only between nodes that are alike: of one GPU type and size.

Renaming in a live round: on Slurm the names are nodes (Tesserae, section 4.1).

A job that keeps its lease stays where it is, so only nodes that all their jobs leave, or start anew on, can change
names; of those, only such as are alike in everything a job may ask of a node, and not those a job was sent to, or kept
from, by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from slurmsched.model import Job, JobId, Node, Resources
from slurmsched.policies.cluster.pools import Ints, Mask
from slurmsched.policies.session import Session

Floats = NDArray[np.float64]

NO_JOB = -1
"""In the place of a second job on GPUs that one job has to itself."""


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """One row for each set of GPUs of one node that the same jobs use: the node's number, how many GPUs, and the one or
    two jobs as numbers, `NOBODY` for a missing second one. Idle GPUs have no row.

    Which GPUs of the node they are is not said: Slurm chooses the indices, so equal counts of one node are the same.
    Rows of one node with the same jobs are one row.
    """

    node: Ints
    gpus: Ints
    jobs: Ints
    """Shape (rows, 2), each row ascending in its jobs, where there are two."""

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, tuple[int, ...]]]) -> PlacementPlan:
        """From rows of node, GPUs and jobs."""
        given = [(node, gpus, min(jobs), max(jobs) if len(jobs) > 1 else NO_JOB) for node, gpus, jobs in rows]
        table = np.array(given, dtype=np.int64).reshape(-1, 4)
        return merge_rows(table[:, 0], table[:, 1], table[:, 2:])

    def __len__(self) -> int:
        return len(self.node)

    def gpus_by_job(self) -> dict[int, int]:
        """GPUs of each job, on all its nodes."""
        jobs, gpus = self.entries()[:2]
        numbers, index = np.unique(jobs, return_inverse=True)
        totals = np.bincount(index, weights=gpus, minlength=len(numbers))
        return dict(zip(numbers.tolist(), totals.astype(int).tolist(), strict=True))

    def entries(self) -> tuple[Ints, Ints, Ints]:
        """Each job on each row it is in: the job, its GPUs there and the row."""
        row, index = np.nonzero(self.jobs != NO_JOB)
        return self.jobs[row, index], self.gpus[row], row

    def restricted_to(self, kept: Ints) -> PlacementPlan:
        """Without all other jobs; GPUs that nobody is left on are idle."""
        stays: Mask = np.isin(self.jobs, kept)
        jobs = np.where(stays, self.jobs, NO_JOB)
        jobs = np.where(jobs[:, :1] == NO_JOB, jobs[:, ::-1], jobs)
        used = jobs[:, 0] != NO_JOB
        return merge_rows(self.node[used], self.gpus[used], jobs[used])

    def with_renamed_nodes(self, node_map: Ints) -> PlacementPlan:
        """The same on other nodes: what was on node n is on node `names[n]`."""
        return PlacementPlan(node_map[self.node], self.gpus, self.jobs)


def merge_rows(node: Ints, gpus: Ints, jobs: Ints) -> PlacementPlan:
    """A layout of rows that may repeat a node's jobs."""
    keys, index = np.unique(np.column_stack((node, jobs)), axis=0, return_inverse=True)
    summed = np.bincount(index.ravel(), weights=gpus, minlength=len(keys)).astype(np.int64)
    return PlacementPlan(keys[:, 0], summed, keys[:, 1:])


@dataclass(frozen=True, slots=True)
class PlanOverlap:
    """Pairs of rows, one before and one after, with a job in common: their nodes, and how many GPUs the best matching
    of the two nodes lets them keep. `worth` is what is saved by each of those GPUs.

    `job` and `pair` say which jobs each pair of rows has in common: `job[i]` is one of those of pair `pair[i]`.
    """

    node_before: Ints
    node_after: Ints
    saved_cost: Floats
    kept_gpus: Ints
    job: Ints
    pair: Ints


def compute_overlap(before: PlacementPlan, after: PlacementPlan, node_class: Ints) -> PlanOverlap:
    """Of two layouts of the same jobs. Only nodes that are `alike`, by a number for each node, are compared."""
    had, now = before.gpus_by_job(), after.gpus_by_job()
    job, first, second = _common_rows(before, after)
    same = node_class[before.node[first]] == node_class[after.node[second]]
    job, first, second = job[same], first[same], second[same]
    share = np.array([1.0 / max(had[number], now[number]) for number in job.tolist()])
    keys, pair = np.unique(first * len(after) + second, return_inverse=True)
    rows = keys // max(len(after), 1), keys % max(len(after), 1)
    worth = np.bincount(pair, weights=share, minlength=len(keys)).astype(np.float64)
    kept = _kept_gpus(before, after, rows, worth)
    return PlanOverlap(before.node[rows[0]], after.node[rows[1]], worth, kept, job, pair)


def _common_rows(before: PlacementPlan, after: PlacementPlan) -> tuple[Ints, Ints, Ints]:
    """Every job with every row it has before and every row it has after."""
    old, _, old_row = before.entries()
    new, _, new_row = after.entries()
    order = np.argsort(new, kind="stable")
    low, high = (np.searchsorted(new[order], old, side) for side in ("left", "right"))
    times = high - low
    each = np.repeat(np.arange(len(old)), times)
    behind = np.arange(len(each)) - np.repeat(np.cumsum(times) - times, times)
    return old[each], old_row[each], new_row[order[low[each] + behind]]


def _kept_gpus(before: PlacementPlan, after: PlacementPlan, rows: tuple[Ints, Ints], cost_saved: Floats) -> Ints:
    """GPUs that each pair of rows keeps when their two nodes are matched best."""
    most: Ints = np.minimum(before.gpus[rows[0]], after.gpus[rows[1]])
    old, new = before.node[rows[0]], after.node[rows[1]]
    nodes = int(max(old.max(initial=0), new.max(initial=0))) + 1
    competes = _is_repeated(rows[0] * nodes + new) | _is_repeated(rows[1] * nodes + old)
    kept = np.where(competes, 0, most)
    places = np.flatnonzero(competes)
    node_pair = (old * nodes + new)[places]
    order = np.argsort(node_pair, kind="stable")
    for group in np.split(places[order], np.flatnonzero(np.diff(node_pair[order])) + 1):
        if len(group):
            kept[group] = _match_gpus(before, after, (rows[0][group], rows[1][group]), cost_saved[group])
    return kept


def _is_repeated(keys: Ints) -> Mask:
    """Which of the keys stand there more than once."""
    _, index, times = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(times[index] > 1)


def _match_gpus(before: PlacementPlan, after: PlacementPlan, rows: tuple[Ints, Ints], cost_saved: Floats) -> Ints:
    """The matching within one pair of nodes, in units of the largest number of GPUs that divides every row."""
    old, at_old = np.unique(rows[0], return_inverse=True)
    new, at_new = np.unique(rows[1], return_inverse=True)
    unit = int(np.gcd.reduce(np.concatenate((before.gpus[old], after.gpus[new]))))
    saved, pair = np.zeros((len(old), len(new))), np.full((len(old), len(new)), -1)
    saved[at_old, at_new], pair[at_old, at_new] = cost_saved, np.arange(len(cost_saved))
    from_old = np.repeat(np.arange(len(old)), before.gpus[old] // unit)
    from_new = np.repeat(np.arange(len(new)), after.gpus[new] // unit)
    chosen = linear_sum_assignment(saved[np.ix_(from_old, from_new)], maximize=True)
    found = pair[from_old[chosen[0]], from_new[chosen[1]]]
    return np.bincount(found[found >= 0], minlength=len(cost_saved)).astype(np.int64) * unit


@dataclass(frozen=True, slots=True)
class NodeRenaming:
    """`names[n]` is the node on which what was planned for node n goes. `moved` are the jobs of both rounds that then
    still change their GPUs; `cost` is the paper's, in which a job of several nodes may move in part."""

    node_map: Ints
    migrated: frozenset[int]
    cost: float


def find_renaming(before: PlacementPlan, after: PlacementPlan, node_class: Ints) -> NodeRenaming:
    """The cheapest names for the nodes of `after`. `alike` has a number for each node; names are exchanged between
    nodes of the same one. Never more jobs move than if every node kept its name.
    """
    before, after = _common_jobs(before, after)
    common = compute_overlap(before, after, node_class)
    saved = _saved_costs(common, len(node_class))
    names = _complete_renaming(dict(_match_nodes(saved)), node_class)
    found = NodeRenaming(names, _migrated(common, before, after, names), _migration_cost(before, common, names))
    as_planned = np.arange(len(node_class))
    unnamed = _migrated(common, before, after, as_planned)
    if len(unnamed) < len(found.migrated):
        return NodeRenaming(as_planned, unnamed, _migration_cost(before, common, as_planned))
    return found


def migrated_jobs(before: PlacementPlan, after: PlacementPlan) -> frozenset[int]:
    """Jobs of both rounds that use other GPUs in the second (definition 1). GPUs of one node are as good as each other,
    except that jobs which shared theirs and no longer do cannot both have stayed."""
    before, after = _common_jobs(before, after)
    nodes = int(max(before.node.max(initial=-1), after.node.max(initial=-1))) + 1
    same = np.arange(nodes)
    return _migrated(compute_overlap(before, after, same), before, after, same)


def migration_cost(before: PlacementPlan, after: PlacementPlan, node_map: Ints) -> float:
    """The paper's cost of these names: half for each move out and half for each move in, by GPUs of the job."""
    before, after = _common_jobs(before, after.with_renamed_nodes(node_map))
    same = np.arange(len(node_map))
    return _migration_cost(before, compute_overlap(before, after, same), same)


def _common_jobs(before: PlacementPlan, after: PlacementPlan) -> tuple[PlacementPlan, PlacementPlan]:
    """Line 2 of algorithm 2: who comes or goes is not moved."""
    both = np.intersect1d(before.jobs, after.jobs)
    return before.restricted_to(both), after.restricted_to(both)


def _saved_costs(common: PlanOverlap, nodes: int) -> csr_matrix:
    """What each name, by column, saves for each planned node, by row (lines 3 to 5)."""
    entries = (common.saved_cost * common.kept_gpus, (common.node_after, common.node_before))
    return coo_matrix(entries, shape=(nodes, nodes)).tocsr()


def _match_nodes(saved: csr_matrix) -> Iterator[tuple[int, int]]:
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


def _complete_renaming(chosen: dict[int, int], node_class: Ints) -> Ints:
    """Names for all: who is free to keep its own does, the others take what is left among those alike."""
    names: Ints = np.full(len(node_class), -1)
    names[list(chosen)] = list(chosen.values())
    taken = set(chosen.values())
    for node in np.flatnonzero(names < 0).tolist():
        if node not in taken:
            names[node] = node
            taken.add(node)
    nameless, left = np.flatnonzero(names < 0), np.setdiff1d(np.arange(len(node_class)), names)
    by_kind = nameless[np.argsort(node_class[nameless], kind="stable")]
    names[by_kind] = left[np.argsort(node_class[left], kind="stable")]
    return names


def _rows_in_place(common: PlanOverlap, node_map: Ints) -> Ints:
    """Which of the pairs of rows come to lie on one node."""
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
    """Exchange nodes between the placements of the draft so that the fewest of the jobs that run move."""
    number = {job: index for index, job in enumerate(session.placements)}
    if session.victims.keys().isdisjoint(number):
        return
    before, after = _placement_plan(_previous_rows(session, number)), _placement_plan(_planned_rows(session, number))
    names = find_renaming(before, after, _node_classes(session)).node_map
    if (names == np.arange(len(names))).all():
        return
    for job, placement in session.placements.items():
        at = tuple(_pool_on_new_node(session, pool, names) for pool in placement.pools)
        for ledger in (session.free_at_minimum, session.free_as_planned):
            ledger.release(placement.allocation(session.pools))
        session.placements[job] = replace(placement, pools=at)
        for ledger in (session.free_at_minimum, session.free_as_planned):
            ledger.allocate(session.placements[job].allocation(session.pools))


_Row = tuple[int, int, int]
"""Node, GPUs and the job's number."""


def _previous_rows(session: Session, number: dict[JobId, int]) -> Iterator[_Row]:
    for victim in session.victims.keys() & number.keys():
        claim = session.pools.allocation(session.jobs[victim].allocations)
        for pool, gpus in zip(claim.pools, claim.gpus, strict=True):
            yield int(session.pools.node_of[pool]), gpus, number[victim]


def _planned_rows(session: Session, number: dict[JobId, int]) -> Iterator[_Row]:
    for job, placement in session.placements.items():
        for pool, parts in zip(placement.pools, placement.parts, strict=True):
            yield int(session.pools.node_of[pool]), parts * placement.gang.gpus_per_part, number[job]


def _placement_plan(rows: Iterator[_Row]) -> PlacementPlan:
    return PlacementPlan.from_rows((node, gpus, (job,)) for node, gpus, job in rows)


def _pool_on_new_node(session: Session, pool: int, node_map: Ints) -> int:
    """The pool of the same GPU type on the node's new name."""
    node = int(session.pools.node_of[pool])
    first, there = (int(np.flatnonzero(session.pools.node_of == n)[0]) for n in (node, node_map[node]))
    return pool - first + there


def _node_classes(session: Session) -> Ints:
    """A number for each node, the same for nodes that may change names; fixed ones have one of their own."""
    nodes, fixed = session.pools.nodes, _fixed_nodes(session)
    numbers: dict[Hashable, int] = {}
    keys: list[Hashable] = [node.name if node.name in fixed else _node_key(session, node) for node in nodes]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _node_key(session: Session, node: Node) -> Hashable:
    """Everything by which a job may have been placed on it."""
    usable = frozenset(partition for partition, names in session.situation.open_nodes.items() if node.name in names)
    gpus = tuple((gpu.type, gpu.shards) for gpu in node.gpus)
    return gpus, node.total, node.state, node.features, node.partitions, node.reservation, node.weight, usable


def _fixed_nodes(session: Session) -> set[str]:
    """Nodes on which something stays, or that a job that is placed there has named."""
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
