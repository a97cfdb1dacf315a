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
        pytest.param(
            Request(gpus=2, cpus=6),
            JobSpec((), 1, 2, None, None, 6, 0, 1, cpus_per_task=6),
            id="one node, nothing pinned",
        ),
        pytest.param(
            Request(gpus=8, gpus_per_node=4, gpu_type="v100", nodes=2, max_nodes=2, cpus=24, memory=100, tasks=8),
            JobSpec((), 2, 8, 4, "v100", 12, 100, 8, cpus_per_task=3),
            id="a gang: CPUs per node",
        ),
        pytest.param(
            Request(gpus=4, nodes=1, max_nodes=4, cpus=4),
            JobSpec((), 1, 4, None, None, 4, 0, 1, 4, cpus_per_task=4),
            id="-N1-4 keeps the 4",
        ),
        pytest.param(
            Request(gpus=1, pinned=frozenset({"b", "a"}), nodes=2),
            JobSpec(("a", "b"), 2, 1, None, None, 1, 0, 1, cpus_per_task=1),
            id="the owner's pins stay",
        ),
        pytest.param(
            Request(gpus=5, cpus=5, tasks=5, nodes=2, memory=23040, memory_per_cpu=7680),
            JobSpec((), 2, 5, None, None, 3, 23040, 5, cpus_per_task=1, keeps_memory=True),
            id="--gpus=5 -n5: CPUs per node rounded up, those of a task exact, memory as its CPUs bring it",
        ),
        pytest.param(
            Request(gpus=2, cpus=4, cpus_per_gpu=2),
            JobSpec((), 1, 2, None, None, 4, 0, 1, cpus_per_task=4, keeps_cpus=True),
            id="--cpus-per-gpu: its CPUs follow from its GPUs",
        ),
    ],
)
def test_a_request_as_a_shape(request_: Request, shape: JobSpec) -> None:
    assert spec_of(request_) == shape


def test_a_target_pins_its_nodes_and_keeps_the_owners_tasks() -> None:
    shares = (share("n2", 4, cpus=16, memory=200), share("n1", 4, cpus=16, memory=200))
    wanted = Request(gpus=8, gpus_per_node=4, gpu_type="v100", nodes=2, cpus=8, tasks=8)
    assert pinned_spec(shares, wanted, NODES) == JobSpec(("n1", "n2"), 2, 8, 4, "v100", 16, 200, 8, cpus_per_task=4)


def test_an_uneven_split_is_left_to_slurm_with_the_memory_of_the_larger_part() -> None:
    shares = (share("n1", 3, cpus=9, memory=300), share("n2", 1, cpus=3, memory=100))
    assert pinned_spec(shares, Request(gpus=4, tasks=4), NODES) == JobSpec(
        ("n1", "n2"), 2, 4, None, None, 6, 300, 4, cpus_per_task=3
    )


def test_tasks_that_do_not_divide_evenly_get_their_cpus_and_no_more() -> None:
    shares = (share("n1", 2, cpus=4), share("n2", 2, cpus=4))
    asked = Request(gpus=4, gpus_per_node=2, nodes=2, tasks=3, cpus=3)
    assert pinned_spec(shares, asked, NODES).cpus_per_task == 2
    uneven = (share("n1", 3, cpus=3), share("n2", 2, cpus=2))
    assert pinned_spec(uneven, Request(gpus=5, tasks=5, cpus=5), NODES).cpus_per_task == 1


def test_an_exclusive_job_keeps_its_own_cpus_although_it_has_the_whole_node() -> None:
    spec = pinned_spec((share("n1", 1, cpus=24),), Request(gpus=1, cpus=2, exclusive=True), NODES)
    assert (spec.cpus, spec.keeps_cpus, spec.keeps_memory) == (2, True, True)


@pytest.mark.parametrize(
    ("wanted", "counted"),
    [
        pytest.param(Request(gpus=16), False, id="no number of nodes"),
        pytest.param(Request(gpus=16, nodes=2, max_nodes=2, tasks=2), True, id="two"),
        pytest.param(Request(gpus=16, max_nodes=3), True, id="a range"),
        pytest.param(Request(gpus=16, gpus_per_node=8, nodes=2, tasks=2), True, id="GPUs on each node"),
    ],
)
def test_slurm_is_told_a_number_of_nodes_only_where_the_owner_named_one(wanted: Request, counted: bool) -> None:
    shares = (share("n1", 8, cpus=9, memory=3), share("n2", 8, cpus=9, memory=3))
    pinned = pinned_spec(shares, wanted, NODES)
    assert pinned.counts_nodes is counted
    assert spec_of(wanted).counts_nodes is counted
    updated = replace(wanted, pinned=frozenset({"n1", "n2"}), cpus=18, memory=3)
    assert equivalent(spec_of(replace(updated, nodes=2 if counted else 1, max_nodes=None)), pinned)


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
    assert running_spec(running, NODES) == JobSpec(("n1",), 1, 2, 2, None, 10, 77, 1, cpus_per_task=10)


def test_gpus_in_total_and_per_node_are_the_same_thing() -> None:
    total, per_node = JobSpec(("n1",), 1, 4, None, None, 12, 0, 1), JobSpec(("n1",), 1, 4, 4, None, 12, 0, 1)
    assert equivalent(total, per_node)
    assert not equivalent(per_node, replace(per_node, gpus_per_node=2))
    assert not equivalent(total, replace(total, cpus=13))


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        pytest.param({"cpus": 7}, True, id="CPUs per node are rounded, those of a task count"),
        pytest.param({"cpus_per_task": 0}, True, id="a spec that was stored before CPUs per task were known"),
        pytest.param({"cpus_per_task": 5, "cpus": 13}, False, id="other CPUs per task"),
        pytest.param({"memory": 5}, False, id="other memory"),
        pytest.param({"memory": 5, "keeps_memory": True}, True, id="memory that follows from its CPUs or GPUs"),
        pytest.param({"cpus": 5, "cpus_per_task": 2, "keeps_cpus": True}, True, id="CPUs that follow from its GPUs"),
    ],
)
def test_amounts_that_slurm_derives_are_not_compared(change: dict[str, int], alike: bool) -> None:
    spec = JobSpec(("n1", "n2"), 2, 5, None, None, 6, 100, 5, cpus_per_task=2)
    assert equivalent(spec, replace(spec, **change)) == alike  # type: ignore[arg-type] numbers and flags


def test_slurm_counts_a_task_on_each_node() -> None:
    spec = JobSpec(("n1", "n2"), 2, 8, 4, None, 1, 0, 1, cpus_per_task=1)
    assert equivalent(spec, replace(spec, tasks=2))
