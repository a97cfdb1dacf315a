"""Dependencies that Slurm has not looked at since they were met."""

from __future__ import annotations

import pytest

from slurmsched.model import Job, JobState, SetAsideJob
from slurmsched.rounds.dependencies import Dependencies
from tests.builders import job, node, share, snapshot

NOW = 10_000.0
RUNS = job(5, on=[share()], start_time=NOW - 100.0)
WAITS = job(6)
TASK = job("8_2", array_job="8")
ENDED = job(2, state=JobState.FINISHED)
OTHERS = [
    RUNS,
    WAITS,
    TASK,
    ENDED,
    job("9+1"),
    job(4, state=JobState.COMPLETING, on=[share("n2")], start_time=NOW - 100.0),
]


@pytest.mark.parametrize(
    ("dependency", "met"),
    [
        pytest.param("afterok:3(unfulfilled)", True, id="it has ended, Slurm knows how"),
        pytest.param("afterok:2(unfulfilled)", True, id="it has ended, and Slurm still shows it"),
        pytest.param("afterany:5(unfulfilled)", False, id="it runs"),
        pytest.param("afterany:4(unfulfilled)", False, id="it is about to end"),
        pytest.param("afternotok:6(unfulfilled)", False, id="it waits"),
        pytest.param("afterany:7(unfulfilled)", False, id="nobody knows whether it has ended"),
        pytest.param("after:5(unfulfilled)", True, id="it has begun"),
        pytest.param("after:6(unfulfilled)", False, id="it has not begun"),
        pytest.param("after:3(unfulfilled)", True, id="it has begun and ended"),
        pytest.param("after:5+1(unfulfilled)", True, id="it has begun for longer than a minute ago"),
        pytest.param("after:5+2(unfulfilled)", False, id="it has not begun two minutes ago"),
        pytest.param("after:3+2(unfulfilled)", False, id="nobody knows when it began"),
        pytest.param("afterany:8_*(unfulfilled)", False, id="a task of the array waits"),
        pytest.param("afterany:8_1(unfulfilled)", True, id="another task of it has ended"),
        pytest.param("aftercorr:8_*(unfulfilled)", False, id="task by task: left to Slurm until the array has ended"),
        pytest.param("afterany:9(unfulfilled)", False, id="a part of the heterogeneous job waits"),
        pytest.param("afterok:3(unfulfilled),afterok:5(unfulfilled)", False, id="one of two"),
        pytest.param("afterok:3(unfulfilled)?afterok:5(unfulfilled)", True, id="one of two, which is enough"),
        pytest.param("afterok:3(fulfilled),afterok:2(unfulfilled)", True, id="both, Slurm knows of one"),
        pytest.param("afterok:3(failed)?afterok:5(unfulfilled)", False, id="one failed"),
        pytest.param("expand:3(unfulfilled)", False, id="what is not understood"),
        pytest.param("afterok:3", False, id="no state"),
    ],
)
def test_what_may_be_met(dependency: str, met: bool) -> None:
    seen = snapshot([node(), node("n2")], OTHERS, NOW, set_aside=(SetAsideJob("7", "its record cannot be read"),))
    assert Dependencies(seen).may_be_met(job(10, dependency=dependency)) is met


@pytest.mark.parametrize(
    ("other", "met"),
    [
        pytest.param(job(1, name="train", on=[share()]), False, id="the same runs"),
        pytest.param(job(1, name="train"), False, id="the same waits, and came before"),
        pytest.param(job(11, name="train", submit_time=99.0), True, id="the same waits, and came later"),
        pytest.param(job(1, name="test", on=[share()]), True, id="another name"),
        pytest.param(job(1, name="train", user="bob", on=[share()]), True, id="another owner"),
        pytest.param(job(1, name="train", on=[share()], state=JobState.COMPLETING), True, id="the same has ended"),
    ],
)
def test_singletons(other: Job, met: bool) -> None:
    waits = job(10, name="train", dependency="singleton(unfulfilled)", submit_time=9.0)
    assert Dependencies(snapshot([node()], [other, waits], NOW)).may_be_met(waits) is met
