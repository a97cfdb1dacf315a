"""Which running jobs must not be displaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.model import CheckpointSignal, Job, Partition, ReasonCode, SchedulerState
from slurmsched.rounds.guards import (
    GUARDS,
    GuardContext,
    checkpoint_lead,
    guard_reasons,
    guarded_jobs,
)
from slurmsched.settings.definition import CheckpointSettings, GuardSettings, Settings
from tests.builders import job, node, share, snapshot

NOW = 1_000_000.0
SETTINGS = Settings(guards=GuardSettings(min_run_time=1200, moves_per_job_day=2, restart_cost=120))


def running(hint: str = "ckpt=usr1@60", run_time: float = 5000.0, **other: Any) -> Job:
    return job(1, hint=hint, run_time=run_time, on=[share()], **other)


def code_of(held_fast: Job, memory: SchedulerState | None = None, **other: Any) -> ReasonCode | None:
    seen = snapshot([node()], [held_fast], NOW, **other)
    reason = guarded_jobs(seen, [held_fast], memory or SchedulerState(), SETTINGS).get("1")
    return reason.code if reason else None


def test_a_job_that_has_run_long_enough_and_saves_itself_may_be_displaced() -> None:
    assert code_of(running()) is None


@pytest.mark.parametrize(
    ("held_fast", "code"),
    [
        pytest.param(running(requeue=False), ReasonCode.NO_REQUEUE, id="submitted with --no-requeue"),
        pytest.param(running(batch=False), ReasonCode.NOT_BATCH, id="not a batch job"),
        pytest.param(running("ckpt=usr1,move=no"), ReasonCode.ASKED_TO_STAY, id="its owner said move=no"),
        pytest.param(running("model=bert"), ReasonCode.NO_CHECKPOINT, id="it named no checkpoint signal"),
        pytest.param(running("ckpt=none"), ReasonCode.NO_CHECKPOINT, id="it said that it cannot save itself"),
        pytest.param(running(run_time=1199), ReasonCode.MIN_RUN_TIME, id="it has just begun"),
        pytest.param(running(time_limit=5179), ReasonCode.ENDS_SOON, id="its time limit is nearer than a restart pays"),
        pytest.param(running("ckpt=usr1@60,duration=5100"), ReasonCode.ENDS_SOON, id="it says that it is nearly done"),
    ],
)
def test_a_running_job_stays(held_fast: Job, code: ReasonCode) -> None:
    assert code_of(held_fast) is code


@pytest.mark.parametrize(
    "movable",
    [
        pytest.param(running(run_time=1200), id="it has run exactly the minimum"),
        pytest.param(running(time_limit=5180), id="a restart just pays"),
        pytest.param(running("ckpt=usr1,duration=60"), id="an expected run time long exceeded protects nobody"),
    ],
)
def test_a_guard_ends_where_it_says(movable: Job) -> None:
    assert code_of(movable) is None


def test_the_exempt_time_of_the_partition_counts() -> None:
    partition = Partition("gpu", frozenset({"n1"}), preempt_exempt_time=7200)
    assert code_of(running(), partitions=(partition,)) is ReasonCode.EXEMPT_TIME


@pytest.mark.parametrize(
    ("ages", "code"),
    [
        pytest.param((10.0, 20.0), ReasonCode.JOB_MOVES_SPENT, id="two moves today are the most"),
        pytest.param((10.0, 90_000.0), None, id="yesterday's move is forgotten"),
    ],
)
def test_a_job_is_moved_only_so_often_a_day(ages: tuple[float, ...], code: ReasonCode | None) -> None:
    assert code_of(running(), SchedulerState(moves={"1": tuple(NOW - age for age in ages)})) is code


def test_a_site_may_displace_jobs_without_a_checkpoint() -> None:
    loose = replace(SETTINGS, guards=replace(SETTINGS.guards, require_checkpoint=False))
    stays = running("model=bert")
    assert guarded_jobs(snapshot([node()], [stays], NOW), [stays], SchedulerState(), loose) == {}


def test_every_guard_that_holds_is_named() -> None:
    stays = running("move=no", requeue=False, run_time=60)
    said = guard_reasons(stays, GuardContext(snapshot([node()], [stays], NOW), SchedulerState(), SETTINGS))
    assert list(said) == ["no-requeue", "asked-to-stay", "no-checkpoint", "min-run-time"]
    assert set(said) <= set(GUARDS)
    assert said["min-run-time"].sentence == "has run for 1 min: a job is preempted after 20 min at the earliest"


@pytest.mark.parametrize(
    ("hint", "lead"),
    [
        pytest.param("ckpt=usr1@90", 90, id="as the hint says"),
        pytest.param("ckpt=usr1", 60, id="the site's lead where the hint says none"),
        pytest.param("ckpt=usr1@7d", 900, id="no longer than the site allows"),
        pytest.param("model=bert", 0, id="nothing to wait for without a signal"),
    ],
)
def test_the_lead_before_a_requeue(hint: str, lead: int) -> None:
    assert checkpoint_lead(running(hint), CheckpointSettings(lead=60, longest_lead=900)) == lead


def test_the_signal_is_the_one_that_was_named() -> None:
    assert running("ckpt=usr2").hints.checkpoint_signal is CheckpointSignal.USR2
    assert running("ckpt=none").hints.checkpoint_signal is None
