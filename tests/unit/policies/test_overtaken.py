"""Waiting jobs that jobs of Slurm's own overtook go back to its queue, the first of the order, as many as overtook."""

from __future__ import annotations

import pytest

from slurmsched.model import Job, ReasonCode
from slurmsched.policies import policy
from tests.builders import job, node, share, situation

NOW = 10_000.0
FIRST = job(1, 8, submit_time=100.0)
SECOND = job(2, 8, submit_time=200.0)
NARROW = job(3, 1, submit_time=NOW - 1.0)
OURS = job(4, 4, on=[share("n1", range(4), cpus=4)], submit_time=50.0, start_time=150.0)
ELSEWHERE = job(5, 1, on=[share("n2", 1)], submit_time=60.0, start_time=400.0)


def unmanaged(
    number: int, gpu: int, submitted: float, partition: str = "gpu", gpus: int = 1, memory: int = 64_000
) -> Job:
    on = [share("n1", range(gpu, gpu + gpus), cpus=1, memory=memory)]
    return job(number, gpus, on=on, submit_time=submitted, start_time=submitted, partitions=(partition,))


def overtaken(*others: Job, waiting: tuple[Job, ...] = (FIRST, SECOND), **given: object) -> set[str]:
    """Of the waiting jobs those that go back, on two nodes of eight GPUs where each node has a job of ours."""
    ours = (*waiting, OURS, ELSEWHERE)
    asked = situation([node("n1"), node("n2")], [*ours, *others], managed=ours, max_moves=0, **given)  # type: ignore[arg-type]
    decided = policy("synergy", "fifo").decide(asked).waiting
    return {name for name, why in decided.items() if why.code is ReasonCode.OVERTAKEN}


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
        pytest.param([unmanaged(11, 4, 300.0, "debug")], set(), id="it runs in another partition"),
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
