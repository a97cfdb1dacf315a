"""Rounds of the descent on tiny clusters with shards, whole GPUs and jobs without any."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.model import (
    MILLI_PER_GPU,
    Decision,
    Job,
    JobState,
    Node,
    NodeAllocation,
    ReasonCode,
    Request,
    Resources,
)
from slurmsched.policies import policy
from slurmsched.policies.cluster.resources import Pools
from slurmsched.policies.place.fragmentation import TaskDemand, target_workload
from tests.builders import job, node, share, situation

WHOLE, FOUR = Request(gpus=1, cpus=2, gpus_per_node=1), Request(gpus=4, cpus=4, gpus_per_node=4)


def shards(count: int, cpus: int = 1, **other: object) -> Request:
    return Request(shards=count, cpus=cpus, **other)  # type: ignore[arg-type]  # by name


def has(count: int, index: int, where: str = "n1", cpus: int = 1) -> NodeAllocation:
    return NodeAllocation(where, Resources(0, cpus, 0), "v100", (index,), count)


def decided(nodes: Sequence[Node], jobs: Sequence[Job], usual: dict[Request, int] | None = None) -> Decision:
    return policy("fgd", "fifo").decide(situation(nodes, jobs, recent_requests=tuple((usual or {}).items())))


def homes(decision: Decision) -> dict[str, str]:
    return {target.job: ",".join(target.nodes) for target in decision.targets.values()}


N1, N2 = node("n1", 4, shards=10), node("n2", 4, shards=10)


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected"),
    [
        pytest.param(
            [N1, N2],
            [job(1, request=shards(5), on=[has(5, 0, "n2")]), job(2, request=shards(5))],
            {"1": "n2", "2": "n2"},
            id="a half beside a half",
        ),
        pytest.param(
            [N1, N2],
            [job(1, request=shards(8), on=[has(8, 0)]), job(2, request=shards(5)), job(3, request=WHOLE)],
            {"1": "n1", "2": "n1", "3": "n1"},
            id="another node stays whole for a gang",
        ),
        pytest.param(
            [node("cpu", 0, cpus=8), N1], [job(1, gpus=0, cpus=4)], {"1": "cpu"}, id="without GPUs: off the GPU nodes"
        ),
        pytest.param(
            [N1, node("n2", 4, shards=10, busy=range(4))],
            [job(1, gpus=0, cpus=20)],
            {"1": "n2"},
            id="without GPUs: where no idle GPU is stranded",
        ),
        pytest.param(
            [node("n1", 4), N2], [job(1, request=shards(2))], {"1": "n2"}, id="shards on some nodes only: on those"
        ),
        pytest.param(
            [node("n1", 2, shards=4), node("n2", 2, shards=10)],
            [job(1, request=shards(6))],
            {"1": "n2"},
            id="more shards than some GPUs have: on others",
        ),
        pytest.param(
            [node("n1", 2), node("n2", 2)],
            [job(1, request=Request(gpus=4, gpus_per_node=2, nodes=2, cpus=4))],
            {"1": "n1,n2"},
            id="a gang over two nodes",
        ),
        pytest.param(
            [node("n1", 2), node("n2", 2, busy=[0])],
            [job(1, request=Request(gpus=4, gpus_per_node=2, nodes=2, cpus=4)), job(2, request=WHOLE)],
            {"2": "n2"},
            id="half a gang is not placed, and what was tried is given back",
        ),
        pytest.param(
            [N1, node("n2", 4, "k80", shards=10)],
            [job(1, request=shards(2, gpu_type="k80"))],
            {"1": "n2"},
            id="shards of a type",
        ),
        pytest.param(
            [node("n1", 2, used_cpus=1), node("n2", 2)],
            [job(1, request=Request(gpus=1, gpus_per_node=1, cpus=2, exclusive=True))],
            {"1": "n2"},
            id="an exclusive job on an empty node",
        ),
    ],
)
def test_where_jobs_go(nodes: Sequence[Node], jobs: Sequence[Job], expected: dict[str, str]) -> None:
    usual = {WHOLE: 4, FOUR: 2, shards(5): 2}
    assert homes(decided(nodes, jobs, usual)) == expected


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        pytest.param(shards(11), "11 shards of one GPU; the GPUs have 10", id="more shards than a GPU has"),
        pytest.param(
            shards(2, gpu_type="h100"), "nodes with h100 GPUs in partition gpu; there are none", id="a type no node has"
        ),
        pytest.param(
            Request(gpus=5, gpus_per_node=5), "5 GPUs on one node; the largest has 4", id="more GPUs than a node has"
        ),
        pytest.param(
            Request(gpus=1, nodes=2), "a GPU on each of 2 nodes, but only 1 GPU in all", id="fewer GPUs than nodes"
        ),
        pytest.param(shards(2, features="a&&b"), "constraint", id="a constraint that cannot be read"),
        pytest.param(
            shards(2, features="infiniband"),
            "that match its constraint and node lists; there are none",
            id="no such feature",
        ),
        pytest.param(shards(2, cpus=99), "CPUs", id="more CPUs than a node has"),
    ],
)
def test_what_never_fits_is_told(request_: Request, sentence: str) -> None:
    reason = decided([N1], [job(1, request=request_)]).waiting["1"]
    assert reason.code is ReasonCode.NEVER_FITS
    assert sentence in reason.sentence


def test_without_shards_anywhere_the_site_is_told_what_to_look_at() -> None:
    reason = decided([node("n1", 2)], [job(1, request=shards(2))]).waiting["1"]
    assert reason.sentence == (
        "asks for what the cluster does not have: "
        "shards, but the GPUs it may use have none: see gres/shard in slurm.conf"
    )


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        pytest.param(shards(6), ReasonCode.NO_SHARDS, id="shards are left, too few on each GPU"),
        pytest.param(WHOLE, ReasonCode.NO_ROOM, id="no whole GPU"),
        pytest.param(Request(cpus=23), ReasonCode.NO_CPUS, id="no CPUs"),
    ],
)
def test_what_does_not_fit_now_says_what_is_missing(request_: Request, code: ReasonCode) -> None:
    full = [job(place, request=shards(5), on=[has(5, place)]) for place in range(2)]
    reason = decided([node("n1", 2, shards=10)], [*full, job(9, request=request_)]).waiting["9"]
    assert reason.code is code


def test_the_device_is_the_first_that_has_enough_left() -> None:
    """Slurm would not look for the fullest."""
    jobs = [job(1, request=shards(7), on=[has(7, 1)]), job(2, request=shards(3))]
    (target,) = (target for target in decided([N1], jobs).targets.values() if target.job == "2")
    assert target.allocations[0].indices == (0,)
    assert (target.allocations[0].shards, target.allocations[0].resources.gpus) == (3, 0)


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        pytest.param(WHOLE, "n1", id="whole GPUs go there"),
        pytest.param(shards(2), "n2", id="shards do not: Slurm would choose the type"),
    ],
)
def test_a_node_with_gpus_of_several_types(request_: Request, where: str) -> None:
    mixed = node("n1", 2, shards=4)
    mixed = Node(
        "n1",
        (mixed.gpus[0], node("x", 2, "k80", shards=4).gpus[1]),
        mixed.total,
        mixed.used,
        partitions=mixed.partitions,
    )
    assert homes(decided([mixed, node("n2", 1, shards=4)], [job(1, request=request_)])) == {"1": where}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(Request(gpus=8, nodes=2, cpus=2), {"1": "a1,a2"}, id="on the type with room for all of it"),
        pytest.param(Request(gpus=2, nodes=2, cpus=2), {"1": "v1,v2"}, id="on the first type with room"),
        pytest.param(Request(gpus=2, nodes=2, cpus=2, gpu_type="v100"), {"1": "v1,v2"}, id="on the type it asks for"),
        pytest.param(shards(10, 2, nodes=2), {"1": "v1,v2"}, id="with shards too"),
        pytest.param(Request(gpus=3, nodes=3, cpus=3), {"1": "a1,v1,v2"}, id="or several where no one type suffices"),
    ],
)
def test_a_job_of_several_nodes_has_one_gpu_type_if_it_can(request_: Request, expected: dict[str, str]) -> None:
    v100 = [node("v1", 4, "v100", shards=10), node("v2", 4, "v100", shards=10, busy=[0])]
    a100 = [node("a1", 4, "a100", shards=10), node("a2", 4, "a100", shards=10)]
    targets = decided([*v100, *a100], [job(1, request=request_)]).targets
    assert {target.job: ",".join(sorted(target.nodes)) for target in targets.values()} == expected


def test_a_job_that_is_ending_still_has_its_place() -> None:
    ending = job(1, request=WHOLE, on=[share("n1", (0,), cpus=2, memory=0)], state=JobState.COMPLETING)
    decision = decided([node("n1", 1)], [ending, job(2, request=WHOLE)])
    assert decision.waiting["1"].code is ReasonCode.FREED_SOON
    assert decision.waiting["2"].code is ReasonCode.FREED_SOON


def test_a_vanished_node_changes_nothing_for_the_others() -> None:
    lost = job(1, request=shards(2), on=[has(2, 0, "gone")])
    assert homes(decided([N1], [lost, job(2, request=WHOLE)])) == {"1": "gone", "2": "n1"}


SHARDED = Pools([node(f"n{number}", 4, shards=10) for number in range(4)])


@pytest.mark.parametrize(
    ("request_", "tasks"),
    [
        pytest.param(shards(4, cpus=3), {TaskDemand(3, 0, 1, 400): 1.0}, id="shards"),
        pytest.param(
            Request(gpus=4, gpus_per_node=2, nodes=2, cpus=5), {TaskDemand(3, 0, 2, MILLI_PER_GPU): 1.0}, id="per node"
        ),
        pytest.param(
            Request(gpus=3, nodes=2, cpus=2),
            {TaskDemand(1, 0, 2, MILLI_PER_GPU): 0.5, TaskDemand(1, 0, 1, MILLI_PER_GPU): 0.5},
            id="uneven",
        ),
        pytest.param(Request(gpus=8), {TaskDemand(1, 0, 4, MILLI_PER_GPU): 1.0}, id="more than a node has"),
        pytest.param(Request(cpus=4, nodes=2), {TaskDemand(2, 0, 0, 0): 1.0}, id="no GPUs"),
        pytest.param(Request(gpus=1, gpu_type="k80"), {TaskDemand(1, 0, 1, MILLI_PER_GPU, ("k80",)): 1.0}, id="a type"),
    ],
)
def test_what_is_asked_for_on_each_node(request_: Request, tasks: dict[TaskDemand, float]) -> None:
    made = target_workload([(request_, 7)], SHARDED)
    assert dict(zip(made.tasks, made.popularity, strict=True)) == tasks


def test_requests_that_occur_one_by_one_count_as_often() -> None:
    half, whole = shards(5), Request(gpus=1, gpus_per_node=1, cpus=2)
    one_by_one = [(half, 1), (whole, 1), (shards(5), 1), (half, 1)]
    assert target_workload(one_by_one, SHARDED) == target_workload([(half, 3), (whole, 1)], SHARDED)


def test_the_usual_workload_leaves_out_what_fits_nowhere_and_is_never_empty() -> None:
    made = target_workload([(shards(5), 3), (shards(50), 99), (Request(gpus=999_999_999, gpus_per_node=1), 9)], SHARDED)
    assert made.tasks == (TaskDemand(1, 0, 1, 500),)
    assert target_workload([], SHARDED).tasks == (TaskDemand(1, 0, 1, MILLI_PER_GPU),)


@pytest.mark.parametrize(
    "request_",
    [
        Request(gpus=999_999_999, gpus_per_node=1),
        Request(gpus=1_999_999_999, nodes=999_999_999),
        Request(shards=999_999_999, nodes=999_999_999),
        Request(cpus=999_999_999, nodes=999_999_999),
    ],
    ids=["GPUs per node", "uneven", "shards", "CPUs"],
)
def test_a_request_for_a_thousand_million_nodes_takes_no_memory(request_: Request) -> None:
    tracemalloc.start()
    decision = decided([N1, N2], [job(1, request=request_)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decision.waiting["1"].code is ReasonCode.NEVER_FITS
    assert peak < 3_000_000


REQUESTS = st.one_of(
    st.integers(1, 12).map(shards),
    st.builds(lambda gpus: Request(gpus=gpus, gpus_per_node=gpus, cpus=gpus), st.integers(1, 4)),
    st.builds(lambda cpus: Request(cpus=cpus), st.integers(1, 12)),
    st.just(Request(gpus=4, gpus_per_node=2, nodes=2, cpus=4)),
)


@given(st.lists(REQUESTS, max_size=25), st.lists(st.sampled_from([0, 4, 10]), min_size=1, max_size=3))
def test_nothing_is_promised_twice(requests: list[Request], kinds: list[int]) -> None:
    nodes = [node(f"n{place}", 3, cpus=12, shards=own) for place, own in enumerate(kinds)]
    jobs = [job(place, request=request) for place, request in enumerate(requests)]
    decision = decided(nodes, jobs)
    assert set(decision.targets) | set(decision.waiting) == {one.id for one in jobs}
    assert not set(decision.targets) & set(decision.waiting)
    for own in nodes:
        shares = [s for target in decision.targets.values() for s in target.allocations if s.node == own.name]
        assert sum(s.resources.cpus for s in shares) <= own.total.cpus
        for gpu in own.gpus:
            there = [s for s in shares if gpu.index in s.indices]
            cut = sum(s.shards for s in there)
            assert cut <= own.gpus[0].shards if cut else len(there) <= 1
            assert not cut or all(s.shards for s in there)
