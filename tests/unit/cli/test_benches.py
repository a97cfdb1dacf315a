"""`synsched bench`: commands that measure one kernel or one property, on small sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmsched.cli.bench_sizes import DecisionAtSize, growth_exponent
from slurmsched.model import Outcome
from slurmsched.store.journal import Journal, JournalEntry
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


def test_bench_decide_of_an_empty_cluster_starts_what_fills_it(site: Site) -> None:
    told = site.json("bench", "decide", "--gpus", "16", "--jobs", "60", "--repeat", "1", "--empty")
    assert (told["empty"], told["running"]) == (True, 0)
    assert told["starts"] > 0


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


def test_bench_soak_tells_what_was_measured_and_writes_its_page(site: Site, tmp_path: Path) -> None:
    page = tmp_path / "soak.html"
    told = site.json("bench", "soak", "--days", "0.25", "--keep-days", "1", "--seed", "2", "--html", str(page))
    assert told["problems"] == []
    assert told["audit"]["carried_out"] == told["audit"]["written_down"] > 0
    assert {trend["measure"] for trend in told["trends"]} == told["samples"].keys()
    assert page.read_text(encoding="utf-8").count("<figure>") == len(told["samples"])


def test_bench_soak_ends_with_an_error_where_the_journal_lacks_something(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgets(journal: Journal, outcomes: Sequence[tuple[JournalEntry, Outcome]], _at: float) -> None:
        for entry, _ in outcomes:
            journal._database.write("DELETE FROM operations WHERE id = ?", (entry.row,))

    monkeypatch.setattr(Journal, "record_outcomes", forgets)
    result = site.run("bench", "soak", "--days", "0.25", "--keep-days", "1", "--seed", "2")
    assert result.exit_code == 1
    assert "the soak failed: operations that the journal does not have" in result.output


def test_bench_sizes_measures_each_policy_in_a_process_of_its_own(site: Site) -> None:
    told = site.json("bench", "sizes", "--policies", "synergy,slurm", "--gpus", "16,64")
    assert [(one["policy"], one["gpus"]) for one in told["decisions"]] == [
        ("synergy", 16), ("synergy", 64), ("slurm", 16), ("slurm", 64)
    ]  # fmt: skip
    assert all(one["seconds"] > 0 and one["megabytes"] > 50 and not one["failed"] for one in told["decisions"])
    assert told["growth"].keys() == {"synergy", "slurm"}


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (("--gpus", "12"), "write multiples of 8"),
        (("--gpus", "many"), "write multiples of 8"),
        (("--policies", "nobody"), "no policy nobody"),
    ],
)
def test_bench_sizes_refuses_what_it_cannot_measure(site: Site, asked: tuple[str, ...], problem: str) -> None:
    result = site.run("bench", "sizes", *asked)
    assert result.exit_code == 2
    assert problem in result.output


@pytest.mark.parametrize(
    ("seconds", "exponent"), [((1.0, 10.0, 100.0), 1.0), ((1.0, 100.0, 10_000.0), 2.0), ((3.0, 3.0, 3.0), 0.0)]
)
def test_growth_is_the_slope_of_the_logarithms(seconds: tuple[float, ...], exponent: float) -> None:
    sizes = [DecisionAtSize("p", 10**power, time, 1.0) for power, time in zip((3, 4, 5), seconds, strict=True)]
    assert growth_exponent(sizes) == pytest.approx(exponent)
    assert growth_exponent([*sizes, DecisionAtSize("p", 10**6, math.nan, math.nan, "over 5 min")]) == pytest.approx(
        exponent
    )
    assert math.isnan(growth_exponent(sizes[:1])), "one size tells no growth"
