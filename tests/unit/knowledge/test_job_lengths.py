"""The lengths of a cluster's jobs, kept up to date by the runs that end."""

from __future__ import annotations

from typing import Any

import pytest

from slurmsched.knowledge.lengths import FirstForecast, JobLengths, unfinished_jobs
from slurmsched.model import AccountedRun, ExpectedLength, Job, RunEnd
from tests.builders import job, node, share, snapshot

NOW, HOUR = 1e6, 3600.0


def run(number: int, seconds: float = HOUR, end: RunEnd = RunEnd.COMPLETED, **fields: Any) -> AccountedRun:
    told: dict[str, Any] = {"ended": NOW - 100 + number, "gpus": 1, "cpus": 1, "memory": 1} | fields
    return AccountedRun(str(number), "alice", "train", seconds=seconds, end=end, **told)


def waiting(number: int, **fields: Any) -> Job:
    return job(number, name="train", **fields)


def running(number: int, seconds: float, **fields: Any) -> Job:
    return job(number, name="train", on=[share()], run_time=seconds, **fields)


def asked(lengths: JobLengths, *jobs: Job, at: float = NOW, service: dict[str, float] | None = None) -> ExpectedLength:
    """What is known of the first of these jobs."""
    seen = snapshot([node()], jobs, time=at)
    return lengths.of(unfinished_jobs(seen, service or {}, {}), at)[jobs[0].id]


def after(*runs: AccountedRun) -> JobLengths:
    lengths = JobLengths()
    for one in runs:
        lengths.ended(one)
    return lengths


def test_a_job_takes_about_as_long_as_earlier_runs_of_the_same_work() -> None:
    known = asked(after(*(run(number) for number in range(30))), waiting(50))
    assert known.median == pytest.approx(HOUR, rel=0.1)
    assert known.low <= known.median <= known.high <= known.latest
    assert (known.kind, known.runs, known.age) == ("name and GPUs", 30, 71.0)


def test_the_runs_of_a_job_that_gave_way_count_together() -> None:
    parts = [run(number, end=end) for number in range(20) for end in (RunEnd.REQUEUED, RunEnd.COMPLETED)]
    assert asked(after(*parts), waiting(50)) == asked(after(*(run(n, 2 * HOUR) for n in range(20))), waiting(50))


def test_a_run_that_timed_out_might_have_taken_longer() -> None:
    ended = asked(after(*(run(number) for number in range(20))), waiting(50))
    cut = asked(after(*(run(number, end=RunEnd.TIMED_OUT) for number in range(20))), waiting(50))
    assert cut.mean > 2 * ended.mean


@pytest.mark.parametrize(
    ("first", "wider"),
    [
        pytest.param(FirstForecast("1", "alice", (1.0, 60.0)), True, id="it was beyond what was forecast"),
        pytest.param(FirstForecast("1", "alice", (60.0, 2 * HOUR)), False, id="it was within"),
        pytest.param(FirstForecast("1", "bob", (1.0, 60.0)), False, id="another owner's job of that number"),
    ],
)
def test_ranges_follow_what_was_forecast_before_a_job_first_ran(first: FirstForecast, wider: bool) -> None:
    lengths = JobLengths()
    lengths.recall([first])
    lengths.ended(run(1))
    assert (lengths.history.stretch("alice")[1] > 1.0) is wider


def test_the_first_forecast_of_a_job_is_made_before_it_runs_and_once() -> None:
    lengths = after(run(1))
    known = asked(lengths, waiting(50, hint="duration=2h"))
    asked(lengths, running(50, 600.0, hint="duration=2h"), at=NOW + 600)
    asked(lengths, running(51, 600.0), at=NOW + 1200)
    assert lengths.new == [FirstForecast("50", "alice", (known.low, known.high), 2 * HOUR)]


def test_what_is_known_is_kept_for_a_minute_and_new_jobs_are_forecast_at_once() -> None:
    lengths = after(run(1))
    first = asked(lengths, running(50, 0.0))
    lengths.ended(run(2, 9 * HOUR))
    assert asked(lengths, running(50, 59.0), at=NOW + 59) == first
    assert asked(lengths, waiting(51), running(50, 59.0), at=NOW + 59).runs == 2
    assert asked(lengths, running(50, 60.0), at=NOW + 60).runs == 2
    assert asked(lengths, running(50, 0.0), at=NOW - HOUR).runs == 2, "the clock was set back"


@pytest.mark.parametrize(
    ("one", "service", "elapsed", "limit"),
    [
        pytest.param(waiting(1, time_limit=7200), 0.0, 0.0, 7200, id="it waits"),
        pytest.param(running(1, 600.0, time_limit=7200), 600.0, 600.0, 7200, id="its first run"),
        pytest.param(running(1, 600.0, time_limit=7200), 4200.0, 4200.0, 10800, id="its second: the limit is of a run"),
        pytest.param(waiting(1, time_limit=7200), 3600.0, 3600.0, 10800, id="it gave way"),
        pytest.param(waiting(1), 3600.0, 3600.0, None, id="without a limit"),
    ],
)
def test_all_runs_of_a_job_count_as_elapsed(one: Job, service: float, elapsed: float, limit: float | None) -> None:
    (known,) = unfinished_jobs(snapshot([node()], [one], time=NOW), {"1": service}, {})
    assert (known.elapsed, known.time_limit) == (elapsed, limit)


def test_steps_of_all_copies_of_a_forked_job_are_its_progress() -> None:
    copies = [job(f"7_{n}", array_job="7", hint="fork=100", on=[share(gpus=[n])], run_time=600.0) for n in range(2)]
    known = unfinished_jobs(snapshot([node()], [*copies, waiting(1)], time=NOW), {}, {"7_0": 30, "7_1": 20, "1": 9})
    assert [(one.steps, one.total_steps) for one in known] == [(50, 100), (50, 100), (0, 0)]
