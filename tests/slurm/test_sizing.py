"""Sizes by what runs used, from real CPU time and real accounting, with no more told than that jobs can checkpoint."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini
from tests.slurm.test_learning import learnt

CLUSTER = (
    "--nodes", "v100:1x8/8c/100g", "--set", "JobAcctGatherType=jobacct_gather/linux",
    "--set", "JobAcctGatherFrequency=task=1",
)  # fmt: skip
"""One CPU is the share of a GPU."""
# On one release only, for its length: the accounting of the others is in the story of learning.
pytestmark = pytest.mark.parametrize("mini", ["trixie"], indirect=True, scope="module")

BOUND = 800.0
"""Seconds that the story may take; the runs from which idle CPUs are learnt last ten minutes."""
BURNER = '''#!/usr/bin/python3
"""Keeps 1.1 CPUs busy for a minute, by two processes; longer where the machine has other work."""
import os, time
began, burning = time.monotonic(), []
def used():
    ticks = (open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[11:13] for pid in burning)
    return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")
def age():
    return time.monotonic() - began + 2
for _ in range(2):
    burning.append(os.fork())
    while burning[-1] == 0:
        sum(range(100_000))
        if time.process_time() > 0.55 * age():
            time.sleep(0.01)
while age() < 65 or age() < 300 and used() < age():
    time.sleep(1)
for pid in burning:
    os.kill(pid, 9)
    os.wait()
'''
SLEEPER = "#!/bin/sh\nexec sleep 610\n"


def node_comes_first(mini: Mini) -> None:
    """Processes of the node go before those of other clusters, so that the burner has a CPU of a busy machine too."""
    node = f"slurmsched-{mini.name}-v100-1"
    subprocess.run(["docker", "update", "--cpu-shares", "16384", node], check=True, capture_output=True)


def submitted(mini: Mini, name: str, cpus: int, hint: str = "", *options: str) -> str:
    script = f"/home/alice/{name}.sh"
    mini.sure("sh", "-c", f"cat > {script}", user="alice", stdin=BURNER if name == "burner" else SLEEPER)
    memory = "--mem=1G"  # else DefMemPerCPU: who has memory for each of its CPUs lends none
    asked = (
        "--gres=gpu:1",
        f"--cpus-per-task={cpus}",
        memory,
        "--time=15",
        *options,
        *([f"--comment=synsched:{hint}"] if hint else []),
    )
    files = ("--chdir=/home/alice", f"--job-name={name}", "--output=/dev/null")
    return mini.sure("sbatch", "--parsable", *files, *asked, script, user="alice").strip().split(";")[0]


def test_burners_and_sleepers_are_told_apart_and_sized_by_what_they_used(mini: Mini) -> None:
    """A work that burns its CPU has two the next time; one that sleeps beside two lends one, so that all start."""
    ends = time.monotonic() + BOUND
    mini.configure(**{**SETTINGS, "rounds": {**SETTINGS["rounds"], "period": "10s"}})
    node_comes_first(mini)
    with mini.daemon():
        burner, *sleepers = (submitted(mini, "burner", 1), *(submitted(mini, "sleeper", 2) for _ in range(3)))
        first = {burner, *sleepers}

        def known() -> bool:
            return {str(row["job"]) for row in learnt(mini)} >= first

        mini.until("all first runs are learnt", known, ends - time.monotonic())
        runs = {str(row["job"]): row for row in learnt(mini)}
        busy = {job: float(str(runs[job]["cpu_seconds"])) / float(str(runs[job]["seconds"])) for job in first}
        print(f"CPUs that were busy, on average: {', '.join(f'{job} {cpus:.2f}' for job, cpus in busy.items())}")
        assert all(runs[job]["gathered"] for job in first), "without SYS_PTRACE processes are not accounted for"
        assert [runs[job]["cpus"] for job in (burner, *sleepers)] == [1, 2, 2, 2], "as they asked"
        assert busy[burner] > 0.9
        assert max(busy[job] for job in sleepers) < 0.1

        mini.sure("scontrol", "update", "nodename=v100-1", "state=drain", "reason=all jobs of the next round wait")
        again = [submitted(mini, "sleeper", 2, "ckpt=usr1") for _ in range(6)]
        again.append(submitted(mini, "burner", 1, "ckpt=usr1"))
        mini.sure("scontrol", "update", "nodename=v100-1", "state=resume")

        def running() -> bool:
            jobs = mini.jobs()
            return all(jobs[job]["JobState"] == "RUNNING" for job in again)

        mini.until("all run at once, for which they asked for 13 CPUs of 8", running, ends - time.monotonic())
        sizes = [int(mini.jobs()[job]["NumCPUs"]) for job in again]
        for job in (again[0], again[-1]):
            print(mini.synsched("explain", job, user="alice").out)
        assert sizes == [1] * 6 + [2]
        mini.sure("scancel", *again)
    print(f"{BOUND - (ends - time.monotonic()):.0f} s of at most {BOUND:.0f} s")


def test_one_task_of_an_array_of_burners_is_a_probe_and_later_ones_have_what_it_showed(mini: Mini) -> None:
    """The first has two CPUs, the second its share of one, which it burns; then it is known that two are needed."""
    ends = time.monotonic() + BOUND
    mini.configure(**{**SETTINGS, "rounds": {**SETTINGS["rounds"], "period": "10s"}})
    node_comes_first(mini)
    mini.synsched("forget", "alice")
    with mini.daemon():
        array = submitted(mini, "burner", 1, "cpus=probe,ckpt=usr1", "--array=1-5%1")

        def cpus_of(task: str) -> int:
            row = mini.run("squeue", "-rh", "-t", "RUNNING", "-o", "%i %C").out.split()
            return int(row[row.index(task) + 1]) if task in row else 0

        def size_of(task: str) -> int:
            mini.until(f"{task} runs", lambda: cpus_of(task) > 0, ends - time.monotonic())
            told = mini.synsched("explain", task, user="alice").out
            print(f"{task} has {cpus_of(task)} CPUs\n{told}")
            assert ("cpus=probe" in told) == (task == f"{array}_1")
            return cpus_of(task)

        def used() -> list[float]:
            return [float(str(row["cpu_seconds"] or 0)) for row in learnt(mini) if str(row["array_job"]) == array]

        node, sizes = ("scontrol", "update", "nodename=v100-1"), list[int]()
        for number in (1, 2, 3):
            sizes.append(size_of(f"{array}_{number}"))
            if number < 3:  # the next begins once accounting tells of this one, which takes some seconds
                mini.sure(*node, "state=drain", "reason=accounting")
                known = f"what {number} used is learnt"
                mini.until(known, lambda: sum(cpu > 60 for cpu in used()) == len(sizes), ends - time.monotonic())
                mini.sure(*node, "state=resume")
        mini.sure("scancel", array)
        assert sizes == [2, 1, 2]
    print(f"{BOUND - (ends - time.monotonic()):.0f} s of at most {BOUND:.0f} s")
