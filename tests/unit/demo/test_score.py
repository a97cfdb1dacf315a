"""Figures of clusters small enough to reckon by hand."""

from __future__ import annotations

import pytest

from slurmsched.backends.simulated import Delays, Submission, VirtualCluster
from slurmsched.demo.race import score_cluster
from slurmsched.model import Request
from tests.builders import node


def test_two_jobs_one_after_the_other() -> None:
    cluster = VirtualCluster([node(gpus=1)], delays=Delays(completing=0))
    for at in (0, 50):
        cluster.submit(Submission("alice", Request(gpus=1, cpus=1), 100), at=at)
    cluster.advance(1000)
    figures = score_cluster(cluster)
    assert (figures.jobs, figures.finished, figures.restarts) == (2, 2, 0)
    assert (figures.mean_jct, figures.median_jct, figures.makespan) == (125, 125, 200)
    assert figures.p99_jct == pytest.approx(149.5)
    assert (figures.useful, figures.work) == (1.0, 1.0)
    assert figures.worst_fairness == pytest.approx(150 / (100 * 200 / 150)), (
        "200 job-seconds in the 150 s of the second job"
    )


def test_work_that_is_lost_is_not_useful() -> None:
    cluster = VirtualCluster([node(gpus=2)], delays=Delays(restart=20, completing=0, requeue=30))
    cluster.submit(Submission("alice", Request(gpus=1, cpus=1), 100))
    cluster.advance(50)
    cluster.lifecycle.requeue(cluster.jobs["1"], held=False, now=50)
    cluster.advance(1000)
    figures = score_cluster(cluster)
    assert (figures.makespan, figures.restarts) == (200, 1)
    assert figures.useful == pytest.approx(100 / 400)


def test_a_faster_job_does_more_work_than_it_takes_time() -> None:
    cluster = VirtualCluster([node(gpus=1)], delays=Delays(completing=0), speed=lambda _job, _shares, _partners: 2.0)
    cluster.submit(Submission("alice", Request(gpus=1, cpus=1), 100))
    cluster.advance(1000)
    figures = score_cluster(cluster)
    assert (figures.makespan, figures.useful, figures.work) == (50, 1.0, 2.0)


def test_a_job_that_ran_out_of_time_is_not_finished() -> None:
    cluster = VirtualCluster([node(gpus=1)])
    cluster.submit(Submission("alice", Request(gpus=1, cpus=1), 100, time_limit=50))
    cluster.advance(1000)
    assert (score_cluster(cluster).jobs, score_cluster(cluster).finished) == (1, 0)
