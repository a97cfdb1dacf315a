"""Waiting jobs of a higher PriorityTier come first under every policy, among those that compete for the same nodes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurmsched.model import Job, Node, Partition, RankedJob
from slurmsched.policies import policy
from slurmsched.policies.admit.promise import KeptPromise
from slurmsched.policies.policies import ORDERS, POLICIES
from slurmsched.policies.stages import Situation
from slurmsched.policies.tiers import Tiers
from tests.builders import job, node, share, situation, snapshot

HOUR = 3600
NOW = 10_000.0
LOW, HIGH = Partition("low", frozenset({"n1"})), Partition("high", frozenset({"n1"}), priority_tier=10)
APART = Partition("apart", frozenset({"n2"}), priority_tier=10)
EVERY_ROW = [
    pytest.param(name, order, id=f"{name}/{order}" if row.takes_order else name)
    for name, row in POLICIES.items()
    for order in (ORDERS if row.takes_order else ("fifo",))
]
KEEPING_ROWS = [row for row in EVERY_ROW if row.values[0] != "slurm"]


def asked(jobs: Sequence[Job], partitions: Sequence[Partition] = (LOW, HIGH), **other: object) -> Situation:
    names = frozenset(partition.name for partition in partitions)
    nodes: list[Node] = [node("n1", partitions=names), node("n2", partitions=names)]
    seen = snapshot(nodes, jobs, NOW, partitions=tuple(partitions))
    return situation(nodes, jobs, seen=seen, time=NOW, **other)  # type: ignore[arg-type]  # fields by name


def waits(number: int, *partitions: str, gpus: int = 8, **other: object) -> Job:
    other.setdefault("submit_time", float(number))
    return job(number, gpus, partitions=partitions, time_limit=HOUR, **other)  # type: ignore[arg-type]


def runs(number: int, partition: str, gpus: range = range(8), **other: object) -> Job:
    on = [share(gpus=gpus, cpus=len(gpus))]
    return job(
        number,
        len(gpus),
        partitions=(partition,),
        on=on,
        start_time=NOW,
        time_limit=2 * HOUR,
        **other,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param([waits(1, "low"), waits(2, "high"), waits(3, "low")], "213", id="the higher tier first"),
        pytest.param([waits(1, "low"), waits(2, "low", "high")], "21", id="of several partitions the highest"),
        pytest.param([waits(1, "low"), waits(2, "apart")], "12", id="on other nodes nothing changes"),
        pytest.param([waits(1, "low"), waits(2, "apart"), waits(3, "low", "apart")], "231", id="a job joins them"),
        pytest.param([runs(1, "low"), waits(2, "low"), waits(3, "high")], "132", id="what runs keeps its place"),
        pytest.param([waits(1, "low"), waits(2, "low")], "12", id="equal tiers"),
        pytest.param([waits(1, "unknown"), waits(2, "high")], "12", id="a partition that is not known"),
    ],
)
def test_order_by_tiers(jobs: list[Job], expected: str) -> None:
    ranking = [RankedJob(each.id, "submitted") for each in jobs]
    ranked = Tiers.of(asked(jobs, (LOW, HIGH, APART))).ranked(ranking)
    assert "".join(each.job for each in ranked) == expected


@pytest.mark.parametrize(("name", "order"), EVERY_ROW)
def test_under_every_policy_the_higher_tier_starts_first(name: str, order: str) -> None:
    decided = policy(name, order).decide(asked([waits(1, "low", priority=9), waits(2, "high", priority=1)]))
    assert set(decided.targets) == {"2"}


@pytest.mark.parametrize(("name", "order"), KEEPING_ROWS)
def test_a_promise_to_a_lower_tier_waits_for_jobs_of_a_higher_one(name: str, order: str) -> None:
    wide, later = waits(2, "low", priority=9), waits(3, "high", priority=1)
    fixed = {"1": None}
    first = policy(name, order).decide(asked([runs(1, "low", range(6)), wide], non_preemptible=fixed, max_moves=0))
    assert KeptPromise.of_state(first.state).job == "2"
    both = policy(name, order).decide(
        asked([runs(1, "low", range(6)), wide, later], non_preemptible=fixed, max_moves=0, state=first.state)
    )
    assert both.promise is not None
    assert both.promise.job == "3"
    freed = policy(name, order).decide(asked([wide, later], state=first.state))
    assert set(freed.targets) == {"3"}
    alone = policy(name, order).decide(asked([wide], state=first.state))
    assert set(alone.targets) == {"2"}


@pytest.mark.parametrize(
    ("newcomer", "room"),
    [
        pytest.param("high", True, id="a job of the higher tier is given room"),
        pytest.param("low", False, id="a job of the lower tier is not"),
    ],
)
def test_no_job_makes_room_for_one_of_a_lower_tier(newcomer: str, room: bool) -> None:
    running = runs(1, "high", run_time=3600.0, hint="ckpt=usr1@1")
    decided = policy("synergy", "las").decide(
        asked([running, waits(2, newcomer), waits(3, "low", gpus=9)], service={"1": 90_000.0})
    )
    assert ("2" in decided.targets) is room
