"""Forecasts of lengths on traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurmsched.experiments.experiment import ExperimentSetup, FigureVerdict
from slurmsched.experiments.forecasts import (
    ForecastDay,
    StartForecasts,
    TracedRun,
    chosen_limits,
    drawn_jobs,
    forecast_lengths,
    forecast_starts_of,
    poisoned_medians,
    read_runs,
    start_rows,
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


def users(path: Path) -> Path:
    """Twelve days in which a job of 8 GPUs and about 4 h comes every 16 minutes."""
    minutes = np.random.default_rng(42).normal(240, 2, 1080).round(2)
    rows = [f"{n},u{n % 3},8,{16 * n},9,m,{took}" for n, took in enumerate(minutes.tolist())]
    path.write_text("\n".join(["job_id,user,num_gpu,submit_time,i,model_name,duration", *rows]), encoding="utf-8")
    return path


def test_a_seed_draws_a_day_with_the_load_and_its_limits(tmp_path: Path) -> None:
    runs = read_runs(users(tmp_path / "users.csv"))
    began, jobs = drawn_jobs(runs, 42)
    assert (began, jobs) == drawn_jobs(runs, 42)
    assert jobs != drawn_jobs(runs, 43)[1]
    assert all(0 <= job.arrival < 6 * 86400 for job in jobs)
    assert sum(job.gpus * job.duration for job in jobs) == pytest.approx(1.6 * 64 * 6 * 86400, rel=0.15)
    assert all((job.time_limit or 0) >= 1.5 * job.duration for job in jobs)


def test_starts_of_even_jobs_are_forecast_far_better_than_by_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmsched.experiments.forecasts.START_DRAWS", {"slurm": 1})
    told = forecast_starts_of(ForecastDay(users(tmp_path / "users.csv"), "slurm", 42))
    assert len(told.started) > 50
    started = np.array(told.started)
    ours, limits = (np.abs(np.array(median) - started) for median in (told.median, told.by_limits))
    assert np.median(ours) < 1200.0
    assert np.median(limits) > 3 * np.median(ours)


def test_rows_of_starts_say_what_misses() -> None:
    kept = StartForecasts((100.0, 200.0, 300.0, 400.0, 900.0), (110.0,) * 5, (90.0,) * 5, (450.0,) * 5, (9000.0,) * 5)
    late = StartForecasts((500.0,), (100.0,), (90.0,), (110.0,), (900.0,))
    never = StartForecasts((np.inf,), (np.inf,), (np.inf,), (np.inf,), (np.inf,))
    good = {row.metric.rpartition(": ")[2]: row for row in start_rows("slurm", [kept, StartForecasts()])}
    assert good["covered by 80 % ranges"].verdict is FigureVerdict.HELD
    assert good["median error, in that of squeue --start, worst day"].verdict is FigureVerdict.HELD
    assert good["median error, squeue --start"].measured == 8700.0
    bad = {row.metric.rpartition(": ")[2]: row for row in start_rows("slurm", [kept, late])}
    assert bad["median error, in that of squeue --start, worst day"].measured == 1.0
    assert bad["covered by 80 % ranges"].measured == pytest.approx(4 / 6)
    assert bad["start after the range"].measured == pytest.approx(2 / 6)
    assert not any(row.ok for row in bad.values() if row.bound != "stated")
    (ratio, *_), covered = start_rows("slurm", [never]), [*start_rows("slurm", [never])][3]
    assert (ratio.measured, covered.measured) == (0.0, 1.0)
