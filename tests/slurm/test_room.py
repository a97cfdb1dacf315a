"""Room for a gang under `unified` on real daemons: a job moves to the other node, and stays if nobody needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x4/12c/100g")
SITE: Final = {
    **SETTINGS,
    "policy": {"system": "unified"},
    "guards": {"min_run_time": 1, "restart_cost": 1, "moves_per_round": 8},
}


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.configure(**SITE)
    mini.round()
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    yield
    site.clear("alice", "bob", "mallory")


def apart(site: Mini, lead: int) -> list[str]:
    """A job of two GPUs on each node, with two idle ones beside it, that is warned so many seconds before it leaves."""
    beside = [site.train("mallory", "--gres=gpu:2", "-c", "1", "--mem=100", "-w", f"v100-{n}") for n in (1, 2)]
    site.round()
    site.until("both nodes are half full", lambda: runs(site, *beside))
    jobs = [
        site.train("alice", "--gres=gpu:2", "-c", "2", "--mem=1000", hint=f"duration=50h,ckpt=usr1@{lead}")
        for _ in range(2)
    ]
    site.round()
    site.until("a job runs on each node", lambda: runs(site, *jobs))
    site.sure("scancel", *beside)
    site.until("the others are gone", lambda: not set(beside) & set(site.queue()))
    site.until("they may be preempted", lambda: all(site.jobs()[job]["RunTime"] > "00:00:01" for job in jobs))
    return jobs


def runs(site: Mini, *jobs: str) -> bool:
    return all(site.state(job) == "RUNNING" for job in jobs)


def restarts(site: Mini, *jobs: str) -> list[int]:
    seen = site.jobs()
    return sorted(int(seen[job]["Restarts"]) for job in jobs)


def gang(site: Mini) -> str:
    return site.train("bob", "--gres=gpu:4", "--nodes=1", "-c", "2", "--mem=1000", hint="duration=2h,ckpt=usr1@1")


def test_one_of_two_jobs_moves_to_the_other_node_for_a_gang(site: Mini) -> None:
    there, newcomer = apart(site, 1), gang(site)
    site.round()
    site.until("the gang runs", lambda: runs(site, newcomer, *there))
    seen = site.jobs()
    assert {seen[job]["NodeList"] for job in there} != {"v100-1", "v100-2"}
    assert restarts(site, *there) == [0, 1]
    assert {seen[job]["NumCPUs"] for job in there} == {"6"}, "each GPU has its share of idle CPUs again"
    assert "moved to other nodes: restarting costs" in site.explained(newcomer)


def test_nobody_moves_once_the_gang_is_cancelled(site: Mini) -> None:
    there, newcomer = apart(site, 20), gang(site)
    rounds = threading.Thread(target=site.round)
    rounds.start()

    beside = Mini(site.name)  # one answers one command at a time
    beside.until("the gang is given a node", lambda: beside.jobs()[newcomer]["ReqNodeList"].startswith("v100"))
    beside.sure("scancel", newcomer)
    rounds.join()
    assert runs(site, *there)
    assert restarts(site, *there) == [0, 0]
