"""Shares by tickets on real daemons with three GPU types: turns, a trade, and a daemon killed in mid-slice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x4/12c/100g,p100:1x4/12c/100g,k80:1x4/12c/100g")
FAIR: Final = {
    **SETTINGS,
    "policy": {"system": "gandiva-fair", "profiles": "/etc/synsched/rates.toml"},
    "tickets": {"quantum": 2, "wide_quantum": 4},
    "guards": {"min_run_time": 1, "restart_cost": 0, "moves_per_round": 12, "moves_per_job_day": 1_000_000},
    "checkpoint": {"lead": 1},
}
RATES: Final = """
source = "made up for this test"
reference = "k80"
"""
SPEEDUPS: Final = {"cyclegan": (6.0, 3.0), "lm": (1.2, 1.1), "resnet18": (3.0, 2.0)}


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    rates = RATES
    for model, (fast, middle) in SPEEDUPS.items():
        for kind, rate in (("v100", fast), ("p100", middle), ("k80", 1.0)):
            rates += f"[models.{model}.gpu.{kind}]\ngpus = [1]\nrate = [{rate}]\n"
    mini.write("/etc/synsched/rates.toml", rates)
    mini.configure(**FAIR)
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    yield
    site.clear("alice", "bob", "carol")


def submit(site: Mini, user: str, model: str, count: int, *options: str) -> list[str]:
    asked = ("--gres=gpu:1", "--mem=1000", "--cpus-per-task=1", *options)
    return [site.train(user, *asked, hint=f"model={model},ckpt=usr1@1") for _ in range(count)]


def round_(site: Mini) -> None:
    site.round()
    time.sleep(3)


def gpus_of(site: Mini, jobs: list[str]) -> int:
    seen = site.jobs()
    return sum(seen[job]["JobState"] == "RUNNING" for job in jobs)


def attained(site: Mini, jobs: list[str]) -> float:
    """GPU-seconds, by Slurm's own times where a job runs and the scheduler's accounts for what it had before."""
    told = site.run(
        "python3", "-c",
        "import sqlite3, sys; rows = sqlite3.connect('/var/lib/synsched/synsched.db').execute("
        "'SELECT job, TOTAL(gpu_seconds) FROM service GROUP BY job').fetchall();"
        "print(sum(had for job, had in rows if job in sys.argv[1:]))",
        *jobs,
    )  # fmt: skip
    return float(told.out)


def test_equal_tickets_and_unequal_demand_come_to_equal_shares(site: Mini) -> None:
    """24 jobs of one user and 12 of another on 12 GPUs: without tickets the first would have twice as much."""
    round_(site)
    many, some = submit(site, "alice", "resnet18", 24), submit(site, "bob", "resnet18", 12)
    for _ in range(6):
        round_(site)
    assert gpus_of(site, many) + gpus_of(site, some) == 12
    had = attained(site, many), attained(site, some)
    print(f"\nGPU-seconds: {had[0]:.0f} and {had[1]:.0f}", site.synsched("status", "--shares").out)
    assert 0.4 <= had[0] / sum(had) <= 0.6, had


def test_a_trade_happens_and_shows(site: Mini) -> None:
    """One gains six times from a fast GPU, the other hardly."""
    round_(site)
    many, some = submit(site, "alice", "cyclegan", 14), submit(site, "bob", "lm", 14)
    for _ in range(8):
        round_(site)
    trades = site.synsched("status", "--shares", "--json").json["trades"]
    assert {(trade["seller"], trade["buyer"]) for trade in trades} == {("bob", "alice")}
    assert all(trade["price"] > 1 for trade in trades)
    assert "bob gives alice" in site.synsched("status", "--shares").out
    # Entitled to 4.8 and 7.2 GPUs, they have whole ones in turn, 6 and 6 at some moments: only the sum tells.
    had = attained(site, many), attained(site, some)
    assert had[0] < 0.48 * sum(had), f"fewer and faster ones: {had}"


def test_a_daemon_killed_in_the_middle_of_a_slice_loses_nothing(site: Mini) -> None:
    round_(site)
    mine, theirs = submit(site, "alice", "resnet18", 14), submit(site, "bob", "resnet18", 14)
    round_(site)
    round_(site)
    before = attained(site, mine) + attained(site, theirs)
    killed = site.run(
        "env", "PYTHONPATH=/opt/slurmsched", "python3", "-m", "tests.slurm.killing", "9", "run", "--once",
        user="synsched",
    )  # fmt: skip
    assert killed.code == 137, killed.out + killed.err
    round_(site)
    round_(site)
    assert attained(site, mine) + attained(site, theirs) >= before
    seen = site.jobs()
    assert all(seen[job]["JobState"] in ("RUNNING", "PENDING") for job in (*mine, *theirs))
    held = {job for job in (*mine, *theirs) if seen[job]["JobState"] == "PENDING"}
    ours = {job["id"] for job in site.synsched("status", "--json").json["jobs"] if job["held_by_us"]}
    assert held <= ours, "nobody is held without an owner"
    assert gpus_of(site, mine) + gpus_of(site, theirs) >= 11


def test_an_array_of_which_tasks_wait_gives_way_and_each_run_is_told_once(site: Mini) -> None:
    """While others of its array wait, Slurm signals a task and answers that it cannot: scancel would signal again."""
    array = site.train("alice", "--array=0-23", "--gres=gpu:1", "--mem=1000", "--cpus-per-task=1", hint="ckpt=usr1@1")
    round_(site)
    theirs = submit(site, "bob", "resnet18", 8)
    for _ in range(12):
        round_(site)
        if gpus_of(site, theirs) >= 4:
            break
    assert gpus_of(site, theirs) >= 4
    tasks = [job for job, record in site.jobs().items() if record.get("ArrayJobId") == array]
    logs = ["\n".join(site.log("alice", task)) for task in tasks]
    told = [run.count("checkpoint") for log in logs for run in log.split("start step")]
    assert 1 in told
    assert set(told) <= {0, 1}, logs
