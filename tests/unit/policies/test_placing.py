"""The placing rule, against a plain form of itself and in rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.model import Job, Node, NodeState, ReasonCode, Request, Reservation
from slurmsched.policies import POLICIES, policy
from slurmsched.policies.cluster.demand import _MOST_KEPT, DemandCache, DemandLevel, ResourceDemand, _kept_demands
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.resources import FreeResources
from slurmsched.policies.place.placement import CONSOLIDATED, find_placement
from slurmsched.policies.sizes import AsRequested, Proportional, Sizing
from slurmsched.policies.stages import Situation
from tests.builders import GIB, job, node, situation, snapshot


def placed(asked: Situation, one: Job) -> dict[str, int] | None:
    """GPUs by node where the job would lie on its proportional share."""
    ledger = FreeResources.of_snapshot(asked.snapshot)
    grounds = Eligibility(ledger.pools, asked.snapshot, asked.open_nodes)
    wish = DemandCache(ledger.pools, grounds, asked.knowledge, Proportional()).of(one)
    found = find_placement(wish, DemandLevel.MINIMUM, ledger, CONSOLIDATED)
    return found and {share.node: share.resources.gpus for share in found.node_allocations(ledger.pools)}


def plainly(nodes: list[Node], gpus: int, cpus: int, memory: int) -> str | None:
    """The server with the least free resources just enough, the first of equals."""
    fitting = [
        (one.free.gpus, one.free.cpus, one.free.memory, at)
        for at, one in enumerate(nodes)
        if one.free.gpus >= gpus and one.free.cpus >= cpus and one.free.memory >= memory
    ]
    return nodes[min(fitting)[3]].name if fitting else None


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    return [
        node(
            f"n{at}",
            busy=range(draw(st.integers(0, 8))),
            used_cpus=draw(st.integers(0, 24)),
            used_memory=draw(st.integers(0, 5)) * 100 * GIB,
        )
        for at in range(draw(st.integers(1, 6)))
    ]


@given(clusters(), st.integers(1, 8), st.integers(1, 24), st.integers(0, 300))
def test_the_vectors_choose_as_the_plain_rule_does(nodes: list[Node], gpus: int, cpus: int, gib: int) -> None:
    one = job(1, gpus, cpus, memory=max(gib, 1) * GIB)
    asked = situation(nodes, [one])
    ledger = FreeResources.of_snapshot(asked.snapshot)
    wishes = DemandCache(
        ledger.pools, Eligibility(ledger.pools, asked.snapshot, asked.open_nodes), asked.knowledge, AsRequested()
    )
    found = find_placement(wishes.of(one), DemandLevel.BEST, ledger, CONSOLIDATED)
    expected = plainly(nodes, gpus, cpus, max(gib, 1) * GIB)
    assert (found and ledger.pools.node(found.pools[0]).name) == expected


def gang(gpus: int, nodes: int = 1, most: int | None = None, **other: Any) -> Job:
    """A task for each GPU unless said otherwise."""
    other.setdefault("tasks", gpus)
    return job(1, request=Request(gpus=gpus, nodes=nodes, max_nodes=most, cpus=other["tasks"], **other))


def busy(name: str, count: int) -> Node:
    return node(name, busy=range(count), used_cpus=3 * count, used_memory=count * 20 * GIB)


@pytest.mark.parametrize(
    ("taken", "one", "expected"),
    [
        pytest.param((0, 6), gang(2), {"b": 2}, id="the server that is just enough"),
        pytest.param((3, 3), gang(2), {"a": 2}, id="the first of equals"),
        pytest.param((6, 6), gang(4), None, id="one node asked for: never split"),
        pytest.param((6, 6), gang(4, 1, 2), {"a": 2, "b": 2}, id="two nodes allowed: split evenly"),
        pytest.param((4, 6), gang(4, 1, 2), {"a": 4}, id="the minimum of servers"),
        pytest.param((5, 7), gang(4, 1, 2), {"a": 3, "b": 1}, id="unevenly where it must be"),
        pytest.param((5, 7), gang(4, 1, 2, tasks=2), None, id="but never through a task"),
        pytest.param((5, 7, 6), gang(6, 1, 3), {"a": 3, "b": 1, "c": 2}, id="three nodes"),
        pytest.param((0, 1, 0), gang(16, 2, gpus_per_node=8), {"a": 8, "c": 8}, id="two full nodes"),
        pytest.param((0, 1), gang(16, 2, gpus_per_node=8), None, id="a gang is placed whole or not at all"),
        pytest.param((4, 0, 5), gang(4, 2), {"a": 2, "c": 2}, id="two nodes as full as can be"),
        pytest.param((4, 0), gang(1, pinned=frozenset("b")), {"b": 1}, id="a node that was named"),
        pytest.param((4, 5, 0), gang(4, 2, pinned=frozenset("c")), {"c": 2, "b": 2}, id="a named one and the best"),
        pytest.param((4, 5, 0), gang(1, pinned=frozenset({"gone"})), None, id="a named node that is not there"),
        pytest.param((4, 0), gang(1, excluded=frozenset("a")), {"b": 1}, id="not on an excluded node"),
        pytest.param((0, 1), gang(1, exclusive=True), {"a": 1}, id="a node for itself alone"),
        pytest.param((1, 1), gang(1, exclusive=True), None, id="no node is empty"),
    ],
)
def test_a_gang_lies_on_the_fewest_fullest_nodes_it_allows(
    taken: tuple[int, ...], one: Job, expected: dict[str, int] | None
) -> None:
    nodes = [busy(name, count) for name, count in zip("abc", taken, strict=False)]
    assert placed(situation(nodes, [one]), one) == expected


@pytest.mark.parametrize(
    ("other", "one", "expected"),
    [
        pytest.param(node("b", gpu_type="a100"), gang(1, gpu_type="a100"), {"b": 1}, id="the GPU type asked for"),
        pytest.param(node("b", gpu_type="a100"), gang(8, 2), {"a": 4, "b": 4}, id="one node of each type"),
        pytest.param(
            node("b", gpus=4, gpu_type="a100"), gang(12, tasks=1), {"a": 8, "b": 4}, id="a total over two types"
        ),
        pytest.param(node("b", gpu_type="a100"), gang(16, 1, 2), {"a": 8, "b": 8}, id="two types where none suffices"),
        pytest.param(node("b", features=frozenset({"ib"})), gang(1, features="ib"), {"b": 1}, id="a feature"),
        pytest.param(node("b"), gang(1, features="[x*1&y*1]"), None, id="a constraint that cannot be read"),
        pytest.param(node("b", state=NodeState.DRAINED), gang(8), {"a": 8}, id="not on a drained node"),
        pytest.param(node("b", busy=[0], state=NodeState.DRAINED), gang(1), {"a": 1}, id="however well it would fit"),
    ],
)
def test_only_nodes_of_the_right_kind_count(other: Node, one: Job, expected: dict[str, int] | None) -> None:
    assert placed(situation([node("a"), other], [one]), one) == expected


@pytest.mark.parametrize(
    ("taken", "one", "expected"),
    [
        pytest.param(0, gang(4, tasks=1), {"a": 4}, id="one node where one is large enough"),
        pytest.param(2, gang(4, 1, 1, tasks=1), {"b": 4}, id="one node asked for"),
        pytest.param(0, gang(8, tasks=1), {"a": 4, "b": 4}, id="the fewest nodes, evenly"),
        pytest.param(1, gang(8, tasks=1), {"b": 4, "c": 4}, id="the fewest nodes that have so many"),
        pytest.param(0, gang(7, tasks=1), {"a": 4, "b": 3}, id="unevenly where it must be"),
        pytest.param(1, gang(10, tasks=1), {"b": 4, "c": 4, "a": 2}, id="three nodes"),
        pytest.param(0, gang(14, tasks=1), {"a": 4, "b": 4, "c": 4, "d": 2}, id="the whole cluster"),
        pytest.param(0, gang(15, tasks=1), None, id="more than there are"),
        pytest.param(0, gang(10, 1, 3, tasks=1), {"a": 4, "b": 4, "c": 2}, id="a range that holds it"),
        pytest.param(0, gang(10, 1, 2, tasks=1), None, id="a range that does not"),
        pytest.param(0, gang(10, 2, 4, tasks=2), {"a": 4, "b": 4, "c": 2}, id="a range with a task on each node"),
        pytest.param(0, gang(8, tasks=8), {"a": 4, "b": 4}, id="a task for each GPU"),
        pytest.param(0, gang(6, gpu_type="v100", tasks=1), {"a": 3, "b": 3}, id="of one type"),
        pytest.param(0, gang(8, tasks=1, features="d"), None, id="one node has the feature, and is too small"),
        pytest.param(0, gang(6, tasks=1, pinned=frozenset("d")), {"d": 2, "a": 4}, id="a named node, and more"),
        pytest.param(0, gang(6, tasks=1, excluded=frozenset("ab")), {"c": 4, "d": 2}, id="not where it may not be"),
    ],
)
def test_a_job_that_leaves_its_number_of_nodes_to_slurm_has_as_few_as_hold_it(
    taken: int, one: Job, expected: dict[str, int] | None
) -> None:
    """Nodes a, b and c have 4 GPUs, of which so many of a are taken; d has 2."""
    nodes = [
        node(name, gpus=gpus, cpus=3 * gpus, busy=range(used), used_cpus=3 * used, features=frozenset(name))
        for name, gpus, used in (("a", 4, taken), ("b", 4, 0), ("c", 4, 0), ("d", 2, 0))
    ]
    assert placed(situation(nodes, [one]), one) == expected


def test_such_a_job_waits_for_a_node_that_is_large_enough_but_down() -> None:
    down = node("b", gpus=8, state=NodeState.DRAINED)
    one = gang(8, tasks=1)
    assert placed(situation([node("a", gpus=4), node("c", gpus=4), down], [one]), one) is None


@pytest.mark.parametrize(
    ("gpus", "asked", "cpus"),
    [
        pytest.param(16, 1, [24, 24], id="its share of each node"),
        pytest.param(16, 4, [24, 24], id="a task of 4 CPUs is below it"),
        pytest.param(11, 1, [15, 15], id="6 and 5 GPUs: the task with the fewest decides for both"),
        pytest.param(11, 20, [20, 20], id="but each has what one asked for"),
    ],
)
def test_such_a_job_has_the_same_cpus_on_each_node(gpus: int, asked: int, cpus: list[int]) -> None:
    one = job(1, gpus, asked)
    target = policy("proportional").decide(situation([node("a"), node("b")], [one])).targets["1"]
    assert [share.resources.cpus for share in target.allocations] == cpus


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(gang(4, 2, features="[r1|r2]"), {"c": 2, "d": 2}, id="all nodes of the second alternative"),
        pytest.param(gang(4, 2, features="r1|r2"), {"b": 2, "c": 2}, id="either: one node of each"),
        pytest.param(gang(6, 3, features="[r1|r2]"), None, id="no alternative has so many nodes"),
        pytest.param(gang(1, features="[r2|r1]"), {"c": 1}, id="the first alternative first"),
    ],
)
def test_all_nodes_of_a_gang_have_the_same_alternative(one: Job, expected: dict[str, int] | None) -> None:
    """Nodes a and b are in rack r1, of which a is full, c and d in r2."""
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    nodes = [node(name, busy=range(8 * (name == "a")), features=frozenset({rack})) for name, rack in racks.items()]
    assert placed(situation(nodes, [one]), one) == expected


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(gang(16, tasks=1), {"a": 8, "b": 8}, id="two nodes of one type"),
        pytest.param(gang(20, tasks=1), {"a": 8, "b": 8, "c": 4}, id="both types"),
        pytest.param(gang(12, 3, gpus_per_node=4), {"a": 4, "b": 4, "c": 4}, id="both types, the same on each node"),
    ],
)
def test_every_policy_places_what_only_several_nodes_hold(name: str, one: Job, expected: dict[str, int]) -> None:
    nodes = [node("a"), node("b"), node("c", gpus=4, gpu_type="k80")]
    target = policy(name).decide(situation(nodes, [one])).targets["1"]
    assert {share.node: share.resources.gpus for share in target.allocations} == expected


def test_a_gang_that_needs_several_gpu_types_is_not_said_to_be_faster_for_it() -> None:
    target = policy("synergy").decide(situation([node("a"), node("b", gpu_type="a100")], [gang(16, 2)])).targets["1"]
    assert {share.gpu_type for share in target.allocations} == {"v100", "a100"}
    assert ReasonCode.MIXED not in {reason.code for reason in target.reasons}


def test_a_gang_waits_for_one_gpu_type_where_one_has_enough() -> None:
    nodes = [busy("a", 8), node("b"), node("c", gpu_type="a100")]
    one = gang(8, 2)
    assert placed(situation(nodes, [one]), one) is None


def test_a_gang_on_nodes_of_two_kinds_gets_the_same_on_both() -> None:
    one = gang(16, 2, gpus_per_node=8)
    asked = situation([node("a", cpus=48), node("b", cpus=24)], [one])
    target = policy("proportional").decide(asked).targets["1"]
    assert [share.resources.cpus for share in target.allocations] == [24, 24]


def test_a_gang_lies_inside_one_partition() -> None:
    nodes = [node("a", partitions=frozenset({"x"})), node("b", partitions=frozenset({"y"}))]
    one = job(1, request=Request(gpus=16, nodes=2, gpus_per_node=8, tasks=2, cpus=2), partitions=("x", "y"))
    assert placed(situation(nodes, [one]), one) is None


def test_the_first_partition_with_room_counts() -> None:
    nodes = [node("a", partitions=frozenset({"x"})), node("b", partitions=frozenset({"y"}))]
    one = job(1, partitions=("y", "x"))
    assert placed(situation(nodes, [one]), one) == {"b": 1}


def test_a_job_with_a_reservation_lies_in_it_and_nowhere_else() -> None:
    held = Reservation("maintenance", frozenset({"b"}), 0, 1e9)
    one = job(1, reservation="maintenance")
    seen = snapshot([busy("a", 4), node("b")], [one], reservations=(held,))
    asked = situation([], [], seen=seen, open_nodes={"gpu": frozenset({"a"})})
    assert placed(asked, one) == {"b": 1}


def test_a_gpu_in_shards_is_not_free() -> None:
    shared = node("a", gpus=1, busy=[0])
    one = job(1)
    assert placed(situation([shared, node("b")], [one]), one) == {"b": 1}


def amounts(asked: Situation, one: Job) -> dict[str, tuple[int, int]] | None:
    """CPUs and GiB by node where the job would be placed with what it asks for."""
    free = FreeResources.of_snapshot(asked.snapshot)
    eligibility = Eligibility(free.pools, asked.snapshot, asked.open_nodes)
    demand = DemandCache(free.pools, eligibility, asked.knowledge, AsRequested()).of(one)
    found = find_placement(demand, DemandLevel.MINIMUM, free, CONSOLIDATED)
    on_nodes = found.node_allocations(free.pools) if found else ()
    return {each.node: (each.resources.cpus, each.resources.memory // GIB) for each in on_nodes} or None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(
            Request(gpus=1, memory=60 * GIB, whole_memory=True),
            {"idle": (1, 500)},
            id="--mem=0: a node whose memory is all free, with all of it",
        ),
        pytest.param(
            Request(gpus=12, nodes=2, max_nodes=2, tasks=12, cpus=24, memory=120 * GIB, memory_per_cpu=10 * GIB),
            {"idle": (16, 160), "other": (8, 80)},
            id="--mem-per-cpu: each node has the memory of its own CPUs",
        ),
        pytest.param(
            Request(gpus=12, nodes=2, max_nodes=2, tasks=12, cpus=12, memory=240 * GIB, memory_per_gpu=40 * GIB),
            {"idle": (8, 320), "other": (4, 160)},
            id="--mem-per-gpu: each node has the memory of its own GPUs",
        ),
        pytest.param(
            Request(gpus=12, nodes=2, max_nodes=2, tasks=12, cpus=12, memory=480 * GIB, memory_per_gpu=80 * GIB),
            None,
            id="--mem-per-gpu: no node is given more GPUs than it has memory for",
        ),
        pytest.param(
            Request(gpus=2, cpus=10, memory=GIB, cpus_per_gpu=5),
            {"other": (10, 1)},
            id="--cpus-per-gpu: exactly these",
        ),
    ],
)
def test_a_node_is_charged_what_slurm_will_charge(request_: Request, expected: dict[str, tuple[int, int]]) -> None:
    nodes = [node("idle"), node("other", busy=range(4), used_cpus=4, used_memory=100 * GIB)]
    one = job(1, request=request_)
    assert amounts(situation(nodes, [one]), one) == expected


def demand_in(asked: Situation, one: Job, sizing: Sizing | None = None) -> ResourceDemand:
    pools = FreeResources.of_snapshot(asked.snapshot).pools
    eligibility = Eligibility(pools, asked.snapshot, asked.open_nodes)
    return DemandCache(pools, eligibility, asked.knowledge, sizing or Proportional()).of(one)


@pytest.mark.parametrize(
    ("nodes", "one", "sizing", "kept"),
    [
        pytest.param([node("c", used_cpus=9), node("d")], job(2, 2), Proportional(), True, id="other names and use"),
        pytest.param([node("a")], job(2, 2), Proportional(), False, id="a node less"),
        pytest.param([node("a", cpus=48), node("b")], job(2, 2), Proportional(), False, id="a node has more CPUs"),
        pytest.param([node("a", state=NodeState.DOWN), node("b")], job(2, 2), Proportional(), False, id="one is down"),
        pytest.param([node("a"), node("b")], job(2, 2), AsRequested(), False, id="another sizing"),
        pytest.param([node("a"), node("b")], job(2, 4), Proportional(), False, id="another request"),
    ],
)
def test_the_demand_of_an_earlier_round_serves_where_the_job_may_use_the_same_pools(
    nodes: list[Node], one: Job, sizing: Sizing, kept: bool
) -> None:
    earlier = demand_in(situation([node("a"), node("b")], [job(1, 2)]), job(1, 2))
    assert (demand_in(situation(nodes, [one]), one, sizing) is earlier) is kept


def test_a_job_that_names_its_nodes_is_sized_for_these_in_each_round() -> None:
    one = job(1, request=Request(2, cpus=2, pinned=frozenset({"b"})))
    on = [demand_in(situation([node(name) for name in names], [one]), one).required_nodes for names in ("ab", "ba")]
    assert on == [(1,), (0,)]


def test_endless_different_requests_are_not_kept_forever() -> None:
    asked = situation([node("a")], [])
    for cpus in range(1, 1500):
        demand_in(asked, job(1, request=Request(2, cpus=cpus)))
    assert len(_kept_demands(FreeResources.of_snapshot(asked.snapshot).pools.layout)) <= _MOST_KEPT
