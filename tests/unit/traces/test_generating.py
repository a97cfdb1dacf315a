"""Made-up workloads have the distributions they are said to have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurmsched.traces import TraceError
from slurmsched.traces.formats.native import to_csv
from slurmsched.traces.generators import GENERATORS, generate, synergy_workload


@pytest.mark.parametrize("name", GENERATORS)
def test_same_seed_same_bytes_and_another_seed_other_jobs(name: str) -> None:
    assert to_csv(generate(name, 40, 1, 6)) == to_csv(generate(name, 40, 1, 6))
    assert to_csv(generate(name, 40, 1, 6)) != to_csv(generate(name, 40, 2, 6))


def test_another_rate_changes_arrivals_and_nothing_else() -> None:
    slow, fast = synergy_workload(100, 3, 2.0), synergy_workload(100, 3, 20.0)
    assert [job.duration for job in slow.jobs] == [job.duration for job in fast.jobs]
    assert [job.model for job in slow.jobs] == [job.model for job in fast.jobs]
    assert slow.jobs[-1].arrival == pytest.approx(10 * fast.jobs[-1].arrival, rel=1e-3)


def test_synergys_distributions() -> None:
    jobs = synergy_workload(20_000, 1, 9.0, multi=True).jobs
    minutes = np.array([job.duration for job in jobs]) / 60
    assert minutes.min() >= 10**1.5 - 1e-3
    assert minutes.max() <= 10**4 + 1e-3
    assert np.mean(minutes > 1000) == pytest.approx(0.2, abs=0.01)
    assert np.mean(np.diff([job.arrival for job in jobs])) == pytest.approx(400, rel=0.03)
    assert np.mean([job.task == "language" for job in jobs]) == pytest.approx(0.7, abs=0.01)
    assert np.mean([job.gpus == 1 for job in jobs]) == pytest.approx(0.7, abs=0.01)


def test_shockwaves_sizes_are_gpu_hours() -> None:
    jobs = generate("shockwave", 20_000, 1, 80).jobs
    hours = np.array([job.duration * job.gpus for job in jobs]) / 3600
    assert np.mean(hours < 8) == pytest.approx(0.72, abs=0.01)
    assert np.mean(hours > 72) == pytest.approx(0.03, abs=0.005)
    assert np.mean([job.gpus == 2 for job in jobs]) == pytest.approx(0.3, abs=0.01)


def test_hadars_classes_are_even_and_there_from_the_start() -> None:
    jobs = generate("hadar", 8_000, 1, 1).jobs
    hours = np.array([job.duration * job.gpus for job in jobs]) / 3600
    assert {job.arrival for job in jobs} == {0.0}
    assert np.mean(hours >= 60) == pytest.approx(0.25, abs=0.015)
    assert np.mean((hours > 10) & (hours <= 50)) == pytest.approx(0.25, abs=0.015)


def test_gavel_draws_26_types() -> None:
    assert len({job.model for job in generate("gavel", 3000, 1, 5).jobs}) == 26


def test_one_gpu_jobs_are_forked_where_that_is_asked_for() -> None:
    plain, copied = generate("synergy-multi", 200, 1, 6), generate("synergy-multi", 200, 1, 6, fork=5)
    assert {(job.gpus == 1, job.fork) for job in copied.jobs} == {(True, 5), (False, 0)}
    assert tuple(replace(job, fork=0) for job in copied.jobs) == plain.jobs
    with pytest.raises(TraceError, match="0 to 2000 copies of a job, not 9999"):
        generate("synergy", 1, 1, 6, fork=9999)


@pytest.mark.parametrize(("name", "jobs", "rate"), [("x", 1, 1.0), ("synergy", 0, 1.0), ("synergy", 1, 0.0)])
def test_what_cannot_be_made_is_refused(name: str, jobs: int, rate: float) -> None:
    with pytest.raises(TraceError):
        generate(name, jobs, 1, rate)
