"""The fragmentation measure: the text's own form as the oracle, and the published vectors."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.experiments.fgd.baselines import GpuPacking
from slurmsched.experiments.fgd.trace import read_tasks
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.place.fragmentation import (
    FragmentationMeasure,
    FragmentClass,
    TargetWorkload,
    TaskDemand,
    typical_workload,
)
from slurmsched.policies.place.scores import FragmentationScore, PoolScoreTable, fits_in_pools
from tests.builders import Server, free_resources

ALL = np.array([0])


def fragment(server: Server, task: TaskDemand) -> tuple[FragmentClass, float, float]:
    """Section 3.2, one task at a time: the class, what of the idle GPUs is in it, and what of that lacks GPU."""
    idle = sum(server.milli)
    fits = server.cpus >= task.cpus
    if not task.gpus:
        return (FragmentClass.NO_GPU if fits else FragmentClass.NO_GPU_LACK_CPU), idle, 0
    if task.gpu_types and server.gpu_type not in task.gpu_types:
        return FragmentClass.NO_ACCESS, idle, 0
    large = [part for part in server.milli if part >= task.milli_per_gpu]
    if len(large) >= task.gpus:
        small = idle - sum(large)
        return (FragmentClass.SATISFIED, idle - small, small) if fits else (FragmentClass.LACK_CPU, idle, 0)
    return (FragmentClass.LACK_GPU if fits else FragmentClass.LACK_BOTH), idle, 0


def amount(server: Server, workload: TargetWorkload) -> float:
    total = 0.0
    for task, popularity in zip(workload.tasks, workload.popularity, strict=True):
        name, idle, small = fragment(server, task)
        total += popularity * (small if name is FragmentClass.SATISFIED else idle)
    return total


MILLI = st.sampled_from([100, 190, 320, 470, 500, 810, 1000])
TASKS = st.one_of(
    st.builds(
        TaskDemand, st.integers(0, 9000), st.just(0), st.just(1), MILLI, st.sampled_from([(), ("a",), ("a", "b")])
    ),
    st.builds(TaskDemand, st.integers(0, 9000), st.just(0), st.integers(2, 4), st.sampled_from([500, 1000])),
    st.builds(TaskDemand, st.integers(0, 9000), st.just(0), st.just(0), st.just(0)),
)
PARTS = st.lists(st.integers(0, 10).map(lambda tenth: 100 * tenth), min_size=1, max_size=4).map(tuple)
SERVERS = st.builds(Server, st.integers(0, 12000), st.just(0), PARTS, st.sampled_from(["a", "b", "c"]))
WORKLOADS = st.lists(TASKS, min_size=1, max_size=6).map(
    lambda tasks: TargetWorkload(tuple(tasks), tuple([1 / len(tasks)] * len(tasks)))
)


@given(st.lists(SERVERS, min_size=1, max_size=5), WORKLOADS)
def test_the_amount_is_the_texts(servers: Sequence[Server], workload: TargetWorkload) -> None:
    measure = FragmentationMeasure(workload, free_resources(servers))
    found = measure.amount(np.arange(len(servers)))
    assert found == pytest.approx([amount(server, workload) for server in servers], abs=1e-5)


@given(st.lists(SERVERS, min_size=1, max_size=4), WORKLOADS)
def test_what_is_idle_is_in_exactly_one_class(servers: Sequence[Server], workload: TargetWorkload) -> None:
    idle = free_resources(servers)
    measure, nodes = FragmentationMeasure(workload, idle), np.arange(len(servers))
    by_class = measure.by_class(nodes)
    assert by_class.sum(axis=1) == pytest.approx(idle.milli.sum(axis=1), abs=1e-6)
    fragments = by_class.sum(axis=1) - by_class[:, FragmentClass.SATISFIED]
    assert fragments == pytest.approx(measure.amount(nodes), abs=1e-5)


@given(SERVERS, TASKS, WORKLOADS)
def test_what_would_be_is_what_is_once_it_is_placed(server: Server, task: TaskDemand, workload: TargetWorkload) -> None:
    idle = free_resources([server])
    measure = FragmentationMeasure(workload, idle)
    if not fits_in_pools(idle, task, ALL)[0]:
        return
    foretold = measure.amount_after(task, ALL)[0]
    choices = np.flatnonzero(idle.milli[0] >= task.milli_per_gpu) if task.shares_gpu else [0]
    for choice in choices:
        whole = PoolScoreTable(idle, GpuPacking()).select_devices(task, 0)
        allocation = task.allocation(0, (int(choice),) if task.shares_gpu else whole)
        idle.allocate(allocation)
        assert foretold[choice] == pytest.approx(measure.amount(ALL)[0], abs=1e-5)
        idle.release(allocation)


@pytest.mark.parametrize(
    ("server", "task", "name"),
    [
        pytest.param(
            Server(1000, 0, (200, 600), "a"), TaskDemand(2000, 0, 4, 1000), FragmentClass.LACK_BOTH, id="lacks both"
        ),
        pytest.param(
            Server(1000, 0, (200, 600), "a"),
            TaskDemand(1000, 0, 4, 1000),
            FragmentClass.LACK_GPU,
            id="GPUs too small",
        ),
        pytest.param(Server(1000, 0, (200, 600), "a"), TaskDemand(1000, 0, 1, 100), FragmentClass.SATISFIED, id="fits"),
        pytest.param(
            Server(1000, 0, (200, 600), "a"), TaskDemand(2000, 0, 1, 100), FragmentClass.LACK_CPU, id="stranded"
        ),
        pytest.param(
            Server(1000, 0, (600,), "a"),
            TaskDemand(1000, 0, 1, 100, ("b",)),
            FragmentClass.NO_ACCESS,
            id="other type",
        ),
        pytest.param(
            Server(1000, 0, (600,), "a"), TaskDemand(1000, 0, 0, 0), FragmentClass.NO_GPU, id="needs no GPU and fits"
        ),
        pytest.param(
            Server(100, 0, (600,), "a"), TaskDemand(1000, 0, 0, 0), FragmentClass.NO_GPU_LACK_CPU, id="nor has CPUs"
        ),
    ],
)
def test_the_seven_classes(server: Server, task: TaskDemand, name: FragmentClass) -> None:
    by_class = FragmentationMeasure(TargetWorkload((task,), (1.0,)), free_resources([server])).by_class(ALL)[0]
    assert by_class.argmax() == name
    assert by_class[name] == sum(server.milli)


def test_the_typical_workload_is_what_is_commonest() -> None:
    common, rare = TaskDemand(1000, 5, 1, 500), TaskDemand(2000, 5, 1, 1000)
    made = typical_workload([common] * 18 + [TaskDemand(1000, 7, 1, 500)] * 2 + [rare])
    assert made.tasks == (TaskDemand(1000, 0, 1, 500),)
    assert made.popularity == (1.0,)
    assert len(typical_workload([common, rare]).tasks) == 2


def test_without_tasks_there_is_no_typical_workload() -> None:
    with pytest.raises(PolicyError, match="no task is known"):
        typical_workload([])


@pytest.mark.parametrize("wrong", [(1, 1, 1, 1001), (1, 1, 0, 100), (-1, 1, 1, 100), (1, 1, 1, 0)], ids=str)
def test_what_is_no_task(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(PolicyError, match="is no task"):
        TaskDemand(*wrong)


needs_data = pytest.mark.skipif("SLURMSCHED_DATA" not in os.environ, reason="SLURMSCHED_DATA names no data sets")


def vectors() -> dict[str, Any]:
    path = Path(os.environ["SLURMSCHED_DATA"]) / "fgd/fragmentation_vectors.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def task_of(pod: dict[str, Any]) -> TaskDemand:
    types = tuple(part for part in pod.get("gpu_type", "").split("|") if part)
    return TaskDemand(pod["cpu_milli"], 0, pod["num_gpu"], pod["gpu_milli"], types)


def server_of(node: dict[str, Any]) -> Server:
    return Server(node["cpu_milli_left"], 0, tuple(node["gpu_milli_left"]), node.get("gpu_type", "any"))


def workload_of(pods: list[dict[str, Any]]) -> TargetWorkload:
    return TargetWorkload(tuple(task_of(pod) for pod in pods), tuple(pod["freq"] for pod in pods))


NAMES = {
    "q1_lack_both": FragmentClass.LACK_BOTH,
    "q2_lack_gpu": FragmentClass.LACK_GPU,
    "q3_satisfied": FragmentClass.SATISFIED,
    "q4_lack_cpu": FragmentClass.LACK_CPU,
    "xl_satisfied": FragmentClass.NO_GPU,
    "xr_lack_cpu": FragmentClass.NO_GPU_LACK_CPU,
    "no_access": FragmentClass.NO_ACCESS,
}


@needs_data
def test_published_amounts_by_class() -> None:
    data = vectors()
    assert len(data["frag_amount"]) == 4
    for row in data["frag_amount"]:
        workload = workload_of(data["typical_pods"][row["typical_pods"]])
        by_class = FragmentationMeasure(workload, free_resources([server_of(row)])).by_class(ALL)[0]
        fragments = by_class.sum() - by_class[FragmentClass.SATISFIED]
        assert fragments == pytest.approx(row["expected"], abs=0.01), row["node"]
        named = {name: by_class[place] for name, place in NAMES.items()}
        assert named == pytest.approx(row["by_class"], abs=0.01), row["node"]


@needs_data
def test_published_classifications() -> None:
    data = vectors()
    rows = data["classification"] + data["classification_rule_examples"]
    assert len(rows) >= 5
    for row in rows:
        workload = TargetWorkload((task_of(row["pod"]),), (1.0,))
        assert (
            FragmentationMeasure(workload, free_resources([server_of(row)])).by_class(ALL)[0].argmax()
            == NAMES[row["expected"]]
        )


@needs_data
def test_published_rests_beside_a_task_that_fits() -> None:
    for row in vectors()["gpu_frag_milli_for_satisfied_pod"]:
        server = Server(9000, 0, tuple(row["gpu_milli_left"]), "any")
        workload = TargetWorkload((TaskDemand(0, 0, row["num_gpu"], row["pod_gpu_milli"]),), (1.0,))
        by_class = FragmentationMeasure(workload, free_resources([server])).by_class(ALL)[0]
        assert by_class[FragmentClass.LACK_GPU] == row["expected"]


@needs_data
def test_published_packing_scores() -> None:
    for row in vectors()["gpu_packing_score"]:
        idle = free_resources([Server(9000, 0, tuple(row["gpu_milli_left"]), "any")])
        task = TaskDemand(0, 0, row["num_gpu"], row["pod_gpu_milli"])
        assert GpuPacking().pool_scores(idle, task, ALL)[0] == row["expected"]


@needs_data
def test_published_descents() -> None:
    data = vectors()
    workload = workload_of(data["openb_default_typical_pods"])
    assert len(data["fgd_score_examples"]["cases"]) == 4
    for row in data["fgd_score_examples"]["cases"]:
        idle, task = free_resources([server_of(row)]), task_of(row["pod"])
        measure = FragmentationMeasure(workload, idle)
        assert measure.amount(ALL)[0] == pytest.approx(row["F_before"], abs=0.001)
        after, rounded = measure.amount_after(task, ALL)[0], FragmentationScore(measure, rounded=True)
        for device, (expected, score) in row["F_after_and_score"].items():
            place = int(device) if task.shares_gpu else 0
            assert after[place] == pytest.approx(expected, abs=0.001)
            assert rounded.device_scores(task, ALL)[0][place] == score
        if task.shares_gpu:
            assert rounded.best_device(idle, task, 0) == int(row["best"][0])


@needs_data
def test_the_typical_workload_of_openb_is_the_published_one() -> None:
    tasks = read_tasks(Path(os.environ["SLURMSCHED_DATA"]) / "fgd/openb_pod_list_default.csv")
    made, theirs = typical_workload(tasks), workload_of(vectors()["openb_default_typical_pods"])
    assert made.tasks == theirs.tasks
    assert made.popularity == pytest.approx(theirs.popularity, abs=1e-8)
