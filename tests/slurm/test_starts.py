"""How soon a job starts under the daemon: on an idle cluster, and behind fifty that Slurm refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

pytestmark = pytest.mark.parametrize("mini", ["sid"], indirect=True, scope="module")
CLUSTER = ("--nodes", "v100:2x8/24c/100g")
IDLE: Final = 5.0
"""Seconds by which a managed job may start later than an unmanaged one on an idle cluster."""
MANY: Final = """
cd /home/{user}; printf '#!/bin/sh\\nsleep 600\\n' > refused.sh
seq {count} | xargs -r -P 4 -I[] sbatch -Q --gres=gpu:1 -c1 --mem={memory} -o /dev/null refused.sh
"""
SINCE: Final = """
import json, sqlite3, sys
store, since = sqlite3.connect("file:/var/lib/synsched/synsched.db?mode=ro", uri=True), (float(sys.argv[1]),)
(rounds,) = store.execute("SELECT count(*) FROM rounds WHERE finished IS NOT NULL AND started > ?", since).fetchone()
starts = "SELECT min(intended), max(round) - min(round) FROM operations WHERE verb = 'release' AND intended > ?"
first, later = store.execute(starts, since).fetchone()
(refused,) = store.execute("SELECT count(*) FROM refused_starts WHERE at > ?", since).fetchone()
print(json.dumps({"rounds": rounds, "first": first, "later": later, "refused": refused}))
"""
"""How many rounds ended, when the first start was made, how many rounds later the last, and how many were refused."""


@pytest.fixture(autouse=True)
def nothing_left(mini: Mini) -> Iterator[None]:
    yield
    clean(mini)


def clean(mini: Mini) -> None:
    mini.sure("scontrol", "update", "PartitionName=gpu", "MaxMemPerNode=0")
    for user in ("alice", "bob", "carol", "mallory"):
        mini.run("scancel", "-u", user)
    mini.until("nothing is left", lambda: not mini.sure("squeue", "-ah").strip())


def submit(mini: Mini, user: str, *options: str, seconds: int = 600) -> str:
    where = (f"--chdir=/home/{user}", "--output=/dev/null")
    return mini.sure("sbatch", "--parsable", *where, *options, "--wrap", f"sleep {seconds}", user=user).strip()


def now(mini: Mini) -> float:
    return float(mini.sure("date", "+%s.%N"))


def done_since(mini: Mini, began: float) -> dict[str, float]:
    told: dict[str, float] = json.loads(mini.sure("python3", "-c", SINCE, str(began), user="synsched"))
    return told


def started(mini: Mini, job: str) -> float:
    """When it was seen to run, by the cluster's clock."""
    mini.until(f"job {job} starts", lambda: mini.state(job) != "PENDING", 90)
    return now(mini)


@pytest.mark.parametrize("policy", ["synergy", "gandiva-fair"])
def test_on_an_idle_cluster_a_managed_job_starts_almost_as_soon_as_any(mini: Mini, policy: str) -> None:
    mini.configure(**{**SETTINGS, "policy": {"system": policy}, "rounds": {"mode": "enforce"}})
    waited: dict[str, list[float]] = {"debug": [], "gpu": []}
    with mini.daemon():
        first = now(mini)
        for _ in range(5):
            for partition, seconds in waited.items():
                began = now(mini)
                seconds.append(started(mini, submit(mini, "alice", "-p", partition, "--gres=gpu:1", seconds=1)) - began)
    alone, managed = (median(waited[partition]) for partition in ("debug", "gpu"))
    print(f"\n{policy}: seconds until a start, Slurm alone {alone:.1f}, managed {managed:.1f} (medians of {waited})")
    assert managed - alone <= IDLE + mini.two_rounds(first)


def test_a_job_whose_dependency_is_met_starts_almost_as_soon_as_any(mini: Mini) -> None:
    mini.configure(**{**SETTINGS, "rounds": {"mode": "enforce"}})
    starts: dict[str, list[float]] = {}
    with mini.daemon():
        begun = now(mini)
        for partition in ("debug", "gpu"):
            began, small = now(mini), ("-p", partition, "--gres=gpu:1")
            parent = submit(mini, "alice", *small, seconds=2)
            after = [(*small, "-d", f"{kind}:{parent}") for kind in ("after", "afterany", "afterok")]
            after += [(*small, "-J", partition, "-d", "singleton")] * 2
            chained = [submit(mini, "alice", *options) for options in after]
            first, second = chained[-2:]
            starts[partition] = [started(mini, job) - began for job in chained[:-1]]
            mini.sure("scancel", first)
            starts[partition].append(started(mini, second) - began - max(starts[partition]))
    print(f"\nseconds until the starts of jobs with dependencies: {starts}")
    later = [mine - alone for alone, mine in zip(starts["debug"], starts["gpu"], strict=True)]
    assert max(later) <= 2 * (IDLE + mini.two_rounds(begun)), "the parent starts in one round, and they in another"


def test_fifty_refused_starts_hardly_delay_a_good_one(mini: Mini) -> None:
    """A limit of the partition on memory, younger than the daemon's reading of it; half of the GPUs are taken."""
    mini.configure(**{**SETTINGS, "rounds": {"mode": "enforce"}})
    delays: dict[int, list[float]] = {0: [], 50: []}
    whole: dict[int, list[float]] = {0: [], 50: []}
    # Each time another owner and request than those that were refused before.
    for user, memory in (("alice", 3000), ("bob", 3100), ("mallory", 3200)):
        for count, seconds in delays.items():
            submit(mini, "carol", "-p", "debug", "-w", "v100-1", "--gres=gpu:8", "-c", "8", "--mem=900")
            began = now(mini)
            with mini.daemon():
                mini.until("a round has read the partition", lambda since=began: done_since(mini, since)["rounds"] > 0)
                mini.sure("scontrol", "update", "PartitionName=gpu", "MaxMemPerNode=1000")
                time.sleep(4)  # the early round for this
                began = now(mini)
                mini.sure("sh", "-c", MANY.format(count=count, user=user, memory=memory), user=user)
                submitted = now(mini)
                ran = started(mini, submit(mini, "carol", "--gres=gpu:1", "-c1", "--mem=500"))
                told = done_since(mini, began)
                seconds.append(ran - told["first"])
                whole[count].append(ran - submitted)
                assert told["refused"] == (8 if count else 0), "those that took all GPUs, once"
                assert told["later"] == (1 if count else 0), "the next round starts it"
            clean(mini)
    print(f"\nseconds from the first start of a round to the good one: {delays}; from its submission: {whole}")
    print(f"medians: {median(delays[50]) - median(delays[0]):.1f} s later behind fifty")
