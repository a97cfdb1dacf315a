"""Who comes first, and who may displace whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import ExpectedLength, IdleGpus, Job
from slurmsched.policies.orders import (
    FinishTimeFairness,
    FirstInFirstOut,
    IdleLast,
    LeastAttainedService,
    ShortestRemainingTime,
    SlurmPriority,
)
from slurmsched.policies.stages import Order
from tests.builders import job, node, share, situation

HOUR = 3600.0
LAS = LeastAttainedService((HOUR, 4 * HOUR))


def order(ordering: Order, jobs: list[Job], service: dict[str, float], time: float = 10_000.0) -> list[str]:
    return [ranked.job for ranked in ordering.rank(situation([node()], jobs, service=service, time=time))]


@pytest.mark.parametrize(
    ("ordering", "jobs", "service", "expected"),
    [
        pytest.param(
            FirstInFirstOut(),
            [job(1, submit_time=20), job(2, submit_time=10), job(10, submit_time=20), job(9, submit_time=20)],
            {},
            ["2", "1", "9", "10"],
            id="fifo: by submission, then by number",
        ),
        pytest.param(
            FirstInFirstOut(),
            [job("7_10"), job("7_2"), job("7")],
            {},
            ["7", "7_2", "7_10"],
            id="fifo: tasks of an array by index",
        ),
        pytest.param(
            SlurmPriority(),
            [job(1, priority=5), job(2, priority=50)],
            {},
            ["2", "1"],
            id="priority: Slurm's highest first",
        ),
        pytest.param(
            ShortestRemainingTime(),
            [job(1, 2, hint="duration=5h"), job(2, time_limit=7200), job(3), job(4, hint="duration=3h")],
            {"1": 9 * HOUR},
            ["1", "2", "4", "3"],
            id="srtf: what is left, by hint or limit, unknown last",
        ),
        pytest.param(
            LeastAttainedService(),
            [job(1), job(2), job(3)],
            {"1": 300.0, "2": 100.0},
            ["3", "2", "1"],
            id="las without queues: by service itself",
        ),
        pytest.param(
            LAS,
            [job(1, submit_time=9000), job(2, submit_time=8000), job(3, submit_time=7000)],
            {"1": 10.0, "2": 0.9 * HOUR, "3": HOUR},
            ["2", "1", "3"],
            id="las: first by queue, inside a queue by submission",
        ),
        pytest.param(
            LAS,
            [job(1, 4, submit_time=9000), job(2, 4, submit_time=0)],
            {"1": 0.0, "2": HOUR},
            ["2", "1"],
            id="las: a job that waited eight times as long as it ran is back in the first queue",
        ),
        pytest.param(
            FinishTimeFairness(),
            [job(1, hint="duration=2h", submit_time=9000), job(2, hint="duration=2h", submit_time=0)],
            {},
            ["2", "1"],
            id="ftf: who has waited longest for the same work",
        ),
        pytest.param(
            FinishTimeFairness(),
            [job(1, hint="duration=20h", submit_time=0), job(2, hint="duration=1h", submit_time=0)],
            {},
            ["2", "1"],
            id="ftf: waiting weighs more on a short job",
        ),
        pytest.param(
            FinishTimeFairness(),
            [job(1, 8, hint="duration=1h", submit_time=0), job(2, 1, hint="duration=1h", submit_time=0)],
            {},
            ["2", "1"],
            id="ftf: a job that asks for more than its part would wait for them alone, too",
        ),
    ],
)
def test_jobs_are_ranked(ordering: Order, jobs: list[Job], service: dict[str, float], expected: list[str]) -> None:
    assert order(ordering, jobs, service) == expected
    assert order(ordering, jobs[::-1], service) == expected


RUNNING = job(1, on=[share()], hint="duration=10h")


@pytest.mark.parametrize(
    ("ordering", "newcomer", "service", "may"),
    [
        pytest.param(FirstInFirstOut(), job(2, submit_time=-5), {}, False, id="fifo: nobody is displaced"),
        pytest.param(SlurmPriority(), job(2, priority=9), {}, False, id="priority: nobody is displaced"),
        pytest.param(ShortestRemainingTime(), job(2, hint="duration=5h"), {}, True, id="srtf: half as long to go"),
        pytest.param(ShortestRemainingTime(), job(2, hint="duration=6h"), {}, False, id="srtf: a little less to go"),
        pytest.param(ShortestRemainingTime(), job(2), {}, False, id="srtf: nothing is known of the newcomer"),
        pytest.param(LAS, job(2), {"1": HOUR}, True, id="las: from an earlier queue"),
        pytest.param(LAS, job(2), {"1": 0.99 * HOUR}, False, id="las: the same queue, less service"),
        pytest.param(LeastAttainedService(), job(2), {"1": 301.0}, True, id="las: more than a round's service ahead"),
        pytest.param(LeastAttainedService(), job(2), {"1": 300.0}, False, id="las: it would be overtaken next round"),
        pytest.param(
            LeastAttainedService(), job(2), {"1": 9e5, "2": 5e5}, False, id="las: less than twice the service"
        ),
        pytest.param(
            FinishTimeFairness(), job(2, hint="duration=1h"), {"1": 9e3}, True, id="ftf: kept waiting far longer"
        ),
        pytest.param(FinishTimeFairness(), job(2, hint="duration=10h"), {}, False, id="ftf: kept waiting equally long"),
    ],
)
def test_a_newcomer_displaces_only_what_it_comes_clearly_before(
    ordering: Order, newcomer: Job, service: dict[str, float], may: bool
) -> None:
    asked = situation([node()], [RUNNING, newcomer], service=service)
    assert ordering.preemption_rule(asked)(newcomer, RUNNING) is may
    assert not (may and ordering.preemption_rule(asked)(RUNNING, newcomer))


@pytest.mark.parametrize(
    ("ordering", "key"),
    [
        pytest.param(FirstInFirstOut(), "submitted 2 h 46 min ago"),
        pytest.param(ShortestRemainingTime(), "2 h 15 min to go"),
        pytest.param(LAS, "1.5 GPU-hours attained, queue 2 of 3"),
        pytest.param(LeastAttainedService(), "1.5 GPU-hours attained"),
        pytest.param(FinishTimeFairness(), "rho 1.68: 5 h 1 min here, 3 h on its fair share"),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_the_key_says_for_people_what_the_order_goes_by(ordering: Order, key: str) -> None:
    one = job(1, 2, hint="duration=3h", on=[share(gpus=2)])
    (ranked,) = ordering.rank(situation([node()], [one], service={"1": 1.5 * HOUR}))
    assert ranked.key == key


@pytest.mark.parametrize(
    ("run_time", "first"),
    [
        pytest.param(0.45 * HOUR, ["1", "2"], id="it has run for less than the first queue allows"),
        pytest.param(0.55 * HOUR, ["2", "1"], id="it has run for as long"),
    ],
)
def test_a_promoted_job_keeps_its_queue_for_as_long_as_that_queue_allows(run_time: float, first: list[str]) -> None:
    ran_before = 2 * 2 * HOUR
    promoted = job(1, 2, on=[share(gpus=2)], run_time=run_time)
    waits = job(2, submit_time=10)
    service = {"1": ran_before + 2 * run_time}
    time = 2 * HOUR + run_time + 8.1 * 2 * HOUR
    assert order(LAS, [promoted, waits], service, time) == first


def test_a_job_that_waited_too_little_is_not_promoted_by_running() -> None:
    runs = job(1, 2, on=[share(gpus=2)], run_time=0.1 * HOUR)
    time = 2.1 * HOUR + 7.9 * 2 * HOUR
    assert order(LAS, [runs, job(2, submit_time=10)], {"1": 4.2 * HOUR}, time) == ["2", "1"]


def test_srtf_goes_by_what_earlier_runs_tell_before_hints_and_limits() -> None:
    given = situation([node()], [job(1, hint="duration=1h"), job(2, time_limit=24 * 3600), job(3, hint="duration=2h")])
    known = {"2": ExpectedLength(*[1.5 * HOUR] * 5, runs=9)}
    given = replace(given, knowledge=replace(given.knowledge, lengths=known))
    assert [ranked.job for ranked in ShortestRemainingTime().rank(given)] == ["1", "2", "3"]


def idle(number: int, gpus: int = 4) -> IdleGpus:
    return IdleGpus(str(number), "alice", gpus, 1, since=0.0, at=HOUR, agreed=True)


def test_jobs_with_idle_gpus_come_behind_all_others_in_their_own_order() -> None:
    jobs = [job(number, submit_time=number, on=[share()] if number < 3 else ()) for number in (1, 2, 3, 4)]
    ranking = IdleLast(FirstInFirstOut(), {"1": idle(1), "2": idle(2)}).rank(situation([node()], jobs))
    assert [ranked.job for ranked in ranking] == ["3", "4", "1", "2"]
    assert ranking[2].key.startswith("behind all others by idle=last, submitted "), "how idle is told to nobody else"


@pytest.mark.parametrize(
    ("newcomer", "running", "makes_room"),
    [
        pytest.param(3, 1, True, id="an idle job makes room for who came later, though fifo never preempts"),
        pytest.param(3, 2, False, id="a busy one does not"),
        pytest.param(1, 2, False, id="an idle job takes nobody's place"),
        pytest.param(1, 1, False, id="nor that of another idle one"),
    ],
)
def test_every_other_newcomer_may_preempt_a_job_with_idle_gpus(newcomer: int, running: int, makes_room: bool) -> None:
    jobs = {number: job(number, on=[share()] if number < 3 else ()) for number in (1, 2, 3)}
    rule = IdleLast(FirstInFirstOut(), {"1": idle(1)}).preemption_rule(situation([node()], jobs.values()))
    assert rule(jobs[newcomer], jobs[running]) is makes_room


@pytest.mark.parametrize("order", [FirstInFirstOut(), LAS, LeastAttainedService(), ShortestRemainingTime()])
def test_whom_the_order_lets_a_job_preempt_it_still_may(order: Order) -> None:
    jobs = [job(number, on=[share()] if number < 4 else ()) for number in range(1, 6)]
    seen = situation([node()], jobs, service={"1": 9 * HOUR, "2": 2 * HOUR, "3": HOUR})
    wrapped = IdleLast(order, {"3": idle(3)})
    ranks = {ranked.job: rank for rank, ranked in enumerate(wrapped.rank(seen))}
    assert ranks.keys() == {one.id for one in jobs}
    allowed, before = wrapped.preemption_rule(seen), order.preemption_rule(seen)
    for newcomer in jobs[3:]:
        behind = sorted(jobs[:3], key=lambda one: -ranks[one.id])
        said = [allowed(newcomer, running) for running in behind]
        assert said == sorted(said, reverse=True), "true of one, true of all that rank behind it"
        assert [one for one in jobs[:2] if allowed(newcomer, one)] == [one for one in jobs[:2] if before(newcomer, one)]


@pytest.mark.parametrize("order", [ShortestRemainingTime(), FinishTimeFairness()])
def test_what_ranks_a_job_tells_nobody_how_long_its_owners_runs_take(order: Order) -> None:
    jobs = [job(1, user="alice", time_limit=9 * HOUR), job(2, user="bob", time_limit=9 * HOUR)]
    lengths = {"1": ExpectedLength(4321.0, 2.0, 3.0, 4.0, 5.0, "name", 7), "2": ExpectedLength(1.0, 2.0, 3.0, 4.0, 5.0)}
    seen = situation([node()], jobs)
    keys = {one.job: one.key for one in order.rank(replace(seen, knowledge=replace(seen.knowledge, lengths=lengths)))}
    assert keys["1"] == "by how long its owner's earlier runs took"
    assert "9 h" in keys["2"]
