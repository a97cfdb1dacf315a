"""1,000 nodes and 5,000 jobs on a real slurmctld, whose nodes run no slurmd: what a round reads and what it changes.

Each round is a process of its own, which fills the nodes at once; those of a daemon are in test_scale_rounds.py. Times
are printed for people and not asserted: `synsched bench round --json` measures them on a machine that is quiet.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest

from tests.slurm.conftest import SETTINGS, SOURCE
from tests.slurm.mallory import NO_HOOK
from tests.slurm.mini import Mini
from tests.slurm.test_readers import agreed

pytestmark = pytest.mark.parametrize("mini", ["trixie", SOURCE], indirect=True, scope="module")
NODES = int(os.environ.get("SLURMSCHED_SCALE_NODES", "1000")) // 2 * 2
JOBS = int(os.environ.get("SLURMSCHED_SCALE_JOBS", "5000")) // 1000 * 1000
ARRAYS = JOBS * 3 // 5 // 1000
OWN = JOBS - 1000 * ARRAYS
CLUSTER = (
    "--virtual", "--nodes", f"v100:{NODES // 2}x8,k80:{NODES // 2}x8", "--set", f"MaxJobCount={max(10_000, 2 * JOBS)}",
    *(("--placeholder",) if os.environ.get("SLURMSCHED_SCALE_NARROW") else ()),
)  # fmt: skip
HINT = "--comment=synsched:task=image"
JOB = "printf '#!/bin/sh\\nsleep 100000\\n'"
HOSTILE = """
records=$(scontrol -a -d -o show job | grep JobState=CONFIGURING | sed 's/ Mem=[0-9]*/ Mem=9/g' | head -c 100000)
lines=$(squeue -h -a -t all -O JobID:12 | head -40 | sed 's/^/JobId=/')
fields='x Nodes=v100-2 CPU_IDs=0-23 Mem=511992 GRES=gpu:v100:8(IDX:0-7) MinCPUsNode=1 MinMemoryCPU=999999999999999E'
printf '#!/bin/sh\\nsleep 100000\\n' > /home/mallory/h.sh
cd /home/mallory
seq 200 | xargs -P 4 -I{} sbatch -Q --gres=gpu:1 --job-name "x
$lines" --comment "synsched:task=image TresPerJob=gres/gpu:999999999
$lines" --network "$fields" h.sh "a WorkDir=x Comment=z
$records
"
"""
"""200 jobs whose name, comment, arguments and network pose as the records and the fields of others."""


def round_of(mini: Mini) -> dict[str, Any]:
    """The tally of a round; `late` are the operations for which its time did not suffice."""
    said = mini.synsched("run", "--once", "--json", timeout=1800)
    assert said.code == 0, said.err
    late = sum(outcome["cause"] == "out_of_time" for outcome in said.json["outcomes"])
    return {**said.json["tally"], "late": late}


def phases(tally: dict[str, Any]) -> dict[str, float]:
    """The seconds of each phase of a round."""
    return {name: round(value, 2) for name, value in tally.items() if name.endswith("_s")}


@pytest.fixture(scope="module")
def full(mini: Mini) -> Mini:
    """The cluster with 5,000 managed jobs waiting: 2,000 of their own and 3,000 tasks of arrays."""
    mini.configure(**{**SETTINGS, "rounds": {"mode": "enforce", "settle_interval": 1, "settle_timeout": 300}})
    assert mini.synsched("run", "--once").code == 0
    many = f"{JOB} > j.sh; seq {OWN} | xargs -P 4 -I{{}} sbatch -Q --gres=gpu:8 -c 24 --mem=1000 {HINT} j.sh"
    arrays = f"for i in $(seq {ARRAYS}); do sbatch -Q --array=0-999 --gres=gpu:8 -c 24 --mem=1000 {HINT} j.sh; done"
    mini.sure("sh", "-c", f"cd /home/alice && {many} && {arrays}", user="alice", timeout=600 + OWN / 4)
    return mini


def running(mini: Mini) -> list[str]:
    return mini.sure("squeue", "-h", "-r", "-t", "R,CF", "-o", "%i").split()


def rpc_counts(mini: Mini) -> Counter[str]:
    """What slurmctld has been asked so far, by the kind of request."""
    by_kind = mini.sure("sdiag", on="ctl").partition("by message type")[2].partition("by user")[0]
    return Counter({kind: int(count) for kind, count in re.findall(r"(\w+) +\( *\d+\) count:(\d+)", by_kind)})


class Bystander:
    """An ordinary user who looks at the queue all the time; `took` has the seconds of each look."""

    def __init__(self, name: str) -> None:
        self._mini, self._over = Mini(name), threading.Event()
        self.took = list[float]()

    def look(self, seconds: float = 0.0) -> None:
        end = time.monotonic() + seconds
        while not self._over.is_set() and (not self.took or time.monotonic() < end):
            timed = "begin=$(date +%s%N); squeue -h -u bob >/dev/null && echo $(( $(date +%s%N) - begin ))"
            said = self._mini.run("sh", "-c", timed, user="bob")
            if said.code == 0 and said.out.strip():
                self.took.append(int(said.out) / 1e9)
            self._over.wait(0.3)

    @contextmanager
    def beside(self) -> Iterator[None]:
        thread = threading.Thread(target=self.look, args=(3600.0,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def test_a_round_starts_what_fits_and_a_second_one_changes_nothing(full: Mini) -> None:
    reserved = "ReservationName=later Nodes=v100-7 StartTime=now Duration=1-0 Users=root"
    full.sure("scontrol", "create", "reservation", *reserved.split())
    usual, meanwhile = Bystander(full.name), Bystander(full.name)
    usual.look(seconds=5)
    before = rpc_counts(full)
    with meanwhile.beside():
        first = round_of(full)
    asked = rpc_counts(full) - before
    assert (first["nodes"], first["managed"]) == (NODES, JOBS)
    last, further = first, 0
    while last["late"]:  # a busy machine
        assert last["writes"] > 0
        last, further = round_of(full), further + 1
    assert len(running(full)) == NODES - 1
    print(f"\n{NODES:,} nodes, {JOBS:,} jobs, the first round:", phases(first), f"{first['writes']} changes")
    print(f"{further} further rounds until all nodes have jobs")
    print("requests to slurmctld, all users':", dict(asked.most_common(8)))
    print(f"squeue of another user takes {median(usual.took):.3f} s, while the round runs", end=" ")
    print(f"{median(meanwhile.took):.3f} s, at most {max(meanwhile.took):.3f} s")

    second = round_of(full)
    print("the second round, without changes:", phases(second))
    assert second["writes"] == 0
    # one poll, the tasks of arrays, what is read once per run, one question to accounting, one for the origin of jobs,
    # and a script for each minute in which they were submitted: never one request per job
    assert second["reads"] <= 15

    if full.name.endswith(SOURCE):
        agreed(full)
    full.install_hook(NO_HOOK)  # as on a cluster where ours is not installed: it would not let this in
    full.sure("sh", "-c", HOSTILE, user="mallory", timeout=600)
    hostile = round_of(full)
    print("with 200 hostile jobs among them:", phases(hostile))
    assert hostile["managed"] == JOBS + 200, "they hide nobody, and are themselves read"
    # and a script for each minute in which they were submitted
    assert hostile["reads"] <= second["reads"] + 60, "40 jobs are asked for whose records they pose as, each once"
    assert len(running(full)) == NODES - 1

    full.sure("scontrol", "delete", "ReservationName=later")
    third = round_of(full)
    assert 0 < third["writes"] <= 6, "one node came back, so one job starts; nobody else hears of it"
    assert len(running(full)) == NODES
