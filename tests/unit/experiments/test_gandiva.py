"""Gandiva_fair's figures, and what they are measured with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmsched.experiments.experiment import ExperimentSetup, FigureVerdict
from slurmsched.experiments.gandiva_fair import (
    SUSPEND_RESUME,
    USER_MODELS,
    TimeSlicing,
    model_choices,
    plain_stride_utilisation,
    run_sliced,
    useful_gpu_seconds,
)
from slurmsched.experiments.registry import EXPERIMENTS, run_experiment
from slurmsched.knowledge import sample_speedups
from slurmsched.policies.gandiva_fair.stride import StrideJob
from slurmsched.simulation import Scenario
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster


def queue(*sizes: int) -> list[StrideJob]:
    return [StrideJob(str(place), 1.0, size) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "servers", "used"),
    [
        pytest.param((4,), 1, 1.0, id="one gang that fills the server"),
        pytest.param((1, 1), 1, 0.5, id="too few jobs"),
        pytest.param((1, 4), 1, 0.25, id="nobody passes a gang that does not fit"),
        pytest.param((3, 3), 2, 0.75, id="a gang lies on one server"),
    ],
)
def test_plain_stride_leaves_gpus_idle(sizes: tuple[int, ...], servers: int, used: float) -> None:
    assert plain_stride_utilisation(queue(*sizes), servers, 4, 4) == pytest.approx(used)


def two_users() -> Scenario:
    jobs = tuple(TraceJob(str(n), 0.0, 4, 1e7, model="vae", user=f"user{n % 2}") for n in range(4))
    return Scenario(load_cluster("k80:1x4").nodes, Trace("two users", jobs), sample_speedups())


@pytest.mark.parametrize("restart", [0.0, 15.0])
def test_what_users_had_leaves_out_what_restarts_took(restart: float) -> None:
    run = run_sliced(two_users(), TimeSlicing(300.0, restart), 6000.0)  # no slice is shorter than 20 restarts
    had = useful_gpu_seconds(run, restart)
    assert {*had} == {"user0", "user1"}
    slices = 20 - 4  # the first of each job costs nothing
    assert sum(kinds["k80"] for kinds in had.values()) == pytest.approx(4 * (6000 - restart * slices), rel=0.02)


def test_a_run_ends_when_it_is_told_to() -> None:
    run = run_sliced(two_users(), SUSPEND_RESUME, 330.0)
    assert (run.rounds, {job.state for job in run.jobs}) == (6, {"UNFINISHED"})
    assert sum(job.service for job in run.jobs) == pytest.approx(4 * 330, rel=0.01)


def test_everybody_is_near_the_fair_share_on_one_kind_of_gpu(tmp_path: Path) -> None:
    outcome = run_experiment("gandiva-homogeneous", ExperimentSetup(tmp_path, (42,)))
    assert outcome.ok
    near_fair = [row for row in outcome.rows if row.metric.endswith("users within 5 % of the fair share")]
    *near_fair, of_default = near_fair
    assert len(near_fair) == 3
    assert of_default.metric == "requeues: unified: users within 5 % of the fair share"
    assert of_default.measured < near_fair[-1].measured, "it evens users over days, and not within one"
    assert all(row.measured >= 0.95 for row in near_fair if "requeues" not in row.metric)
    assert [row.verdict for row in near_fair] == [FigureVerdict.HELD, FigureVerdict.HELD, FigureVerdict.MEASURED]


def test_trading_is_measured_for_every_choice_of_models() -> None:
    choices = model_choices(sample_speedups())

    assert len(set(choices)) == 35
    assert USER_MODELS in choices
    assert all(choice[0] != "dcgan" for choice in choices), "the fastest model is never the first of four"


def test_without_trading_it_does_not_matter_what_users_run() -> None:
    """So one run without trading stands for all choices of models."""
    nobody, other = (
        run_sliced(scenario, SUSPEND_RESUME, 300.0, trading=False).jobs
        for scenario in (four_users(USER_MODELS), four_users(("gru", "lstm", "resnet50", "dcgan")))
    )
    assert [(job.user, job.by_type) for job in nobody] == [(job.user, job.by_type) for job in other]


def four_users(models: Sequence[str]) -> Scenario:
    jobs = tuple(
        TraceJob(f"{user}-{n}", 0.0, 2, 1e7, model=model, user=f"user{user}")
        for user, model in enumerate(models)
        for n in range(6)
    )
    return Scenario(load_cluster("v100:1x4,p100:1x4,k80:1x8").nodes, Trace("four users", jobs), sample_speedups())


def test_both_experiments_are_there() -> None:
    for name in ("gandiva-homogeneous", "gandiva-trading"):
        assert EXPERIMENTS[name].load().__name__ == "run_" + name.replace("-", "_")
