"""Gangs on several GPU types on real daemons: mixed where that beats waiting, on one type where Slurm has no words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x4/12c/100g,p100:1x4/12c/100g")
PAYING: Final = {
    **SETTINGS,
    "policy": {"system": "hadar", "profiles": "/etc/synsched/rates.toml"},
    "guards": {"min_run_time": 3600, "restart_cost": 60, "moves_per_round": 8},
}
RATES: Final = """
source = "made up for this test"
reference = "v100"

[models.lm.gpu.v100]
gpus = [1, 4]
rate = [1.0, 4.0]

[models.lm.gpu.p100]
gpus = [1, 4]
rate = [0.7, 2.8]
"""
GANG: Final = ("--gpus=4", "--ntasks=4", "--cpus-per-task=1", "--mem=1000", "--nodes=1-2")


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.write("/etc/synsched/rates.toml", RATES)
    mini.configure(**PAYING)
    mini.round()
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    yield
    site.clear("alice", "bob", "carol")


def submit(site: Mini, user: str, *options: str) -> str:
    return site.train(user, *options, hint="model=lm,duration=5h,ckpt=usr1@1")


def devices(site: Mini, job: str) -> dict[str, int]:
    """GPUs that Slurm gave it on each node."""
    found = {}
    for line in site.sure("scontrol", "-d", "show", "job", job).splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "GRES" in words and "Nodes" in words:
            found[words["Nodes"]] = int(words["GRES"].split("(")[0].rpartition(":")[2])
    return found


def half_taken(site: Mini) -> None:
    """Two of the four GPUs of each type are somebody's."""
    taken = [submit(site, "bob", f"--gres=gpu:{kind}:2", "-c", "2", "--mem=1000") for kind in ("v100", "p100")]
    site.round()
    assert {site.state(job) for job in taken} == {"RUNNING"}


def test_a_gang_is_on_the_fast_type_alone_where_that_has_room(site: Mini) -> None:
    gang = submit(site, "alice", *GANG)
    site.round()
    assert devices(site, gang) == {"v100-1": 4}


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(GANG, id="four GPUs on one node or two"),
        pytest.param(("--gres=gpu:2", "--nodes=2", "-c", "2", "--mem=1000"), id="two GPUs on each of two nodes"),
    ],
)
def test_a_gang_runs_on_two_types_rather_than_wait(site: Mini, asked: tuple[str, ...]) -> None:
    half_taken(site)
    gang = submit(site, "alice", *asked)

    site.round()

    assert site.state(gang) == "RUNNING"
    assert devices(site, gang) == {"v100-1": 2, "p100-1": 2}
    assert "runs on 2 p100 + 2 v100: it finishes sooner than on one GPU type" in site.explained(gang)


def test_a_gang_that_slurm_cannot_mix_waits_and_says_why(site: Mini) -> None:
    half_taken(site)
    typed = submit(site, "alice", "--gres=gpu:v100:4", "-c", "4", "--mem=1000")
    on_one = submit(site, "carol", "--gres=gpu:4", "-c", "4", "--mem=1000")

    site.round()

    assert {site.state(typed), site.state(on_one)} == {"PENDING"}
    told = {job: site.explained(job) for job in (typed, on_one)}
    assert any("nothing may delay it" in text for text in told.values()), "the first of them knows when it starts"
    assert "of one type and cannot use several types: it asks for v100" in told[typed]
    assert "of one type and cannot use several types: it asks for one node" in told[on_one]

    mixed = submit(site, "alice", *GANG, "--time=10")
    site.round()
    assert devices(site, mixed) == {"v100-1": 2, "p100-1": 2}, "who can be mixed and ends in time does not wait"
    assert {site.state(typed), site.state(on_one)} == {"PENDING"}
