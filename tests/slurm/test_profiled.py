"""Two results of `synsched profile run`, one for each GPU type, and where Hadar starts the next job of that model.

The types are faster and slower by what jobs really did there, which is the contrary of what data sheets say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x2/4c/20g,p100:1x2/4c/20g")
pytestmark = pytest.mark.parametrize("mini", ["trixie"], indirect=True, scope="module")

PROFILES: Final = "/etc/synsched/profiles.json"
HOME: Final = "/home/carol/profiling"
HADAR: Final = {
    **SETTINGS,
    "policy": {"system": "hadar", "profiles": PROFILES},
    "guards": {"min_run_time": 3600, "restart_cost": 60, "moves_per_round": 8},
}
STEPS: Final = """#!/bin/bash
exec python3 - << END
import os, time
from slurmsched.jobside import Training
training = Training(lambda path: path.touch(), lambda path: None)
while True:
    time.sleep({"v100-1": 0.6, "p100-1": 0.2}[os.environ["SLURMD_NODENAME"]])
    training.step()
END
"""


@pytest.fixture(scope="module")
def site(mini: Mini) -> Iterator[Mini]:
    """The cluster under Hadar by what `profile run` wrote of the model `fed`: on one GPU type, then on the other."""
    mini.sure("mkdir", "-p", HOME, user="carol")
    mini.sure("sh", "-c", f"cat > {HOME}/job.sh", user="carol", stdin=STEPS)
    for kind in ("v100", "p100"):
        mini.sure(
            "env", "HOME=/home/carol", "PYTHONPATH=/opt/slurmsched", "sh", "-c",
            f"cd {HOME} && synsched profile run --model fed --gpu {kind} --cpus 1-2 --seconds 4s"
            " -- -p debug --output=/dev/null job.sh",
            user="carol",
        )  # fmt: skip
    mini.sure("cp", f"{HOME}/profiles.json", PROFILES)
    mini.configure(**HADAR)
    round_(mini)
    yield mini
    mini.run("scancel", "--user=alice")


def round_(site: Mini) -> None:
    done = site.synsched("run", "--once")
    assert done.code == 0, done.out + done.err


def started_on(site: Mini, hint: str) -> str:
    """The node on which a round starts a job that names no GPU type, where all GPUs are idle."""
    job = site.train("alice", "--gres=gpu:1", "--cpus-per-task=1", "--mem=1000", hint=f"{hint}ckpt=usr1@1")
    assert site.state(job) == "PENDING", "it waits for the round"
    round_(site)
    node = site.jobs()[job]["NodeList"]
    site.sure("scancel", job)
    site.until("its GPU is idle again", lambda: not site.sure("squeue", "-h").strip())
    return node


def test_both_results_are_in_one_file_and_the_same_number_of_steps_a_second(site: Mini) -> None:
    shown = json.loads(site.sure("cat", PROFILES))["models"]["fed"]["gpu"]
    rates = {kind: shown[kind]["rate"][0] for kind in ("v100", "p100")}
    assert rates["v100"] == pytest.approx(1 / 0.6, rel=0.2)
    assert rates["p100"] == pytest.approx(1 / 0.2, rel=0.2)


def test_the_next_job_of_the_model_starts_on_the_type_that_was_measured_to_be_faster(site: Mini) -> None:
    assert started_on(site, "model=fed,") == "p100-1"


def test_a_job_of_which_nothing_was_measured_starts_on_the_other(site: Mini) -> None:
    """So it was the profile that decided, and neither the order of nodes nor the data sheets."""
    assert started_on(site, "") == "v100-1"
