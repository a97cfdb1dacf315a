"""Figures of runs made by hand, and against the readable form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.simulation import JobResult, SimulationResult, run_metrics
from slurmsched.simulation.results import finish_time_fairness, jct_cdf


def run(*jobs: JobResult, gpus: float = 8.0, window: tuple[int, int] | None = None) -> SimulationResult:
    return SimulationResult("p", "o", "t", 1, jobs, (), gpus, 24.0, 500.0, 3, (0.1, 0.3, 0.2), 1.0, 1.0, window)


def ran(
    name: str, arrival: float, end: float | None, gpus: float = 1.0, work: float = 100.0, **more: object
) -> JobResult:
    state = "UNFINISHED" if end is None else "COMPLETED"
    return JobResult(name, arrival, work, gpus, start=arrival, end=end, state=state, **more)  # type: ignore[arg-type]  # by name


def test_times_utilisation_and_counts() -> None:
    found = run_metrics(
        run(
            ran("a", 0, 100, 4, useful=400.0, service=400.0, cpu_service=1200.0, user="x"),
            ran("b", 100, 400, 4, useful=800.0, service=1200.0, cpu_service=1200.0, user="y", restarts=2, migrations=1),
        )
    )
    assert (found.avg_jct_s, found.median_jct_s, found.makespan_s) == (200.0, 200.0, 400.0)
    assert found.gpu_utilization == pytest.approx(1200 / (400 * 8))
    assert found.cpu_utilization == pytest.approx(2400 / (400 * 24))
    assert (found.restarts, found.migrations, found.rounds, found.decision_s_median) == (2, 1, 3, 0.2)
    assert found.share_min == pytest.approx(400 / 800)


def test_a_run_in_which_nothing_ended_has_no_times() -> None:
    found = run_metrics(run(ran("a", 0, None)))
    assert (found.finished, found.states) == (0, {"UNFINISHED": 1})
    assert np.isnan(found.avg_jct_s)
    assert np.isnan(found.gpu_utilization)


def test_a_window_counts_its_own_jobs_only() -> None:
    found = run_metrics(run(ran("a", 0, 1000), ran("b", 10, 20), window=(1, 2)))
    assert (found.jobs, found.avg_jct_s) == (1, 10.0)


def test_the_part_of_jobs_done_counts_those_that_are_not() -> None:
    times, parts = jct_cdf(run(ran("a", 0, 30), ran("b", 0, 10), ran("c", 0, None), ran("d", 0, None)))
    assert list(times) == [10, 30]
    assert list(parts) == [0.25, 0.5]


def test_two_jobs_on_the_whole_cluster_are_each_entitled_to_half() -> None:
    """The first has what it is entitled to twice as soon; the second waited for it and has just that."""
    first, second = finish_time_fairness(run(ran("a", 0, 100, 8), ran("b", 0, 200, 8)))
    assert first == pytest.approx(100 / (100 * 2))
    assert second == pytest.approx(200 / (100 * 1.5))


def slow(made: SimulationResult, step: float = 0.5) -> list[float]:
    """Finish-time fairness by counting the jobs that are there, moment by moment."""
    found = []
    for job in made.jobs:
        assert job.end is not None
        moments = np.arange(job.arrival, job.end, step) + step / 2
        there = np.mean([sum(o.arrival <= at < (o.end or 0) for o in made.jobs) for at in moments])
        found.append((job.end - job.arrival) / (job.work * max(1.0, job.gpus * there / made.total_gpus)))
    return found


@given(some.lists(some.tuples(some.integers(0, 50), some.integers(1, 60), some.integers(1, 8)), min_size=1, max_size=8))
def test_fairness_is_what_counting_says(jobs: list[tuple[int, int, int]]) -> None:
    made = run(*(ran(str(i), at, at + long, gpus) for i, (at, long, gpus) in enumerate(jobs)))
    assert list(finish_time_fairness(made)) == pytest.approx(slow(made), rel=1e-6)
