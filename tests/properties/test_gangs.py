"""What a gang may have, against every set of nodes and every split of its GPUs, on tiny empty clusters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurmsched.model import Job, Node, NodeAllocation, Request
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.resources import FreeResources, Pools
from slurmsched.policies.empty_cluster import EmptyCluster
from slurmsched.policies.place.placement import CONSOLIDATED, find_placement
from slurmsched.policies.sizes import AsRequested
from tests.builders import job, node, situation

RACKS = ("", "r1", "r2", "r1|r2", "[r1|r2]", "[r2|(r1&v100)]", "v100|r1&r2")
ALTERNATIVES = {
    "": [{"r1 v100", "r2 v100", "r1 a100", "r2 a100"}],
    "r1": [{"r1 v100", "r1 a100"}],
    "r2": [{"r2 v100", "r2 a100"}],
    "r1|r2": [{"r1 v100", "r2 v100", "r1 a100", "r2 a100"}],
    "[r1|r2]": [{"r1 v100", "r1 a100"}, {"r2 v100", "r2 a100"}],
    "[r2|(r1&v100)]": [{"r2 v100", "r2 a100"}, {"r1 v100"}],
    "v100|r1&r2": [{"r2 v100"}],
}
"""Nodes, by rack and GPU type, on which a job with the constraint may be together, as Slurm reads it."""


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        gpus, gpu_type = draw(st.integers(1, 4)), draw(st.sampled_from(("v100", "a100")))
        rack = draw(st.sampled_from(("r1", "r2")))
        cpus = draw(st.sampled_from((4, 6, 9, 12)))
        features = frozenset({rack, gpu_type})
        found.append(node(f"n{number}", gpus, gpu_type, cpus, draw(st.sampled_from((10, 30))), features=features))
    return found


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """GPUs in all or on each node, with a task on each node or for each GPU."""
    least = draw(st.integers(1, 3))
    most = draw(st.sampled_from((None, least, least + 1, least + 2)))
    each = draw(st.sampled_from((None, None, 1, 2, 3)))
    gpus = each * least if each else draw(st.integers(1, 12))
    tasks = draw(st.sampled_from((least, max(gpus, least))))
    return Request(
        gpus=gpus,
        gpu_type=draw(st.sampled_from((None, None, "v100"))),
        gpus_per_node=each,
        nodes=least,
        max_nodes=most,
        tasks=tasks,
        cpus=tasks * draw(st.sampled_from((1, 1, 2, 5))),
        memory=draw(st.sampled_from((0, 20))),
        features=draw(st.sampled_from(RACKS)),
        pinned=draw(st.sampled_from((frozenset[str](), frozenset[str](), frozenset({"n1"})))),
    )


def _sets_of_nodes(cluster: list[Node], request: Request) -> Iterator[tuple[Node, ...]]:
    """The sets of nodes that the job may have, whatever they hold."""
    most = request.max_nodes or (len(cluster) if request.nodes == 1 else request.nodes)
    most = request.nodes if request.gpus_per_node else most
    for together in ALTERNATIVES[request.features]:
        for count in range(request.nodes, min(most, len(cluster)) + 1):
            for chosen in combinations(cluster, count):
                kinds = {" ".join(sorted(one.features, key=lambda name: name[0] != "r")) for one in chosen}
                if kinds <= together and request.pinned <= {one.name for one in chosen}:
                    yield chosen


def _holds(chosen: tuple[Node, ...], gpus: tuple[int, ...], request: Request) -> bool:
    """Whether the nodes hold such a split: the CPUs of the tasks on each, and the memory of a node."""
    if sum(gpus) != request.gpus or any(count not in (request.gpus_per_node or count, 0) for count in gpus):
        return False
    one_each, of_task = request.tasks <= request.nodes, request.cpus // request.tasks
    for one, count in zip(chosen, gpus, strict=True):
        tasks = 1 if one_each else -(-request.tasks * count // request.gpus)
        if tasks * of_task > one.total.cpus or request.memory > one.total.memory:
            return False
    return True


def _legal(cluster: list[Node], request: Request) -> bool:
    for chosen in _sets_of_nodes(cluster, request):
        if any(request.gpu_type not in (None, *one.gpu_types) for one in chosen):
            continue
        if any(_holds(chosen, gpus, request) for gpus in product(*(range(1, len(one.gpus) + 1) for one in chosen))):
            return True
    return False


def _placed(cluster: list[Node], one: Job) -> tuple[NodeAllocation, ...]:
    pools, asked = Pools(cluster), situation(cluster, [one])
    demands = DemandCache(
        pools, Eligibility(pools, asked.snapshot, asked.open_nodes), asked.knowledge, AsRequested(shares_memory=False)
    )
    empty = FreeResources.of_empty_cluster(pools)
    found = find_placement(demands.of(one), DemandLevel.MINIMUM, empty, CONSOLIDATED)
    return found.node_allocations(pools) if found else ()


ONE_OF_TWO_RACKS = [
    node(f"n{number}", gpus, "v100", 4, 10, features=frozenset({rack, "v100"}))
    for number, (rack, gpus) in enumerate((("r1", 2), ("r1", 2), ("r2", 8)))
]
"""The node that a request names may be in the rack that has fewer GPUs together."""


@settings(max_examples=300, deadline=None)
@given(clusters(), requests())
@example(ONE_OF_TWO_RACKS, Request(gpus=4, cpus=1, features="[r1|r2]", pinned=frozenset({"n1"})))
def test_a_gang_fits_where_some_set_of_nodes_and_some_split_holds_it(cluster: list[Node], request: Request) -> None:
    one = job(1, request=request)
    allocations = _placed(cluster, one)
    assert bool(allocations) == _legal(cluster, request)
    asked = situation(cluster, [one])
    empty = EmptyCluster(Pools(cluster), asked.snapshot, asked.knowledge, AsRequested(shares_memory=False))
    assert bool(empty.unmet_demand(one)) != bool(allocations)


@settings(max_examples=150, deadline=None)
@given(clusters(), requests())
def test_what_a_gang_gets_is_such_a_split(cluster: list[Node], request: Request) -> None:
    allocations = _placed(cluster, job(1, request=request))
    if not allocations:
        return
    chosen = tuple(one for one in cluster if one.name in {share.node for share in allocations})
    gpus = {share.node: share.resources.gpus for share in allocations}
    assert chosen in set(_sets_of_nodes(cluster, request))
    assert _holds(chosen, tuple(gpus[one.name] for one in chosen), request)
    assert all(share.resources.fits_in(one.total) for one in chosen for share in allocations if share.node == one.name)
    needed = request.cpus // request.tasks
    assert all(share.resources.cpus >= needed for share in allocations)
