"""Copies of one job on real daemons: told their steps by measured speed, and exact though a node dies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from statistics import mean, median
from typing import Any, Final

import pytest

from slurmsched.experiments.mixed.hadare_mixes import EXCHANGE_SECONDS
from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x1/4c/8g,p100:1x1/4c/8g,k80:1x1/4c/8g")

SPOOL: Final = "/var/lib/synsched/spool"
PAUSES: Final[Mapping[str, float]] = {"v100-1": 0.02, "p100-1": 0.06, "k80-1": 0.03}
"""Seconds that a step takes on each node: not as equation 10 has it."""
ROUND: Final = 360.0
"""Seconds of a round in the experiment `hadare-mixes`, EXCHANGE_SECONDS of which are between two rounds. Rounds are
shorter here; what is between them is the same however long they are, and is compared as part of such a round."""

COPY: Final = """#!/bin/bash
# A step adds its number to the parameters, and the copies' are put together as a set. Whatever is done is written down.
trap "" USR1
exec python3 - << END
import os, time
from pathlib import Path
from slurmsched.jobside.forking import ForkedTraining

pause = {pauses}[os.environ["SLURMD_NODENAME"]]
task = os.environ["SLURM_ARRAY_TASK_ID"]
names = set()

def save(path):
    path.write_text(" ".join(map(str, names)))

def load(path):
    names.clear()
    names.update(map(int, path.read_text().split()))

def union(copies, target):
    target.write_text(" ".join({{name for copy in copies for name in copy.path.read_text().split()}}))

with open("did-" + task, "a", buffering=1) as did:
    for name in ForkedTraining(save, load, steps={steps}, consolidate=union, every=1.0, slot=600, grace=20):
        names.add(name)
        did.write(f"{{name}} {{time.time():.3f}}\\n")
        time.sleep(pause)
Path("final-" + task).write_text(" ".join(map(str, names)))
END
"""


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    """The cluster under HadarE, with a spool that is the scheduler's."""
    mini.sure("install", "-d", "-m", "1777", "-o", "synsched", SPOOL)
    policy = {"system": "hadare"}
    mini.configure(**{**SETTINGS, "policy": policy, "reports": {"spool": SPOOL}})
    return mini


class Forked:
    """An array of copies in a folder of its own."""

    def __init__(self, mini: Mini, folder: str, copies: int, steps: int) -> None:
        self.mini, self.copies, self.steps, self.home = mini, copies, steps, f"/home/alice/{folder}"
        mini.sure("mkdir", "-p", self.home, user="alice")
        script = COPY.format(pauses=dict(PAUSES), steps=steps)
        mini.sure("sh", "-c", f"cat > {self.home}/job.sh", user="alice", stdin=script)
        self.id = mini.sure(
            "env", "HOME=/home/alice", "PYTHONPATH=/opt/slurmsched", f"SYNSCHED_SPOOL={SPOOL}",
            "sbatch", "--parsable", f"--array=0-{copies - 1}", "--gres=gpu:1", "-c", "1", "--requeue",
            f"--chdir={self.home}",
            f"--comment=synsched:fork={steps},ckpt=usr1@20", f"{self.home}/job.sh", user="alice",
        ).strip()  # fmt: skip

    def where(self) -> dict[str, int]:
        """The copy that runs on each node."""
        listed = self.mini.sure("squeue", "-h", "-j", self.id, "-t", "R", "-o", "%N %K").split("\n")
        return {node: int(task) for node, task in (line.split() for line in listed if line)}

    def ledger(self, number: int) -> Any:
        """The account that begins with this round; empty before."""
        said = self.mini.run("cat", f"{self.home}/rounds-{self.id}/round-{number:06}/ledger.json")
        return said.json if said.code == 0 else {}

    def last(self) -> int:
        """The number of the round under way, 0 before the first."""
        return self.mini.run("ls", f"{self.home}/rounds-{self.id}").out.count("round-")

    def goes_by_it(self) -> bool:
        """Whether the round under way is divided as the scheduler said."""
        return bool(self.last() and self.ledger(self.last()).get("word"))

    def counted(self) -> list[list[int]]:
        """Steps by copy and round."""
        return [self.ledger(number)["counted"] for number in range(2, self.last() + 1)]

    def saved(self, number: int, copy: int) -> int:
        """Steps of this round that the copy has saved."""
        folder = f"{self.home}/rounds-{self.id}/round-{number:06}/copy-{copy}"
        names = [name for name in self.mini.run("ls", folder).out.split() if name.startswith("step-")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def did(self, copy: int) -> set[int]:
        """The names of all steps that the copy ever did."""
        return set(self.began(copy))

    def began(self, copy: int) -> dict[int, float]:
        """When each of these steps began, in unix seconds."""
        lines = self.mini.run("cat", f"{self.home}/did-{copy}").out.splitlines()
        return {int(name): float(at) for name, at in map(str.split, lines)}

    def throughput(self, first: int) -> tuple[float, float]:
        """From this round on: the seconds from the last step of a round to the first of the next, on average, and the
        part of the copies' time within rounds in which they did steps. A copy does not while others still do theirs."""
        rounds: dict[int, dict[int, list[float]]] = {}
        for copy in range(self.copies):
            for name, at in self.began(copy).items():
                rounds.setdefault((name >> 32) // self.copies, {}).setdefault(copy, []).append(at)
        spans, busy, whole = list[tuple[float, float]](), 0.0, 0.0
        for number in sorted(number for number in rounds if number >= first):
            times = [sorted(began) for began in rounds[number].values() if len(began) > 1]
            paces = [median(after - before for before, after in pairwise(began)) for began in times]
            start, end = min(map(min, times)), max(began[-1] + pace for began, pace in zip(times, paces, strict=True))
            busy += sum((began[-1] + pace - began[0]) / pace for began, pace in zip(times, paces, strict=True))
            whole += sum((end - start) / pace for pace in paces)
            spans.append((start, end))
        return mean(after[0] - before[1] for before, after in pairwise(spans)), busy / whole

    def final(self, copy: int) -> set[int]:
        """The names of the steps that are in the parameters."""
        return {int(name) for name in self.mini.sure("cat", f"{self.home}/final-{copy}").split()}

    def told(self) -> dict[int, int]:
        """What the scheduler says."""
        said = self.mini.run("cat", f"{SPOOL}/dispatched/{self.id}.json")
        return {int(copy): steps for copy, steps in said.json["steps"].items()} if said.code == 0 else {}

    def is_reported(self, by: int) -> bool:
        """Whether so many copies have told how fast they are."""
        found = self.mini.run("sh", "-c", f"cat {SPOOL}/*/{self.id}_*.json").out.splitlines()
        return sum(json.loads(line)["busy"] > 5 for line in found) >= by


def test_copies_on_three_gpu_types_do_each_step_once_in_proportion_to_their_speed(site: Mini) -> None:
    """There are more copies than nodes: one is left over, and comes when all is done. The throughput is
    that of the experiment, to 3 %."""
    job = Forked(site, "three", copies=4, steps=4000)
    site.round()
    site.until("each node has a copy", lambda: job.where().keys() == PAUSES.keys())
    nodes = job.where()
    site.until("they go by what they were told", job.goes_by_it)
    site.until("they are measured", lambda: job.is_reported(3), 120)
    shown = site.synsched("plan").out
    assert f"steps left of job {job.id}:" in " ".join(shown.split())
    before = job.last()
    site.round()
    told = job.told()
    assert sum(told.values()) <= 4000
    fastest = sum(1 / pause for pause in PAUSES.values())
    for node, pause in PAUSES.items():
        assert told[nodes[node]] / sum(told.values()) == pytest.approx(1 / pause / fastest, abs=0.1)
    site.until("they go by it", lambda: job.last() > before)
    given = job.ledger(before + 1)["given"]
    for copy, steps in told.items():
        assert given[copy] / sum(given) == pytest.approx(steps / sum(told.values()), abs=0.01)
    site.until("all steps are done", lambda: job.ledger(job.last())["done"] == 4000, 240)
    site.until("the copies have ended", lambda: not job.where())
    counted = job.counted()
    print(f"\nsteps by copy and round: {counted}; the copies are on {nodes}")
    exchange, busy = job.throughput(before)
    ratio = busy * (ROUND - exchange) / (ROUND - EXCHANGE_SECONDS)
    print(f"{exchange:.1f} s from round to round, busy {busy:.3f}: {ratio:.3f} of the experiment's throughput")
    assert ratio >= 0.97
    assert sum(map(sum, counted)) == 4000
    assert f"{job.id}_" not in site.synsched("doctor").out, "what the copies reported was believed"
    done = set().union(*map(job.did, range(4)))
    assert len(done) == 4000, "nothing was done twice, or in vain"
    assert all(job.final(copy) == done for copy in nodes.values())
    (left_over,) = set(range(4)) - set(nodes.values())
    site.round()
    site.until("the copy that was left over has seen it", lambda: job.id not in site.sure("squeue", "-h", "-o", "%F"))
    assert job.final(left_over) == done
    assert job.did(left_over) == set()


def test_a_node_that_dies_costs_its_copys_steps_of_that_round(site: Mini) -> None:
    job = Forked(site, "dies", copies=3, steps=2000)
    site.round()
    site.until("each node has a copy", lambda: job.where().keys() == PAUSES.keys())
    nodes = job.where()
    dead = nodes["v100-1"]
    site.until("they go by what they were told", job.goes_by_it)
    killed = job.last()
    site.until("they have saved", lambda: min(job.saved(killed, copy) for copy in range(3)) > 30)
    site.cluster("stop", "--kill", "v100-1")
    site.sure("scontrol", "update", "NodeName=v100-1", "State=DOWN", "Reason=killed")
    kept = job.saved(killed, dead)
    site.until("Slurm has seen it", lambda: "v100-1" not in job.where())
    site.round()
    assert dead not in job.told()
    site.until("a new round begins", lambda: job.last() > killed)
    after = job.ledger(killed + 1)
    assert after["counted"][dead] == kept
    assert after["given"][dead] == 0
    site.until("all steps are done", lambda: job.ledger(job.last())["done"] == 2000, 240)
    site.until("both have ended", lambda: not job.where())
    counted = job.counted()
    done, final = job.did(0) | job.did(1) | job.did(2), job.final(nodes["k80-1"])
    print(f"\nsteps by copy and round: {counted}; of copy {dead} {len(done - final)} were lost with its node")
    assert sum(map(sum, counted)) == len(final) == 2000
    assert final <= done
    assert done - final <= job.did(dead), "nobody else lost a step"
    site.run("scancel", job.id)
