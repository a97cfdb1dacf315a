"""1,000 nodes and 5,000 jobs on a real slurmctld, whose nodes run no slurmd: what a round reads and what it changes.

Times are printed for people and not asserted: `synsched bench round --json` measures them on a machine that is quiet.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.slurm.conftest import SETTINGS, SOURCE
from tests.slurm.mallory import NO_HOOK
from tests.slurm.mini import Mini
from tests.slurm.test_readers import agreed

pytestmark = pytest.mark.parametrize("mini", ["trixie", SOURCE], indirect=True, scope="module")
CLUSTER = ("--virtual", "--nodes", "v100:500x8,k80:500x8")
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
    said = mini.synsched("run", "--once", "--json", timeout=600)
    assert said.code == 0, said.err
    tally: dict[str, Any] = said.json["tally"]
    return tally


@pytest.fixture(scope="module")
def full(mini: Mini) -> Mini:
    """The cluster with 5,000 managed jobs waiting: 2,000 of their own and 3,000 tasks of arrays."""
    mini.configure(**{**SETTINGS, "rounds": {"mode": "enforce", "settle_interval": 1, "settle_timeout": 300}})
    assert mini.synsched("run", "--once").code == 0
    many = f"{JOB} > j.sh; seq 2000 | xargs -P 4 -I{{}} sbatch -Q --gres=gpu:8 -c 24 --mem=1000 {HINT} j.sh"
    arrays = f"for i in 1 2 3; do sbatch -Q --array=0-999 --gres=gpu:4 -c 12 --mem=1000 {HINT} j.sh; done"
    mini.sure("sh", "-c", f"cd /home/alice && {many} && {arrays}", user="alice", timeout=600)
    return mini


def test_a_round_starts_what_fits_and_a_second_one_changes_nothing(full: Mini) -> None:
    reserved = "ReservationName=later Nodes=v100-7 StartTime=now Duration=1-0 Users=root"
    full.sure("scontrol", "create", "reservation", *reserved.split())
    first = round_of(full)
    assert (first["nodes"], first["managed"]) == (1000, 5000)
    running = full.sure("squeue", "-h", "-r", "-t", "R,CF", "-o", "%i").split()
    assert len(running) == 999

    second = round_of(full)
    print("\n1,000 nodes, 5,000 jobs:", {k: round(v, 2) for k, v in second.items() if k.endswith("_s")})
    assert second["writes"] == 0
    # one poll, the tasks of arrays, what is read once per run, one question to accounting, one for the origin of jobs,
    # and a script for each minute in which they were submitted: never one request per job
    assert second["reads"] <= 15

    if full.name.endswith(SOURCE):
        agreed(full)
    full.install_hook(NO_HOOK)  # as on a cluster where ours is not installed: it would not let this in
    full.sure("sh", "-c", HOSTILE, user="mallory", timeout=600)
    hostile = round_of(full)
    print("\nwith 200 hostile jobs among them:", {k: round(v, 2) for k, v in hostile.items() if k.endswith("_s")})
    assert hostile["managed"] == 5200, "they hide nobody, and are themselves read"
    assert hostile["reads"] <= second["reads"] + 50, "40 jobs are asked for whose records they pose as, each once"
    assert len(full.sure("squeue", "-h", "-r", "-t", "R,CF", "-o", "%i").split()) == 999

    full.sure("scontrol", "delete", "ReservationName=later")
    third = round_of(full)
    assert 0 < third["writes"] <= 6, "one node came back, so one job starts; nobody else hears of it"
    assert len(full.sure("squeue", "-h", "-r", "-t", "R,CF", "-o", "%i").split()) == 1000
