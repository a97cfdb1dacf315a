"""Synergy's tables 1 to 3 on real daemons: two servers, four 4-GPU jobs, and the same work 1.5 times as fast."""

from __future__ import annotations

from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x8/24c/500g")
# Speeds at 1, 3 and 6 CPUs per GPU; at their GPU-proportional share all run at 1.
PROFILES: Final = """
[models.resnet18]
source = "measured"
cpus = [1, 3, 5.75]
speed = [0.37, 1.0, 2.0]
[models.m5]
source = "measured"
cpus = [1, 3, 5.75]
speed = [0.3, 1.0, 2.0]
[models.transformer]
source = "measured"
cpus = [0.25, 3]
speed = [1.0, 1.0]
[models.gnmt]
source = "measured"
cpus = [0.25, 3]
speed = [1.0, 1.0]
"""
MODELS: Final = ("resnet18", "m5", "transformer", "gnmt")


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.write("/etc/synsched/profiles.toml", PROFILES)
    return mini


def run(site: Mini, system: str) -> dict[str, tuple[int, float]]:
    """CPUs and speed of each model under this system; nothing runs afterwards."""
    site.configure(
        **{**SETTINGS, "policy": {"system": system, "order": "fifo", "profiles": "/etc/synsched/profiles.toml"}}
    )
    assert site.synsched("run", "--once").code == 0
    jobs = {
        model: site.train(
            "alice", "--gres=gpu:v100:4", "-c", "12", "--mem=1000", hint=f"model={model},ckpt=usr1@2,cpus=tune"
        )
        for model in MODELS
    }
    assert site.synsched("run", "--once").code == 0
    site.until("all four run", lambda: all(site.state(job) == "RUNNING" for job in jobs.values()))
    speeds = {job["id"]: job["speed"] for job in site.synsched("status", "--json").json["jobs"]}
    seen = site.jobs()
    found = {model: (int(seen[job]["NumCPUs"]), speeds[job]) for model, job in jobs.items()}
    site.sure("scancel", *jobs.values())
    site.until("they are gone", lambda: all(site.state(job) == "CANCELLED" for job in jobs.values()))
    return found


def test_by_share_everybody_has_12_cpus_and_by_sensitivity_the_same_work_is_half_as_fast_again(site: Mini) -> None:
    by_share = run(site, "proportional")
    assert by_share == dict.fromkeys(MODELS, (12, 1.0))
    by_sensitivity = run(site, "synergy")
    assert all(speed >= 1.0 for _, speed in by_sensitivity.values()), by_sensitivity
    assert by_sensitivity["transformer"][0] + by_sensitivity["gnmt"][0] <= 4
    assert min(by_sensitivity["resnet18"][0], by_sensitivity["m5"][0]) >= 22
    assert sum(speed for _, speed in by_sensitivity.values()) / 4 >= 1.45
