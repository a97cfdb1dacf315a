"""Heuristics on tiny clusters, and the table of scores against asking every node anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.experiments.fgd.baselines import (
    BestFit,
    ClusteringScoreTable,
    DotProduct,
    GpuPacking,
    MigratingScoreTable,
    RandomPoolScoreTable,
)
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.fragmentation import (
    FragmentationMeasure,
    TargetWorkload,
    TaskDemand,
)
from slurmsched.policies.place.scores import (
    FragmentationScore,
    PlacementHeuristic,
    PoolScoreTable,
    PricedFragmentationScore,
    idle_gpu_worth,
)
from tests.builders import Server, free_resources

WHOLE = TaskDemand(1000, 10, 1, 1000)
HALF = TaskDemand(1000, 10, 1, 500)
EIGHT = TaskDemand(8000, 80, 8, 1000)
CPU = TaskDemand(4000, 10, 0, 0)
EVEN = TargetWorkload((WHOLE, HALF), (0.5, 0.5))


def server(*gpus: int, cpu: int = 12000, gpu_type: str = "a") -> Server:
    return Server(cpu, 1000, gpus, gpu_type)


def choice(
    make: Callable[[FreeResources, FragmentationMeasure], PlacementHeuristic],
    servers: Sequence[Server],
    task: TaskDemand,
    workload: TargetWorkload = EVEN,
) -> tuple[int, tuple[int, ...]] | None:
    idle = free_resources(servers)
    placed = PoolScoreTable(idle, make(idle, FragmentationMeasure(workload, idle))).place(task)
    return placed and (placed.pools[0], placed.devices[0])


@pytest.mark.parametrize(
    ("servers", "task", "expected"),
    [
        pytest.param([server(1000, 1000), server(1000, 500)], HALF, (1, (1,)), id="half a GPU completes a half"),
        pytest.param([server(1000, 500), server(1000)], WHOLE, (0, (0,)), id="equal descents: the first node"),
        pytest.param([server(1000, cpu=4000), server(cpu=4000)], CPU, (1, ()), id="CPUs where no GPU idles"),
        pytest.param(
            [server(1000, 1000, cpu=4500), server(500, cpu=4500)], CPU, (1, ()), id="CPUs where they strand least"
        ),
        pytest.param([server(500, 500)], WHOLE, None, id="two halves are no whole"),
        pytest.param([server(1000, cpu=900)], WHOLE, None, id="no CPUs"),
        pytest.param(
            [server(1000, gpu_type="b"), server(1000)], TaskDemand(1, 1, 1, 1000, ("a",)), (1, (0,)), id="type"
        ),
        pytest.param([server(*[1000] * 7), server(*[1000] * 8)], EIGHT, (1, tuple(range(8))), id="a whole node"),
    ],
)
def test_the_steepest_descent(
    servers: Sequence[Server], task: TaskDemand, expected: tuple[int, tuple[int, ...]] | None
) -> None:
    assert choice(lambda _, measure: FragmentationScore(measure), servers, task) == expected


@pytest.mark.parametrize(
    ("heuristic", "servers", "task", "expected"),
    [
        pytest.param(BestFit(), [server(1000, 1000), server(1000)], WHOLE, 1, id="best fit: least is left"),
        pytest.param(BestFit(), [server(1000, cpu=9000), server(1000, cpu=2000)], WHOLE, 1, id="best fit: CPUs too"),
        pytest.param(DotProduct(), [server(1000, 1000), server(1000)], WHOLE, 1, id="the smallest product packs"),
        pytest.param(GpuPacking(), [server(1000, 1000), server(1000, 500)], HALF, 1, id="packing: a shared GPU first"),
        pytest.param(GpuPacking(), [server(1000), server(1000, 0)], WHOLE, 1, id="packing: a node in use first"),
        pytest.param(GpuPacking(), [server(1000, 1000), server(1000)], WHOLE, 1, id="packing: the smaller new node"),
    ],
)
def test_where_the_others_place(
    heuristic: PlacementHeuristic, servers: Sequence[Server], task: TaskDemand, expected: int
) -> None:
    found = choice(lambda _idle, _measure: heuristic, servers, task)
    assert found is not None
    assert found[0] == expected


def test_clustering_keeps_widths_apart() -> None:
    scores = ClusteringScoreTable(free_resources([server(1000, 1000)] * 3))
    tasks = (WHOLE, HALF, WHOLE, HALF, TaskDemand(1, 1, 2, 1000))
    assert [placed.pools[0] for task in tasks if (placed := scores.place(task))] == [0, 1, 0, 1, 2]


def test_random_fit_takes_any_node_that_fits_and_no_other() -> None:
    servers = [server(1000), server(500), server(1000)]
    homes = set()
    for seed in range(20):
        random = np.random.default_rng(seed)
        found = RandomPoolScoreTable(free_resources(servers), random).place(WHOLE)
        assert found is not None
        homes.add(found.pools[0])
    assert homes == {0, 2}


TASKS = st.one_of(
    st.builds(
        TaskDemand, st.integers(0, 4000), st.integers(0, 300), st.just(1), st.sampled_from([190, 320, 500, 810, 1000])
    ),
    st.builds(TaskDemand, st.integers(0, 4000), st.integers(0, 300), st.just(2), st.just(1000)),
    st.builds(TaskDemand, st.integers(0, 4000), st.integers(0, 300), st.just(0), st.just(0)),
)
HEURISTICS: Sequence[Callable[[FragmentationMeasure], PlacementHeuristic]] = (
    FragmentationScore,
    lambda measure: FragmentationScore(measure, rounded=True),
    PricedFragmentationScore.of,
    lambda _: BestFit(),
    lambda _: DotProduct(rounded=True),
    lambda _: GpuPacking(),
)


@given(
    st.sampled_from(HEURISTICS),
    st.lists(st.integers(1, 4).map(lambda gpus: server(*[1000] * gpus)), min_size=1, max_size=4),
    st.lists(st.tuples(TASKS, st.booleans()), max_size=25),
)
def test_the_table_chooses_as_if_it_asked_every_node_anew(
    make: Callable[[FragmentationMeasure], PlacementHeuristic],
    servers: Sequence[Server],
    steps: Sequence[tuple[TaskDemand, bool]],
) -> None:
    idle = free_resources(servers)
    scores = PoolScoreTable(idle, make(FragmentationMeasure(EVEN, idle)))
    placed: list[Allocation] = []
    for task, leaves in steps:
        if leaves and placed:
            idle.release(placed.pop(0))
        fresh = PoolScoreTable(idle, scores.heuristic)
        assert scores.best_pool(task) == fresh.best_pool(task)
        found = scores.place(task)
        if found is not None:
            placed.append(found)
        assert (idle.milli >= 0).all()
        assert (idle.cpus >= 0).all()
        assert (idle.memory >= 0).all()
    for allocation in placed:
        idle.release(allocation)
    full = free_resources(servers)
    assert (idle.milli == full.milli).all()
    assert (idle.cpus == full.cpus).all()


def test_a_rest_is_worth_what_can_be_cut_from_it() -> None:
    pieces = TargetWorkload((TaskDemand(1, 1, 1, 810), TaskDemand(1, 1, 1, 470)), (0.5, 0.5))
    found = idle_gpu_worth(pieces)
    assert (found[0], found[190], found[469], found[1000]) == (0.0, 0.0, 0.0, 1.0)
    assert found[470] == found[530] == pytest.approx(0.5)
    assert found[810] == pytest.approx(1.0)


@given(st.lists(st.integers(5, 99).map(lambda size: 10 * size), min_size=1, max_size=6))
def test_no_way_to_cut_a_gpu_is_worth_more_than_the_gpu(sizes: list[int]) -> None:
    pieces = TargetWorkload(tuple(TaskDemand(1, 1, 1, size) for size in sizes), tuple([1 / len(sizes)] * len(sizes)))
    found = idle_gpu_worth(pieces)
    assert (np.diff(found) >= 0).all()
    assert found[1000] == 1.0
    for first in sizes:
        for second in sizes:
            if first + second <= 1000:
                assert found[first] + found[second] <= found[first + second] + 1e-6


def test_where_the_workload_has_no_parts_only_a_whole_gpu_is_worth_anything() -> None:
    found = idle_gpu_worth(TargetWorkload((WHOLE,), (1.0,)))
    assert found[999] == 0.0
    assert found[1000] == 1.0


def test_a_part_goes_beside_what_it_completes() -> None:
    """Beside 470 a 320 leaves 210, which nothing of the workload fills; beside 650 it leaves next to nothing."""
    pieces = TargetWorkload(tuple(TaskDemand(1, 1, 1, size) for size in (650, 470, 320)), (0.3, 0.4, 0.3))
    servers = [server(530), server(350)]
    assert choice(lambda _, m: PricedFragmentationScore.of(m), servers, TaskDemand(1, 1, 1, 320), pieces) == (1, (0,))


def moving(servers: Sequence[Server], tasks: Sequence[TaskDemand], budget: int) -> MigratingScoreTable:
    idle = free_resources(servers)
    scores = MigratingScoreTable(idle, BestFit(), budget)
    for task in tasks:
        scores.place(task)
    return scores


@pytest.mark.parametrize(
    ("servers", "tasks", "budget", "moves", "left"),
    [
        pytest.param(
            [server(1000), server(500)], [TaskDemand(1, 1, 1, 600), HALF], 1, 0, 400, id="there is room already"
        ),
        pytest.param([server(1000), server(500)], [HALF, HALF, WHOLE], 9, 0, 500, id="nobody has another place"),
        pytest.param([server(1000, 1000), server(600)], [TaskDemand(1, 1, 2, 1000)], 9, 0, 600, id="all fits"),
    ],
)
def test_nothing_moves_in_vain(
    servers: Sequence[Server], tasks: Sequence[TaskDemand], budget: int, moves: int, left: int
) -> None:
    scores = moving(servers, tasks, budget)
    assert scores.moves == moves
    assert scores.free.milli.sum() == left


def test_a_small_task_makes_room_for_a_whole_one() -> None:
    """A 300 came while the second node was full. Since then 400 are free there, and a whole GPU is asked for."""
    blocked = TaskDemand(1, 1, 1, 600)
    for budget, expected in ((0, None), (1, WHOLE.allocation(0, (0,)))):
        scores = moving([server(1000), server(1000)], [], budget)
        scores.free.allocate(WHOLE.allocation(1, (0,)))
        assert scores.place(TaskDemand(1, 1, 1, 300)) == TaskDemand(1, 1, 1, 300).allocation(0, (0,))
        scores.free.release(WHOLE.allocation(1, (0,)))
        scores.free.allocate(blocked.allocation(1, (0,)))
        assert scores.place(WHOLE) == expected
        assert scores.moves == budget
        assert scores.free.milli.sum() == (1100 if budget == 0 else 100)
