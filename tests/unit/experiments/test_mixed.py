"""Policies in the replay on mixed GPU types, and Gavel's figures where the data set is at hand."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slurmsched.experiments.experiment import ExperimentError, ExperimentSetup
from slurmsched.experiments.mixed.replay_policies import GavelReplayPolicy
from slurmsched.experiments.mixed.workloads import authors_rounds, replay_live
from slurmsched.experiments.registry import run_experiment
from slurmsched.policies.gavel.objectives import GAVEL_POLICIES
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.replay import Decider, GpuWorkers, ReplayJob, ReplayResult

DATA = os.environ.get("SLURMSCHED_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="SLURMSCHED_DATA names no folder of public data sets")

CLUSTER = GpuWorkers.from_gpu_counts({"v100": 2, "k80": 2}, per_server=2)


def run_replay(jobs: Sequence[ReplayJob], cluster: GpuWorkers, decider: Decider) -> ReplayResult:
    return replay(jobs, cluster, decider, authors_rounds())


def work(name: str, seconds: int, *, width: int = 1, slow: float = 2.0, model: str = "m") -> ReplayJob:
    """10 steps a second on a V100, so that it takes `seconds` there."""
    beside = {"v100": {"m": 0.9}, "k80": {"m": 0.0}}
    return ReplayJob(
        name,
        width,
        10 * seconds,
        {"v100": 10.0, "k80": slow},
        model=model,
        colocated_fractions=beside if width == 1 else {},
    )


def gavel(name: str, seed: int = 0) -> GavelReplayPolicy:
    return GavelReplayPolicy(name, GAVEL_POLICIES[name], np.random.default_rng(seed))


@pytest.mark.parametrize("name", sorted(GAVEL_POLICIES))
def test_every_policy_ends_every_job_and_again_the_same(name: str) -> None:
    jobs = [work(str(number), 400 + 100 * number, width=1 + number % 2, slow=1.0 + number) for number in range(7)]
    first, second = (run_replay(jobs, CLUSTER, gavel(name)) for _ in range(2))
    assert first.end_times.keys() == {job.id for job in jobs}
    assert (first.end_times, first.records) == (second.end_times, second.records)


def test_gavel_gives_turns_on_the_fast_type() -> None:
    done = run_replay(
        [work(name, 2000) for name in "abc"], GpuWorkers.from_gpu_counts({"v100": 1}), gavel("max_min_fairness_perf")
    )
    assert max(done.end_times.values()) - min(done.end_times.values()) <= 3 * 360


def test_a_packed_pair_shares_the_gpu_it_is_fast_on() -> None:
    jobs = [work("a", 900), work("b", 900)]
    packed = run_replay(jobs, GpuWorkers.from_gpu_counts({"v100": 1}), gavel("max_min_fairness_packed"))
    alone = run_replay(jobs, GpuWorkers.from_gpu_counts({"v100": 1}), gavel("max_min_fairness_perf"))
    assert packed.makespan == pytest.approx(1000, rel=0.01)
    assert alone.makespan == pytest.approx(1800, rel=0.01)


def baseline(name: str, jobs: Sequence[ReplayJob], cluster: GpuWorkers = CLUSTER) -> ReplayResult:
    """Under the daemon's policy of that name, in the authors' rounds."""
    return replay_live(name, jobs, cluster, replace(authors_rounds(), leases=True))


def test_tiresias_serves_the_second_queue_after_the_first() -> None:
    """The first queue ends at an hour of one GPU."""
    jobs = [work("long", 8000), work("short", 200)]
    done = baseline("tiresias", jobs, GpuWorkers.from_gpu_counts({"v100": 1})).end_times
    assert done["short"] == pytest.approx(3600 + 200)
    assert done["long"] == pytest.approx(8000 + 200)


GANGS = [work("first", 1000, width=3), work("second", 1000, width=3)]
SIX = GpuWorkers.from_gpu_counts({"v100": 4, "k80": 2}, per_server=1)


@pytest.mark.parametrize(
    ("name", "granted"),
    [
        pytest.param("tiresias", {"v100": 3}, id="tiresias keeps a gang on one type"),
        pytest.param("yarn-cs", {"v100": 4, "k80": 2}, id="yarn gives a gang whatever containers are free"),
    ],
)
def test_a_gang_for_which_no_type_has_enough_free(name: str, granted: dict[str, int]) -> None:
    assert baseline(name, GANGS, SIX).records[0].granted_gpus == granted


@pytest.mark.parametrize("name", ["tiresias", "yarn-cs"])
def test_a_baseline_takes_whatever_type_is_free(name: str) -> None:
    """It does not know that the job is fifty times as fast on the other."""
    done = baseline(name, [work("narrow", 1000, width=2), work("wide", 100, width=2, slow=0.2)])
    assert done.records[0].granted_gpus == {"v100": 2, "k80": 2}
    assert done.end_times["wide"] == pytest.approx(5000.0)


@pytest.mark.parametrize(
    ("seconds", "passes"),
    [pytest.param(100, True, id="in time"), pytest.param(9000, False, id="not if the first would wait longer")],
)
def test_yarn_stops_nobody_and_lets_pass_who_delays_nobody(seconds: int, passes: bool) -> None:
    only = GpuWorkers.from_gpu_counts({"v100": 4})
    jobs = [work("runs", 1000, width=3), work("first", 100, width=4), work("narrow", seconds)]
    done, alone = baseline("yarn-cs", jobs, only), baseline("yarn-cs", jobs[:2], only)
    assert {name: done.end_times[name] for name in alone.end_times} == alone.end_times
    assert alone.end_times["runs"] == pytest.approx(1000.0)
    assert (done.end_times["narrow"] < done.end_times["first"]) is passes


@pytest.mark.parametrize("name", ["tiresias", "yarn-cs"])
def test_no_baseline_runs_a_job_where_it_cannot(name: str) -> None:
    done = baseline(name, [work(str(number), 500, slow=0.0) for number in range(3)])
    assert all(record.granted_gpus.get("k80", 0) == 0 for record in done.records)


def test_gavel_runs_nobody_where_it_cannot() -> None:
    jobs = [work(str(number), 500, slow=0.0) for number in range(3)]
    done = run_replay(jobs, CLUSTER, gavel("max_min_fairness_perf"))
    assert all(record.granted_gpus.get("k80", 0) == 0 for record in done.records)


CASE = {
    "name": "tiny",
    "inputs": {
        "throughputs": {"0": {"v100": 10.0}, "1": {"v100": 10.0}, "(0, 1)": {"v100": [8.0, 8.0]}},
        "scale_factors": {"0": 1, "1": 1},
        "cluster": {"v100": 1},
        "steps_remaining": {"0": 100, "1": 100},
        "seconds_since_start": {"0": 0, "1": 0},
    },
    "gavel": {"max_min_fairness_packed": {"objective": 0.8}, "max_min_fairness_perf": {"objective": 0.6}},
}


def file(folder: Path, case: object) -> Path:
    path = folder / "cases.json"
    path.write_text(json.dumps({"cases": [case]}))
    return path


def test_cases_of_any_file_are_held_against_its_optima(tmp_path: Path) -> None:
    task = ExperimentSetup(tmp_path, options={"vectors": str(file(tmp_path, CASE))})
    packed, perf = run_experiment("gavel-vectors", task).rows
    assert (packed.measured, packed.ok) == (pytest.approx(0.8), True)
    assert (perf.measured, perf.ok) == (pytest.approx(0.5), False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("scale_factors", {"0": 1}, id="a job without a width"),
        pytest.param("cluster", {"v100": 0}, id="a type without GPUs"),
        pytest.param("steps_remaining", {"0": 100, "1": -1}, id="fewer steps than none"),
        pytest.param("throughputs", {"0": {"v100": 0.0}}, id="a job that runs nowhere"),
        pytest.param("throughputs", {"0": {"v100": "fast"}}, id="a word for a rate"),
        pytest.param("throughputs", {"0": {"v100": 1.0}, "0,7": {"v100": [1, 1]}}, id="a pair of other jobs"),
        pytest.param("seconds_since_start", [], id="another form"),
    ],
)
def test_a_case_that_cannot_be_is_refused(tmp_path: Path, key: str, value: object) -> None:
    wrong = CASE | {"inputs": CASE["inputs"] | {key: value}}  # type: ignore[operator]
    with pytest.raises(ExperimentError, match="expected cases of Gavel's policies"):
        run_experiment("gavel-vectors", ExperimentSetup(tmp_path, options={"vectors": str(file(tmp_path, wrong))}))


@needs_data
def test_gavels_optima_are_met() -> None:
    assert run_experiment("gavel-vectors", ExperimentSetup(Path(DATA or ""))).ok


@needs_data
def test_gavels_small_replays_are_met() -> None:
    outcome = run_experiment("gavel-static", ExperimentSetup(Path(DATA or ""), quick=True))
    assert outcome.ok, [row.metric for row in outcome.rows if not row.ok]
