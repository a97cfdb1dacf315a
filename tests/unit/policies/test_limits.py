"""Limits of associations, QOS and partitions: whom they stop, and how much more than it asks a job may have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmsched.model import Job, Partition, ReasonCode, Snapshot
from slurmsched.model.limits import AssociationLimits, Limits, LimitSet, QosLimits
from slurmsched.policies.limits import LimitAccount, ResourceCap
from slurmsched.policies.policies import POLICIES, policy
from tests.builders import CPUS, GIB, job, node, share, situation, snapshot

ROOT, VISION, ALICE, BOB = 1, 2, 3, 4


NONE = LimitSet()


def limits(user: LimitSet = NONE, account: LimitSet = NONE, qos: tuple[QosLimits, ...] = ()) -> Limits:
    """Alice and Bob in account vision below the root; `user` limits Alice."""
    rows = (
        AssociationLimits(ROOT, "root"),
        AssociationLimits(VISION, "vision", parent=ROOT, limits=account),
        AssociationLimits(ALICE, "vision", "alice", limits=user),
        AssociationLimits(BOB, "vision", "bob"),
    )
    return Limits(True, "", rows, qos)


def asks(number: int, cpus: int = 2, gpus: int = 1, **other: Any) -> Job:
    other.setdefault("account", "vision")
    return job(number, gpus, cpus, **other)


def runs(number: int, cpus: int = 2, gpus: int = 1, **other: Any) -> Job:
    return asks(number, cpus, gpus, on=[share("n1", range(number, number + gpus), cpus)], **other)


def seen(table: Limits, *jobs: Job, **other: Any) -> Snapshot:
    return snapshot([node(), node("n2")], jobs, limits=table, **other)


def stopped(table: Limits, newcomer: Job, *others: Job, **other: Any) -> str:
    reason = LimitAccount(seen(table, newcomer, *others, **other)).reached(newcomer)
    return "" if reason is None else str(reason.details["reason"])


SMALL = LimitSet(group={"cpus": 4})
STOPPED: dict[str, tuple[str, Limits, Job, tuple[Job, ...]]] = {
    "within the limit of a user": ("", limits(SMALL), asks(1), (runs(2),)),
    "beyond it with what runs": (
        "GrpTRES of user alice of account vision allows 4 CPUs, with 4 CPUs in use",
        limits(SMALL),
        asks(1),
        (runs(2), runs(3)),
    ),
    "beyond it by itself": ("GrpTRES of user alice of account vision allows 4 CPUs", limits(SMALL), asks(1, 5), ()),
    "jobs of others are not counted for the user": ("", limits(SMALL), asks(1), (runs(2, 4, user="bob"),)),
    "but for the account": (
        "GrpTRES of account vision allows 4 CPUs, with 3 CPUs in use",
        limits(account=SMALL),
        asks(1),
        (runs(2, 3, user="bob"),),
    ),
    "more than a job may have": (
        "MaxTRES of user alice of account vision allows a job 1 CPU",
        limits(LimitSet(per_job={"cpus": 1})),
        asks(1),
        (),
    ),
    "memory counts on each node": (
        "MaxTRES of user alice of account vision allows a job 1023 MiB",
        limits(LimitSet(per_job={"memory": GIB - 1})),
        asks(1, memory=GIB),
        (),
    ),
    "GPUs": (
        "GrpTRES of user alice of account vision allows 2 GPUs, with 2 GPUs in use",
        limits(LimitSet(group={"gpus": 2})),
        asks(1),
        (runs(2, gpus=2),),
    ),
    "jobs": (
        "GrpJobs of user alice of account vision allows 1 job, with 1 job in use",
        limits(LimitSet(group={"jobs": 1})),
        asks(1),
        (runs(2),),
    ),
    "jobs of a user's association": (
        "MaxJobs of user alice of account vision allows 1 job, with 1 job in use",
        limits(LimitSet(group={"jobs": 2}, per_association={"jobs": 1})),
        asks(1),
        (runs(2),),
    ),
    "minutes that are used up": (
        "GrpTRESMins of account vision allows 10 CPU-minutes, and they are used up",
        limits(account=LimitSet(exhausted={"cpus": 10})),
        asks(1),
        (),
    ),
    "minutes of a job": (
        "MaxTRESMins of user alice of account vision allows a job 10 CPU-minutes",
        limits(LimitSet(minutes_per_job={"cpus": 10})),
        asks(1, time_limit=6 * 60),
        (),
    ),
    "memory-minutes of a job": (
        "MaxTRESMins of user alice of account vision allows a job 10 MiB-minutes",
        limits(LimitSet(minutes_per_job={"memory": 10})),
        asks(1, memory=2, time_limit=6 * 60),
        (),
    ),
    "a job of more GPUs than a node has needs a CPU on each of two": (
        "MaxTRESPerUser of QOS big allows 1 CPU",
        limits(qos=(QosLimits("big", LimitSet(per_user={"cpus": 1})),)),
        asks(1, 1, 16, qos="big"),
        (),
    ),
    "and its memory on both": (
        "GrpTRES of account vision allows 1024 MiB",
        limits(account=LimitSet(group={"memory": GIB})),
        asks(1, 1, 16, memory=GIB),
        (),
    ),
    "and both nodes": (
        "MaxTRES of user alice of account vision allows a job 1 node",
        limits(LimitSet(per_job={"nodes": 1})),
        asks(1, 1, 16),
        (),
    ),
    "more nodes than all jobs may have together": (
        "MaxTRESPerUser of QOS big allows a job 1 node",
        limits(qos=(QosLimits("big", LimitSet(per_user={"nodes": 1})),)),
        asks(1, 1, 16, qos="big"),
        (),
    ),
    "as many nodes as all jobs may have, of which others have one": (
        "",
        limits(LimitSet(group={"nodes": 2})),
        asks(1, 1, 16),
        (runs(2),),
    ),
    "a QOS overrides the association": (
        "",
        limits(SMALL, qos=(QosLimits("big", LimitSet(group={"cpus": 10})),)),
        asks(1, qos="big"),
        (runs(2), runs(3)),
    ),
    "a QOS limits each user": (
        "MaxTRESPerUser of QOS big allows 3 CPUs, with 2 CPUs in use",
        limits(qos=(QosLimits("big", LimitSet(per_user={"cpus": 3})),)),
        asks(1, qos="big"),
        (runs(2, qos="big"), runs(3, user="bob", qos="big"), runs(4)),
    ),
    "LimitFactor stretches limits of associations": (
        "",
        limits(SMALL, qos=(QosLimits("big", factor=2.0),)),
        asks(1, qos="big"),
        (runs(2), runs(3)),
    ),
    "an association without limits": ("", limits(), asks(1, 24), (runs(2, 24),)),
    "limits that nobody enforces": ("", replace(limits(SMALL), enforced=False), asks(1, 24), ()),
    "unknown limits are not guessed": ("", Limits(True, "sacctmgr does not answer"), asks(1, 24), ()),
}


@pytest.mark.parametrize(("told", "table", "newcomer", "others"), STOPPED.values(), ids=STOPPED)
def test_who_is_stopped(told: str, table: Limits, newcomer: Job, others: tuple[Job, ...]) -> None:
    assert stopped(table, newcomer, *others) == told


PRECEDENCE = {
    "the QOS of the partition comes first": (False, "MaxTRES of QOS part allows a job 1 CPU"),
    "OverPartQOS puts the job's own first": (True, ""),
}


@pytest.mark.parametrize(("over", "told"), PRECEDENCE.values(), ids=PRECEDENCE)
def test_two_qos(over: bool, told: str) -> None:
    own = QosLimits("own", LimitSet(per_job={"cpus": 9}), over)
    table = limits(qos=(own, QosLimits("part", LimitSet(per_job={"cpus": 1}))))
    partition = Partition("gpu", frozenset({"n1"}), qos="part")
    assert stopped(table, asks(1, qos="own"), partitions=(partition,)) == told


def test_a_job_in_two_partitions_is_stopped_only_if_both_stop_it() -> None:
    table = limits(qos=(QosLimits("part", LimitSet(per_job={"cpus": 1})),))
    strict, free = Partition("gpu", frozenset({"n1"}), qos="part"), Partition("free", frozenset({"n1"}))
    both = asks(1, partitions=("gpu", "free"))
    assert not stopped(table, both, partitions=(strict, free))
    assert stopped(table, both, partitions=(strict, replace(free, qos="part")))


CAPS: dict[str, tuple[ResourceCap | None, Limits, Job, tuple[Job, ...]]] = {
    "nothing limits it": (None, limits(), asks(1), ()),
    "a limit of each job": (ResourceCap(cpus=8), limits(LimitSet(per_job={"cpus": 8})), asks(1), ()),
    "a limit on each node": (
        ResourceCap(cpus_per_node=6),
        limits(LimitSet(per_node={"cpus": 6})),
        asks(1),
        (),
    ),
    "of a shared limit another job like it must fit": (ResourceCap(cpus=2), limits(SMALL), asks(1), ()),
    "what others wait for is left to them": (
        ResourceCap(cpus=4),
        limits(LimitSet(group={"cpus": 10})),
        asks(1),
        (asks(2),),
    ),
    "what runs is taken": (ResourceCap(cpus=3), limits(LimitSet(group={"cpus": 9})), asks(1), (runs(2, 4),)),
    "never less than it asks for": (ResourceCap(cpus=2), limits(LimitSet(per_job={"cpus": 1})), asks(1), ()),
    "minutes of its time limit": (
        ResourceCap(cpus=5),
        limits(LimitSet(minutes_per_job={"cpus": 50})),
        asks(1, time_limit=600),
        (),
    ),
    "running minutes are Slurm's to count": (
        ResourceCap(cpus=2),
        limits(LimitSet(fixed=frozenset({"cpus"}))),
        asks(1),
        (),
    ),
    "unknown limits": (ResourceCap(cpus=2), Limits(True, "unread"), asks(1), ()),
}


@pytest.mark.parametrize(("cap", "table", "newcomer", "others"), CAPS.values(), ids=CAPS)
def test_how_much_a_job_may_have(
    cap: ResourceCap | None, table: Limits, newcomer: Job, others: tuple[Job, ...]
) -> None:
    assert LimitAccount(seen(table, newcomer, *others)).cap(newcomer) == cap


def given(name: str, table: Limits, *jobs: Job) -> tuple[dict[str, int], dict[str, ReasonCode]]:
    """The CPUs that each job gets under this policy on an empty node, and why the others wait."""
    shown = seen(table, *jobs)
    decision = policy(name, "fifo" if POLICIES[name].takes_order else "las").decide(
        situation([node()], jobs, seen=shown)
    )
    has = {target.job: sum(on.resources.cpus for on in target.allocations) for target in decision.targets.values()}
    return has, {waiting: why.code for waiting, why in decision.waiting.items()}


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_users_of_one_quota_get_what_they_asked_and_the_third_is_told(name: str) -> None:
    jobs = [asks(number, hint="model=alexnet") for number in (1, 2, 3)]
    has, waits = given(name, limits(SMALL), *jobs)
    assert sum(has.values()) <= 4
    assert len(has) == 2
    assert set(waits.values()) == {ReasonCode.LIMITS}


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_no_job_gets_more_than_a_job_may_have(name: str) -> None:
    has, _ = given(name, limits(LimitSet(per_job={"cpus": 3})), asks(1, hint="model=alexnet"))
    assert 1 <= has["1"] <= 3


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_unknown_limits_leave_what_was_asked(name: str) -> None:
    has, _ = given(name, Limits(True, "unread"), asks(1, 1, hint="model=alexnet"))
    assert has == {"1": 1}


def test_without_limits_the_same_job_grows() -> None:
    has, _ = given("synergy", Limits(), asks(1, hint="model=alexnet"))
    assert has["1"] > CPUS // 8


def test_a_limit_that_is_wide_enough_changes_nothing() -> None:
    wide = limits(LimitSet(group={"cpus": 1000}, per_job={"cpus": 500}))
    jobs = [asks(number, hint="model=alexnet") for number in (1, 2, 3)]
    assert given("synergy", wide, *jobs) == given("synergy", Limits(), *jobs)


def test_a_running_job_grows_only_within_its_limit() -> None:
    running = runs(1, 3, hint="model=alexnet,ckpt=usr1,duration=10000000")
    for table, most in ((limits(LimitSet(per_job={"cpus": 5})), 5), (limits(LimitSet(group={"cpus": 6})), 3)):
        has, _ = given("synergy", table, running)
        assert has["1"] <= most
