"""Waiting jobs that jobs of Slurm's own overtook go back to its queue, the first of the order, as many as overtook."""

from __future__ import annotations

import pytest

from slurmsched.model import Decision, Hold, Job, Partition, ReasonCode
from slurmsched.policies import policy
from tests.builders import job, node, share, situation, snapshot

NOW = 10_000.0
FIRST = job(1, 8, submit_time=100.0)
SECOND = job(2, 8, submit_time=200.0)
NARROW = job(3, 1, submit_time=NOW - 1.0)
OURS = job(4, 4, on=[share("n1", range(4), cpus=4)], submit_time=50.0, start_time=150.0)
NODES = [node("n1"), node("n2")]
BOTH = frozenset({"n1", "n2"})
PARTITIONS = (
    Partition("gpu", BOTH, priority_tier=2),
    Partition("debug", BOTH, priority_tier=2),
    Partition("scavenger", BOTH, priority_tier=1),
    Partition("urgent", BOTH, priority_tier=3),
)
ELSEWHERE = job(5, 1, on=[share("n2", 1)], submit_time=60.0, start_time=400.0)


def unmanaged(
    number: int, gpu: int, submitted: float, partition: str = "gpu", gpus: int = 1, memory: int = 64_000
) -> Job:
    on = [share("n1", range(gpu, gpu + gpus), cpus=1, memory=memory)]
    return job(number, gpus, on=on, submit_time=submitted, start_time=submitted, partitions=(partition,))


def decided(*others: Job, waiting: tuple[Job, ...] = (FIRST, SECOND), **given: object) -> Decision:
    """On two nodes of eight GPUs where each node has a job of ours."""
    ours = (*waiting, OURS, ELSEWHERE)
    seen = snapshot(NODES, [*ours, *others], NOW, partitions=PARTITIONS)
    asked = situation(NODES, seen.jobs, managed=ours, seen=seen, max_moves=0, **given)  # type: ignore[arg-type]
    return policy("synergy", "fifo").decide(asked)


def gone_back(decision: Decision) -> dict[str, object]:
    """The waiting jobs that go back, each with the one that overtook it."""
    return {name: why.details["job"] for name, why in decision.waiting.items() if why.code is ReasonCode.OVERTAKEN}


def overtaken(*others: Job, **given: object) -> set[str]:
    return set(gone_back(decided(*others, **given)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "found"),
    [
        pytest.param([], set(), id="nobody overtook"),
        pytest.param([unmanaged(11, 4, 300.0)], {"1"}, id="one came later and runs"),
        pytest.param([unmanaged(11, 4, 300.0), unmanaged(12, 5, 300.0)], {"1", "2"}, id="two did"),
        pytest.param([unmanaged(11, 4, 150.0)], {"1"}, id="it came between the two"),
        pytest.param(
            [unmanaged(11, 4, 250.0), unmanaged(12, 5, 150.0)], {"1"}, id="one of them came before the second"
        ),
        pytest.param([unmanaged(11, 4, 90.0)], set(), id="it came before both"),
        pytest.param([unmanaged(11, 4, 300.0, "debug")], {"1"}, id="it runs in another partition"),
        pytest.param([unmanaged(11, 4, 300.0, "scavenger")], {"1"}, id="it runs in one of a lower PriorityTier"),
        pytest.param([unmanaged(11, 4, 300.0, "urgent")], set(), id="it runs in one of a higher PriorityTier"),
        pytest.param([unmanaged(11, 4, 300.0, "deleted")], {"1"}, id="nobody knows its partition"),
        pytest.param([unmanaged(11, 4, 300.0, gpus=0, memory=0)], set(), id="it has no GPUs"),
        pytest.param(
            [unmanaged(11, 4, 300.0, gpus=0)], {"1"}, id="it has no GPUs, and the memory of the promised start"
        ),
    ],
)
def test_as_many_of_the_first_as_came_later_and_run(others: list[Job], found: set[str]) -> None:
    assert overtaken(*others) == found


@pytest.mark.parametrize(
    ("freeing", "found"),
    [
        pytest.param(frozenset({"n1"}), set(), id="on a node that it could use"),
        pytest.param(frozenset({"n3"}), {"1", "2"}, id="on other nodes"),
    ],
)
def test_none_goes_back_while_running_jobs_leave_for_others(freeing: frozenset[str], found: set[str]) -> None:
    assert overtaken(unmanaged(11, 4, 300.0), unmanaged(12, 5, 300.0), freeing=freeing) == found


def waits(submitted: float, partition: str = "debug", **other: object) -> Job:
    return job(21, 8, submit_time=submitted, partitions=(partition,), **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("next_one", "found"),
    [
        pytest.param([], {}, id="nobody else waits"),
        pytest.param([waits(400.0)], {"1": "11"}, id="one that came later waits"),
        pytest.param([waits(90.0)], {}, id="it came before both"),
        pytest.param([waits(400.0, "urgent")], {}, id="of a higher PriorityTier"),
        pytest.param([waits(400.0, "deleted")], {}, id="in a partition without nodes"),
        pytest.param([waits(400.0, hold=Hold.USER)], {}, id="held"),
        pytest.param([waits(400.0, eligible_time=NOW + 60)], {}, id="to begin later"),
        pytest.param([waits(400.0, dependency="afterok:4")], {}, id="after another"),
    ],
)
def test_who_was_overtaken_stays_while_another_may_do_it_again(next_one: list[Job], found: dict[str, str]) -> None:
    before = decided(unmanaged(11, 4, 300.0))
    assert gone_back(before) == {"1": "11"}
    after = decided(*next_one, state=before.state)
    assert gone_back(after) == found
    later = decided(waits(500.0), state=after.state)
    assert gone_back(later) == {"1": "11"}, "it is remembered until it starts"


def test_a_job_that_has_started_was_not_overtaken_any_more() -> None:
    before = decided(unmanaged(11, 4, 300.0))
    runs = job(1, 8, submit_time=100.0, on=[share("n2", range(8))], start_time=NOW)
    started = decided(waits(400.0), waiting=(runs, SECOND), state=before.state)
    assert "overtaken" not in started.state


def test_a_job_that_a_round_is_starting_does_not_wait_in_slurms_queue() -> None:
    before = decided(unmanaged(11, 4, 300.0))
    after = decided(waits(400.0, "gpu"), state=before.state, starting={"21": (share("n2", 1),)})
    assert gone_back(after) == {}


def test_nobody_goes_back_for_one_that_only_waits() -> None:
    assert overtaken(waits(400.0)) == set()


def test_rounds_that_only_start_jobs_remember_too() -> None:
    before = decided(unmanaged(11, 4, 300.0), starts_only=True)
    assert gone_back(decided(waits(400.0), state=before.state)) == {"1": "11"}
