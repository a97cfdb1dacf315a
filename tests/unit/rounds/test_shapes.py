"""Requests, targets and leases as shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import Gpu, JobSpec, Request
from slurmsched.rounds.specs import equivalent, pinned_spec, running_spec, spec_of
from tests.builders import job, node, share

NODES = {name: node(name) for name in ("n1", "n2")}
MIXED = {"n1": replace(node("n1"), gpus=(Gpu(0, "v100"), Gpu(1, "k80")))}


@pytest.mark.parametrize(
    ("request_", "shape"),
    [
        pytest.param(Request(gpus=2, cpus=6), JobSpec((), 1, 2, None, None, 6, 0, 1), id="one node, nothing pinned"),
        pytest.param(
            Request(gpus=8, gpus_per_node=4, gpu_type="v100", nodes=2, max_nodes=2, cpus=24, memory=100, tasks=8),
            JobSpec((), 2, 8, 4, "v100", 12, 100, 8),
            id="a gang: CPUs per node",
        ),
        pytest.param(
            Request(gpus=4, nodes=1, max_nodes=4, cpus=4),
            JobSpec((), 1, 4, None, None, 4, 0, 1, 4),
            id="-N1-4 keeps the 4",
        ),
        pytest.param(
            Request(gpus=1, pinned=frozenset({"b", "a"}), nodes=2),
            JobSpec(("a", "b"), 2, 1, None, None, 1, 0, 1),
            id="the owner's pins stay",
        ),
    ],
)
def test_a_request_as_a_shape(request_: Request, shape: JobSpec) -> None:
    assert spec_of(request_) == shape


def test_a_target_pins_its_nodes_and_keeps_the_owners_tasks() -> None:
    shares = (share("n2", 4, cpus=16, memory=200), share("n1", 4, cpus=16, memory=200))
    wanted = Request(gpus=8, gpus_per_node=4, gpu_type="v100", nodes=2, cpus=8, tasks=8)
    assert pinned_spec(shares, wanted, NODES) == JobSpec(("n1", "n2"), 2, 8, 4, "v100", 16, 200, 8)


def test_an_uneven_split_is_left_to_slurm_with_the_memory_of_the_larger_part() -> None:
    shares = (share("n1", 3, cpus=9, memory=300), share("n2", 1, cpus=3, memory=100))
    assert pinned_spec(shares, Request(gpus=4, tasks=4), NODES) == JobSpec(("n1", "n2"), 2, 4, None, None, 6, 300, 4)


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        pytest.param(NODES, None, id="on nodes of one type Slurm needs no telling"),
        pytest.param(MIXED, "v100", id="on a node of several types it does"),
    ],
)
def test_the_gpu_type_is_named_only_where_it_matters(nodes: dict[str, object], named: str | None) -> None:
    assert pinned_spec((share("n1", 1),), Request(gpus=1), nodes).gpu_type == named  # type: ignore[arg-type] two kinds of rows


def test_another_gpu_type_than_asked_for_is_named() -> None:
    assert pinned_spec((share("n1", 1, gpu_type="k80"),), Request(gpus=1, gpu_type="v100"), NODES).gpu_type == "k80"


def test_a_lease_starts_the_job_again_where_it_runs() -> None:
    running = job(1, gpus=2, on=[share("n1", 2, cpus=10, memory=77)])
    assert running_spec(running, NODES) == JobSpec(("n1",), 1, 2, 2, None, 10, 77, 1)


def test_gpus_in_total_and_per_node_are_the_same_thing() -> None:
    total, per_node = JobSpec(("n1",), 1, 4, None, None, 12, 0, 1), JobSpec(("n1",), 1, 4, 4, None, 12, 0, 1)
    assert equivalent(total, per_node)
    assert not equivalent(per_node, replace(per_node, gpus_per_node=2))
    assert not equivalent(total, replace(total, cpus=13))
