"""Rounds of Hadar: leases, restarts, and utilities."""

from __future__ import annotations

import pytest

from slurmsched.policies.hadar.primal_dual import HadarScheduler
from slurmsched.policies.hadar.problem import (
    UTILITIES,
    GangThroughput,
    HadarJob,
    ServerPools,
    UtilityFactory,
    slack_aware,
)

MIXED = ServerPools.of_single_type([("v100", 2), ("p100", 3), ("k80", 1)])
HOUR = 3600.0


def ask(name: str, workers: int, rates: tuple[float, ...], left: float, age: float = 0.0) -> HadarJob:
    return HadarJob(name, GangThroughput(workers, rates, rates), left, left, age)


def test_a_running_job_keeps_its_place_where_a_better_one_does_not_pay_for_the_restart() -> None:
    ends_soon = ask("a", 1, (2.0, 1.9, 1.0), left=30.0)

    assert HadarScheduler(restart_cost=60.0).decide([ends_soon], MIXED, {"a": ((1, 1),)}) == {"a": ((1, 1),)}


def test_a_running_job_moves_to_a_free_gpu_that_pays_for_the_restart() -> None:
    long = ask("a", 1, (4.0, 1.0, 1.0), left=4 * HOUR)

    assert HadarScheduler(restart_cost=60.0).decide([long], MIXED, {"a": ((1, 1),)}) == {"a": ((0, 1),)}


def test_nobody_moves_where_that_is_forbidden() -> None:
    long = ask("a", 1, (4.0, 1.0, 1.0), left=4 * HOUR)

    assert HadarScheduler(may_migrate=False).decide([long], MIXED, {"a": ((1, 1),)}) == {"a": ((1, 1),)}


def test_of_two_gpus_that_are_alike_a_job_keeps_its_own() -> None:
    alike = ServerPools.of_single_type([("v100", 1), ("v100", 1)])
    running, coming = ask("a", 1, (1.0,), left=HOUR), ask("b", 1, (1.0,), left=9 * HOUR)

    assert HadarScheduler().decide([running, coming], alike, {"a": ((1, 1),)}) == {"a": ((1, 1),), "b": ((0, 1),)}


def test_a_gang_takes_two_types_rather_than_wait() -> None:
    wide = ask("wide", 4, (4.0, 2.0, 0.5), left=HOUR)

    assert sorted(MIXED.gpus_by_type(HadarScheduler().decide([wide], MIXED)["wide"])) == [0, 1]


def test_no_gpu_is_idle_that_a_job_could_use() -> None:
    queue = [ask(str(number), 1, (float(number + 1), 1.0, 0.1), left=HOUR) for number in range(7)]

    assert sum(gpus for place in HadarScheduler().decide(queue, MIXED).values() for _, gpus in place) == 6


@pytest.mark.parametrize("valuing", [pytest.param(valuing, id=name) for name, valuing in UTILITIES.items()])
def test_ending_later_is_never_worth_more(valuing: UtilityFactory) -> None:
    queue = [ask("a", 2, (4.0, 2.0, 0.0), left=HOUR, age=100.0), ask("b", 1, (1.0, 1.0, 1.0), left=30 * HOUR)]
    utility = valuing(queue, MIXED)

    for one in queue:
        worth = [utility(one, one.age + seconds) for seconds in (1.0, 500.0, 1e4, 1e6, float("inf"))]
        assert worth == sorted(worth, reverse=True)
        assert worth[-1] == 0.0


@pytest.mark.parametrize(
    ("longest", "first"),
    [
        pytest.param(2 * HOUR, ["short", "rest0"], id="short jobs first while the long one has time"),
        pytest.param(200 * HOUR, ["long", "short"], id="the long job first where all the others end before it"),
    ],
)
def test_timely_lets_a_long_job_wait_as_long_as_it_can(longest: float, first: list[str]) -> None:
    servers = ServerPools.of_single_type([("v100", 2)])
    rest = [ask(f"rest{number}", 1, (1.0,), left=HOUR) for number in range(40)]
    queue = [*rest, ask("long", 1, (1.0,), left=longest), ask("short", 1, (1.0,), left=600.0)]

    assert [*HadarScheduler(make_utility=slack_aware).decide(queue, servers)] == first
