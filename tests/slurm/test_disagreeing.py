"""Slurm refuses what the plan took for possible: the job that ran stands again, and nobody else waits for it."""

from __future__ import annotations

from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x8/24c/500g,p100:1x2/8c/60g")
UNREAD: Final = 5
"""CPUs of a socket that the partition gives to a job: a limit that rounds do not read."""


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.configure(**{**SETTINGS, "rounds": {**SETTINGS["rounds"], "settle_timeout": 15}})
    done = mini.synsched("run", "--once")
    assert done.code == 0, done.err
    mini.sure("scontrol", "update", "PartitionName=gpu", f"MaxCPUsPerSocket={UNREAD}")
    return mini


REQUEUED: Final = """#!/bin/bash
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && scontrol requeue $SLURM_JOB_ID
sleep 100
"""


def test_a_victim_whose_newcomer_slurm_refuses_stands_again_and_is_left_alone(site: Mini) -> None:
    ran = site.train("alice", "--gres=gpu:v100:8", "-c", "5", "--mem=1000", hint="ckpt=usr1@2,cpus=keep")
    site.round()
    site.until("it has attained service", lambda: site.jobs()[ran]["RunTime"] >= "00:00:08")
    refused = site.train("bob", "--gres=gpu:v100:8", "-c", "12", "--mem=1000", hint="ckpt=usr1@2,cpus=keep")
    small = site.train("carol", "--gres=gpu:p100:1", "-c", "1", "--mem=1000", hint="cpus=keep")

    site.round()
    assert site.state(small) == "RUNNING"
    site.until("the victim runs again", lambda: site.state(ran) == "RUNNING")
    seen = site.jobs()
    assert (seen[ran]["Restarts"], seen[refused]["JobState"]) == ("1", "PENDING")

    def begun() -> list[str]:
        return [line for line in site.log("alice", ran) if line.startswith("start ")]

    site.until("its script runs again", lambda: len(begun()) == 2)
    assert [" step=0 " in line for line in begun()] == [True, False], "it goes on from its checkpoint"

    site.round()
    seen = site.jobs()
    assert (seen[ran]["JobState"], seen[ran]["Restarts"]) == ("RUNNING", "1"), "the same plan is not made twice"
    told = site.synsched("explain", refused).out
    assert "was not started by Slurm" in told
    assert f"job {refused}" in site.synsched("history", ran).out


def test_a_job_that_requeues_itself_keeps_no_gpu_from_others(site: Mini) -> None:
    for user in ("alice", "bob", "carol"):
        site.sure("scancel", f"--user={user}")
    site.until("nothing is left", lambda: not site.sure("squeue", "-h").strip())
    words = ("sbatch", "--parsable", "-p", "gpu", "--gres=gpu:p100:2", "-c", "1", "--requeue", "--output=/dev/null")
    again = site.sure(*words, user="bob", stdin=REQUEUED).strip()
    site.round()
    site.until("it was requeued", lambda: site.jobs()[again]["Restarts"] == "1")
    other = site.train("alice", "--gres=gpu:p100:1", "-c", "1", "--mem=1000")
    told, true = [], ("was not started by Slurm (BeginTime)", "may not start before")
    for _ in range(2):  # in the round that tries it; 15 seconds later it waits for the other job, as any job does
        site.round()
        told.append(site.synsched("explain", again).out)
    assert site.state(other) == "RUNNING", site.sure("squeue", "-a")
    # It requeues itself either before the round has seen it run, or after: what is true differs.
    assert any(sentence in one for one in told for sentence in true), told
