"""What keeps a waiting job, room aside."""

from __future__ import annotations

import pytest

from slurmsched.model import Hold, Job, JobState, Partition, ReasonCode, Reservation, SchedulerState, Snapshot
from slurmsched.model.limits import AssociationLimits, Limits, LimitSet
from slurmsched.rounds.scope import ineligible_jobs, ineligible_reason
from tests.builders import job, node, share, snapshot

NOW = 10_000.0


def cluster(*jobs: Job, **other: object) -> Snapshot:
    return snapshot([node()], jobs, NOW, **other)


@pytest.mark.parametrize(
    ("waiting", "memory"),
    [
        pytest.param(job(1), SchedulerState(), id="nothing keeps it"),
        pytest.param(job(1, hold=Hold.USER, hint="held=hook"), SchedulerState(), id="the hook held it"),
        pytest.param(job(1, hold=Hold.ADMIN), SchedulerState(held=frozenset({"1"})), id="we held it"),
        pytest.param(job(1, hold=Hold.REQUEUED), SchedulerState(held=frozenset({"1"})), id="we requeued it"),
        pytest.param(
            job(1, hold=Hold.REQUEUED, restarts=1, eligible_time=NOW + 120),
            SchedulerState(held=frozenset({"1"})),
            id="its begin time is only the delay after our requeue",
        ),
    ],
)
def test_it_could_start(waiting: Job, memory: SchedulerState) -> None:
    assert ineligible_reason(waiting, memory, cluster(waiting)) is None


@pytest.mark.parametrize(
    ("waiting", "memory", "code"),
    [
        pytest.param(job(1, hold=Hold.USER), SchedulerState(), ReasonCode.USER_HOLD, id="its owner held it"),
        pytest.param(
            job(1, hold=Hold.USER, hint="held=hook", restarts=1),
            SchedulerState(),
            ReasonCode.USER_HOLD,
            id="its owner held it later",
        ),
        pytest.param(job(1, hold=Hold.ADMIN), SchedulerState(), ReasonCode.ADMIN_HOLD, id="an administrator held it"),
        pytest.param(
            job(1, hold=Hold.REQUEUED), SchedulerState(), ReasonCode.ADMIN_HOLD, id="an administrator requeued it held"
        ),
        pytest.param(
            job(1, hold=Hold.REQUEUED, reason="launch_failed_requeued_held"),
            SchedulerState(),
            ReasonCode.LAUNCH_FAILED,
            id="its node could not launch it",
        ),
        pytest.param(
            job(1, dependency="afterok:7"), SchedulerState(), ReasonCode.DEPENDENCY, id="it depends on another"
        ),
        pytest.param(
            job(1, dependency="afterok:7(unfulfilled),afterok:8(failed)"),
            SchedulerState(),
            ReasonCode.DEPENDENCY_FAILED,
            id="one of two that it depends on failed",
        ),
        pytest.param(
            job(1, dependency="afterok:7(unfulfilled)?afterok:8(failed)"),
            SchedulerState(),
            ReasonCode.DEPENDENCY,
            id="one of two of which one suffices failed",
        ),
        pytest.param(
            job(1, dependency="afterok:7(failed)?afterok:8(failed)"),
            SchedulerState(),
            ReasonCode.DEPENDENCY_FAILED,
            id="both of which one would suffice failed",
        ),
        pytest.param(
            job(1, eligible_time=NOW + 9), SchedulerState(), ReasonCode.BEGIN_TIME, id="it is not to begin yet"
        ),
        pytest.param(
            job(1, eligible_time=None, reason="BeginTime"),
            SchedulerState(),
            ReasonCode.BEGIN_TIME,
            id="it is to begin in 2106",
        ),
        pytest.param(
            job(1, eligible_time=NOW + 9),
            SchedulerState(held=frozenset({"1"})),
            ReasonCode.BEGIN_TIME,
            id="it is not to begin yet though we hold it",
        ),
        pytest.param(
            job(1, reason="QOSMaxGRESPerUser"), SchedulerState(), ReasonCode.LIMITS, id="its QOS has had enough"
        ),
        pytest.param(
            job(1, reason="AssocGrpGRES"), SchedulerState(), ReasonCode.LIMITS, id="its account has had enough"
        ),
        pytest.param(job(1, reason="Licenses"), SchedulerState(), ReasonCode.LICENSES, id="licenses are in use"),
        pytest.param(
            job(1), SchedulerState(stalled={"1": "Licenses"}), ReasonCode.LICENSES, id="licenses were in use last time"
        ),
        pytest.param(
            job(1), SchedulerState(stalled={"1": "QOSGrpGRES"}), ReasonCode.LIMITS, id="a limit kept it last time"
        ),
        pytest.param(
            job(1),
            SchedulerState(stalled={"1": "Resources"}),
            ReasonCode.STALLED,
            id="Slurm did not start it last time",
        ),
        pytest.param(
            job(1, reservation="exam"), SchedulerState(), ReasonCode.RESERVED, id="its reservation is not active"
        ),
    ],
)
def test_it_could_not_start(waiting: Job, memory: SchedulerState, code: ReasonCode) -> None:
    reason = ineligible_reason(waiting, memory, cluster(waiting))
    assert reason is not None
    assert reason.code is code


def test_it_waits_while_all_its_partitions_are_down() -> None:
    waiting = job(1, partitions=("a", "b"))
    down, up = Partition("a", frozenset(), up=False), Partition("b", frozenset(), up=True)
    reason = ineligible_reason(waiting, SchedulerState(), cluster(waiting, partitions=(down,)))
    assert reason is not None
    assert reason.sentence == "waits: its partition a is down"
    assert ineligible_reason(waiting, SchedulerState(), cluster(waiting, partitions=(down, up))) is None


def test_a_job_of_an_active_reservation_could_start() -> None:
    waiting = job(1, reservation="exam")
    active = Reservation("exam", frozenset({"n1"}), NOW - 1, NOW + 1)
    assert ineligible_reason(waiting, SchedulerState(), cluster(waiting, reservations=(active,))) is None


def test_the_free_slots_of_an_array_go_to_its_first_tasks() -> None:
    running = job("7_0", on=[share()], array_job="7", throttle=2)
    tasks = [job(f"7_{index}", array_job="7", throttle=2) for index in (10, 2, 1)]
    reasons = ineligible_jobs([running, *tasks], SchedulerState(), cluster(running, *tasks))
    assert {task: reason.sentence for task, reason in reasons.items()} == {
        "7_2": "waits: its array runs at most 2 tasks at a time",
        "7_10": "waits: its array runs at most 2 tasks at a time",
    }


def test_running_jobs_are_never_stopped() -> None:
    running = job(1, on=[share()], dependency="afterok:7", state=JobState.RUNNING)
    assert ineligible_jobs([running], SchedulerState(), cluster(running)) == {}


def test_a_limit_that_was_read_is_told_by_name_and_amount_also_where_slurm_knows_it() -> None:
    limits = LimitSet(group={"cpus": 4})
    table = Limits(True, "", (AssociationLimits(1, "vision", "alice", limits=limits),))
    waiting = job(2, 1, 3, account="vision", reason="AssocGrpCpuLimit")
    seen = cluster(job(1, 1, 2, account="vision", on=[share(cpus=2)]), waiting, limits=table)
    why = ineligible_reason(waiting, SchedulerState(), seen)
    assert why is not None
    assert why.sentence == (
        "waits because of a limit of its account or QOS:"
        " GrpTRES of user alice of account vision allows 4 CPUs, with 2 CPUs in use"
    )
