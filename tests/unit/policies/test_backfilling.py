"""Slurm's own way: first fit as requested, and backfill that never delays the first job that waits."""

from __future__ import annotations

import pytest

from slurmsched.model import Job, ReasonCode
from slurmsched.policies import policy
from tests.builders import job, node, share, situation

HOUR = 3600


def running(hours: int | None, gpus: range = range(6)) -> Job:
    """It began just now and may run so many hours."""
    limit = None if hours is None else hours * HOUR
    return job(1, len(gpus), on=[share(gpus=gpus, cpus=6)], start_time=10_000.0, time_limit=limit)


def started(jobs: list[Job], gpus: int = 8) -> set[str]:
    decision = policy("slurm").decide(situation([node(gpus=gpus)], jobs))
    assert not decision.victims
    return set(decision.targets) - {"1"}


def test_jobs_start_by_priority_on_the_first_nodes_that_fit_as_they_asked() -> None:
    jobs = [job(1, 4, cpus=5, hint="model=alexnet", priority=1), job(2, 6, cpus=7, priority=2)]
    decision = policy("slurm").decide(situation([node("a"), node("b", busy=range(4))], jobs))
    assert {t.job: (t.nodes, t.resources.cpus) for t in decision.targets.values()} == {
        "1": (("b",), 5),
        "2": (("a",), 7),
    }


@pytest.mark.parametrize(
    ("later", "starts"),
    [
        pytest.param(job(3, 2, time_limit=2 * HOUR), True, id="it ends before the first one can start"),
        pytest.param(job(3, 2, time_limit=3 * HOUR), False, id="it would delay the first one"),
        pytest.param(job(3, 2), False, id="nobody knows when it ends"),
        pytest.param(job(3, 1, time_limit=9 * HOUR), True, id="there is room beside the first one"),
    ],
)
def test_a_later_job_starts_only_where_the_first_that_waits_is_not_delayed(later: Job, starts: bool) -> None:
    waits = job(2, 7, priority=9)
    assert started([running(2), waits, later]) == ({"3"} if starts else set())


def test_two_that_fit_beside_the_promise_alone_do_not_both() -> None:
    waits = job(2, 7, priority=9)
    jobs = [running(2), waits, job(3, 1, time_limit=9 * HOUR), job(4, 1, time_limit=9 * HOUR)]
    assert started(jobs) == {"3"}


def test_nothing_is_promised_to_what_never_fits() -> None:
    decision = policy("slurm").decide(situation([node()], [running(2), job(2, 99, priority=9), job(3, 2)]))
    assert set(decision.targets) == {"1", "3"}
    assert decision.waiting["2"].code is ReasonCode.NEVER_FITS


def test_while_nobody_knows_when_a_start_is_possible_others_may_run() -> None:
    assert started([running(None), job(2, 7, priority=9), job(3, 2, time_limit=9 * HOUR)]) == {"3"}
