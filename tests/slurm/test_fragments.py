"""Parts of GPUs, whole GPUs and gangs together: what first fit strands, and what moves to let a gang start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x8/24c/500g")
FGD = {
    **SETTINGS,
    "policy": {"system": "fgd", "order": "fifo"},
    "guards": {"min_run_time": 0, "restart_cost": 30, "moves_per_round": 4},
    "checkpoint": {"lead": 2},
}
SMALL = ("--gres=shard:4", "--gres=shard:4", "--gres=gpu:1", "--gres=gpu:2", "--gres=shard:2")


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    yield
    clean(site)


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    """Slurm fills the first node first, as where nodes are weighted."""
    mini.configure(**FGD)
    mini.sure("scontrol", "update", "NodeName=v100-2", "Weight=10")
    return mini


def submit(site: Mini, *options: str, hint: str = "ckpt=usr1@2") -> str:
    return site.train("alice", "--mem=1000", "--cpus-per-task=1", *options, hint=hint)


def mixed(site: Mini) -> tuple[Sequence[str], str]:
    """A 4-GPU job on the second node, small jobs, and at last a job that needs a whole node."""
    anchor = submit(site, "--gres=gpu:4", "--nodelist=v100-2")
    site.synsched("run", "--once")
    site.until("the first one runs", lambda: site.state(anchor) == "RUNNING")
    small = [submit(site, gres) for gres in SMALL]
    site.synsched("run", "--once")
    site.until("the small ones run", lambda: all(site.state(job) == "RUNNING" for job in small))
    gang = submit(site, "--gres=gpu:8")
    return [anchor, *small], gang


def where(site: Mini, jobs: Sequence[str]) -> set[str]:
    return {site.jobs()[job]["NodeList"] for job in jobs}


def clean(site: Mini) -> None:
    site.sure("scancel", "--user=alice")
    site.until("nothing is left", lambda: not site.sure("squeue", "-h").strip())


def test_first_fit_strands_a_gang_and_the_descent_does_not(site: Mini) -> None:
    site.configure(**{**FGD, "rounds": {**SETTINGS["rounds"], "mode": "observe"}})
    assert site.synsched("run", "--once").code == 0
    small, gang = mixed(site)
    assert where(site, small) == {"v100-1", "v100-2"}, "Slurm alone fills the first node that fits"
    assert site.state(gang) == "PENDING"
    for _ in range(4):  # here gangs are usual, as the last two weeks then say
        submit(site, "--gres=gpu:8")
    assert site.synsched("run", "--once").code == 0
    told = site.synsched("free").out
    assert "unusable for usual jobs" in told, told
    clean(site)

    site.configure(**FGD)
    assert site.synsched("run", "--once").code == 0
    small, gang = mixed(site)
    assert site.synsched("run", "--once").code == 0
    assert where(site, small) == {"v100-2"}
    site.until("the gang runs", lambda: site.state(gang) == "RUNNING")
    status = site.synsched("status", "--json").json
    assert not [problem for problem in status["problems"] if "than planned" in problem], "devices as planned"


def test_a_move_lets_a_gang_start_and_the_moved_job_goes_on_where_it_was(site: Mini) -> None:
    site.configure(**FGD)
    assert site.synsched("run", "--once").code == 0
    stays = submit(site, "--gres=gpu:4", "--nodelist=v100-2")
    filler = submit(site, "--gres=gpu:4", "--exclude=v100-1")
    assert site.synsched("run", "--once").code == 0
    moves = submit(site, "--gres=shard:4")
    assert site.synsched("run", "--once").code == 0
    site.until("they run", lambda: all(site.state(job) == "RUNNING" for job in (stays, filler, moves)))
    assert where(site, [moves]) == {"v100-1"}
    site.sure("scancel", filler)
    gang = submit(site, "--gres=gpu:8")
    site.until("it has worked", lambda: site.jobs()[moves]["RunTime"] >= "00:00:04")
    shown = site.synsched("plan", "--defrag", "--json").json
    assert {(op["verb"], op["subject"]) for op in shown["operations"]} >= {("requeue", moves), ("release", gang)}
    assert site.state(gang) == "PENDING", "a plan changes nothing"

    done = site.synsched("run", "--once", "--defrag")
    assert done.code == 0, done.out + done.err
    site.until("both run", lambda: all(site.state(job) == "RUNNING" for job in (gang, moves)))
    assert where(site, [gang]) == {"v100-1"}
    assert where(site, [moves]) == {"v100-2"}
    written = [line for line in site.log("alice", moves) if line.startswith(("checkpoint", "start"))]
    saved, resumed = written[-2].split("step=")[1], written[-1].split("step=")[1].split()[0]
    assert int(saved) > 0
    assert resumed == saved
    assert f"starts after job {moves} moved to other nodes" in site.synsched("explain", gang).out
    assert f"so that job {gang} can start" in site.synsched("history", moves).out


def test_what_never_fits_is_told_in_words(site: Mini) -> None:
    site.configure(**FGD)
    assert site.synsched("run", "--once").code == 0
    job = submit(site, "--gres=shard:v100:11")
    assert site.synsched("run", "--once").code == 0
    assert "11 shards of one GPU; the GPUs have 10" in site.synsched("explain", job).out
