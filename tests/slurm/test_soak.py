"""A while of real time: jobs come and go, nodes and slurmctld too, the daemon is killed, and nothing is lost.

    SLURMSCHED_SOAK_MINUTES=120 .venv/bin/pytest tests/slurm/test_soak.py -rP        (or: make soak MINUTES=120)

Memory, database, log and the time that rounds take are measured throughout. From 20 minutes on they have to be flat.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from slurmsched.endurance import find_trend
from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

MINUTES = float(os.environ.get("SLURMSCHED_SOAK_MINUTES", "2"))
SEED = int(os.environ.get("SLURMSCHED_SOAK_SEED", "1"))
CLUSTER = ("--nodes", "v100:2x8,k80:1x4")
NODES = ("v100-1", "v100-2", "k80-1")
FROM_MINUTES = 20.0
"""From which length on a trend is told from noise."""
LAUNCH_FAILED = "launch failed requeued held"
"""Slurm's reason for a job that a node could not launch, as where it went down at that moment."""
PHASES = ("observe_s", "decide_s", "plan_s", "apply_s")
JUDGED = ("rss", "files", "log rate", "round")
"""History is kept for days: over an hour the database grows by what happens in it. Others tell why a round grows."""
DATABASE, LOG = "/var/lib/synsched/synsched.db", "/var/lib/synsched/soak.log"
LOOK = f"""
import json, os, sqlite3, sys
pid = sys.argv[1]
status = dict(line.split(":", 1) for line in open(f"/proc/{{pid}}/status"))
fields = open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()
print(json.dumps(dict(
    rss=int(status["VmRSS"].split()[0]) / 1024,
    cpu=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    files=len(os.listdir(f"/proc/{{pid}}/fd")),
    database=os.path.getsize("{DATABASE}") / 1e6,
    log=os.path.getsize("{LOG}") / 1e3,
)))
"""
ROWS = f"""
import json, sqlite3, sys
database = sqlite3.connect("file:{DATABASE}?mode=ro", uri=True)
print(json.dumps(list(database.execute(sys.argv[1]))))
"""


@dataclass
class Soaked:
    """What was done to the cluster, and what was measured: times in seconds since the start."""

    mini: Mini
    began: float = field(default_factory=time.monotonic)
    pid: str = ""
    started: float = 0.0
    jobs: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    measured: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    spent: list[float] = field(default_factory=list)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def start(self) -> None:
        self.pid = self.mini.sure("sh", "-c", f"synsched run >> {LOG} 2>&1 & echo $!", user="synsched").strip()
        self.mini.until("the daemon lives", lambda: f"daemon = {self.pid} " in self.beat())
        self.started = self.now

    def beat(self) -> str:
        return self.mini.run("cat", "/var/lib/synsched/heartbeat").out

    def kill(self) -> None:
        self.look()
        self.mini.sure("kill", "-9", self.pid)
        self.mini.until("it is gone", lambda: self.mini.run("kill", "-0", self.pid).code != 0)
        self.start()

    def look(self) -> None:
        """Measure the process; processor time is that since the last look."""
        said = self.mini.run("python3", "-Ic", LOOK, self.pid)
        if said.code:
            return
        for name, value in said.json.items():
            self.measured.setdefault(name, []).append((self.now, value))

    def rows(self, query: str) -> list[list[Any]]:
        rows: list[list[Any]] = json.loads(self.mini.sure("python3", "-Ic", ROWS, query, user="synsched"))
        return rows


def submit(soaked: Soaked, random_: random.Random) -> None:
    user, gpus = random_.choice(("alice", "bob", "carol")), random_.choice((1, 1, 1, 2, 2, 4, 8))
    seconds = random_.choice((2, 5, 10, 20, 40))
    hint = random_.choice(("", "--comment=synsched:task=image", f"--comment=synsched:duration={seconds}s,ckpt=usr1@1"))
    name = random_.choice(("train", "x\nJobId=1 JobState=RUNNING", "$(reboot)", "synsched:held=hook", "a|b|c"))
    script = f"#!/bin/sh\ntrap '' USR1\nsleep {seconds}\n"
    said = soaked.mini.run(
        "sbatch", "--parsable", f"--chdir=/home/{user}", "--output=/dev/null", f"--gres=gpu:{gpus}", f"-c{gpus}",
        f"--job-name={name}", "--time=5", *([hint] if hint else []), user=user, stdin=script,
    )  # fmt: skip
    if said.code == 0:
        soaked.jobs.add(said.out.strip().split(";")[0])
        soaked.done["jobs submitted"] += 1
    else:
        why = said.err.strip().splitlines()[-1:] or ["no answer"]
        soaked.done[f"submissions refused, name {name[:12]!r}: {why[0]}"] += 1


def cancel(soaked: Soaked, random_: random.Random) -> None:
    waiting = soaked.mini.run("squeue", "-h", "-o", "%i").out.split()
    if waiting:
        chosen = random_.choice(waiting)
        soaked.mini.run("scancel", chosen)
        soaked.cancelled.add(chosen)
        soaked.done["jobs cancelled"] += 1


@contextmanager
def out_of_service(soaked: Soaked, node: str, *, state: str, called: str) -> Iterator[None]:
    soaked.mini.run("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=soak", on="ctl")
    soaked.done[called] += 1
    yield
    soaked.mini.run("scontrol", "update", f"NodeName={node}", "State=RESUME", on="ctl")


drained = partial(out_of_service, state="DRAIN", called="nodes drained")
down = partial(out_of_service, state="DOWN", called="nodes down")


@contextmanager
def without_slurmctld(soaked: Soaked, _node: str) -> Iterator[None]:
    soaked.mini.cluster("stop", "ctl")
    soaked.done["slurmctld stopped"] += 1
    yield
    soaked.mini.cluster("start", "ctl")
    soaked.mini.until("slurmctld answers", lambda: soaked.mini.run("scontrol", "ping").code == 0)


@contextmanager
def locked_database(soaked: Soaked, _node: str) -> Iterator[None]:
    hold = f"import sqlite3, time; c = sqlite3.connect('{DATABASE}'); c.execute('BEGIN IMMEDIATE'); time.sleep(15)"
    soaked.mini.sure("sh", "-c", f'python3 -Ic "{hold}" >/dev/null 2>&1 &', user="synsched")
    soaked.done["database locked"] += 1
    yield


@contextmanager
def killed_daemon(soaked: Soaked, _node: str) -> Iterator[None]:
    soaked.kill()
    soaked.done["daemon killed"] += 1
    yield


FAULTS: tuple[Callable[[Soaked, str], Any], ...] = (killed_daemon, drained, down, without_slurmctld, locked_database)
FAULT_SECONDS = 12.0


def test_what_comes_and_goes_for_a_while_leaves_nothing_behind(mini: Mini) -> None:
    print(f"\n{MINUTES:g} minutes of jobs and faults on a real slurmctld, seed {SEED}")
    soaked, choose = Soaked(mini), random.Random(SEED)
    # What is published of ended jobs is in memory: for minutes, so that it is as much all the time.
    storage: dict[str, object] = {"export_ended": 120}
    rounds: dict[str, object] = {"mode": "enforce", "period": 10, "settle_timeout": 60}
    as_sites = {"policy", "learning"}
    usual = {name: values for name, values in SETTINGS.items() if name not in as_sites}
    mini.configure(**{**usual, "rounds": rounds, "storage": storage})
    soaked.start()
    end, every = MINUTES * 60, max(25.0, MINUTES * 60 / 120)
    next_job, next_look, next_fault, number = 0.0, 0.0, every / 2, SEED
    while soaked.now < end:
        if soaked.now >= next_job:
            submit(soaked, choose)
            next_job = soaked.now + choose.expovariate(1 / 2.0)
            if choose.random() < 0.05:
                cancel(soaked, choose)
        if soaked.now >= next_look:
            soaked.look()
            next_look = soaked.now + max(2.0, MINUTES * 60 / 360)
        if soaked.now >= next_fault and soaked.now < end - 20:
            # Memory is that of one process, which lives on for the last three quarters.
            faults = FAULTS if soaked.now < end / 4 or MINUTES < FROM_MINUTES else FAULTS[1:]
            fault = faults[number % len(faults)]
            with fault(soaked, choose.choice(NODES)):
                until = soaked.now + FAULT_SECONDS
                while soaked.now < until:
                    submit(soaked, choose)
                    time.sleep(3)
            number, next_fault = number + 1, soaked.now + every
        time.sleep(0.1)
    grown = report(soaked)
    finish(soaked)
    assert MINUTES < FROM_MINUTES or not grown, f"grows: {grown}"


def finish(soaked: Soaked) -> None:
    """The daemon stops cleanly; all that is left ends under plain Slurm, and Slurm's books agree with the journal."""
    mini = soaked.mini
    mini.sure("kill", soaked.pid)
    mini.until("the daemon has stopped", lambda: mini.run("kill", "-0", soaked.pid).code != 0, seconds=120)
    held = mini.sure("squeue", "-h", "-t", "PD", "-o", "%i %r").splitlines()
    if by_slurm := [line.split()[0] for line in held if LAUNCH_FAILED in line]:
        print(f"held by Slurm itself, since their launch failed: {len(by_slurm)}; cancelled, as a person would")
        mini.sure("scancel", *by_slurm)
        soaked.cancelled.update(by_slurm)
        held = [line for line in held if LAUNCH_FAILED not in line]
    assert not [line for line in held if "Held" in line or "held" in line], "every hold of ours is released"
    assert soaked.rows("SELECT id FROM jobs WHERE held_by_us AND state != 'finished'") == []
    assert soaked.rows("SELECT id, verb, subject FROM operations WHERE result = 'intended'") == []
    mini.until("all jobs have ended", lambda: not mini.sure("squeue", "-h", "-o", "%i").strip(), seconds=600)

    # slurmctld tells slurmdbd of ends a little later
    def runs() -> list[list[str]]:
        form = "--format=JobID,State,Start,End"
        said = mini.sure("sacct", "-a", "-X", "-D", "-n", "-P", "-S", "now-1days", form)
        return [line.split("|") for line in said.splitlines()]

    def unknown() -> dict[str, list[str]]:
        """The jobs that have not ended, with what accounting has of them: nothing of one cancelled under a hold."""
        last = {job: row for job, *row in runs()}
        told = soaked.jobs - (soaked.cancelled - last.keys())
        return {job: last.get(job, []) for job in told if _open(last.get(job, ["PENDING"]))}

    deadline = time.monotonic() + 120
    while lost := unknown():
        assert time.monotonic() < deadline, f"{len(lost)} of {len(soaked.jobs)} jobs are lost: {lost}"
        time.sleep(2)
    restarts = Counter(job for job, state, *_ in runs() if state == "REQUEUED")
    requeues = Counter(
        {str(job): count for job, count in soaked.rows(
            "SELECT subject, count(*) FROM operations WHERE verb = 'requeue' AND result = 'done' GROUP BY subject"
        )}
    )  # fmt: skip
    assert not requeues - restarts, "the journal tells of no requeue that Slurm does not know"
    started = {job for job, _, start, _ in runs() if start not in ("None", "Unknown")}
    released = {str(job) for (job,) in soaked.rows(
        "SELECT DISTINCT subject FROM operations WHERE verb = 'release' AND result IN ('done', 'undone')"
    )}  # fmt: skip
    assert released & soaked.jobs, "jobs were started by rounds"
    print(f"jobs started {len(started & soaked.jobs)}, of them released by us {len(released & started & soaked.jobs)}")


def _open(row: list[str]) -> bool:
    return row[0].split()[0] in ("PENDING", "RUNNING", "REQUEUED")


def rates(points: list[tuple[float, float]], times: float) -> list[tuple[float, float]]:
    """By how much a measure grew in a second, so many times; below zero where a new process began."""
    return [(after[0], times * (after[1] - before[1]) / (after[0] - before[0])) for before, after in pairwise(points)]


def report(soaked: Soaked) -> list[str]:
    """Print what was done and measured; return what grows."""
    for what, count in sorted(soaked.done.items()):
        print(f"  {what}: {count}")
    rounds = soaked.rows(
        "SELECT started, observe_s + decide_s + plan_s + apply_s, observe_s, decide_s, plan_s, apply_s FROM rounds"
        " WHERE mode != 'release' AND error = '' AND finished IS NOT NULL ORDER BY id"
    )
    failed = soaked.rows("SELECT count(*) FROM rounds WHERE mode != 'release' AND error != ''")[0][0]
    first = rounds[0][0]
    for column, name in enumerate(("round", *PHASES), start=1):
        soaked.measured[name] = [(row[0] - first, 1000 * row[column]) for row in rounds]
    soaked.measured["log rate"] = rates(soaked.measured["log"], 60.0)
    soaked.measured["processor"] = [(at, used) for at, used in rates(soaked.measured["cpu"], 1000.0) if used >= 0]
    print(f"rounds {len(rounds)}, failed {failed}; median {median(row[1] for row in rounds):.3f} s")
    grown = []
    for name, unit, resolution in (
        ("rss", "MB", 3.0), ("files", "", 1.0), ("database", "MB", 0.5), ("log rate", "kB/min", 2.0),
        ("round", "ms", 20.0), *((phase, "ms", 20.0) for phase in PHASES), ("processor", "ms/s", 2.0),
    ):  # fmt: skip
        trend = find_trend(name, unit, soaked.measured[name], warm_up=MINUTES * 60 / 4, resolution=resolution)
        first_third, middle, last = trend.thirds
        print(
            f"  {name} [{unit}]: thirds {first_third:.1f} {middle:.1f} {last:.1f};"
            f" slope a day {trend.slope:.1f} ({trend.slope_low:.1f} to {trend.slope_high:.1f}); grows {trend.grows}"
        )
        grown += [name] if trend.grows and name in JUDGED else []
    assert failed < len(rounds)
    return grown
