"""What could start now, on clusters of one or two nodes."""

from __future__ import annotations

import pytest

from slurmsched.model import Node, NodeState, cluster_overview
from slurmsched.report.free import DemandPerGpu, FreeCapacity, free_capacity
from tests.builders import MEMORY, node, snapshot


def what_is_free(*nodes: Node, need: DemandPerGpu | None = None) -> FreeCapacity:
    return free_capacity(cluster_overview(snapshot(nodes)).nodes, 0.0, 0, need or DemandPerGpu())


@pytest.mark.parametrize(
    ("one", "usable", "why"),
    [
        pytest.param(node(), 8, "", id="an idle node"),
        pytest.param(node(busy=range(8), used_cpus=24), 0, "", id="a full one"),
        pytest.param(
            node(busy=[0], used_cpus=24),
            0,
            "7 idle GPUs stranded: 0 CPUs left, 1 needed for each GPU",
            id="no CPUs left",
        ),
        pytest.param(node(reservation="alice_only"), 0, "reserved: alice_only", id="kept for a reservation"),
        pytest.param(
            node(busy=[0, 1], used_cpus=23),
            1,
            "5 idle GPUs stranded: 1 CPU left, 1 needed for each GPU",
            id="one CPU left",
        ),
        pytest.param(
            node(busy=[0], used_cpus=1, used_memory=MEMORY),
            0,
            "7 idle GPUs stranded: 0M of memory left",
            id="no memory",
        ),
        pytest.param(
            node(busy=[0], used_cpus=12),
            7,
            "3 GPUs only below the GPU-proportional share",
            id="fewer CPUs than its share",
        ),
        pytest.param(
            node(state=NodeState.DRAINED, state_text="IDLE+DRAIN", reason="fan"), 0, "idle+drain: fan", id="drained"
        ),
        pytest.param(node(state=NodeState.DOWN, state_text=""), 0, "down", id="down"),
    ],
)
def test_each_idle_gpu_is_usable_or_says_what_strands_it(one: Node, usable: int, why: str) -> None:
    (row,) = what_is_free(one).nodes
    assert (row.usable, row.why) == (usable, why)


def test_memory_that_a_job_needs_strands_gpus_too() -> None:
    (row,) = what_is_free(node(used_memory=MEMORY - 100 * 1024), need=DemandPerGpu(memory=40 * 1024)).nodes
    assert (row.usable, row.why) == (2, "6 idle GPUs stranded: 100G of memory left, 40G needed for each GPU")


@pytest.mark.parametrize(
    ("busy", "on_one", "over", "nodes"),
    [
        pytest.param((0, 0), 8, 16, 2, id="two empty nodes"),
        pytest.param((4, 0), 8, 8, 1, id="a gang of equal halves is no larger than one node"),
        pytest.param((4, 3), 5, 8, 2, id="equal parts on unequal nodes"),
        pytest.param((8, 8), 0, 0, 0, id="nothing idle"),
    ],
)
def test_the_largest_job_takes_equal_gpus_on_each_of_its_nodes(
    busy: tuple[int, int], on_one: int, over: int, nodes: int
) -> None:
    cluster = [node(f"n{number}", busy=range(taken)) for number, taken in enumerate(busy)]
    (largest,) = what_is_free(*cluster).types
    assert (largest.on_one_node, largest.over_nodes, largest.nodes) == (on_one, over, nodes)


def test_gpus_in_shards_are_not_idle() -> None:
    one = node(gpus=2)
    shared = node(gpus=2, busy=[1])
    assert [row.idle for row in what_is_free(one, shared).nodes] == [2, 1]
