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
STEEP, FLAT = (10.0, 1.0), (1.0, 0.8)
TWO_TYPES = ServerPools.of_single_type([("v100", 1), ("k80", 1)])
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


def test_a_slow_type_goes_to_who_loses_least_by_it() -> None:
    """Steep jobs come first. The few states of the beam hand them what is left, on the K80s too, where they would do a
    tenth of their work."""
    servers = ServerPools.of_single_type([("v100", 4), ("k80", 4)])
    queue = [ask(f"steep{number}", 1, STEEP, left=100 * HOUR) for number in range(10)]
    queue += [ask(f"flat{number}", 1, FLAT, left=9 * HOUR) for number in range(6)]

    given = HadarScheduler(make_utility=slack_aware).decide(queue, servers)

    assert sorted((job[:4], place[0][0]) for job, place in given.items()) == [("flat", 1)] * 4 + [("stee", 0)] * 4


@pytest.mark.parametrize(
    ("left", "moved"),
    [
        pytest.param(100.0, True, id="long jobs change places"),
        pytest.param(0.01, False, id="not for the last seconds of the flat one"),
    ],
)
def test_two_running_jobs_change_places_where_that_pays_for_both_restarts(left: float, moved: bool) -> None:
    queue = [ask("steep", 1, STEEP, left=10 * left * HOUR), ask("flat", 1, FLAT, left=left * HOUR)]
    held = {"steep": ((1, 1),), "flat": ((0, 1),)}

    given = HadarScheduler(make_utility=slack_aware, restart_cost=120.0).decide(queue, TWO_TYPES, held)

    assert given == ({"steep": ((0, 1),), "flat": ((1, 1),)} if moved else held)


@pytest.mark.parametrize(
    ("promised", "held_on", "given_on"),
    [
        pytest.param("wide", (0, 1), {"wide": {0: 2}, "a": {1: 1}, "b": {1: 1}}, id="one moves, to beside the other"),
        pytest.param("", (0, 1), {"a": {0: 1}, "b": {1: 1}}, id="nobody moves for a job of which that is not asked"),
        pytest.param("wide", (1, 1), {"wide": {0: 2}, "a": {1: 1}, "b": {1: 1}}, id="nobody has to"),
    ],
)
def test_running_jobs_move_to_alike_gpus_for_the_newcomer_alone_that_is_told(
    promised: str, held_on: tuple[int, int], given_on: dict[str, dict[int, int]]
) -> None:
    alike = ServerPools.of_single_type([("v100", 2), ("v100", 2)])
    wide = HadarJob("wide", GangThroughput(2, (1.0,), (1.0,), max_servers=1), HOUR, HOUR)
    queue = [wide, *(ask(name, 1, (1.0,), left=9 * HOUR) for name in "ab")]
    held = {name: ((pool, 1),) for name, pool in zip("ab", held_on, strict=True)}

    given = HadarScheduler(restart_cost=60.0, makes_room_for=promised).decide(queue, alike, held)

    assert {job: dict(place) for job, place in given.items()} in (given_on, _mirrored(given_on))


def test_nobody_makes_room_who_loses_more_by_it() -> None:
    alike = ServerPools.of_single_type([("v100", 2), ("v100", 2)])
    wide = HadarJob("wide", GangThroughput(2, (1.0,), (1.0,), max_servers=1), HOUR, HOUR, 99 * HOUR)
    queue = [wide, *(ask(name, 1, (1.0,), left=60.0) for name in "ab")]
    held = {"a": ((0, 1),), "b": ((1, 1),)}

    assert HadarScheduler(restart_cost=600.0, makes_room_for="wide").decide(queue, alike, held) == held


def _mirrored(given: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """The same on two servers that are alike, the other way round."""
    return {job: {1 - pool: gpus for pool, gpus in place.items()} for job, place in given.items()}


@pytest.mark.parametrize("restart_cost", [0.0, 120.0])
def test_equal_jobs_take_no_turns_on_a_type(restart_cost: float) -> None:
    """Who ran for an hour has less work left; under `timely` a long job is worth more then, but no restart."""
    queue = [ask(str(number), 1, (1.0, 1.0), left=(199.0 if number < 2 else 200.0) * HOUR) for number in range(6)]
    held = {"0": ((0, 1),), "1": ((1, 1),)}

    scheduler = HadarScheduler(make_utility=slack_aware, restart_cost=restart_cost, period=300.0)

    assert (scheduler.decide(queue, TWO_TYPES, held) == held) is bool(restart_cost)


def test_copies_that_need_several_servers_have_a_utility() -> None:
    copy = HadarJob("a", GangThroughput(2, FLAT, FLAT), HOUR, HOUR, copies=2)
    assert slack_aware([copy], TWO_TYPES)(copy, HOUR) > 0
