"""Jobs that name several partitions, and nodes of unequal memory: started as under Slurm alone."""

from __future__ import annotations

import time

import pytest

from tests.slurm.conftest import OLDEST_AND_LATEST, SETTINGS
from tests.slurm.mini import Mini

pytestmark = pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")
WAIT = 10
"""Seconds within which Slurm starts a job that could start."""
CLUSTER = ("--nodes", "v100:1x4/12c/100g,p100:1x2/8c/60g")
NARROW = {
    "one that admits other accounts": "Nodes=v100-1,p100-1 AllowAccounts=language",
    "one that admits another QOS": "Nodes=v100-1,p100-1 AllowQos=none-of-ours",
    "one with a shorter limit on more nodes": "Nodes=v100-1,p100-1 MaxTime=10",
}


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.sure("sacctmgr", "-i", "add", "qos", "none-of-ours")
    mini.configure(**{**SETTINGS, "manage": {"partitions": ["gpu", "narrow"]}})
    done = mini.synsched("run", "--once")
    assert done.code == 0, done.err
    return mini


def started(site: Mini, *options: str) -> bool:
    """Whether alice's job starts once a round has been."""
    words = ("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 100")
    job = site.sure(*words, user="alice").strip()
    done = site.synsched("run", "--once")
    assert done.code == 0, done.err
    print(site.sure("squeue", "-a"), site.synsched("explain", job).out)
    for _ in range(WAIT):  # a job that is let go is Slurm's to start
        if runs := site.state(job) == "RUNNING":
            break
        time.sleep(1)
    site.sure("scancel", job)
    site.until("it is gone", lambda: not site.sure("squeue", "-ah").strip())
    return runs


@pytest.mark.parametrize("title", NARROW)
def test_a_partition_that_does_not_admit_the_job_keeps_it_from_no_other(site: Mini, title: str) -> None:
    site.sure("scontrol", "create", "PartitionName=narrow", *NARROW[title].split())
    site.sure("scontrol", "update", "PartitionName=gpu", "Nodes=v100-1")
    try:
        site.until("Slurm knows the partition", lambda: "narrow" in site.sure("sinfo", "-ho", "%R"))
        assert started(site, "-p", "narrow,gpu", "--gpus=1", "--time=20")
    finally:
        site.sure("scontrol", "update", "PartitionName=gpu", "Nodes=v100-1,p100-1")
        site.sure("scontrol", "delete", "PartitionName=narrow")


RESERVED = {
    "maintenance, of which it is": ("StartTime=now Flags=MAINT,IGNORE_JOBS Nodes=v100-1", "--reservation=works"),
    "one that takes its user's jobs": ("StartTime=now Flags=MAGNETIC Nodes=v100-1,p100-1", ""),
    "one to come that it need not wait for": ("StartTime=now+30minutes Flags=FLEX Nodes=v100-1", "--reservation=works"),
    "one to come, before which it may be shortened": (
        "StartTime=now+20minutes Flags=MAINT Nodes=v100-1,p100-1", "--time=60 --time-min=5"
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", RESERVED)
def test_a_reservation_keeps_a_job_waiting_no_longer_than_under_slurm(site: Mini, title: str) -> None:
    reservation, options = RESERVED[title]
    users = "root" if "--time-min" in options else "alice,root"
    words = ("ReservationName=works", "Duration=60", f"Users={users}", *reservation.split())
    site.sure("scontrol", "create", "reservation", *words)
    try:
        assert started(site, "-p", "gpu", "--gpus=1", "--time=10", *options.split())
    finally:
        site.sure("scontrol", "delete", "ReservationName=works")


def test_a_gang_has_all_memory_of_nodes_that_have_unequal_amounts(site: Mini) -> None:
    assert started(site, "-p", "gpu", "-N", "2", "--gpus-per-node=2", "--mem=0")


@pytest.mark.parametrize("sharing", ["OverSubscribe=EXCLUSIVE", "OverSubscribe=FORCE:2"])
def test_a_job_of_a_partition_that_shares_otherwise_is_left_to_slurm(site: Mini, sharing: str) -> None:
    site.sure("scontrol", "create", "PartitionName=narrow", "Nodes=v100-1,p100-1", sharing)
    job = site.sure("sbatch", "--parsable", "--hold", "-p", "narrow", "--gpus=1", "--wrap", "", user="alice").strip()
    try:
        assert site.synsched("run", "--once").code == 0
        told = site.synsched("explain", job).out
        assert "is not managed" in told
        assert sharing.partition(":")[0] in told
    finally:
        site.sure("scancel", job)
        site.until("it is gone", lambda: not site.sure("squeue", "-ah").strip())
        site.sure("scontrol", "delete", "PartitionName=narrow")


def test_a_later_job_of_a_higher_tier_starts_first(site: Mini) -> None:
    site.sure("scontrol", "create", "PartitionName=narrow", "Nodes=v100-1,p100-1", "PriorityTier=10")
    words = ("sbatch", "--parsable", "--output=/dev/null", "--time=20", "--gpus-per-node=v100:4", "-N1")
    try:
        ends = site.sure(*words, "-p", "gpu", "--wrap", "sleep 300", user="bob").strip()
        assert site.synsched("run", "--once").code == 0
        site.until("it runs", lambda: site.state(ends) == "RUNNING")
        low = site.sure(*words, "-p", "gpu", "--wrap", "sleep 300", user="alice").strip()
        assert site.synsched("run", "--once").code == 0
        high = site.sure(*words, "-p", "narrow", "--wrap", "sleep 300", user="carol").strip()
        assert site.synsched("run", "--once").code == 0
        assert (site.state(low), site.state(high)) == ("PENDING", "PENDING")
        site.sure("scancel", ends)
        site.until("its node is free", lambda: not site.sure("squeue", "-ah", "-j", ends).strip())
        assert site.synsched("run", "--once").code == 0
        assert (site.state(low), site.state(high)) == ("PENDING", "RUNNING"), site.synsched("explain", low).out
        site.sure("scancel", low, high)
        site.until("they are gone", lambda: not site.sure("squeue", "-ah").strip())
    finally:
        site.sure("scontrol", "delete", "PartitionName=narrow")
