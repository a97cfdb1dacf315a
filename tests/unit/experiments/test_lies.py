"""`lies`: the liar's work stays what it was, only what is told of it changes, and a gain above 2 % is not held."""

from __future__ import annotations

from statistics import fmean

import pytest

from slurmsched.experiments.experiment import FigureVerdict
from slurmsched.experiments.registry import EXPERIMENTS
from slurmsched.experiments.site_promises.lies import LIES, Lie, SubmittedJob, honest
from slurmsched.experiments.site_promises.lying import (
    LIAR,
    USERS,
    LyingCase,
    gains,
    lie_rows,
    run_lying_case,
    scenario_of,
    site_jobs,
    submitted_jobs,
)
from slurmsched.model import parse_hints
from slurmsched.simulation import PolicyChoice
from slurmsched.simulation.engine import SimulationEngine
from slurmsched.simulation.inputs import SimulationOptions
from slurmsched.traces import TraceJob

JOBS = site_jobs(30, 42)


def of_liar(submitted: list[SubmittedJob]) -> list[SubmittedJob]:
    return [one for one in submitted if one.trace.user.partition("-")[0] == LIAR]


def told(name: str) -> list[SubmittedJob]:
    return list(submitted_jobs(LIES[name], LIAR, JOBS))


def test_there_are_at_least_ten_lies_and_the_experiment_tells_them() -> None:
    assert len(LIES) >= 10
    assert EXPERIMENTS["lies"].load().__name__ == "run_lies"


def test_every_user_has_as_many_jobs() -> None:
    assert {user: sum(job.user == user for job in JOBS) for user in USERS} == dict.fromkeys(USERS, 10)


@pytest.mark.parametrize("name", LIES)
def test_a_lie_changes_nothing_of_others_jobs_and_no_work_of_the_liars(name: str) -> None:
    site = LIES[name].settings
    before, after = list(submitted_jobs(Lie(honest, settings=site), LIAR, JOBS)), told(name)
    others = [[one for one in of if one not in of_liar(of)] for of in (before, after)]
    assert others[0] == others[1]
    real = [one for one in of_liar(after) if not one.decoy]
    assert {one.origin for one in real} == {job.id for job in JOBS if job.user == LIAR}
    for job in (job for job in JOBS if job.user == LIAR):
        parts = [one for one in real if one.origin == job.id]
        work = sum(one.trace.gpus * one.submission.work for one in parts)
        restarts = sum(bool(one.after) for one in parts)
        assert work == pytest.approx(job.gpus * (job.duration + 120.0 * restarts))
        assert all(one.trace.model == job.model for one in parts)
        assert all(one.submission.time_limit > one.submission.work for one in parts)


@pytest.mark.parametrize(
    ("name", "of_truth"),
    [
        pytest.param("says a quarter of the duration", 0.25, id="a quarter"),
        pytest.param("says four times the duration", 4.0, id="four times"),
    ],
)
def test_hinted_durations(name: str, of_truth: float) -> None:
    for one in of_liar(told(name)):
        assert parse_hints(one.submission.comment).duration == pytest.approx(of_truth * one.submission.work, abs=1)


def test_a_gang_becomes_as_many_jobs_of_one_gpu() -> None:
    gang = max((job for job in JOBS if job.user == LIAR), key=lambda job: job.gpus)
    parts = [one for one in told("splits gangs into single jobs") if one.origin == gang.id]
    assert [one.submission.request.gpus for one in parts] == [1] * gang.gpus
    assert gang.gpus > 1


def test_pieces_of_a_chain_wait_for_each_other() -> None:
    submitted = told("cancels and submits again")
    scenario = scenario_of(submitted, LIES["cancels and submits again"], LIAR)
    numbers = {one.trace.id: str(number) for number, one in enumerate(submitted, start=1)}
    engine = SimulationEngine(scenario, PolicyChoice("unified"), SimulationOptions())
    assert {engine.jobs[index].id: number for number, index in engine.index_of.items()} == numbers
    first, *later = [one.trace.id for one in submitted if one.origin == of_liar(submitted)[0].origin]
    assert [scenario.submissions[name].dependency for name in later] == [
        f"afterok:{numbers[name]}" for name in (first, *later[:-1])
    ]


def test_a_job_runs_by_its_model_whatever_is_claimed() -> None:
    name = "claims a model that CPUs help more"
    submitted = told(name)
    scenario = scenario_of(submitted, LIES[name], LIAR)
    hinted = {parse_hints(one.submission.comment).model for one in of_liar(submitted)}
    assert hinted == {"alexnet"}
    assert scenario.real is not None
    for number, one in enumerate(submitted, start=1):
        assert scenario.real.own[str(number)].name == one.trace.model


def test_false_reports_reach_the_rounds() -> None:
    name = "reports false rates by GPU type"
    liars = [
        TraceJob("0", 0.0, 1, 7200.0, model="lstm", user=LIAR),
        TraceJob("1", 1.0, 1, 7200.0, model="lstm", user="b"),
    ]
    scenario = scenario_of(submitted_jobs(LIES[name], LIAR, liars), LIES[name], LIAR)
    engine = SimulationEngine(scenario, PolicyChoice("unified"), SimulationOptions(until=3600.0))
    engine.run(lambda _done: None)
    measured = engine.store.load_state(engine.cluster.snapshot()).measured
    assert {job: [point.rate for point in points] for job, points in measured.items()} == {
        "1": [pytest.approx(1000.0, rel=0.01)]
    }


def test_the_gain_is_of_the_liar_and_the_loss_of_the_others() -> None:
    own, others = gains({"ann": 4.0, "ben": 2.0, "cyd": 4.0}, {"ann": 2.0, "ben": 3.0, "cyd": 6.0}, "ann")
    assert (own, others) == (2.0, 1.5)


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        pytest.param([1.0, 1.03], FigureVerdict.HELD, id="one seed gains three percent, the mean less than two"),
        pytest.param([1.0, 1.05], FigureVerdict.MISSED, id="the mean gains more than two percent"),
        pytest.param([0.5, 0.6], FigureVerdict.HELD, id="the liar loses"),
    ],
)
def test_a_lie_is_held_by_the_mean_of_its_runs(runs: list[float], verdict: FigureVerdict) -> None:
    row = next(lie_rows("lies", [(own, 1.0) for own in runs]))
    assert row.measured == fmean(runs)
    assert row.verdict is verdict


def test_a_small_site_with_a_liar_runs_to_its_end() -> None:
    run = run_lying_case(LyingCase("keeps gangs in the queue that are not meant to run", LIAR, 1, 6))
    assert set(run) == set(USERS)
    assert all(0 < hours < 24 for hours in run.values())
