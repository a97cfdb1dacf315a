"""Three honest users and one who means no good: whatever he tries, their jobs are decided, held by nobody but us, and
given back, and every command still answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest

from tests.slurm.conftest import RELEASES, SETTINGS, SOURCE
from tests.slurm.mallory import ATTACKS, CORE, Attack, attack, without_hook
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x8", "--set", "MinJobAge=2")
HONEST: Final = ("alice", "bob", "carol")
HINT: Final = "--comment=synsched:task=image,ckpt=usr1@2"
SPOOL: Final = "/var/lib/synsched/spool"
DATABASE: Final = "/var/lib/synsched/synsched.db"
BOUND: Final = 90
"""Seconds within which a round or a command answers, whatever the queue's text is; a quiet one takes two."""
MEMORY: Final = 3_000_000
"""KiB of addresses that a command may take."""

USUAL: Final = {
    **SETTINGS,
    "guards": {**SETTINGS["guards"], "moves_per_job_day": 100},
    "rounds": {**SETTINGS["rounds"], "settle_timeout": 45},
    "checkpoint": {"lead": 2, "longest_lead": 90},
    "reports": {"spool": SPOOL},
}

on_trixie = pytest.mark.parametrize("mini", ["trixie"], indirect=True, scope="module")
on_each_release = pytest.mark.parametrize("mini", [*RELEASES, SOURCE], indirect=True, scope="module")
tried = pytest.mark.parametrize(
    ("mini", "tries"),
    [pytest.param(release, tries, id=f"{release}-{tries.title}")
     for release in (*RELEASES, SOURCE) for tries in (CORE if release in RELEASES[1:] else ATTACKS)],
    indirect=["mini"], scope="module",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet(mini: Mini) -> Iterator[None]:
    """A round has been, so that the hook holds; nobody's job is left from the story before."""
    mini.configure(**USUAL)
    mini.sure("install", "-d", "-m", "1777", "-o", "synsched", SPOOL)
    bounded_round(mini)
    yield
    nothing_left(mini)


def nothing_left(mini: Mini) -> None:
    """Every job is cancelled; slurmctld remembers it for a minute yet, text and all."""
    mini.run("sh", "-c", "for user in alice bob carol mallory; do scancel -u $user; done")
    mini.until("nothing is left", lambda: not mini.sure("squeue", "-h").strip())


def bounded(mini: Mini, *words: str, user: str = "synsched", codes: Sequence[int] = (0,)) -> str:
    """A command of synsched that has to answer in time, without a traceback; its output."""
    # The unit has a bound on memory: without one a round could take the machine with it.
    command = f"ulimit -v {MEMORY}; exec timeout {BOUND} synsched {shlex.join(words)}"
    said = mini.run("bash", "-c", command, user=user, timeout=BOUND + 30)
    assert said.code in codes, f"synsched {' '.join(words)}: exit {said.code}\n{said.out[-2000:]}{said.err[-2000:]}"
    assert "Traceback" not in said.err, said.err
    return said.out


def bounded_round(mini: Mini) -> None:
    bounded(mini, "run", "--once")


def submitted(mini: Mini, user: str, *options: str, count: int = 1) -> list[str]:
    """Jobs that sleep through their checkpoint signal, by their numbers."""
    script = "printf '#!/bin/sh\\ntrap : USR1\\nwhile :; do sleep 1; done\\n' > s.sh; "
    script += "for i in $(seq %d); do sbatch --parsable %s s.sh; done"
    words = shlex.join(("--output=/dev/null", HINT, *options))
    return mini.sure("sh", "-c", f"cd /home/{user}; " + script % (count, words), user=user).split()


def fill(mini: Mini) -> None:
    """An unmanaged job has all GPUs, so that whoever comes has to wait."""
    wide = shlex.split("-p debug --gres=gpu:8 -N 2 --ntasks-per-node=1 -c 24 --output=/dev/null --wrap")
    job = mini.sure("sbatch", "--parsable", *wide, "sleep 900", user="alice").strip()
    mini.until("the cluster is full", lambda: facts(mini)[job]["state"] == "R")


def facts(mini: Mini) -> dict[str, dict[str, str]]:
    """Owner, state, reason, CPUs and node of each job: columns that nobody words."""
    names = ("user", "state", "reason", "cpus", "node")
    columns = "JobID:12,UserName:12,StateCompact:6,Reason:40,NumCPUs:8,NodeList:20"
    rows = (line.split() for line in mini.sure("squeue", "-h", "-a", "-r", "-O", columns).splitlines())
    return {row[0]: dict(zip(names, (*row[1:], "", ""), strict=False)) for row in rows if row}


def status(mini: Mini) -> Mapping[str, Mapping[str, Any]]:
    listed: Sequence[Mapping[str, Any]] = json.loads(bounded(mini, "status", "--json"))["jobs"]
    return {job["id"]: job for job in listed}


def assert_every_hold_has_an_owner(mini: Mini, jobs: Sequence[str]) -> None:
    """An administrator's hold on one of these is in our books."""
    seen, known = facts(mini), status(mini)
    held = [job for job in jobs if seen[job]["reason"] == "JobHeldAdmin"]
    orphans = [job for job in held if not known.get(job, {}).get("held_by_us")]
    assert not orphans, f"held, and nobody knows by whom: {orphans}"


def assert_all_given_back(mini: Mini, jobs: Sequence[str]) -> None:
    bounded(mini, "release")
    seen = facts(mini)
    held = [job for job in jobs if seen[job]["reason"].startswith(("JobHeld", "job_requeued"))]
    assert not held, f"still held after the release: {held}"


def assert_commands_answer(mini: Mini) -> None:
    bounded(mini, "status")
    bounded(mini, "status", user="bob")
    bounded(mini, "plan", codes=(0, 3))
    bounded(mini, "doctor", codes=(0, 1))


@tried
def test_honest_jobs_are_decided_in_time_and_given_back(mini: Mini, tries: Attack) -> None:
    small = [job for user in HONEST for job in submitted(mini, user, "--gres=gpu:1", "-c", "3")]
    wide = submitted(mini, "carol", "--gres=gpu:8", "-N", "2", "--ntasks-per-node=1", "-c", "24")
    attack(mini, tries.does, [*small, *wide])
    # One that starts during the round takes all memory of a node: what was planned there waits for the next round.
    mini.until(
        "Slurm has tried his jobs",
        lambda: "None" not in mini.sure("squeue", "-h", "-u", "mallory", "-t", "PD", "-o", "%r"),
    )

    bounded_round(mini)

    seen = facts(mini)
    not_started = [job for job in small if seen[job]["state"] != "R"]
    assert not not_started, [(seen[job], bounded(mini, "explain", job)) for job in not_started]
    assert seen[wide[0]]["state"] == "PD"
    assert_every_hold_has_an_owner(mini, wide)
    known = status(mini)
    assert {known[job]["user"] for job in small} == set(HONEST)
    assert_commands_answer(mini)
    assert_all_given_back(mini, [*small, *wide])


@on_each_release
def test_none_of_sixty_waiting_jobs_is_lost_in_a_hold(mini: Mini) -> None:
    """More than are asked for one by one, held by the daemon and hidden by turns while it looks."""
    fill(mini)
    with without_hook(mini):
        waiting = submitted(mini, "bob", "--gres=gpu:1", "-c", "3", count=60)
        half = waiting[::2]
        attack(mini, 'held --job-name="x$(lines | cut -c1-900)" --comment="y$(lines | cut -c1-900)"', half)
    bounded_round(mini)
    assert_every_hold_has_an_owner(mini, waiting)
    # He clears his text, and poses as the others.
    attack(mini, 'scancel -u mallory; held --job-name="x$(lines)" --comment="y$(lines)"', waiting[1::2])
    bounded_round(mini)
    assert_every_hold_has_an_owner(mini, waiting)
    assert {facts(mini)[job]["reason"] for job in waiting} <= {"JobHeldAdmin"}
    assert_all_given_back(mini, waiting)


@on_each_release
def test_nobody_starts_his_job_past_those_who_wait(mini: Mini) -> None:
    """By releasing the hook's hold, by a comment too long to mark, by asking for a time or a node."""
    first = submitted(mini, "bob", "--gres=gpu:8", "-N", "2", "--ntasks-per-node=1", "-c", "24")
    attack(mini, """
        go() { sbatch --parsable --gres=gpu:1 -c 1 --output=/dev/null "$@" j.sh; }
        scontrol release "$(go)"; id=$(go); scontrol update JobId=$id Priority=100000
        id=$(go); scontrol update JobId=$id Comment=mine; scontrol release $id
        go --comment="$(printf '%0990d' 1)"; go --comment="$(printf '%01000d' 1) synsched:"
        go --begin=now; go -w v100-1; go --comment=synsched:held=hook; go --job-name="$(printf 'x\\nJobId=1 ')"
    """, first, past_the_hook=False)  # fmt: skip
    # slurmctld looks at who may start every second: a job that nobody holds shows that it has.
    free = mini.sure("sbatch", "--parsable", "-p", "debug", "-c", "1", "--wrap", "sleep 1", user="alice").strip()
    mini.until("slurmctld has scheduled", lambda: facts(mini).get(free, {}).get("state") != "PD")
    mini.run("sleep", "2")
    ahead = [job for job, seen in facts(mini).items() if seen["user"] == "mallory" and seen["state"] in ("R", "CG")]
    assert not ahead, f"these run before job {first[0]}, which waits longer"
    bounded_round(mini)
    assert facts(mini)[first[0]]["state"] == "R"


@on_trixie
def test_a_read_transaction_and_a_lock_of_his_hold_up_no_round(mini: Mini) -> None:
    reads = (
        "import sqlite3, time; db = sqlite3.connect('file:%s?mode=ro', uri=True); db.execute('BEGIN'); "
        "db.execute('SELECT count(*) FROM jobs').fetchall(); time.sleep(40)"
    )
    mini.run("sh", "-c", f'python3 -c "{reads % DATABASE}" >/dev/null 2>&1 &', user="mallory")
    mini.run("sh", "-c", f"for f in {DATABASE}*; do flock -x $f sleep 40 >/dev/null 2>&1 & done", user="mallory")
    mini.run("sleep", "1")
    waiting = submitted(mini, "bob", "--gres=gpu:1", "-c", "3")
    try:
        bounded_round(mini)
        assert facts(mini)[waiting[0]]["state"] == "R"
        assert_commands_answer(mini)
    finally:
        mini.run("sh", "-c", "kill $(ps -o pid= -u mallory)")


@on_trixie
def test_the_database_tells_nobody_what_others_wrote(mini: Mini) -> None:
    for path in (DATABASE, f"{DATABASE}.lock"):
        assert mini.run("test", "-r", path, user="mallory").code != 0, f"{path} is open to all"


@on_trixie
def test_a_job_s_report_overwrites_nothing_that_he_points_it_to(mini: Mini) -> None:
    mini.sure("sh", "-c", "umask 077; echo thesis > /home/bob/thesis; touch -d '30 days ago' /home/bob/thesis",
              user="bob")  # fmt: skip
    mini.run("sh", "-c", f"mkdir -m 777 {SPOOL}/2002; ln -s /home/bob/thesis {SPOOL}/2002/.77.json.new; "
             f"ln -s /home/bob/thesis {SPOOL}/2002/77.json", user="mallory")  # fmt: skip
    report = (
        "from pathlib import Path; from slurmsched.jobside.report import Report, Stage; "
        "from slurmsched.jobside.spool import Spool; "
        f"spool = Spool(Path('{SPOOL}'), '77'); "
        "spool.write(Report('77', 0, Stage.RUNNING, 1.0, 1, 1, 1.0, 1.0))"
    )
    mini.run("env", "PYTHONPATH=/opt/slurmsched", "python3", "-c", report, user="bob")
    assert mini.sure("cat", "/home/bob/thesis").strip() == "thesis"
    assert mini.sure("stat", "-c", "%a", "/home/bob/thesis").strip() == "600"
    mini.sure("rm", "-rf", f"{SPOOL}/2002")


@on_trixie
def test_the_daemon_empties_no_folder_that_he_points_it_to(mini: Mini) -> None:
    """The folder of dispatches becomes a link to one of the daemon's own, and a folder again, while rounds go on."""
    kept = "/var/lib/synsched/kept"
    mini.sure("sh", "-c", f"mkdir -p {kept} && touch {kept}/1.json {kept}/77.json", user="synsched")
    mini.run("rm", "-rf", f"{SPOOL}/dispatched")
    attack(mini, "sbatch -H --array=0-3 --gres=gpu:1 --output=/dev/null --comment=synsched:fork=1 j.sh", ["1"])
    toggle = f"timeout 20 sh -c 'cd {SPOOL}; while :; do mkdir dispatched; rmdir dispatched; ln -s {kept} dispatched; "
    mini.run("sh", "-c", f"{toggle} rm -f dispatched; done' >/dev/null 2>&1 &", user="mallory")
    for _ in range(4):
        bounded_round(mini)
    assert mini.sure("ls", kept).split() == ["1.json", "77.json"]


@on_trixie
def test_a_lead_without_end_holds_up_nobody_else(mini: Mini) -> None:
    """His jobs fill the cluster and ask for 9,999,999 days between the signal and the requeue."""
    attack(mini, "for i in 1 2; do sbatch --gres=gpu:8 -c 24 --output=/dev/null"
           " --comment=synsched:ckpt=usr1@9999999d j.sh; done", ["1"])  # fmt: skip
    bounded_round(mini)
    used = ("squeue", "-h", "-t", "R", "-O", "TimeUsed:20")
    mini.until("his jobs have attained service", lambda: sum(t >= "0:09" for t in mini.sure(*used).split()) == 2)
    wide = submitted(mini, "alice", "--gres=gpu:8", "-c", "24")
    bounded_round(mini)
    small = submitted(mini, "carol", "--gres=gpu:1", "-c", "3")
    bounded_round(mini)
    mini.run("scancel", "-u", "mallory")
    mini.until("his jobs are gone", lambda: not [s for s in facts(mini).values() if s["user"] == "mallory"])
    bounded_round(mini)
    seen = facts(mini)
    assert [seen[job]["state"] for job in (*wide, *small)] == ["R", "R"]


@on_each_release
def test_the_watchdog_gives_back_what_a_dead_daemon_held(mini: Mini) -> None:
    """While mallory's text is in the queue and the daemon's settings are broken."""
    fill(mini)
    hooked = submitted(mini, "bob", "--gres=gpu:1", "-c", "3")
    with without_hook(mini):
        held = submitted(mini, "carol", "--gres=gpu:1", "-c", "3", count=3)
        bounded_round(mini)
        assert {facts(mini)[job]["reason"] for job in held} == {"JobHeldAdmin"}
        for tries in CORE:
            attack(mini, tries.does, [*hooked, *held])
    rendered = bounded(mini, "render", "synsched.cron")
    script = mini.synsched("render", "watchdog.py")
    if script.code == 0:
        mini.write("/etc/synsched/watchdog.py", script.out)
    line = next(line for line in rendered.splitlines() if line.startswith("*/"))
    mini.write("/etc/synsched/synsched.toml", "[broken\n")
    mini.sure("sh", "-c", "echo '1000 enforce 300' > /var/lib/synsched/heartbeat", user="synsched")
    command = line.split(maxsplit=6)[6].replace("\\%", "%")
    said = mini.run("timeout", str(BOUND), "sh", "-c", command, user="synsched")
    assert said.code == 0, said.out + said.err
    seen = facts(mini)
    assert not [job for job in (*hooked, *held) if seen[job]["reason"].startswith("JobHeld")]
    strangers = [job for job, at in seen.items() if at["user"] == "mallory" and at["state"] != "PD"]
    assert not strangers, "he steered the release to jobs that he himself holds"
