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


def test_memory_that_was_asked_for_is_a_need_unless_its_owner_says_otherwise() -> None:
    asked = Request(gpus=1, memory=5000)
    assert gang_of(asked, None, memory_tunable=False).memory_per_node == 5000
    assert gang_of(asked, None, memory_tunable=True).memory_per_node == 0
