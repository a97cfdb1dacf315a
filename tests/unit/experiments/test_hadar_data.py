"""Hadar's comparison on the public rates, and the made-up queue that its speed is measured on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmsched.bench.policies import time_pricing
from slurmsched.experiments.experiment import ExperimentSetup
from slurmsched.experiments.mixed.hadar_static import run_hadar_static
from slurmsched.experiments.mixed.workloads import WIDTH_VARIANTS, sized_jobs
from slurmsched.knowledge import load_gavel_rates

DATA = os.environ.get("SLURMSCHED_DATA")
with_data = pytest.mark.skipif(DATA is None, reason="SLURMSCHED_DATA names no data sets")


@with_data
def test_the_small_comparison_holds_and_has_a_curve_for_each_scheduler_and_its_types() -> None:
    outcome = run_hadar_static(ExperimentSetup(Path(DATA or ""), quick=True))

    rows = {row.metric: row for row in outcome.rows}
    assert rows["hadar total time"].measured >= rows["fastest possible total time"].measured
    assert rows["gavel over hadar: median completion"].ok
    assert len(outcome.series) == 6 * (1 + 3)
    assert all(0 <= part <= 1 + 1e-9 for curve in outcome.series.values() for _, part in curve)


@with_data
def test_sizes_count_k80_hours() -> None:
    rates = load_gavel_rates(Path(DATA or "") / "gavel" / "throughputs.json")

    work = sized_jobs(200, 1, rates)

    hours = [job.steps / job.rates["k80"] * job.gpus / 3600 for job in work if job.model.startswith("resnet-50")]
    assert hours
    assert all(60 - 0.1 <= own <= 100 + 0.1 for own in hours)


@with_data
@pytest.mark.parametrize("reading", [pytest.param(name, id=name) for name in WIDTH_VARIANTS])
def test_another_width_is_the_same_work(reading: str) -> None:
    rates = load_gavel_rates(Path(DATA or "") / "gavel" / "throughputs.json")
    drawn, other = sized_jobs(100, 1, rates), sized_jobs(100, 1, rates, WIDTH_VARIANTS[reading])

    assert {job.gpus for job in other} <= {1, 2, 4, 8}
    for one, same in zip(drawn, other, strict=True):
        hours = [job.steps / job.rates["k80"] * job.gpus for job in (one, same)]
        assert hours[0] == pytest.approx(hours[1], rel=0.05, abs=200.0)


def test_the_measured_cluster_grows_with_the_queue() -> None:
    small, large = time_pricing(64, range(1)), time_pricing(160, range(2))

    assert (small.gpus, large.gpus) == (8, 20)
    assert (small.repeat, large.repeat) == (1, 2)
    assert 0 < large.running <= large.gpus
