"""Attained service and moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmsched.model import (
    Job,
    JobState,
    NodeAllocation,
    Operation,
    Outcome,
    Reason,
    ReasonCode,
    Request,
    Resources,
    Result,
    Verb,
)
from slurmsched.store.database import Database
from slurmsched.store.jobs import update_jobs
from slurmsched.store.journal import Journal
from slurmsched.store.maintenance import migrate
from slurmsched.store.service import AttainedService
from tests.builders import job, node, share, snapshot


def running(number: int, gpus: int, since: float, run_time: float, **other: object) -> Job:
    return job(number, on=[share(gpus=gpus)], start_time=since, run_time=run_time, **other)


@pytest.mark.parametrize(
    ("polls", "attained"),
    [
        pytest.param([[running(1, 2, 100, 50)]], 100, id="a run counts its GPUs times its run time"),
        pytest.param([[running(1, 2, 100, 50)], [running(1, 2, 100, 80)]], 160, id="the same run is not counted twice"),
        pytest.param([[running(1, 2, 100, 50)], []], 100, id="a job that vanished keeps its last figure"),
        pytest.param(
            [[running(1, 2, 100, 50)], [running(1, 4, 300, 10)]], 140, id="a restart on more GPUs is a run of its own"
        ),
        pytest.param(
            [[running(1, 2, 100, 50)], [running(1, 2, 100, 60, state=JobState.COMPLETING)]],
            120,
            id="a job that is completing still has its GPUs",
        ),
        pytest.param([[running(1, 2, 100, 50)], [running(1, 2, 100, 20)]], 100, id="a figure never shrinks"),
        pytest.param([[job(1, gpus=2, run_time=50, start_time=900.0)]], 0, id="a pending job attains nothing"),
        pytest.param([[job(1, on=[share(gpus=2)], run_time=50)]], 0, id="a run without a start is left out"),
    ],
)
def test_attained_service(database: Database, polls: Sequence[Sequence[Job]], attained: float) -> None:
    accounts = AttainedService(database)
    for jobs in polls:
        accounts.record_runs(snapshot(jobs=jobs))
    assert accounts.gpu_seconds_of("1") == attained


@pytest.mark.parametrize(
    ("polls", "attained"),
    [
        pytest.param(
            [[job(1, on=[share(gpus=2, gpu_type="k80")], start_time=100.0, run_time=50.0)], [running(1, 2, 300, 10)]],
            {"k80": 100.0, "v100": 20.0},
            id="each run counts for its type",
        ),
        pytest.param(
            [[running(1, 2, 100, 50)], [job(1, 2, state=JobState.COMPLETING, start_time=100.0, run_time=60.0)]],
            {"v100": 120.0},
            id="where Slurm no longer tells the type it is what it was",
        ),
    ],
)
def test_attained_service_by_gpu_type(
    database: Database, polls: Sequence[Sequence[Job]], attained: dict[str, float]
) -> None:
    for jobs in polls:
        AttainedService(database).record_runs(snapshot(jobs=jobs))
    assert AttainedService(database).gpu_seconds_by_type(("1", "2")) == {"1": attained}


polls = st.lists(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 8), st.sampled_from([100.0, 200.0, 300.0]), st.integers(0, 99)),
        max_size=3,
        unique_by=lambda run: run[0],
    ),
    max_size=8,
)


@given(polls)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sum_over_all_runs_is_the_most_that_any_poll_showed_of_each(
    seen: list[list[tuple[int, int, float, int]]],
) -> None:
    database = Database.in_memory()
    migrate(database, 1.0)
    accounts, most = AttainedService(database), dict[tuple[int, float], int]()
    for poll in seen:
        accounts.record_runs(snapshot(jobs=[running(*run) for run in poll]))
        for number, gpus, since, run_time in poll:
            most[number, since] = max(most.get((number, since), 0), gpus * run_time)
    service = accounts.gpu_seconds_by_type(str(number) for number in range(1, 4))
    assert sum(sum(by_type.values()) for by_type in service.values()) == sum(most.values())
    database.close()


def requeue(journal: Journal, number: str, result: Result, at: float) -> None:
    operation = Operation(Verb.REQUEUE, number, Reason(ReasonCode.NEWCOMER_FIRST))
    (entry,) = journal.record_intents(journal.begin_round(at, "enforce", "synergy", "las"), [(0, operation)], at)
    journal.record_outcomes([(entry, Outcome(operation, result))], at)


def test_moves_are_the_requeues_that_were_done_in_the_last_day(database: Database) -> None:
    update_jobs(database, snapshot(jobs=[job(1), job(2)], time=0.0), {"1", "2"})
    journal = Journal(database)
    for number, result, at in [
        ("1", Result.DONE, 50.0),
        ("1", Result.DONE, 90_000.0),
        ("1", Result.REFUSED, 91_000.0),
        ("1", Result.UNDONE, 92_000.0),
        ("2", Result.DONE, 93_000.0),
    ]:
        requeue(journal, number, result, at)
    assert AttainedService(database).moves(100_000.0, ("1", "2")) == {"1": (90_000.0, 92_000.0), "2": (93_000.0,)}


def test_what_befell_an_older_job_with_the_same_number_does_not_count(database: Database) -> None:
    journal = Journal(database)
    update_jobs(database, snapshot(jobs=[job(1)], time=0.0), {"1"})
    requeue(journal, "1", Result.DONE, 10.0)
    update_jobs(database, snapshot(time=20.0), set())
    update_jobs(database, snapshot(jobs=[job(1, user="bob", submit_time=25.0)], time=30.0), {"1"})
    assert AttainedService(database).moves(40.0, ("1",)) == {}


def test_a_part_of_a_gpu_counts_as_a_part(database: Database) -> None:
    half = NodeAllocation("n1", Resources(0, 1, 0), "v100", (0,), 5)
    runs = job(1, request=Request(shards=5), on=[half], run_time=100.0, start_time=900.0)
    accounts = AttainedService(database)
    accounts.record_runs(snapshot([node("n1", shards=10)], [runs], 1000.0))
    assert accounts.gpu_seconds_of("1") == 50.0
