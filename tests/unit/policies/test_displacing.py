"""Who gives way to whom, and who does not have to."""

from __future__ import annotations

import pytest

from slurmsched.model import Decision, Job, Reason, ReasonCode, Request
from slurmsched.policies import Situation, policy
from tests.builders import MEMORY, job, node, share, situation

HOUR = 3600.0
LATE = 50 * HOUR
"""Attained service of the last queue."""
LAS = policy("synergy", "las", (HOUR, 10 * HOUR))


def running(number: int, gpus: range, where: str = "n1") -> Job:
    """A job with its share of the default node."""
    count = len(gpus)
    return job(
        number, count, cpus=3 * count, on=[share(where, gpus, 3 * count, count * MEMORY // 8)], submit_time=number
    )


def decide(asked: Situation) -> Decision:
    return LAS.decide(asked)


def test_under_las_a_newcomer_displaces_the_job_with_most_attained_service() -> None:
    jobs = [running(1, range(4)), running(2, range(4, 8)), job(3, 4)]
    decision = decide(situation([node()], jobs, service={"1": 5 * HOUR, "2": LATE}))
    assert decision.victims == {"2": "3"}
    assert set(decision.targets) == {"1", "3"}
    against = "0.0 GPU-hours attained, queue 1 of 3 against 50.0 GPU-hours attained, queue 3 of 3"
    assert decision.waiting["2"] == Reason(ReasonCode.NEWCOMER_FIRST, {"newcomer": "3", "why": against})


def test_nobody_in_the_newcomers_own_queue_is_displaced() -> None:
    jobs = [running(1, range(8)), job(2, 4)]
    decision = decide(situation([node()], jobs, service={"1": 0.9 * HOUR}))
    assert not decision.victims
    assert decision.waiting["2"] == Reason(ReasonCode.NO_ROOM, {"gpus": 4})


def test_fifo_displaces_nobody() -> None:
    jobs = [running(1, range(8)), job(2, 4, submit_time=-1)]
    decision = policy("synergy", "fifo").decide(situation([node()], jobs, service={"1": LATE}))
    assert not decision.victims


@pytest.mark.parametrize(
    ("sizes", "newcomer", "victims"),
    [
        pytest.param((4, 2, 2), 2, {"3"}, id="the last in order that is enough"),
        pytest.param((4, 2, 2), 4, {"2", "3"}, id="the two last"),
        pytest.param((2, 4, 2), 4, {"2"}, id="a later one that turns out not to be needed is spared"),
        pytest.param((4, 2, 2), 6, {"1", "3"}, id="the better rank is spared first"),
        pytest.param((4, 2, 2), 8, {"1", "2", "3"}, id="all of them"),
    ],
)
def test_no_more_jobs_are_displaced_than_must_be(sizes: tuple[int, ...], newcomer: int, victims: set[str]) -> None:
    jobs, begin = list[Job](), 0
    for number, size in enumerate(sizes, start=1):
        jobs.append(running(number, range(begin, begin + size)))
        begin += size
    service = {one.id: LATE for one in jobs}
    decision = decide(situation([node()], [*jobs, job(9, newcomer, submit_time=99)], service=service))
    assert set(decision.victims) == victims


def test_jobs_elsewhere_are_spared() -> None:
    nodes = [node("a"), node("b")]
    jobs = [running(1, range(8), "a"), running(2, range(4), "b"), running(3, range(4, 8), "b")]
    one = job(9, request=Request(gpus=8, pinned=frozenset({"a"})))
    decision = decide(situation(nodes, [*jobs, one], service=dict.fromkeys("123", LATE)))
    assert decision.victims == {"1": "9"}


def test_a_gang_displaces_on_every_node_it_needs() -> None:
    nodes = [node("a"), node("b")]
    jobs = [running(1, range(2), "a"), running(2, range(8), "b")]
    one = job(9, request=Request(gpus=16, nodes=2, gpus_per_node=8, tasks=2, cpus=2))
    decision = decide(situation(nodes, [*jobs, one], service=dict.fromkeys("12", LATE)))
    assert decision.victims == {"1": "9", "2": "9"}
    assert set(decision.targets["9"].nodes) == {"a", "b"}


def test_what_is_fixed_is_not_displaced() -> None:
    jobs = [running(1, range(4)), running(2, range(4, 8)), job(3, 4)]
    fixed = {"2": Reason(ReasonCode.MIN_RUN_TIME)}
    decision = decide(situation([node()], jobs, service={"1": 5 * HOUR, "2": LATE}, non_preemptible=fixed))
    assert decision.victims == {"1": "3"}


def test_a_displaced_job_lies_elsewhere_where_there_is_room() -> None:
    nodes = [node("a"), node("b", gpu_type="k80")]
    one = job(9, request=Request(gpus=8, gpu_type="v100"))
    decision = decide(situation(nodes, [running(1, range(4), "a"), one], service={"1": LATE}))
    assert decision.victims == {"1": "9"}
    assert decision.targets["1"].nodes == ("b",)
    assert decision.targets["1"].reasons[0].code is ReasonCode.NEWCOMER_FIRST


def test_a_displaced_job_is_a_newcomer_in_its_turn() -> None:
    nodes = [node("a"), node("b")]
    jobs = [running(1, range(8), "a"), running(2, range(8), "b")]
    one = job(9, request=Request(gpus=8, pinned=frozenset({"a"})))
    decision = decide(situation(nodes, [*jobs, one], service={"1": 5 * HOUR, "2": LATE}))
    assert decision.victims == {"1": "9", "2": "1"}
    assert decision.targets["1"].nodes == ("b",)


def test_a_displaced_job_waits_once_moves_are_spent() -> None:
    nodes = [node("a"), node("b")]
    jobs = [running(1, range(8), "a"), running(2, range(8), "b")]
    one = job(9, request=Request(gpus=8, pinned=frozenset({"a"})))
    decision = decide(situation(nodes, [*jobs, one], service={"1": 5 * HOUR, "2": LATE}, max_moves=1))
    assert decision.victims == {"1": "9"}
    assert decision.waiting["1"].code is ReasonCode.NEWCOMER_FIRST


def test_moves_are_counted_over_the_whole_round() -> None:
    jobs = [running(number, range(number - 1, number)) for number in range(1, 9)]
    newcomers = [job(number, submit_time=number) for number in (11, 12, 13)]
    service = {one.id: LATE for one in jobs}
    decision = decide(situation([node()], [*jobs, *newcomers], service=service, max_moves=2))
    assert decision.victims == {"8": "11", "7": "12"}
    assert decision.waiting["13"] == Reason(ReasonCode.MOVES_SPENT, {"limit": 2})


def test_where_moves_are_few_one_large_job_gives_way_rather_than_many_small_ones() -> None:
    nodes = [node("a"), node("b")]
    jobs = [running(9 - at, range(at, at + 1), "a") for at in range(8)]
    jobs = [*jobs, running(0, range(8), "b")]
    service = {one.id: LATE for one in jobs}
    asked = situation(nodes, [*jobs, job(20, 8, submit_time=99)], service=service, max_moves=3)
    assert decide(asked).victims == {"0": "20"}
