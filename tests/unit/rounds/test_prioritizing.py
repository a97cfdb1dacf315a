"""Slurm's order made to follow ours."""

from __future__ import annotations

import pytest

from slurmsched.knowledge import Knowledge
from slurmsched.model import Hold, Job, SchedulerState, Verb
from slurmsched.rounds.priorities import nice_operations
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import ManageSettings, Mode, PolicySettings, RoundSettings, Settings
from tests.builders import job, node, snapshot
from tests.ideal_cluster import IdealCluster
from tests.prescribing import Anyone, decision


def queue(*priorities: int) -> list[Job]:
    return [job(number, priority=priority) for number, priority in enumerate(priorities, 1)]


def ranked(jobs: list[Job], memory: SchedulerState | None = None) -> tuple[list[str], IdealCluster]:
    """The jobs in the order Slurm would take them, once the operations for order 1, 2, 3... are done; the cluster."""
    cluster = IdealCluster([node()], jobs)
    order = tuple(sorted(cluster.jobs, key=int))
    for operation in nice_operations(
        cluster.observe(), decision(jobs, {}, order=order), memory or SchedulerState(), "given"
    ):
        cluster.execute(operation)
    return sorted(cluster.jobs, key=lambda name: -cluster.jobs[name].priority), cluster


@pytest.mark.parametrize(
    ("jobs", "changed"),
    [
        pytest.param(queue(400, 300, 200, 100), set(), id="already in order"),
        pytest.param(queue(100, 400, 300, 200), {"1"}, id="the last is to be first"),
        pytest.param(queue(400, 50, 300, 200), {"2"}, id="one goes in between"),
        pytest.param(queue(7, 7, 7), {"1", "2"}, id="all alike"),
        pytest.param(queue(3, 2, 5, 4), {"1", "2"}, id="two pairs the wrong way round"),
    ],
)
def test_as_few_as_possible_get_another_nice(jobs: list[Job], changed: set[str]) -> None:
    order, cluster = ranked(jobs)
    assert order == sorted(cluster.jobs, key=int)
    assert {operation.subject for operation in cluster.executed} == changed


def test_where_there_is_no_gap_the_next_ones_move_down() -> None:
    order, cluster = ranked(queue(10_000, 5_000, 9_999, 9_998))
    assert order == ["1", "2", "3", "4"]
    assert {operation.subject for operation in cluster.executed} == {"2", "3", "4"} or {
        operation.subject for operation in cluster.executed
    } == {"2"}


def test_small_changes_far_down_the_queue_cost_nothing() -> None:
    priorities = [10_000 - place for place in range(40)]
    priorities[33], priorities[38] = priorities[38], priorities[33]
    _, cluster = ranked(queue(*priorities))
    assert cluster.executed == []


def test_nobody_is_lifted_far_above_what_slurm_gave_the_highest() -> None:
    jobs, memory = queue(10_000, 10_000, 9_000), SchedulerState()
    for _ in range(50):
        jobs = jobs[-1:] + jobs[:-1]
        renamed = [job(n, priority=j.priority, nice=j.nice) for n, j in enumerate(jobs, 1)]
        _, cluster = ranked(renamed, SchedulerState(nices=dict.fromkeys("123", 0)))
        jobs = [cluster.jobs[name] for name in "123"]
        assert [j.priority for j in jobs] == sorted((j.priority for j in jobs), reverse=True)
    assert max(j.priority for j in jobs) <= 11_000
    assert memory.nices == {}


def test_held_and_running_jobs_are_left_alone() -> None:
    jobs = [job(1, hold=Hold.USER), job(2, priority=5), job(3, priority=6)]
    _, cluster = ranked(jobs)
    assert {(operation.verb, operation.subject) for operation in cluster.executed} == {(Verb.PRIORITIZE, "2")}


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param(PolicySettings(), "unified", id="a policy with an order of its own"),
        pytest.param(PolicySettings(system="synergy", order="srtf"), "srtf", id="one that reads the setting"),
    ],
)
def test_who_asks_why_is_told_the_order_that_was_followed(policy: PolicySettings, order: str) -> None:
    managed = ManageSettings(partitions=("gpu",), opt_in=False)
    settings = Settings(rounds=RoundSettings(mode=Mode.PRIORITIZE), policy=policy, manage=managed)
    first, second = job(1, 8, priority=5, submit_time=1.0), job(2, 8, priority=9, submit_time=2.0)
    result = run_round(snapshot([node()], [first, second]), SchedulerState(), settings, Knowledge(), Anyone())
    (operation,) = result.plan.operations
    assert operation.reason.sentence == f"is number 1 in {order} order"
