"""Hadar's comparison on the public rates, and the made-up queue that its speed is measured on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmsched.bench.policies import time_pricing
from slurmsched.experiments.experiment import ExperimentError, ExperimentSetup
from slurmsched.experiments.mixed import hadar_static
from slurmsched.experiments.mixed.hadar_static import run_hadar_static
from slurmsched.experiments.mixed.workloads import WIDTH_VARIANTS, philly_jobs, read_busiest_hours, sized_jobs
from slurmsched.knowledge import Knowledge, load_gavel_rates

DATA = os.environ.get("SLURMSCHED_DATA")
with_data = pytest.mark.skipif(DATA is None, reason="SLURMSCHED_DATA names no data sets")


@with_data
def test_the_small_comparison_holds_and_has_a_curve_for_each_scheduler_and_its_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hadar_static, "QUICK_JOB_COUNT", 60)  # of either load, so that it takes seconds
    outcome = run_hadar_static(ExperimentSetup(Path(DATA or ""), (42,), quick=True))

    rows = {row.metric: row for row in outcome.rows}
    assert len(rows) == len(outcome.rows)
    assert outcome.ok
    for load in ("philly", "even"):
        fastest = rows[f"{load}: fastest possible total time"].measured
        for name in ("hadar", "hadar, timely", "gavel", "tiresias", "yarn-cs", "live: hadar"):
            assert rows[f"{load}: {name} total time"].measured >= fastest
    # Jobs exchange places for the highest total utility: of sixty even ones, which hardly wait, most do not end sooner.
    assert rows["philly: gavel over hadar, timely: median completion"].measured > 1
    assert rows["even: gavel over hadar, timely: total time"].measured > 1
    assert len(outcome.series) == 2 * 5 * (1 + 3)
    assert all(0 <= part <= 1 + 1e-9 for curve in outcome.series.values() for _, part in curve)


def test_jobs_of_the_trace_have_its_gpus_and_hours_and_a_model_of_their_size(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    hours = {"03:00": 0.5, "09:59": 5.0, "10:00": 0.5, "04:00": 55.0, "05:00": 40.0, "06:00": 200.0}
    rows = [f"2017-10-09 {time}:00,{3600 * gpu_hours / 2},2,0,x" for time, gpu_hours in hours.items()]
    path.write_text("\n".join(("timestamp,duration,num_gpus,gpu_time,cluster", *rows, "2017-10-09 03:01:00,60,16,0,x")))

    trace = read_busiest_hours(path)

    assert trace == ((2, 900.0), (2, 9000.0), (2, 72000.0)), "not after ten, between two sizes, or too large"
    with pytest.raises(ExperimentError, match="3 jobs that belong to a size of table II, fewer than 4"):
        philly_jobs(trace, 4, 1, Knowledge())


@with_data
def test_a_draw_of_the_trace_has_as_much_work_as_its_jobs() -> None:
    rates = load_gavel_rates(Path(DATA or "") / "gavel" / "throughputs.json")
    trace = [(1, 1800.0), (2, 9000.0), (4, 36000.0), (8, 28800.0)]

    drawn = philly_jobs(trace, 4, 1, rates)

    assert {job.gpus: job.steps / job.rates["p100"] for job in drawn} == pytest.approx(dict(trace), rel=1e-3)
    assert {job.gpus: job.model.split("-batch")[0] for job in drawn if job.gpus != 4} == {
        1: "resnet-18",
        2: "cyclegan",
        8: "resnet-50",
    }
    assert drawn == philly_jobs(trace, 4, 1, rates) != philly_jobs(trace, 4, 2, rates)


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
