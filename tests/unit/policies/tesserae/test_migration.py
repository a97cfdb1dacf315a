"""Renaming nodes: worked examples, and against every permutation of nodes and of GPUs."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slurmsched.policies.tesserae.migration import PlacementPlan, find_renaming, migrated_jobs, migration_cost

Row = tuple[int, int, tuple[int, ...]]
Grid = list[list[frozenset[int]]]
"""The jobs on each GPU of each node: the form in which the paper has a placement."""


def alike(nodes: int) -> np.ndarray:
    return np.zeros(nodes, dtype=np.int64)


@pytest.mark.parametrize(
    ("before", "after", "nodes", "moves", "cost"),
    [
        pytest.param(
            [(0, 1, (1,)), (1, 1, (2,)), (2, 1, (3,))],
            [(1, 1, (1,)), (2, 1, (2,)), (0, 1, (3,))],
            3, 0, 0.0,
            id="figure 1: three GPUs take new names and no job moves",
        ),
        pytest.param(
            [(0, 4, (1,)), (1, 4, (2,))],
            [(0, 4, (2,)), (1, 4, (1,))],
            2, 0, 0.0,
            id="two nodes that change places have not moved anybody",
        ),
        pytest.param(
            [(0, 2, (1,)), (0, 2, (2,)), (1, 4, (3,))],
            [(0, 2, (1,)), (1, 2, (2,)), (0, 2, (4,))],
            2, 1, 1.0,
            id="two jobs that no longer share a node: one of them moves",
        ),
        pytest.param(
            [(0, 1, (1, 2)), (1, 1, (3,))],
            [(0, 1, (1,)), (1, 1, (2, 3))],
            2, 1, 1.0,
            id="a job that shared a GPU with one and now shares with another has moved",
        ),
        pytest.param(
            [(0, 1, (1, 2)), (0, 1, (3,))],
            [(0, 1, (1,)), (0, 1, (2, 3))],
            1, 1, 1.0,
            id="and it has moved within one node too",
        ),
        pytest.param(
            [(0, 4, (1, 2))],
            [(0, 4, (1, 3))],
            2, 0, 0.0,
            id="who takes the place of a partner that is gone moves nobody",
        ),
        pytest.param(
            [(0, 4, (1,)), (1, 4, (1,)), (2, 4, (2,))],
            [(1, 4, (1,)), (2, 4, (1,)), (0, 4, (2,))],
            3, 0, 0.0,
            id="a gang on two nodes keeps both",
        ),
        pytest.param(
            [(0, 4, (1,)), (1, 4, (1,)), (2, 4, (2,))],
            [(0, 4, (1,)), (1, 2, (1, 2)), (1, 2, (1,)), (2, 2, (2,))],
            3, 1, 0.5,
            id="half of a job that stays costs half, and the job has moved",
        ),
        pytest.param(
            [(0, 2, (1, 2)), (1, 2, (3, 4))],
            [(0, 2, (1, 3)), (1, 2, (2, 4))],
            2, 2, 2.0,
            id="two pairs that exchange partners move one job of each",
        ),
        pytest.param([], [(0, 1, (1,))], 1, 0, 0.0, id="an empty cluster"),
    ],
)  # fmt: skip
def test_fewest_moves(before: list[Row], after: list[Row], nodes: int, moves: int, cost: float) -> None:
    old, new = PlacementPlan.from_rows(before), PlacementPlan.from_rows(after)
    found = find_renaming(old, new, alike(nodes))
    assert len(found.migrated) == moves
    assert found.cost == cost
    assert migrated_jobs(old, new.with_renamed_nodes(found.node_map)) == found.migrated


def test_figure_6_two_out_and_one_in_are_one_and_a_half() -> None:
    """Node 0 before has jobs 1 and 4 that node 1 after has not, and lacks 6: each move in or out is a half."""
    before = PlacementPlan.from_rows([(0, 1, (1,)), (0, 1, (4,)), (1, 1, (6,))])
    after = PlacementPlan.from_rows([(1, 1, (6,)), (0, 1, (1,)), (0, 1, (4,))])
    swapped = np.array([1, 0])
    assert migration_cost(before, after, swapped) == 3.0  # 1.5 for each of the two nodes
    assert migration_cost(before, after, np.array([0, 1])) == 0.0


def test_a_gang_stays_on_one_node_where_a_matching_of_gpus_would_tear_it_apart() -> None:
    """Appendix B: job 1 may follow job 2 or job 3, and half of it each is as cheap to a matching of single GPUs."""
    before = PlacementPlan.from_rows([(0, 2, (1, 2)), (1, 2, (3,))])
    after = PlacementPlan.from_rows([(0, 2, (2,)), (1, 2, (1, 3))])
    names = find_renaming(before, after, alike(2)).node_map
    rows = after.with_renamed_nodes(names)
    assert sorted(rows.gpus[(rows.jobs == 1).any(axis=1)].tolist()) == [2]


def test_names_are_exchanged_only_between_nodes_that_are_alike() -> None:
    before = PlacementPlan.from_rows([(0, 4, (1,)), (1, 4, (2,))])
    after = PlacementPlan.from_rows([(0, 4, (2,)), (1, 4, (1,))])
    found = find_renaming(before, after, np.array([0, 1]))
    assert (found.node_map.tolist(), found.migrated) == ([0, 1], {1, 2})


def any_grid(random: np.random.Generator, nodes: int, gpus: int) -> Grid:
    """Any jobs anywhere, none to two on a GPU."""
    return [
        [frozenset(random.integers(1, 7, random.integers(0, 3)).tolist()) for _ in range(gpus)] for _ in range(nodes)
    ]


def layout(grid: Grid) -> PlacementPlan:
    rows = Counter((node, jobs) for node, gpus in enumerate(grid) for jobs in gpus if jobs)
    return PlacementPlan.from_rows([(node, gpus, tuple(jobs)) for (node, jobs), gpus in rows.items()])


def widths(grid: Grid) -> Counter[int]:
    return Counter(job for gpus in grid for jobs in gpus for job in jobs)


def cheapest(before: Grid, after: Grid) -> float:
    """Every node on every node, and every GPU on every GPU there: half for each move in and each move out."""
    both = widths(before).keys() & widths(after).keys()
    width = {job: max(widths(before)[job], widths(after)[job]) for job in both}
    kept = [[[jobs & both for jobs in gpus] for gpus in grid] for grid in (before, after)]

    def of_gpus(old: frozenset[int], new: frozenset[int]) -> float:
        return sum(0.5 / width[job] for job in old ^ new)

    def of_nodes(old: list[frozenset[int]], new: list[frozenset[int]]) -> float:
        return min(sum(map(of_gpus, old, order)) for order in permutations(new))

    return min(sum(map(of_nodes, kept[0], order)) for order in permutations(kept[1]))


def constant(before: Grid, after: Grid) -> float:
    """What the paper's matrix charges less than one for each job: a resized job moves in or out with fewer GPUs."""
    had, now = widths(before), widths(after)
    return sum(1 - (had[j] + now[j]) / (2 * max(had[j], now[j])) for j in had.keys() & now.keys())


@pytest.mark.parametrize("seed", range(4))
def test_no_naming_of_nodes_and_gpus_is_cheaper(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(750):
        nodes, gpus = (int(size) for size in random.integers(1, 4, 2))
        before, after = any_grid(random, nodes, gpus), any_grid(random, nodes, gpus)
        old, new = layout(before), layout(after)
        found = find_renaming(old, new, alike(nodes))
        assert sorted(found.node_map.tolist()) == list(range(nodes))
        assert migrated_jobs(old, new.with_renamed_nodes(found.node_map)) == found.migrated
        assert len(found.migrated) <= len(migrated_jobs(old, new))
        best = cheapest(before, after) + constant(before, after)
        kept_its_names = found.node_map.tolist() == list(range(nodes))
        if kept_its_names:  # where they move fewer jobs, though more parts of jobs, they are kept
            assert found.cost >= best - 1e-9
        else:
            assert found.cost == pytest.approx(best)


@pytest.mark.parametrize("nodes", [8, 64])
def test_at_scale_never_more_jobs_move_than_under_the_names_as_they_fall(nodes: int) -> None:
    random = np.random.default_rng(nodes)

    def filled() -> PlacementPlan:
        jobs = iter(random.permutation(8 * nodes).tolist())
        return PlacementPlan.from_rows(
            (node, gpus, tuple(next(jobs) for _ in range(random.integers(1, 3))))
            for node in range(nodes)
            for gpus in ((8,), (4, 4), (4, 2, 1, 1), (2, 2, 2, 2))[random.integers(0, 4)]
        )

    for _ in range(20):
        before, after = filled(), filled()
        found = find_renaming(before, after, alike(nodes))
        assert len(found.migrated) <= len(migrated_jobs(before, after))
        assert found.migrated == migrated_jobs(before, after.with_renamed_nodes(found.node_map))


@some.composite
def gangs(draw: some.DrawFn) -> tuple[Grid, Grid]:
    """Two rounds of gangs of 1, 2 or 4 GPUs, each within one node of four, pairs of equal width on the same GPUs."""
    width = {job: draw(some.sampled_from((1, 2, 4))) for job in range(1, 9)}

    def placed() -> Grid:
        grid: Grid = [[], [], []]
        for job in draw(some.permutations(list(width))):
            room = next((gpus for gpus in grid if len(gpus) + width[job] <= 4), None)
            if room is not None:
                room += [frozenset({job})] * width[job]
                continue
            alone = [jobs for gpus in grid for jobs in gpus if len(jobs) == 1 and width[min(jobs)] == width[job]]
            if alone and draw(some.booleans()):
                partner = alone[0]
                for gpus in grid:
                    gpus[:] = [jobs | {job} if jobs == partner else jobs for jobs in gpus]
        return [gpus + [frozenset()] * (4 - len(gpus)) for gpus in grid]

    return placed(), placed()


@settings(max_examples=200, deadline=None)
@given(gangs())
def test_gangs_of_one_node_move_whole_and_their_number_is_the_cost(rounds: tuple[Grid, Grid]) -> None:
    before, after = rounds
    found = find_renaming(layout(before), layout(after), alike(3))
    assert len(found.migrated) == pytest.approx(found.cost)
    assert found.cost == pytest.approx(cheapest(before, after))
