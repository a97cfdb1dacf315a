"""A daemon at rest on a small site: what it takes of the processor, of memory and of slurmctld's time.

SLURMSCHED_REST_SECONDS=600 .venv/bin/pytest tests/slurm/test_rest.py -rP
"""

from __future__ import annotations

import os
import re
import time

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini
from tests.slurm.test_soak import LOG, Soaked

CLUSTER = ("--nodes", "v100:2x8")
SECONDS = float(os.environ.get("SLURMSCHED_REST_SECONDS", "20"))
MOST_MB = 150.0


def requests(mini: Mini) -> int:
    """What slurmctld has been asked so far, by all."""
    counts = re.findall(r"\( *\d+\) count:(\d+) ", mini.sure("sdiag", on="ctl").partition("per user")[0])
    return sum(map(int, counts))


def test_a_daemon_at_rest_takes_little(mini: Mini) -> None:
    """Two jobs run, three wait, and nothing happens. Times are printed for people and not asserted."""
    mini.configure(**{**SETTINGS, "rounds": {"mode": "enforce"}, "learning": {}})
    mini.sure("touch", LOG, user="synsched")
    resting = Soaked(mini)
    resting.start()
    for _ in range(5):
        mini.train("alice", "--gres=gpu:8", "-c", "8", hint="task=image")
    mini.until("both nodes are taken", lambda: len(mini.sure("squeue", "-h", "-t", "R").splitlines()) == 2)
    time.sleep(15)  # what had just started is over
    before = requests(mini)
    resting.look()
    began = resting.now
    while resting.now - began < SECONDS:
        time.sleep(min(10.0, SECONDS))
        resting.look()
    took = resting.measured["cpu"][-1][0] - resting.measured["cpu"][0][0]
    spent = resting.measured["cpu"][-1][1] - resting.measured["cpu"][0][1]
    memory = resting.measured["rss"][-1][1]
    asked = requests(mini) - before
    print(f"\nat rest for {took:.0f} s: {100 * spent / took:.2f} % of a core, {memory:.0f} MB,", end=" ")
    print(f"{60 * asked / took:.1f} requests to slurmctld in a minute, by all")
    assert memory < MOST_MB
    mini.sure("kill", resting.pid)
    mini.until("the daemon has stopped", lambda: mini.run("kill", "-0", resting.pid).code != 0)
