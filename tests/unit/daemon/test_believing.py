"""What of a report is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.daemon.job_reports import last_report, rate_sample, reject_reason
from slurmsched.jobside.report import Report, Stage
from tests.builders import MEMORY, job, node, share

NOW = 10_000.0
JOB = job(7, gpus=2, on=[share("n1", (0, 1), cpus=12, memory=MEMORY // 4)], run_time=1000.0, restarts=1)
GOOD = Report("7", 1, Stage.RUNNING, NOW - 5, 5000, 1900, 950.0, 2.0, 4000, "n1", (0, 1), 12, 900)
BEFORE = last_report(JOB, replace(GOOD, at=NOW - 305, steps=4400, done=1300, busy=650.0), None)


def test_a_report_that_fits_is_believed() -> None:
    assert reject_reason(JOB, GOOD, None, NOW) is None
    assert reject_reason(JOB, GOOD, BEFORE, NOW) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"job": "8"}, "reports as job 8", id="another job's number"),
        pytest.param({"run": 2}, "reports run 2, which has not started", id="a run to come"),
        pytest.param({"node": "n2"}, "reports from n2, where it does not run", id="a node it is not on"),
        pytest.param({"gpus": (0, 5)}, "GPUs of n1 that it does not have", id="GPUs it has not"),
        pytest.param({"at": NOW + 100}, "reports a time in the future", id="a time to come"),
        pytest.param({"at": NOW - 400}, "an earlier time", id="a time long past"),
        pytest.param({"busy": 5000.0}, "claims 5000 s of work in a run of 1000 s", id="more work than time"),
        pytest.param({"steps": 10}, "claims 1900 steps of 10", id="more steps in this run than in all"),
        pytest.param({"done": 1000}, "counts backwards", id="fewer steps than before"),
        pytest.param({"busy": 600.0}, "counts backwards", id="less time than before"),
        pytest.param({"steps": 10**9, "done": 10**9}, "more than 100000 steps per second", id="impossible steps"),
        pytest.param({"rate": 10.0**9}, "more than 100000 steps per second", id="an impossible rate"),
        pytest.param({"rate": 500.0}, "claims 500 steps per second and counts 2", id="a rate that its steps belie"),
    ],
)
def test_what_cannot_be_is_not_believed(changed: dict[str, object], said: str) -> None:
    assert said in (reject_reason(JOB, replace(GOOD, **changed), BEFORE, NOW) or "")  # type: ignore[arg-type]  # rows


def test_a_gain_is_what_is_new_with_what_slurm_says_the_job_has() -> None:
    found = rate_sample(JOB, replace(GOOD, cpus=99), BEFORE, {"n1": node("n1")})
    assert found is not None
    assert (found.steps, found.seconds) == (600, 300.0)
    point = found.measured
    assert (point.gpu_type, point.gpus, point.nodes, point.cpus, point.memory) == ("v100", 2, 1, 6.0, MEMORY // 8)
    assert (point.fair_cpus, point.fair_memory, point.rate, point.at) == (3.0, MEMORY // 8, 2.0, GOOD.at)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"on": [share("n1"), share("n2", gpu_type="k80")]}, id="GPUs of two types"),
        pytest.param({"on": [share("n9")]}, id="a node that is not known"),
    ],
)
def test_what_cannot_be_told_apart_is_no_gain(other: dict[str, object]) -> None:
    assert rate_sample(job(7, **other), GOOD, None, {"n1": node("n1"), "n2": node("n2", gpu_type="k80")}) is None  # type: ignore[arg-type]  # rows


def test_a_report_without_progress_is_no_gain() -> None:
    assert rate_sample(JOB, replace(GOOD, done=1300, busy=650.0), BEFORE, {"n1": node("n1")}) is None
