"""Two results of `synsched profile run`, one on each GPU type, steer Hadar to the type on which a model is faster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x2/6c/20g,p100:1x2/6c/20g")
pytestmark = pytest.mark.parametrize("mini", ["trixie"], indirect=True, scope="module")

HOME: Final = "/home/carol/profiling"
PROFILES: Final = "/etc/synsched/profiles.json"
RANKED: Final = """
import sqlite3, sys
store = sqlite3.connect("file:/var/lib/synsched/synsched.db?mode=ro", uri=True)
print(*store.execute("SELECT rank_key FROM jobs WHERE id = ?", sys.argv[1:]).fetchone())
"""
CONTRARY: Final = """#!/bin/bash
# A model that is five times as fast on the P100, whatever the makers' data sheets say.
export PYTHONPATH=/opt/slurmsched
exec python3 - << END
import os, time
from slurmsched.jobside import Training
training = Training(lambda path: path.touch(), lambda path: None)
while True:
    time.sleep(0.02 if os.environ["SLURMD_NODENAME"].startswith("p100") else 0.1)
    training.step()
END
"""


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.sure("mkdir", "-p", HOME, user="carol")
    mini.sure("sh", "-c", f"cat > {HOME}/job.sh", user="carol", stdin=CONTRARY)
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    yield
    site.run("scancel", "--user=alice")
    site.run("scancel", "--user=carol")


def configure(site: Mini, **policy: str) -> None:
    site.configure(**{**SETTINGS, "policy": {"system": "hadar", **policy}})
    site.round()  # from here on jobs are held for rounds


def nodes_of(site: Mini, model: str, count: int = 1) -> list[str]:
    """The node of each of so many jobs of the model, submitted at once; they are gone then."""
    hint = f"model={model},duration=5h"
    submitted = [site.train("alice", "--gres=gpu:1", "-c", "1", hint=hint) for _ in range(count)]
    site.round()
    nodes = [site.jobs()[job]["NodeList"] for job in submitted]
    site.run("scancel", *submitted)
    site.until("they are gone", lambda: not site.sure("squeue", "-h").strip())
    return nodes


def profile(site: Mini, kind: str) -> str:
    command = f"synsched profile run --model contrary --gpu {kind} --cpus 1-2 --seconds 4s"
    options = "-p debug --output=/dev/null job.sh"
    return site.sure(
        "env", "HOME=/home/carol", "sh", "-c", f"cd {HOME} && {command} -- {options}", user="carol", timeout=400
    )


def test_measured_rates_decide_where_nothing_else_is_told(site: Mini) -> None:
    configure(site)
    assert nodes_of(site, "contrary") == ["v100-1"], "by the estimate, while nobody has measured it"
    for kind in ("v100", "p100"):
        print(profile(site, kind))
    kept = site.sure("cat", f"{HOME}/profiles.json", user="carol")
    assert "reference" not in json.loads(kept), "nobody names the type that durations are of"
    site.write(PROFILES, kept)
    configure(site, profiles=PROFILES)
    assert nodes_of(site, "contrary", 2) == ["p100-1", "p100-1"]
    assert nodes_of(site, "unmeasured") == ["v100-1"], "another model has nothing from it"


def test_a_duration_lasts_longer_on_the_slower_type(site: Mini) -> None:
    """20 s of the P100, which is five times as fast: after 25 s on the V100 about 15 s of them are left."""
    configure(site, system="synergy", order="srtf", profiles=PROFILES)
    for _ in range(2):
        site.train("alice", "--gres=gpu:p100:1", "-c", "1", hint="model=contrary,duration=5h")
    site.round()
    slow = site.train("alice", "--gres=gpu:1", "-c", "1", "--time=30", hint="model=contrary,duration=20s")
    site.round()
    assert site.jobs()[slow]["NodeList"] == "v100-1"
    site.until("it has run for 25 s", lambda: site.jobs()[slow]["RunTime"] >= "00:00:25")
    site.round()
    ranked = site.sure("python3", "-c", RANKED, slow)
    left = re.fullmatch(r"(\d+) s to go", ranked.strip())
    assert left is not None, ranked
    assert 5 <= int(left[1]) < 20
