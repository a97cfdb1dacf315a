"""Forecasts of lengths and starts on traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurmsched.experiments.experiment import ExperimentSetup, FigureVerdict
from slurmsched.experiments.forecasts.lengths import (
    DAY,
    HOUR,
    TracedRun,
    chosen_limits,
    forecast_lengths,
    poisoned_medians,
    read_runs,
)
from slurmsched.experiments.forecasts.starts import (
    COUNTED_FROM,
    SIMULATED,
    ForecastOfJob,
    ForecastWeeks,
    drawn_jobs,
    finished_before,
    forecast_starts_of,
    start_rows,
    told_ranges,
)
from slurmsched.experiments.registry import run_experiment

ITP = "job_id,submission_time,duration,num_gpu\n"


def itp(path: Path, seconds: list[float]) -> Path:
    """A trace in which an hour goes by from one submission to the next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ITP + "".join(f"j{n},{n * 3600},{took},1\n" for n, took in enumerate(seconds)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "run"),
    [
        pytest.param(ITP + "a,60,120,8\n", TracedRun(60, 120, 8, "all"), id="ITP"),
        pytest.param(
            "timestamp,duration,num_gpus,gpu_time,cluster\n1970-01-01 00:01:00,120.0,8,960.0,vc1\n",
            TracedRun(60, 120, 8, "vc1"),
            id="Philly by virtual cluster",
        ),
        pytest.param(
            "job_id,user,num_gpu,submit_time,iterations,model_name,duration\n0,vc1,8,1,99,vgg16,2\n",
            TracedRun(60, 120, 8, "vc1", "vgg16"),
            id="Philly with users, in minutes",
        ),
    ],
)
def test_three_forms_of_traces_are_read(tmp_path: Path, text: str, run: TracedRun) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text, encoding="utf-8")
    assert read_runs(trace) == (run,)


def test_nothing_is_forecast_from_what_comes_later(tmp_path: Path) -> None:
    """The last job's length changes no forecast, and that of a job only those after its end."""
    random = np.random.default_rng(42)
    seconds = np.exp(random.normal(7, 1, 60)).round().tolist()
    known = forecast_lengths(itp(tmp_path / "a.csv", seconds))
    assert len(known.median) == 18
    last = forecast_lengths(itp(tmp_path / "b.csv", [*seconds[:-1], 9e6]))
    assert (last.median, last.low, last.high) == (known.median, known.low, known.high)
    changed = forecast_lengths(itp(tmp_path / "c.csv", [*seconds[:50], 9e6, *seconds[51:]]))
    assert changed.median[:9] == known.median[:9]
    assert changed.median[9:] != known.median[9:]
    assert known.owners_mean[0] == pytest.approx(np.mean(seconds[:42]), rel=0.05)


def test_an_owner_of_a_tenth_of_the_runs_is_seen_to_move_others_a_little(tmp_path: Path) -> None:
    rows = [f"{n},u{n % 9},{1 + n % 2},{n},9,m,{20 + n % 7}" for n in range(900)]
    (tmp_path / "users.csv").write_text("\n".join(["job_id,user,num_gpu,submit_time,i,model_name,duration", *rows]))
    assert 1e-4 < poisoned_medians(tmp_path / "users.csv") < 0.01


def test_limits_are_chosen_above_the_run() -> None:
    seconds = np.exp(np.random.default_rng(42).uniform(np.log(60), np.log(9 * 86400), 1000))
    limits = chosen_limits(seconds, np.random.default_rng(43))
    assert (limits >= 1.5 * seconds).all()
    assert set(limits.tolist()) <= {3600.0 * hours for hours in (1, 4, 12, 24, 48, 168, 720, 2400)}


def test_rows_say_what_misses(tmp_path: Path) -> None:
    """Sweeps of equal jobs are forecast well; a cluster whose lengths jump without pattern is not covered."""
    random = np.random.default_rng(42)
    even = np.exp(random.normal(7, 0.1, 400)).round().tolist()
    jumping = [*np.exp(random.normal(7, 0.1, 280)).round().tolist(), *[1e6] * 120]
    itp(tmp_path / "traces" / "itp" / "cluster01.csv", even)
    itp(tmp_path / "traces" / "itp" / "cluster05.csv", jumping)
    result = run_experiment("forecasts", ExperimentSetup(tmp_path, quick=True))
    verdicts = {row.metric: row.verdict for row in result.rows}
    assert verdicts["lengths, itp 1: median |log ratio|, at most that of simulated limits"] is FigureVerdict.HELD
    assert verdicts["lengths, itp 1: median |log ratio|, at most that of the last two"] is FigureVerdict.HELD
    assert verdicts["lengths, itp 5: covered by 80 % ranges"] is FigureVerdict.MISSED
    assert not result.ok


def weeks(path: Path) -> Path:
    """35 days in which a job of 8 GPUs and about 4 h comes every 16 minutes."""
    minutes = np.random.default_rng(42).normal(240, 2, 3150).round(2)
    rows = [f"{n},u{n % 3},8,{16 * n},9,m,{took}" for n, took in enumerate(minutes.tolist())]
    path.write_text("\n".join(["job_id,user,num_gpu,submit_time,i,model_name,duration", *rows]), encoding="utf-8")
    return path


def test_what_ran_before_has_limits_above_its_runs(tmp_path: Path) -> None:
    runs = read_runs(itp(tmp_path / "trace.csv", [600.0, 7200.0] * 50))
    before = finished_before(runs, 60 * HOUR, 42)
    assert before == finished_before(runs, 60 * HOUR, 42)
    ends = [run.submitted + run.seconds for run in runs]
    assert [run.ended_at for run in before] == [end for end in ends if end <= 60 * HOUR]
    assert all(run.limit >= 1.5 * run.seconds for run in before)


def test_a_seed_draws_weeks_with_the_load_and_its_limits(tmp_path: Path) -> None:
    runs = read_runs(weeks(tmp_path / "users.csv"))
    began, jobs = drawn_jobs(runs, 42)
    assert (began, jobs) == drawn_jobs(runs, 42)
    assert jobs != drawn_jobs(runs, 43)[1]
    assert all(0 <= job.arrival < SIMULATED for job in jobs)
    there = sum(run.gpus * run.seconds for run in runs if 0 <= run.submitted - began < SIMULATED)
    assert sum(job.gpus * job.duration for job in jobs) == pytest.approx(min(there, 64 * SIMULATED), rel=0.05)
    assert all((job.time_limit or 0) >= 1.5 * job.duration for job in jobs)


def test_starts_of_even_jobs_are_forecast_far_better_than_by_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = "slurmsched.experiments.forecasts.starts"
    changes = {"DRAWS": 1, "_LOOKS": HOUR, "WARM_UP": HOUR, "FORECAST_UNTIL": 8 * HOUR, "SIMULATED": DAY, "_LOAD": 2.0}
    for name, value in changes.items():
        monkeypatch.setattr(f"{room}.{name}", value)
    told = forecast_starts_of(ForecastWeeks(weeks(tmp_path / "users.csv"), "slurm", 42))
    assert len(told) > 10
    assert all(one.told <= min(one.started, one.low) for one in told)
    known = [one for one in told if one.started < DAY]
    ours = np.median([abs(one.median - one.started) for one in known])
    limits = np.median([abs(one.by_limits - one.started) for one in known])
    assert ours < 1200.0
    assert limits > 3 * ours


def jobs_told(*started: float, told: float = COUNTED_FROM) -> list[ForecastOfJob]:
    """Jobs that were told to start in 90 to 110 minutes, and started after so many seconds."""
    times = (told + HOUR * ahead for ahead in (5 / 3, 1.5, 11 / 6, 24.0))
    median, low, high, limits = times
    return [ForecastOfJob(told, told + after, median, low, high, limits) for after in started]


def test_ranges_are_corrected_by_what_is_known_at_their_look() -> None:
    """Ten jobs start an hour late: what is told before that is known is as it was drawn, and later ranges are wider."""
    late = jobs_told(*[3 * HOUR] * 10, told=0.0)
    before, after = jobs_told(6000.0, told=HOUR), jobs_told(6000.0, told=4 * HOUR)
    told, ranges = told_ranges([*late, *before, *after])
    drawn, corrected = told[10], told[11]
    assert drawn.range == drawn.forecast.drawn
    assert corrected.range.high is not None
    assert corrected.range.high > after[0].high + 20.0
    assert corrected.range.low is not None
    assert corrected.range.low > after[0].low
    assert ranges.counted == 11, "what the last one came to is not known at any look"


def test_a_job_that_never_starts_is_late_once_its_range_is_over() -> None:
    never = jobs_told(np.inf)
    told, ranges = told_ranges([*never, *jobs_told(6000.0, told=COUNTED_FROM + 3 * HOUR)])
    assert (told[0].is_known, told[0].is_late, told[0].is_early) == (True, True, False)
    assert (ranges.counted, ranges.covered, ranges.above > 1) == (1, 0, True)
    (unknown,), _ = told_ranges([ForecastOfJob(COUNTED_FROM, *[np.inf] * 5)])
    assert not unknown.is_known


def test_rows_of_starts_say_what_misses() -> None:
    good = {seed: jobs_told(*[6000.0] * 4, 60.0) for seed in (42, 43)}
    rows = {row.metric.partition(": ")[2]: row for row in start_rows("slurm", good)}
    assert rows["covered by 80 % ranges"].verdict is FigureVerdict.HELD
    assert rows["covered by 80 % ranges"].measured == pytest.approx(0.8)
    assert rows["start before the range"].measured == pytest.approx(0.2)
    assert rows["median error, in that of squeue --start, worst seed"].measured == 0.0
    bad = {42: good[42], 43: jobs_told(*[86_000.0] * 5), 44: jobs_told(6000.0, told=0.0)}
    rows = {row.metric.partition(": ")[2]: row for row in start_rows("slurm", bad)}
    assert (rows["covered, seed 42"].measured, rows["covered, seed 43"].measured) == (0.8, 0.0)
    assert rows["covered by 80 % ranges"].verdict is FigureVerdict.MISSED
    assert rows["median error, in that of squeue --start, worst seed"].verdict is FigureVerdict.MISSED
    assert rows["jobs that waited"].measured == 10.0, "the third seed is before what counts"
