"""The demo's cluster and workload: what was asked for, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.simulated import VirtualCluster
from slurmsched.demo.race import WorkloadError, WorkloadParameters, cluster_nodes, generate_arrivals
from slurmsched.knowledge import shipped_profiles
from slurmsched.model import JobState, parse_hints

NODES = cluster_nodes("v100:2x8,p100:1x8,k80:2x8")


def test_a_cluster_is_written_type_by_type() -> None:
    assert [(node.name, len(node.gpus), node.total.cpus) for node in NODES] == [
        ("v100-1", 8, 24),
        ("v100-2", 8, 24),
        ("p100-1", 8, 24),
        ("k80-1", 8, 24),
        ("k80-2", 8, 24),
    ]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("", id="nothing"),
        pytest.param("v100", id="no size"),
        pytest.param("v100:2", id="no GPUs"),
        pytest.param("v100:0x8", id="no nodes"),
        pytest.param("v100:1x8,v100:1x4", id="a type twice"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_with_an_example(spec: str) -> None:
    with pytest.raises(WorkloadError, match=r"write TYPE|name each"):
        cluster_nodes(spec)


def test_a_job_larger_than_every_type_is_refused() -> None:
    with pytest.raises(WorkloadError, match="16 GPUs"):
        generate_arrivals(
            np.random.default_rng(1), cluster_nodes("v100:1x8"), 1, WorkloadParameters(size_weights={16: 1})
        )


@given(st.integers(0, 1000))
def test_every_job_of_the_workload_can_start_on_the_empty_cluster(seed: int) -> None:
    for arrival in generate_arrivals(np.random.default_rng(seed), NODES, 5):
        cluster = VirtualCluster(NODES)
        cluster.submit(arrival.submission)
        cluster.advance(0)
        assert cluster.snapshot().jobs_by_id["1"].state is JobState.RUNNING


def test_jobs_ask_for_their_gpu_proportional_share() -> None:
    for arrival in generate_arrivals(np.random.default_rng(3), NODES, 50):
        request = arrival.submission.request
        assert request.cpus == 3 * request.gpus
        assert request.memory * request.nodes == 500 * 1024 * request.gpus // 8


def test_hints_are_understood_and_their_models_have_profiles() -> None:
    known = shipped_profiles()
    for arrival in generate_arrivals(np.random.default_rng(3), NODES, 200):
        hints = parse_hints(arrival.submission.comment)
        assert not hints.problems
        assert hints.task == known.models[hints.model or ""].task


def test_the_same_seed_gives_the_same_workload_and_another_one_another() -> None:
    first, again, other = (generate_arrivals(np.random.default_rng(seed), NODES, 30) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_durations_and_load_are_those_of_the_paper() -> None:
    habits = WorkloadParameters(load=0.5, scale=1.0)
    jobs = generate_arrivals(np.random.default_rng(7), NODES, 4000, habits)
    minutes = np.array([job.submission.work / 60 for job in jobs])
    assert minutes.min() >= 10**1.5
    assert minutes.max() <= 10**4
    assert np.mean(minutes <= 1000) == pytest.approx(0.8, abs=0.03)
    offered = sum(job.submission.work * job.submission.request.gpus for job in jobs) / jobs[-1].at / 40
    assert offered == pytest.approx(0.5, rel=0.1)
    assert set(Counter(job.submission.request.gpus for job in jobs)) == {1, 2, 4, 8, 16}


@pytest.mark.parametrize("pinned", [0.0, 0.2, 1.0])
def test_as_many_jobs_ask_for_one_gpu_type_as_is_said(pinned: float) -> None:
    jobs = generate_arrivals(np.random.default_rng(9), NODES, 1000, WorkloadParameters(pinned=pinned))
    asking = [job.submission.request.gpu_type for job in jobs if job.submission.request.gpu_type is not None]
    assert len(asking) / 1000 == pytest.approx(pinned, abs=0.04)
    assert set(asking) <= {"v100", "p100", "k80"}
