"""How a request divides into parts."""

from __future__ import annotations

import pytest

from slurmsched.model import Request
from slurmsched.policies.cluster.gang import gang_of


@pytest.mark.parametrize(
    ("request_", "parts", "gpus", "tasks", "nodes"),
    [
        pytest.param(Request(gpus=4), 1, 4, 1, (1, 1), id="one task is never divided"),
        pytest.param(Request(gpus=4, tasks=4), 4, 1, 1, (1, 1), id="a task per GPU, one node asked for"),
        pytest.param(Request(gpus=4, tasks=4, max_nodes=3), 4, 1, 1, (1, 3), id="free to spread by whole tasks"),
        pytest.param(Request(gpus=8, tasks=2, max_nodes=4), 2, 4, 1, (1, 2), id="no more nodes than tasks"),
        pytest.param(Request(gpus=8, tasks=1, max_nodes=4), 1, 8, 1, (1, 1), id="one task stays on one node"),
        pytest.param(Request(gpus=16, gpus_per_node=8, nodes=2), 2, 8, 1, (2, 2), id="two nodes full"),
        pytest.param(Request(gpus=16, gpus_per_node=8, nodes=2, tasks=4), 2, 8, 2, (2, 2), id="two tasks a node"),
        pytest.param(Request(gpus=16, gpus_per_node=8, nodes=2, tasks=3), 2, 8, 2, (2, 2), id="tasks rounded up"),
        pytest.param(Request(gpus=4, nodes=2), 2, 2, 1, (2, 2), id="two nodes have at least a task each"),
        pytest.param(Request(gpus=3, nodes=2, tasks=2, max_nodes=2), 3, 1, 1, (2, 2), id="three GPUs on two nodes"),
    ],
)
def test_a_request_divides_into_equal_parts_with_whole_tasks(
    request_: Request, parts: int, gpus: int, tasks: int, nodes: tuple[int, int]
) -> None:
    gang = gang_of(request_, None, memory_tunable=False)
    assert (gang.parts, gang.gpus_per_part, gang.tasks_per_part, (gang.min_nodes, gang.max_nodes)) == (
        parts,
        gpus,
        tasks,
        nodes,
    )


@pytest.mark.parametrize(
    ("request_", "node_gpus", "parts", "gpus", "nodes", "cpus"),
    [
        pytest.param(Request(gpus=8), (8, 8), 1, 8, (1, 1), 0, id="one node where one is enough"),
        pytest.param(Request(gpus=16, cpus=3), (8, 8, 4), 2, 8, (2, 2), 3, id="equal parts of two nodes"),
        pytest.param(Request(gpus=9), (8, 4), 9, 1, (2, 9), 1, id="single GPUs where parts are not equal"),
        pytest.param(Request(gpus=12), (8, 4), 12, 1, (2, 12), 1, id="nor where a node is too small for one"),
        pytest.param(Request(gpus=12, max_nodes=2), (8, 2, 2), 1, 12, (1, 1), 0, id="more than its range holds"),
        pytest.param(Request(gpus=12, nodes=2, tasks=2, max_nodes=3), (4, 4, 4), 3, 4, (3, 3), 1, id="a range"),
        pytest.param(Request(gpus=12, nodes=2, tasks=2, max_nodes=3), (8, 8), 2, 6, (2, 2), 0, id="its least"),
        pytest.param(Request(gpus=16, tasks=4, cpus=8), (8, 8), 4, 4, (1, 2), 0, id="tasks of its own"),
        pytest.param(Request(gpus=16, gpus_per_node=8, nodes=2), (4, 4), 2, 8, (2, 2), 0, id="GPUs on each node"),
    ],
)
def test_a_job_that_leaves_its_number_of_nodes_to_slurm_has_the_fewest(
    request_: Request,
    node_gpus: tuple[int, ...],
    parts: int,
    gpus: int,
    nodes: tuple[int, int],
    cpus: int,
) -> None:
    gang = gang_of(request_, None, memory_tunable=False, node_gpus=node_gpus)
    assert (gang.parts, gang.gpus_per_part, (gang.min_nodes, gang.max_nodes)) == (parts, gpus, nodes)
    assert gang.cpus_per_node == cpus


def test_memory_that_was_asked_for_is_a_need_unless_its_owner_says_otherwise() -> None:
    asked = Request(gpus=1, memory=5000)
    assert gang_of(asked, None, memory_tunable=False).memory_per_node == 5000
    assert gang_of(asked, None, memory_tunable=True).memory_per_node == 0
