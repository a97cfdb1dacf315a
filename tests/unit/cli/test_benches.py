"""`synsched bench`: commands that measure one kernel or one property, on small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Site

ALONE = {"v100": [4.0, 2.0, 6.0], "p100": [2.0, 2.0, 3.0], "k80": [1.0, 1.5, 1.5]}
GAVEL_TABLE = {
    "metadata": {"worker_types": list(ALONE)},
    "job_types": [
        {"name": "A", "scale_factor": 1},
        {"name": "B", "scale_factor": 1},
        {"name": "A", "scale_factor": 2},
    ],
    "isolated": ALONE,
    "pairs": {gpu_type: [[0, 1, rates[0] * 0.8, rates[1] * 0.7]] for gpu_type, rates in ALONE.items()},
}


@pytest.fixture
def rates(tmp_path: Path) -> str:
    file = tmp_path / "throughputs.json"
    file.write_text(json.dumps(GAVEL_TABLE))
    return str(file)


@pytest.mark.parametrize("policy", ["las", "ftf", "makespan", "throughput", "packed"])
def test_bench_gavel_solves_every_objective(site: Site, rates: str, policy: str) -> None:
    told = site.json("bench", "gavel", "--policy", policy, "--jobs", "400", "--profiles", rates, "--repeat", "2")
    assert (told["policy"], told["jobs"], told["gpus"], told["repeat"]) == (policy, 400, 256, 2)
    assert told["level"] > 0
    assert told["median_s"] > 0


@pytest.mark.parametrize("policy", ["las", "packed"])
def test_bench_gavel_solves_jobs_of_which_no_two_are_alike(site: Site, rates: str, policy: str) -> None:
    asked = ("bench", "gavel", "--policy", policy, "--jobs", "40", "--profiles", rates, "--repeat", "1")
    alike, different = site.json(*asked), site.json(*asked, "--all-different")
    assert different["level"] > 0
    assert different["level"] != alike["level"]


def test_bench_decide_where_nodes_power_up_starts_nothing_on_them(site: Site) -> None:
    asked = ("bench", "decide", "--gpus", "16", "--jobs", "60", "--repeat", "1", "--sizes-differ")
    up, powering_up = site.json(*asked), site.json(*asked, "--powering-up")
    assert (up["sizes_differ"], up["powering_up"], powering_up["powering_up"]) == (True, False, True)
    assert 0 < powering_up["running"] == up["running"]
    assert powering_up["starts"] == 0 < up["starts"]


def test_bench_gavel_refuses_rates_without_its_types(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "throughputs.json"
    file.write_text(json.dumps({**GAVEL_TABLE, "isolated": {"v100": ALONE["v100"]}, "pairs": {}}))
    result = site.run("bench", "gavel", "--jobs", "4", "--profiles", str(file))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "no model has rates on v100, p100 and k80" in result.stderr


def test_bench_hadar_gives_one_gpu_for_eight_jobs(site: Site) -> None:
    told = site.json("bench", "hadar", "--jobs", "64", "--repeat", "2")
    assert (told["jobs"], told["gpus"], told["repeat"]) == (64, 8, 2)
    assert 0 < told["running"] <= 8
    assert 0 < told["median_s"] <= told["p95_s"]


def test_bench_hadar_places_jobs_of_which_no_two_are_alike(site: Site) -> None:
    told = site.json("bench", "hadar", "--jobs", "64", "--all-different", "--repeat", "1")
    assert 0 < told["running"] <= 8
    assert told["cpu_s"] > 0


def test_bench_hostile_counts_what_went_wrong(site: Site) -> None:
    told = site.json("bench", "hostile", "--records", "150", "--seed", "3")
    assert told["records"] >= 150
    assert (told["crashes"], told["changed_jobs"], told["misread_jobs"], told["lost_jobs"]) == (0, 0, 0, 0)


def test_bench_accounting_says_what_a_round_pays_for_runs_that_ended(site: Site) -> None:
    told = site.json("bench", "accounting", "--finished", "300", "--repeat", "1")
    assert (told["finished"], told["pages"], [one["ended"] for one in told["rounds"]]) == (300, 1, [0, 100, 5000])
    assert 0 < told["rounds"][1]["total_s"] < told["rounds"][2]["total_s"]
