"""What Slurm charges for CPUs on nodes with whole cores or sockets, as measured on a real one, and what fits there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from slurmsched.backends.slurm.jobs import without_memory
from slurmsched.model import Node, Request
from slurmsched.policies import policy
from slurmsched.policies.cluster.demand import DemandCache, DemandLevel
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.gang import gang_of
from slurmsched.policies.cluster.resources import FreeResources, PoolKind
from slurmsched.policies.place.placement import CONSOLIDATED, Placement, find_placement
from slurmsched.policies.sizes import AsRequested, proportional_size
from slurmsched.rounds.specs import pinned_spec
from tests.builders import GIB, job, node, share, situation

CORES: Final = {"cores_per_socket": 3, "sockets": 2, "threads_per_core": 2, "cpu_unit": 2}
CPUS: Final = {**CORES, "bills_cpus": True}
SOCKETS: Final = {**CORES, "cpu_unit": 6}
NO_THREADS: Final = {"threads_per_core": 1}


def server(**other: Any) -> Node:
    """Four GPUs, twelve CPUs, 100 GiB."""
    return node("n1", 4, cpus=12, memory=100 * GIB, **other)


def placed(machine: Node, request: Request) -> tuple[Placement, FreeResources] | None:
    one = job(1, request=request)
    asked = situation([machine], [one])
    free = FreeResources.of_snapshot(asked.snapshot)
    eligibility = Eligibility(free.pools, asked.snapshot, asked.open_nodes)
    demand = DemandCache(free.pools, eligibility, asked.knowledge, AsRequested()).of(one)
    found = find_placement(demand, DemandLevel.MINIMUM, free, CONSOLIDATED)
    return found and (found, free)


@pytest.mark.parametrize(
    ("request_", "kind", "cpus", "memory"),
    [
        pytest.param(Request(1, cpus=3, memory=900), CORES, 4, 900, id="-c 3: two cores"),
        pytest.param(Request(1, tasks=2, cpus=6, memory=900), CORES, 6, 900, id="-n 2 -c 3: tasks share a core"),
        pytest.param(Request(1, cpus=1, memory=1000, memory_per_cpu=1000), CORES, 2, 2000, id="the memory of a core"),
        pytest.param(
            Request(1, cpus=3, memory=900, threads_per_core=1), CORES, 6, 900, id="a core for each CPU, by one thread"
        ),
        pytest.param(
            Request(1, cpus=2, memory=2000, memory_per_cpu=1000, threads_per_core=1),
            CORES,
            4,
            2000,
            id="and memory for the threads that it uses",
        ),
        pytest.param(
            Request(1, cpus=3, memory=3000, memory_per_cpu=1000), CPUS, 4, 3000, id="CR_CPU: cores, but memory by CPU"
        ),
        pytest.param(Request(1, cpus=1, memory=900), SOCKETS, 6, 900, id="CR_Socket: a socket"),
        pytest.param(
            Request(1, cpus=1, memory=1000, memory_per_cpu=1000), SOCKETS, 6, 6000, id="and the memory of a socket"
        ),
        pytest.param(
            Request(2, cpus=6, cpus_per_gpu=3, memory=900), CORES, 6, 900, id="--cpus-per-gpu: once for the node"
        ),
        pytest.param(Request(1, cpus=3, memory=900), NO_THREADS, 3, 900, id="one thread per core: what was asked"),
    ],
)
def test_a_job_is_charged_what_slurm_charges(request_: Request, kind: dict[str, Any], cpus: int, memory: int) -> None:
    found = placed(server(**kind), request_)
    assert found
    (share,) = found[0].node_allocations(found[1].pools)
    assert (share.resources.cpus, share.resources.memory) == (cpus, memory)
    spec = pinned_spec((share,), request_, {"n1": server(**kind)})
    assert spec.cpus_per_task == request_.cpus // request_.tasks, "Slurm would be asked for other CPUs"


@pytest.mark.parametrize(
    ("used", "request_", "fits"),
    [
        pytest.param(8, Request(1, cpus=3, memory=900), True, id="two cores are free for three CPUs"),
        pytest.param(10, Request(1, cpus=3, memory=900), False, id="one core is not enough"),
        pytest.param(6, Request(1, cpus=4, memory=900, threads_per_core=1), False, id="four cores of which three are"),
        pytest.param(0, Request(1, cpus=1, memory=60 * GIB, memory_per_cpu=60 * GIB), False, id="memory of both CPUs"),
    ],
)
def test_what_fits_by_whole_cores(used: int, request_: Request, fits: bool) -> None:
    assert (placed(server(**CORES, used_cpus=used), request_) is not None) is fits


def test_a_core_that_is_charged_anyway_brings_no_more_cpus_and_more_cores_do() -> None:
    asked, nodes = Request(1, cpus=3, memory=900), {"n1": server(**CORES)}
    found = placed(nodes["n1"], asked)
    assert found
    (share,) = found[0].node_allocations(found[1].pools)
    grown = replace(share, resources=replace(share.resources, cpus=6))
    assert pinned_spec((share,), asked, nodes).cpus_per_task == 3
    assert pinned_spec((grown,), asked, nodes).cpus_per_task == 6


@pytest.mark.parametrize(
    ("given", "keeps"), [pytest.param(6, True, id="the default"), pytest.param(8, False, id="more")]
)
def test_cpus_that_a_partition_gives_by_default_are_not_asked_for_in_an_update(given: int, keeps: bool) -> None:
    asked, nodes = Request(2, cpus=6, cpus_by_default=True), {"n1": server()}
    assert pinned_spec([share(gpus=2, cpus=given)], asked, nodes).keeps_cpus is keeps


SMALL: Final = node("n1", 8, cpus=22, memory=80 * GIB)


def started(nodes: list[Node], *requests: Request) -> set[str]:
    jobs = [job(number, request=request) for number, request in enumerate(requests)]
    return set(policy("synergy").decide(situation(nodes, jobs)).targets)


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([Request(1, cpus=2, memory=900)] * 8, id="eight of two CPUs"),
        pytest.param([Request(8, gpus_per_node=8, cpus=22, memory=900)], id="one with all"),
        pytest.param([Request(7, gpus_per_node=7, tasks=7, cpus=22, memory=900)], id="--gpus=7 -n 7 --mincpus=22"),
        pytest.param([Request(7, tasks=7, cpus=22, memory=900)], id="the same, GPUs in all"),
        pytest.param([Request(6, tasks=6, cpus=18), Request(2, cpus=4)], id="a gang and what is left"),
    ],
)
def test_a_node_of_22_cpus_and_8_gpus_takes_them(requests: list[Request]) -> None:
    assert len(started([SMALL], *requests)) == len(requests)


@pytest.mark.parametrize(
    ("request_", "starts"),
    [
        pytest.param(Request(1, memory=60 * GIB), 4, id="more together than the node has"),
        pytest.param(Request(1, memory=90 * GIB), 0, id="each more than the node has: Slurm refuses them"),
        pytest.param(Request(1, whole_memory=True), 4, id="all of it"),
        pytest.param(Request(1, memory=60 * GIB, memory_per_gpu=60 * GIB), 4, id="by GPU"),
        pytest.param(Request(1, memory=60 * GIB, memory_per_cpu=60 * GIB), 4, id="by CPU"),
        pytest.param(Request(0, memory=60 * GIB), 4, id="without GPUs"),
        pytest.param(Request(1, gpus_per_node=1, memory=60 * GIB, exclusive=True), 1, id="a whole node is its own"),
    ],
)
def test_where_slurm_shares_out_no_memory_none_is_counted_or_changed(request_: Request, starts: int) -> None:
    jobs = [without_memory(job(number, request=request_)) for number in range(4)]
    targets = policy("synergy").decide(situation([SMALL], jobs)).targets
    assert len(targets) == starts
    for target in targets.values():
        spec = pinned_spec(target.allocations, jobs[0].original_request, {"n1": SMALL})
        assert spec.keeps_memory, "an update names no memory"


@pytest.mark.parametrize(
    ("kind", "request_", "cpus"),
    [
        pytest.param(PoolKind("v100", 8, 24, 800), Request(1), 3, id="one thread per core"),
        pytest.param(PoolKind("v100", 8, 24, 800, 0, 2, 2), Request(1), 2, id="whole cores"),
        pytest.param(PoolKind("v100", 8, 24, 800, 0, 2, 2), Request(2, cpus=2), 6, id="three cores for two GPUs"),
        pytest.param(
            PoolKind("v100", 8, 24, 800, 0, 2, 2), Request(8, tasks=8, cpus=8), 3, id="rounded once for all parts"
        ),
        pytest.param(
            PoolKind("v100", 8, 24, 800, 0, 2, 2), Request(4, threads_per_core=1), 6, id="CPUs of one thread: cores"
        ),
        pytest.param(PoolKind("v100", 8, 24, 800, 0, 2, 12), Request(1), 1, id="less than a socket: the least"),
        pytest.param(PoolKind("v100", 8, 22, 800), Request(4, cpus=4), 11, id="22 CPUs, one task of four GPUs"),
        pytest.param(PoolKind("v100", 8, 22, 800), Request(4, tasks=4, cpus=4), 2, id="22 CPUs, a task for each GPU"),
    ],
)
def test_the_share_is_whole_cores(kind: PoolKind, request_: Request, cpus: int) -> None:
    assert proportional_size(gang_of(request_, None, memory_tunable=False), kind).cpus == cpus


def test_every_gpu_of_a_node_with_threads_is_used_at_its_share() -> None:
    """The proportional share, 3 CPUs, would be charged 4: two of the eight GPUs would stay idle."""
    machine = node("n1", 8, cpus=24, threads_per_core=2, cpu_unit=2, cores_per_socket=6, sockets=2)
    jobs = [job(number, gpus=1, hint="model=resnet50") for number in range(8)]
    decision = policy("synergy").decide(situation([machine], jobs))
    assert len(decision.targets) == 8
    assert sum(target.resources.cpus for target in decision.targets.values()) <= 24
