"""Replays of tiny queues, and the published figures where the data set is at hand."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import slurmsched.experiments.synergy.replay as replay_module
from slurmsched.experiments.experiment import ExperimentError, ExperimentSetup
from slurmsched.experiments.registry import run_experiment
from slurmsched.experiments.synergy import sweeps
from slurmsched.experiments.synergy.allocation import AUTHORS, PAPER
from slurmsched.experiments.synergy.jobs import (
    IterationJob,
    MeasuredModel,
    ReplayScenario,
    capped_speedup,
    load_models,
    to_synergy_job,
)
from slurmsched.experiments.synergy.live_sweeps import measure_live, measure_replay, tuned
from slurmsched.experiments.synergy.philly import trace_scenario
from slurmsched.experiments.synergy.replay import ORDERS, SynergyDecider, replay_trace
from slurmsched.experiments.synergy.sweeps import SynergySweepConfig, run_sweep
from slurmsched.knowledge import Knowledge, Profile, ProfileError, SensitivityMatrix
from slurmsched.policies.policies import policy
from slurmsched.policies.stages import Policy
from slurmsched.simulation.replay import ReplayError, RoundInput
from slurmsched.traces import TraceError
from slurmsched.traces.generators import SYNERGY_MODELS

DATA = os.environ.get("SLURMSCHED_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="SLURMSCHED_DATA names no folder of public data sets")

MATRIX = SensitivityMatrix((1, 3, 12), (20, 62.5, 125), ((0.3, 0.3, 0.3), (0.3, 1.0, 1.0), (0.3, 2.0, 3.0)))
IMAGE = MeasuredModel("image", "image", 12, 125, 3.0, 1.0, MATRIX)
FLAT = SensitivityMatrix((1, 3, 12), (20, 62.5, 125), ((1.0,) * 3,) * 3)
LANGUAGE = MeasuredModel("language", "language", 1, 20, 1.0, 1.0, FLAT)


def work(
    number: int, iterations: int, model: MeasuredModel = LANGUAGE, gpus: int = 1, arrival: float = 0.0
) -> IterationJob:
    return IterationJob(number, arrival, iterations, gpus, model)


def ends(
    *jobs: IterationJob, mechanism: str = "tune", order: str = "fifo", paper: bool = False, servers: int = 1
) -> list[float]:
    run = replay_trace(ReplayScenario(jobs, servers), mechanism, order, PAPER if paper else AUTHORS)
    return [job.end or 0.0 for job in run.jobs]


def test_the_authors_jobs_end_with_their_round_and_the_papers_when_they_are_done() -> None:
    assert ends(work(0, 450)) == [601.0]
    assert ends(work(0, 450), paper=True) == [pytest.approx(450.0)]


def test_the_authors_lose_what_is_left_of_an_iteration_at_a_rounds_end() -> None:
    slow = MeasuredModel("slow", "", 1, 20, 1.0, 200.0, FLAT)
    assert ends(work(0, 2, slow)) == [601.0]
    assert ends(work(0, 2, slow), paper=True) == [pytest.approx(400.0)]


def test_a_hungry_job_runs_at_its_speedup_where_there_is_room() -> None:
    assert ends(work(0, 3000, IMAGE)) == [1201.0]
    assert ends(work(0, 3000, IMAGE), mechanism="proportional") == [3001.0]


def test_an_arrival_within_a_round_waits_for_the_next() -> None:
    first, second = ends(work(0, 600), work(1, 300, arrival=310.0))
    assert (first, second) == (600.0, 900.0)


def test_a_cluster_that_was_empty_goes_on_with_whoever_comes_then() -> None:
    assert ends(work(0, 300), work(1, 300, arrival=7000.0)) == [300.0, 7500.0]


def test_the_shortest_goes_first_under_srtf_and_the_first_under_fifo() -> None:
    jobs = (work(0, 900, gpus=8), work(1, 300, gpus=8, arrival=0.001))
    assert ends(*jobs) == [901.0, 1201.0]
    assert ends(*jobs, order="srtf") == [1201.0, 301.0]


def test_attained_service_alternates_two_jobs_under_las() -> None:
    jobs = (work(0, 600, gpus=8), work(1, 600, gpus=8, arrival=0.001))
    assert ends(*jobs, order="las") == [901.0, 1201.0]


def test_a_smaller_job_fills_in_behind_one_that_cannot_start() -> None:
    jobs = (work(0, 600, gpus=4), work(1, 300, gpus=8, arrival=0.001), work(2, 300, gpus=4, arrival=0.002))
    assert ends(*jobs) == [601.0, 901.0, 301.0]


def test_a_demand_beyond_a_server_is_cut_and_its_speedup_with_it() -> None:
    four = work(0, 1, IMAGE, gpus=4)
    asked = to_synergy_job(0, four, ReplayScenario((four,)))
    assert asked.best_case == (6.0, 125.0)
    assert capped_speedup(four, asked, ReplayScenario((four,))) == pytest.approx(1 + 2 * 3 / 9)
    wide = work(0, 1, IMAGE, gpus=16)
    assert to_synergy_job(0, wide, ReplayScenario((wide,), 2)).best_case == (3.0, 62.5)
    assert capped_speedup(wide, to_synergy_job(0, wide, ReplayScenario((wide,), 2)), ReplayScenario((wide,), 2)) == 1.0


@pytest.mark.parametrize("mechanism", ["proportional", "greedy", "tune", "opt"])
@pytest.mark.parametrize("order", ["fifo", "srtf", "las", "ftf"])
def test_every_mechanism_ends_all_jobs_in_every_order(mechanism: str, order: str) -> None:
    jobs = [work(i, 200 * (i % 5 + 1), IMAGE if i % 2 else LANGUAGE, (1, 2, 8)[i % 3], 40.0 * i) for i in range(12)]
    run = replay_trace(ReplayScenario(jobs, 2), mechanism, order, AUTHORS)
    assert all(job.completed and job.jct >= 0 for job in run.jobs)


@pytest.mark.parametrize("order", ["srtf", "las", "ftf"])
def test_jobs_are_sorted_all_at_once_as_by_the_key_of_each(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """60 jobs, some of them alike, on one server, where some starve after an hour."""
    seen, starved = list[int](), set[int]()

    class Checked(SynergyDecider):
        def _update_runnable(self, round_input: RoundInput) -> None:
            super()._update_runnable(round_input)
            self.now, self.before = round_input.time, list(self.runnable)

        def _select_jobs(self) -> list[int]:
            assert self.runnable == sorted(self.before, key=lambda at: ORDERS[order](self.progress[at], self.now))
            seen.append(len(self.runnable))
            starved.update(at for at in self.runnable if self.progress[at].starved)
            return super()._select_jobs()

    monkeypatch.setattr(replay_module, "SynergyDecider", Checked)
    monkeypatch.setattr(replay_module, "_STARVATION_AFTER", 3600.0)
    jobs = [
        work(i, 700 * (i % 5 + 1), IMAGE if i % 2 else LANGUAGE, (1, 2, 8)[i % 3], 100.0 * (i // 2)) for i in range(60)
    ]
    assert all(end > 0 for end in ends(*jobs, order=order))
    assert max(seen) > 20
    assert starved


def test_only_the_window_has_to_end() -> None:
    jobs = [work(0, 300), work(1, 300, arrival=1.0), work(2, 10**6, arrival=2.0)]
    run = replay_trace(ReplayScenario(jobs), "tune", "fifo", AUTHORS, window=(0, 2))
    assert [job.completed for job in run.jobs] == [True, True, False]
    assert len(run.measured_jobs) == 2


def test_what_cannot_be_run_is_said() -> None:
    with pytest.raises(ExperimentError, match="job 0 asks for 9 GPUs, but the cluster has 8"):
        ends(work(0, 1, gpus=9))
    with pytest.raises(ExperimentError, match="there is no order 'x'; orders: fifo, srtf, las, ftf"):
        ends(work(0, 1), order="x")
    eternal = MeasuredModel("eternal", "", 1, 20, 1.0, 301.0, FLAT)
    with pytest.raises(ReplayError, match="job 0 never ends: a step of it takes longer than a round"):
        ends(work(0, 1, eternal))


PROFILE = {
    "model": "a", "task": "image", "cpu_gpu_ratio": 3, "read_by_simulator": True,
    "cpus": 6, "mem": 62.5, "speedup": 1.5, "iter_time": 0.5, "tput": [[0.5, 0.5], [1.0, 1.0]],
}  # fmt: skip


def profiles(folder: Path, **changed: object) -> Path:
    axes = {"tput_rows": {"values": [1, 3]}, "tput_cols": {"values_for_5_columns": [20, 62.5]}}
    path = folder / "profiles.json"
    path.write_text(json.dumps({"metadata": axes, "profiles": [PROFILE | changed]}))
    return path


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cpus": "six"}, r"profiles\.json: profile 1: cpus: expected a number above 0, not 'six'"),
        ({"iter_time": 0}, r"profile 1: iter_time: expected a number above 0, not 0"),
        ({"tput": [[1.0, 1.0]]}, r"profile 1: tput: expected 2 rows of 2 numbers"),
        ({"cpu_gpu_ratio": 4}, r"no profile has cpu_gpu_ratio 3"),
    ],
)
def test_a_mistake_in_the_models_is_named(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        load_models(profiles(tmp_path, **changed))


def test_a_trace_is_replayed_by_every_mechanism_and_both_readings(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,model,arrival_s,iterations,num_gpus\n0,a,0.0,1200,1\n1,a,0.1,600,2\n")
    given = {"trace": str(trace), "order": "srtf", "profiles": str(profiles(tmp_path))}
    outcome = run_experiment("synergy-replay", ExperimentSetup(tmp_path, options=given))
    measured = {row.metric: row.measured for row in outcome.rows}
    assert measured["srtf proportional makespan"] == pytest.approx(601 / 3600)
    assert measured["paper: srtf tune makespan"] == pytest.approx(600 / 3600, rel=0.01)
    assert outcome.ok


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,b,0.0,1200,1", r"jobs\.csv:2: model: expected one of a, not 'b'"),
        ("0,a,soon,1200,1", r"jobs\.csv:2: arrival_s: expected a number of at least 0, not 'soon'"),
        ("0,a,0.0,0,1", r"jobs\.csv:2: iterations: expected a whole number of at least 1, not '0'"),
        ("0,a,0.0,1200", r"jobs\.csv:2: expected one field for each heading, not 4 fields under 5 headings"),
    ],
)
def test_a_mistake_in_a_trace_is_named(tmp_path: Path, line: str, said: str) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(f"job_id,model,arrival_s,iterations,num_gpus\n{line}\n")
    given = {"trace": str(trace), "profiles": str(profiles(tmp_path))}
    with pytest.raises(TraceError, match=said):
        run_experiment("synergy-replay", ExperimentSetup(tmp_path, options=given))


@needs_data
def test_the_static_trace_gives_what_the_authors_simulator_gives() -> None:
    outcome = run_experiment("synergy-static", ExperimentSetup(Path(DATA or "")))
    theirs = [row for row in outcome.rows if row.reference is not None and not row.metric.startswith("live")]
    makespans = [row for row in theirs if row.metric.endswith("makespan")]
    assert len(makespans) == 7
    assert all(row.ok for row in makespans), [(row.metric, row.measured) for row in makespans]


@needs_data
@pytest.mark.parametrize("name", ["synergy-load", "synergy-ratios"])
def test_tune_is_near_the_optimum_in_the_small_sweeps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gains = sweeps.PUBLISHED_RATIO_GAINS
    monkeypatch.setattr(sweeps, "PUBLISHED_RATIO_GAINS", {ratio: gains[ratio] for ratio in (min(gains), max(gains))})
    outcome = run_experiment(name, ExperimentSetup(Path(DATA or ""), (42,), quick=True))
    near = [row for row in outcome.rows if "over opt" in row.metric and row.tolerance is not None]
    assert near
    assert all(row.ok for row in near), [(row.metric, row.measured) for row in near]


def every_model(folder: Path) -> Path:
    """Profiles of all of Synergy's models."""
    path = profiles(folder)
    data = json.loads(path.read_text())
    names = [name for of_task in SYNERGY_MODELS.values() for name in of_task]
    path.write_text(json.dumps(data | {"profiles": [PROFILE | {"model": name} for name in names]}))
    return path


def test_jobs_of_the_trace_keep_their_arrivals_gpus_and_seconds(tmp_path: Path) -> None:
    models, trace = every_model(tmp_path), tmp_path / "philly.csv"
    rows = [f"2017-10-09 0{number}:00:00,{100 * number},{2**number},0,x" for number in (3, 1, 2, 5)]
    trace.write_text("\n".join(("timestamp,duration,num_gpus,gpu_time,cluster", *rows)))

    scenario = trace_scenario(trace, models, 1, 3)

    assert [(job.arrival, job.gpus) for job in scenario.jobs] == [(0, 2), (3600, 4), (7200, 8)], "not the one of 32"
    assert [job.iterations * job.model.iteration_seconds for job in scenario.jobs] == pytest.approx([100, 200, 300])
    with pytest.raises(ExperimentError, match="at least 4 jobs of 1 to 16 GPUs"):
        trace_scenario(trace, models, 1, 4)
    trace.write_text("timestamp,duration,num_gpus\nyesterday,1,1\n")
    with pytest.raises(TraceError, match=r"philly.csv:2: timestamp: expected a time as in"):
        trace_scenario(trace, models, 1, 1)


@pytest.mark.parametrize("seeds", [(42,), (42, 43)])
def test_a_sweep_runs_every_seed(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    config = SynergySweepConfig("tune", 20.0, (0, 5), every_model(tmp_path))

    measured = run_sweep([config], ExperimentSetup(tmp_path, seeds), "")[config]

    assert len(set(measured.jct_by_seed)) == len(seeds)
    assert measured.mean_jct_h == pytest.approx(sum(measured.jct_by_seed) / len(seeds))
    assert measured.worst_over(measured) == 1.0


HUNGRY = ReplayScenario([*(work(number, 3000, IMAGE) for number in range(8)), work(8, 300, arrival=900.0)], 1)
"""Eight jobs that would each take half of the server's CPUs, and one that comes later."""
IN_MIB = replace(MATRIX, memory=tuple(1024 * points for points in MATRIX.memory))
PROFILED = Knowledge({"image": Profile("image", "image", {"": IN_MIB}, "by hand")})
ALL = (0, 9)


@pytest.mark.parametrize(("mechanism", "gpus"), [("proportional", 1.0), ("greedy", 2 / 8), ("tune", 1.0)])
def test_a_replay_counts_the_gpus_that_greedy_leaves_idle(mechanism: str, gpus: float) -> None:
    assert measure_replay(HUNGRY, mechanism, ALL).gpus == pytest.approx(gpus)


@pytest.mark.parametrize(
    ("decides", "gpus"),
    [
        pytest.param(policy("proportional", "fifo"), 1.0, id="proportional shares"),
        pytest.param(policy("synergy-greedy", "fifo"), 2 / 8, id="greedy has the CPUs that the GPUs need"),
        pytest.param(policy("synergy", "fifo"), 1.0, id="tune"),
        pytest.param(policy("drf"), 2 / 8, id="DRF with best-case demands is greedy"),
        pytest.param(policy("tetris"), 2 / 8, id="so is Tetris"),
        pytest.param(tuned("drf"), 1.0, id="DRF, tuned"),
        pytest.param(tuned("tetris"), 1.0, id="Tetris, tuned"),
    ],
)
def test_the_daemons_policies_are_counted_alike(decides: Policy, gpus: float) -> None:
    counted = measure_live(HUNGRY, PROFILED, decides, ALL)
    assert (counted.gpus, counted.cpus) == (pytest.approx(gpus), pytest.approx(1.0))


def test_only_what_is_in_use_while_jobs_arrive_counts() -> None:
    gaps = ReplayScenario([work(0, 300, gpus=8), work(1, 300, gpus=4, arrival=900.0), work(2, 9, arrival=1500.0)], 1)
    assert measure_replay(gaps, "tune", (0, 3)).gpus == pytest.approx((300 * 8 + 300 * 4) / (1500 * 8))
    assert measure_replay(gaps, "tune", (1, 3)).gpus == pytest.approx(300 * 4 / (600 * 8))
