"""Where a request fits: rows of tiny clusters."""

from __future__ import annotations

import pytest

from slurmsched.backends.simulated.nodes import SimulatedNode, fit_request
from slurmsched.model import Gpu, Node, NodeAllocation, Request, Resources
from tests.builders import node

GIB = 1024


def machines(*free: int, gpu_type: str = "v100") -> list[SimulatedNode]:
    """Nodes n1, n2 ... of 4 GPUs and 12 CPUs with so many GPUs free."""
    found = []
    for number, idle in enumerate(free, 1):
        machine = SimulatedNode(node(f"n{number}", 4, gpu_type, cpus=12, memory=400 * GIB))
        if idle < 4:
            taken = tuple(range(4 - idle))
            machine.allocate(NodeAllocation(machine.name, Resources(len(taken), 3 * len(taken), 0), gpu_type, taken))
        found.append(machine)
    return found


@pytest.mark.parametrize(
    ("free", "request_", "split"),
    [
        pytest.param((4,), Request(gpus=2, cpus=6), {"n1": (0, 1)}, id="the lowest free devices of the first node"),
        pytest.param((1, 4), Request(gpus=2, cpus=6), {"n2": (0, 1)}, id="the first node with enough devices"),
        pytest.param((2, 2), Request(gpus=4, cpus=4), None, id="a one-node job is never split"),
        pytest.param(
            (4, 4),
            Request(gpus=8, gpus_per_node=4, nodes=2, cpus=24),
            {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3)},
            id="a gang has the same on each node",
        ),
        pytest.param((4, 3), Request(gpus=8, gpus_per_node=4, nodes=2), None, id="a gang is placed whole or not"),
        pytest.param(
            (1, 3),
            Request(gpus=4, nodes=2, tasks=4, cpus=4),
            {"n1": (3,), "n2": (1, 2, 3)},
            id="a free split is 3 + 1 where one node has only 3",
        ),
        pytest.param(
            (2, 2),
            Request(gpus=4, nodes=1, max_nodes=2, tasks=4, cpus=4),
            {"n1": (2, 3), "n2": (2, 3)},
            id="more nodes are used only when fewer do not do",
        ),
        pytest.param(
            (4, 4),
            Request(gpus=8, cpus=4),
            {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3)},
            id="no number of nodes, and none is large enough",
        ),
        pytest.param((4,), Request(gpus=1, features="[nvlink|v100]"), {"n1": (0,)}, id="the second alternative"),
        pytest.param((4, 4), Request(gpus=1, pinned=frozenset({"n2"})), {"n2": (0,)}, id="pinned to one node"),
        pytest.param((4, 1), Request(gpus=2, pinned=frozenset({"n2"})), None, id="pinned, and the rest does not help"),
        pytest.param((4, 4), Request(gpus=1, excluded=frozenset({"n1"})), {"n2": (0,)}, id="an excluded node"),
        pytest.param((4,), Request(gpus=1, gpu_type="k80"), None, id="of another type there are none"),
        pytest.param((4,), Request(gpus=1, features="nvlink|v100"), {"n1": (0,)}, id="one of two features"),
        pytest.param((4,), Request(gpus=1, features="nvlink&v100"), None, id="both of two features"),
        pytest.param((4,), Request(gpus=1, cpus=13), None, id="CPUs bind although devices are free"),
        pytest.param((4,), Request(gpus=1, memory=401 * GIB), None, id="memory binds although devices are free"),
        pytest.param((3, 4), Request(gpus=1, exclusive=True), {"n2": (0,)}, id="an exclusive job wants an empty node"),
        pytest.param((1,), Request(cpus=3), {"n1": ()}, id="a job without GPUs needs none"),
    ],
)
def test_a_request_gets_these_devices(
    free: tuple[int, ...], request_: Request, split: dict[str, tuple[int, ...]] | None
) -> None:
    shares = fit_request(request_, machines(*free))
    found = None if shares is None else {s.node: s.indices for s in sorted(shares, key=lambda s: s.node)}
    assert found == split


def test_an_uneven_split_has_equal_cpus_per_gpu() -> None:
    shares = fit_request(Request(gpus=4, nodes=2, tasks=4, cpus=8), machines(1, 3)) or ()
    assert sorted((s.resources.gpus, s.resources.cpus) for s in shares) == [(1, 2), (3, 6)]


def test_memory_that_was_not_said_is_the_proportional_part() -> None:
    (share,) = fit_request(Request(gpus=2, cpus=2), machines(4)) or ()
    assert share.resources.memory == 200 * GIB


def test_shards_of_two_jobs_share_a_device_while_it_has_enough() -> None:
    cut = tuple(Gpu(i, "v100", shards=10) for i in range(2))
    machine = SimulatedNode(Node("n1", cut, Resources(2, 8, 1000), Resources()))
    found = []
    for _ in range(3):
        (share,) = fit_request(Request(shards=4), [machine]) or ()
        machine.allocate(share)
        found.append(share.indices)
    assert found == [(0,), (0,), (1,)]
    assert [gpu.used for gpu in machine.view().gpus] == [800, 400]


@pytest.mark.parametrize(
    ("earlier", "request_", "expected"),
    [
        pytest.param([], Request(shards=10, nodes=2), [("n1", 0, 5), ("n2", 0, 5)], id="as many on each node"),
        pytest.param(
            [5, 7],
            Request(shards=10, nodes=2),
            [("n1", 0, 5), ("n2", 0, 5)],
            id="beside others on a device that has enough left",
        ),
        pytest.param([7], Request(shards=14, nodes=2), [("n1", 1, 7), ("n2", 0, 7)], id="on another device of each"),
        pytest.param([7, 7], Request(shards=14, nodes=2), None, id="not on one node twice where the other has no room"),
        pytest.param([], Request(shards=30, nodes=2), None, id="never more of a node than one device has"),
        pytest.param(
            [5],
            Request(shards=10, nodes=2, pinned=frozenset({"n2", "n3"})),
            [("n2", 0, 5), ("n3", 0, 5)],
            id="on the nodes it names",
        ),
    ],
)
def test_shards_on_several_nodes(
    earlier: list[int], request_: Request, expected: list[tuple[str, int, int]] | None
) -> None:
    cut = tuple(Gpu(i, "v100", shards=10) for i in range(2))
    names = ("n1", "n2") if not request_.pinned else ("n1", "n2", "n3")
    nodes = [SimulatedNode(Node(name, cut, Resources(2, 8, 1000), Resources())) for name in names]
    for shards in earlier:
        (share,) = fit_request(Request(shards=shards), nodes[:1]) or ()
        nodes[0].allocate(share)
    shares = fit_request(request_, nodes)
    assert (shares and [(s.node, s.indices[0], s.shards) for s in shares]) == expected


def test_a_device_in_shards_is_not_free_for_a_whole_gpu_job() -> None:
    machine = SimulatedNode(Node("n1", (Gpu(0, "v100", shards=10),), Resources(1, 8, 1000), Resources()))
    shards = fit_request(Request(shards=1), [machine]) or ()
    machine.allocate(shards[0])
    assert fit_request(Request(gpus=1), [machine]) is None
    machine.release(shards[0])
    assert fit_request(Request(gpus=1), [machine]) is not None


def test_a_taken_device_cannot_be_claimed_again() -> None:
    (machine,) = machines(4)
    share = NodeAllocation("n1", Resources(1, 1, 0), "v100", (0,))
    machine.allocate(share)
    with pytest.raises(ValueError, match="not free"):
        machine.allocate(share)
