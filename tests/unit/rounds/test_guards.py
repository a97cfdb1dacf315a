"""Which running jobs must not be displaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import CheckpointSignal, Hold, Job, Partition, Reason, ReasonCode, Request, SchedulerState
from slurmsched.rounds.guards import (
    GUARDS,
    GuardContext,
    cannot_move,
    checkpoint_lead,
    contested_jobs,
    guard_reasons,
    guarded_jobs,
    max_moves,
    preemptible_from,
    preemptible_times,
    restart_costs,
)
from slurmsched.rounds.scope import usable_nodes
from slurmsched.settings.definition import CheckpointSettings, GuardSettings, PolicySettings, Settings
from tests.builders import job, node, share, situation, snapshot

NOW = 1_000_000.0
SETTINGS = Settings(guards=GuardSettings(min_run_time=1200, moves_per_job_day=2, restart_cost=120))


def running(hint: str = "ckpt=usr1@60", run_time: float = 5000.0, **other: Any) -> Job:
    return job(1, hint=hint, run_time=run_time, on=[share()], **other)


def context(one: Job, settings: Settings = SETTINGS) -> GuardContext:
    """Of a job alone on its node, of which nothing is remembered or known."""
    return GuardContext(snapshot([node()], [one], NOW), SchedulerState(), settings, Knowledge())


def code_of(held_fast: Job, memory: SchedulerState | None = None, **other: Any) -> ReasonCode | None:
    seen = snapshot([node()], [held_fast], NOW, **other)
    known = Knowledge(service={"1": held_fast.run_time * held_fast.gpus})
    reason = guarded_jobs([held_fast], GuardContext(seen, memory or SchedulerState(), SETTINGS, known)).get("1")
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
        pytest.param(running(run_time=1169), ReasonCode.MIN_RUN_TIME, id="it has just begun"),
        pytest.param(running(time_limit=5179), ReasonCode.ENDS_SOON, id="its time limit is nearer than a restart pays"),
        pytest.param(running("ckpt=usr1@60,duration=5100"), ReasonCode.ENDS_SOON, id="it says that it is nearly done"),
    ],
)
def test_a_running_job_stays(held_fast: Job, code: ReasonCode) -> None:
    assert code_of(held_fast) is code


@pytest.mark.parametrize(("gpu_type", "stays"), [("v100", True), ("k80", False)])
def test_a_job_that_says_that_it_is_nearly_done_is_not_on_a_slower_type(gpu_type: str, stays: bool) -> None:
    """It has run for 5,000 of its 5,100 seconds, which on the slower type are a quarter of its work."""
    rates = {kind: Scaling((1,), (rate,)) for kind, rate in (("v100", 4.0), ("k80", 1.0))}
    ran = {"1": {gpu_type: 5000.0}}
    known = Knowledge(models={"m": Profile("m", "", {}, "measured", rates)}, service={"1": 5000.0}, service_by_type=ran)
    at_work = job(1, hint="ckpt=usr1@60,model=m,duration=5100", run_time=5000.0, on=[share(gpu_type=gpu_type)])
    guarded = guarded_jobs([at_work], replace(context(at_work), knowledge=known))
    assert [reason.code for reason in guarded.values()] == [ReasonCode.ENDS_SOON] * stays


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
    assert guarded_jobs([stays], context(stays, settings=loose)) == {}


def test_every_guard_that_holds_is_named() -> None:
    stays = running("move=no", requeue=False, run_time=60)
    said = guard_reasons(stays, context(stays))
    assert list(said) == ["no-requeue", "asked-to-stay", "no-checkpoint", "min-run-time"]
    assert set(said) <= set(GUARDS)
    assert said["min-run-time"].sentence == "has run for 1 min: a job is preempted after 19 min at the earliest"


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


@pytest.mark.parametrize(
    ("young", "times"),
    [
        pytest.param(running(run_time=200), {"1": NOW + 970}, id="it has only just begun"),
        pytest.param(running(run_time=200, requeue=False), {}, id="it may not move later either"),
        pytest.param(running(run_time=1200), {}, id="it may move now"),
    ],
)
def test_when_a_job_has_run_long_enough(young: Job, times: dict[str, float]) -> None:
    assert preemptible_from([young], context(young)) == times


@pytest.mark.parametrize(
    ("why", "times"),
    [
        pytest.param(None, {"1": NOW}, id="now, if nothing protects it"),
        pytest.param(ReasonCode.MIN_RUN_TIME, {"1": NOW + 60}, id="when it has run long enough"),
        pytest.param(ReasonCode.JOB_MOVES_SPENT, {"1": NOW}, id="at any time, for what may end at any time"),
        pytest.param(ReasonCode.NO_CHECKPOINT, {}, id="never, for what lasts as long as it runs"),
    ],
)
def test_from_when_on_a_running_job_may_be_moved(why: ReasonCode | None, times: dict[str, float]) -> None:
    protected = {} if why is None else {"1": Reason(why)}
    later = {"1": NOW + 60} if why is ReasonCode.MIN_RUN_TIME else {}
    waiting = job(2)
    asked = situation([node()], [running(), waiting], time=NOW, non_preemptible=protected, preemptible_from=later)
    assert preemptible_times(asked) == times


@pytest.mark.parametrize(
    ("restarted", "seconds", "least"),
    [
        pytest.param(running(), {"1": 300.0}, 1170, id="none yet: the setting alone, to a tenth of a round"),
        pytest.param(running(restarts=1), {}, 3450, id="twenty times what the settings say"),
        pytest.param(running(restarts=1), {"1": 300.0}, 7050, id="twenty times what it measured"),
        pytest.param(running(restarts=1), {"1": 1e9}, 13050, id="what is measured is bounded"),
        pytest.param(running("ckpt=usr1@0", restarts=9), {"1": 0.0}, 1170, id="no less than the setting"),
        pytest.param(running("ckpt=usr1@900", restarts=1), {}, 3450, id="a long lead gains its owner nothing"),
    ],
)
def test_a_run_after_a_restart_lasts_until_the_restart_has_paid(
    restarted: Job, seconds: dict[str, float], least: float
) -> None:
    at_work = replace(restarted, run_time=least - 1)
    state = SchedulerState(restart_seconds=seconds)
    assert code_of(at_work, state) is ReasonCode.MIN_RUN_TIME
    assert code_of(replace(at_work, run_time=least), state) is None
    assert preemptible_from([at_work], replace(context(at_work), state=state)) == {"1": NOW + 1}


def test_where_restarts_cost_nothing_one_lengthens_no_run() -> None:
    free = replace(SETTINGS, guards=replace(SETTINGS.guards, restart_cost=0.0))
    again = running(restarts=3, run_time=1200)
    assert guarded_jobs([again], context(again, settings=free)) == {}


@pytest.mark.parametrize(
    ("waits", "fixed"),
    [
        pytest.param(job(1, hint="ckpt=usr1"), False, id="it saves itself"),
        pytest.param(job(1), True, id="it cannot save itself"),
        pytest.param(job(1, hint="ckpt=usr1,move=no"), True, id="its owner said move=no"),
        pytest.param(job(1, hint="ckpt=usr1", requeue=False), True, id="submitted with --no-requeue"),
    ],
)
def test_whether_what_a_job_is_started_with_could_be_taken_back(waits: Job, fixed: bool) -> None:
    assert cannot_move(waits, context(waits)) is fixed


@pytest.mark.parametrize(
    ("system", "guards", "jobs", "moves"),
    [
        pytest.param("synergy", GuardSettings(), 10_000, 8, id="where nobody takes turns it is what is set"),
        pytest.param("gandiva-fair", GuardSettings(), 70, 8, id="few jobs need no more than the default"),
        pytest.param("gandiva-fair", GuardSettings(), 10_000, 209, id="many jobs have their moves of a day"),
        pytest.param("gandiva-fair", GuardSettings(moves_per_round=9), 10_000, 9, id="what a site sets holds"),
        pytest.param("gandiva-fair", GuardSettings(moves_per_job_day=0), 10_000, 8, id="no moves of a day add none"),
    ],
)
def test_how_many_jobs_a_round_may_move(system: str, guards: GuardSettings, jobs: int, moves: int) -> None:
    assert max_moves(Settings(guards=guards, policy=PolicySettings(system=system)), jobs) == moves


def test_a_restart_costs_a_job_a_lead_too_that_its_owner_does_not_choose_unless_restarts_cost_nothing() -> None:
    hints = {"1": "ckpt=usr1@60", "2": "", "3": "ckpt=usr1@9999", "4": "ckpt=usr1@5"}
    jobs = [replace(running(hint), id=job_id) for job_id, hint in hints.items()]
    assert restart_costs(jobs, SchedulerState(), SETTINGS) == {"1": 180.0, "2": 120.0, "3": 180.0, "4": 180.0}
    measured = SchedulerState(restart_seconds={"1": 45.0, "2": 1e9})
    assert restart_costs(jobs, measured, SETTINGS) == {"1": 105.0, "2": 600.0, "3": 180.0, "4": 180.0}
    assert restart_costs(jobs, measured, replace(SETTINGS, guards=GuardSettings(restart_cost=0.0))) == {}


@pytest.mark.parametrize(
    ("other", "left_to_slurm", "stays"),
    [
        pytest.param(job(2), True, True, id="it asks for one GPU"),
        pytest.param(job(2), False, False, id="it is managed, and held"),
        pytest.param(job(2, 8), True, False, id="it needs more than becomes free"),
        pytest.param(job(2, 0, cpus=4), True, False, id="it asks for no GPU"),
        pytest.param(job(2, request=Request(gpus=1, gpu_type="k80")), True, False, id="it asks for other GPUs"),
        pytest.param(job(2, hold=Hold.USER, priority=0), True, False, id="its owner holds it"),
        pytest.param(job(2, reason="AssocGrpGRES"), True, False, id="a limit keeps it"),
        pytest.param(job(2, eligible_time=NOW + 60), True, False, id="it begins later"),
        pytest.param(job(2, partitions=("cpu",)), True, False, id="it waits for another partition"),
        pytest.param(job(2, reason="Priority"), True, True, id="it waits behind others of Slurm's"),
    ],
)
def test_nobody_leaves_for_a_newcomer_where_slurm_would_start_another_first(
    other: Job, left_to_slurm: bool, stays: bool
) -> None:
    beside = [job(number, on=[share(gpus=(number - 2,))], run_time=5000.0) for number in range(3, 10)]
    there, seen = job(1, on=[share(gpus=(0,))], run_time=5000.0), [other, *beside]
    cluster, left = snapshot([node()], [there, *seen], NOW), {"2"} if left_to_slurm else set()
    known = contested_jobs(cluster, [there], left, usable_nodes(cluster))
    assert ("1" in known) is stays
    assert not stays or known["1"].sentence == "leaves for nobody, since job 2, left to Slurm, would take its GPUs"
