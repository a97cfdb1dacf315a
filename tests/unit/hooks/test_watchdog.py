"""The dead-man's switch: what it gives back, whom it leaves alone, and that nothing of the daemon's can break it."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurmsched.store.store import Store

WATCHDOG = Path(__file__).parents[3] / "hooks" / "watchdog.py"

# squeue and scontrol over a table in a file; columns are padded and cut by bytes, as Slurm's own.
SQUEUE = """#!{python} -IS
import json, re, sys, time
folder = {folder!r}
jobs = json.load(open(folder + "/jobs.json"))
open(folder + "/asked", "a").write(" ".join(sys.argv[1:]) + "\\n")
time.sleep(jobs.pop("sleep", 0))
words = sys.argv[1:]
assert words[:3] == ["-h", "-a", "-r"] and words[-2] == "-O", words
wanted = words[words.index("-j") + 1].split(",") if "-j" in words else None
if wanted and len(wanted) == 1 and wanted[0] not in jobs:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
for name, job in jobs.items():
    if wanted is not None and name not in wanted:
        continue
    row = {{"JobArrayID": name, "StateCompact": "PD", "RestartCnt": "0", "UserName": "bob", "Comment": "(null)", **job}}
    line = b""
    for column in words[-1].split(","):
        title, width = column.split(":")
        line += row[title].encode("utf-8", "surrogateescape").ljust(int(width))[:int(width)]
    sys.stdout.buffer.write(line + b"\\n")
"""
SCONTROL = """#!{python} -IS
import json, sys
folder = {folder!r}
for line in sys.stdin:
    open(folder + "/done", "a").write(line)
    verb, job = line.split()[:2]
    jobs = json.load(open(folder + "/jobs.json"))
    if verb == "release" and not jobs.get(job, {{}}).get("stuck"):
        jobs[job]["Reason"] = "Priority"
    json.dump(jobs, open(folder + "/jobs.json", "w"))
    if jobs.get(job, {{}}).get("stuck"):
        print("Access/permission denied for job " + job, file=sys.stderr)
"""
ADMIN, USER, REQUEUED = {"Reason": "JobHeldAdmin"}, {"Reason": "JobHeldUser"}, {"Reason": "job requeued in held state"}
HOOKED = {**USER, "Comment": "mine synsched:model=x,held=hook"}


@dataclass
class Cluster:
    """A dead daemon's files, and a Slurm of two scripts."""

    folder: Path
    options: list[str] = field(default_factory=list)

    @property
    def database(self) -> Path:
        return self.folder / "synsched.db"

    def queue(self, **jobs: object) -> None:
        (self.folder / "jobs.json").write_text(json.dumps({name.strip("j"): job for name, job in jobs.items()}))

    def beat(self, line: str) -> None:
        (self.folder / "heartbeat").write_text(line)

    def claim(self, job: str, **columns: object) -> None:
        row = {
            "id": job, "owner": "bob", "first_seen": 1.0, "last_seen": 2.0, "state": "pending",
            "original": '{"pinned": []}', "held_by_us": 1, **columns,
        }  # fmt: skip
        with sqlite3.connect(self.database) as database:
            names, places = ", ".join(row), ", ".join("?" * len(row))
            database.execute(f"INSERT INTO jobs ({names}) VALUES ({places})", tuple(row.values()))  # noqa: S608

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        argv = [
            "/usr/bin/python3", "-IS", str(WATCHDOG), "--heartbeat", str(self.folder / "heartbeat"), "--database",
            str(self.database), "--commands", str(self.folder), *self.options, *words,
        ]  # fmt: skip
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd="/", timeout=60)

    def done(self) -> list[str]:
        """What scontrol was told since the last time."""
        file = self.folder / "done"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
        script = tmp_path / name
        script.write_text(text.format(python="/usr/bin/python3", folder=str(tmp_path)))
        script.chmod(0o755)
    Store.open(tmp_path / "synsched.db", 1.0).close()
    site = Cluster(tmp_path)
    site.beat("1000 enforce 300\n")
    return site


def test_what_the_daemon_and_the_hook_held_is_released(cluster: Cluster) -> None:
    cluster.queue(j1=ADMIN, j2=HOOKED, j3_4=REQUEUED, j4=ADMIN, j5=USER, j6={"Reason": "Resources"})
    for job in ("1", "3_4", "6"):
        cluster.claim(job)
    ended = cluster.run()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "synsched watchdog: 3 held jobs given back to Slurm\n"
    assert sorted(cluster.done()) == ["release 1", "release 2", "release 3_4"]


@pytest.mark.parametrize(
    ("age", "mode", "acts"),
    [
        pytest.param(0, "enforce", False, id="alive"),
        pytest.param(800, "paused", False, id="paused"),
        pytest.param(901, "enforce", True, id="silent for too long"),
        pytest.param(0, "stopped", True, id="stopped"),
        pytest.param(-110, "enforce", False, id="a clock a little ahead"),
        pytest.param(-130, "enforce", True, id="a sign of life from the future"),
    ],
)
def test_it_acts_only_when_nobody_schedules(cluster: Cluster, age: float, mode: str, *, acts: bool) -> None:
    cluster.queue(j1=HOOKED)
    cluster.beat(f"{int(time.time() - age)} {mode} 300\npartitions = gpu\n")
    assert cluster.run().returncode == 0
    assert bool(cluster.done()) is acts


@pytest.mark.parametrize("line", ["", "\n", "enforce", "x enforce 300", "9" * 5000, "\x00\x01"])
def test_a_broken_heartbeat_is_no_sign_of_life(cluster: Cluster, line: str) -> None:
    cluster.queue(j1=HOOKED)
    cluster.beat(line)
    assert cluster.run().returncode == 0
    assert cluster.done() == ["release 1"]


def test_a_person_can_have_it_act_now(cluster: Cluster) -> None:
    cluster.queue(j1=HOOKED)
    cluster.beat(f"{int(time.time())} enforce 300\n")
    assert cluster.run("--now").stdout == "synsched watchdog: 1 held job given back to Slurm\n"
    assert cluster.done() == ["release 1"]
    assert cluster.run("--now").stdout == "synsched watchdog: 0 held jobs given back to Slurm\n"


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({**ADMIN, "UserName": "alice"}, id="a newer job of the same number, of somebody else"),
        pytest.param(USER, id="held by its owner"),
        pytest.param({**HOOKED, "RestartCnt": "1"}, id="held by its owner after it ran"),
        pytest.param({**USER, "Comment": "synsched:x held=hook"}, id="a comment with the word of the mark elsewhere"),
        pytest.param({**USER, "Comment": "synsched:model=x asynsched:held=hook"}, id="a mark in no hint"),
        pytest.param({**USER, "Comment": "synsched:held=hooked"}, id="nearly the mark"),
        pytest.param({**ADMIN, "StateCompact": "R"}, id="one that runs"),
        pytest.param({"Reason": "JobHeldAdministratively"}, id="a reason that begins like a hold"),
    ],
)
def test_what_is_not_evidently_ours_stays(cluster: Cluster, job: dict[str, str]) -> None:
    cluster.queue(j7=job)
    cluster.claim("7")
    assert cluster.run().returncode == 0
    assert cluster.done() == []


FORGED = "synsched:x\n140                           JobHeldUser synsched:held=hook"


def test_a_comment_cannot_have_another_job_released(cluster: Cluster) -> None:
    cluster.queue(j9={**USER, "Comment": FORGED.ljust(1031) + "\n140" + " " * 27 + "synsched:held=hook"}, j140=USER)
    assert cluster.run().returncode == 0
    assert cluster.done() == []


def test_a_job_that_shows_itself_in_no_known_way_is_left_and_the_others_released(cluster: Cluster) -> None:
    """A Slurm that would not cut columns: the odd one is found by halves, and costs itself alone."""
    script = (cluster.folder / "squeue").read_text()
    (cluster.folder / "squeue").write_text(script.replace("[:int(width)]", ""))
    many = {f"j{n}": HOOKED for n in range(300, 340)}
    cluster.queue(**many, j9={**USER, "Comment": "x" * 1032 + "\n140" + " " * 27 + "synsched:held=hook"}, j140=USER)
    assert cluster.run().returncode == 0
    assert sorted(cluster.done()) == [f"release {n}" for n in range(300, 340)]


@pytest.mark.parametrize("comment", ["é日本" * 400, "\udcff\udcfe\x01", "\n" * 1032, " ", "synsched:" * 200])
def test_odd_comments_of_others_change_nothing(cluster: Cluster, comment: str) -> None:
    cluster.queue(j1={**USER, "Comment": comment}, j2=HOOKED)
    assert cluster.run().returncode == 0
    assert cluster.done() == ["release 2"]


def test_pins_and_nices_go_back_to_what_was_submitted(cluster: Cluster) -> None:
    cluster.queue(j1=ADMIN, j2={"Reason": "Resources"}, j3=ADMIN, j4={"Reason": "x", "StateCompact": "R"}, j5=ADMIN)
    cluster.claim("1", reshaped=1, boosted=1, original_nice=7, original='{"pinned": ["n2", "n1"], "gpus": 1}')
    cluster.claim("2", reshaped=1, held_by_us=0)
    cluster.claim("3", reshaped=1, held_by_us=0)
    cluster.claim("4", reshaped=1)
    cluster.claim("5", reshaped=1, boosted=1, original_nice="x; y", original='{"pinned": ["a b Nodes=1"]}')
    assert cluster.run().returncode == 0
    assert cluster.done() == [
        "update JobId=2 ReqNodeList=",
        "update JobId=1 ReqNodeList=n1,n2",
        "update JobId=1 Nice=7",
        "release 1",
        "release 5",
    ]


@pytest.mark.parametrize(
    "original",
    ["", "{", "null", "[]", '"x"', "[" * 100_000, '{"pinned": "n1"}', '{"pinned": [3]}', "\x00", "x" * 1_000_000],
)
def test_a_stored_request_that_cannot_be_read_costs_its_pin_only(cluster: Cluster, original: str) -> None:
    cluster.queue(j1=ADMIN, j2=ADMIN)
    cluster.claim("1", reshaped=1, original=original)
    cluster.claim("2")
    assert cluster.run().returncode == 0
    assert [line for line in cluster.done() if "pinned" not in line][-2:] == ["release 1", "release 2"]


@pytest.mark.parametrize("job", ["1; reboot", "1\nrelease 5", "", "-1", "1+0", "_", "99999999999"])
def test_a_stored_id_that_is_none_is_not_told_to_slurm(cluster: Cluster, job: str) -> None:
    cluster.queue(j5=ADMIN)
    cluster.claim(job)
    assert cluster.run().returncode == 0
    assert cluster.done() == []


def test_an_administrators_hold_after_ours_is_his(cluster: Cluster) -> None:
    """The dead daemon's claim stands in the database for as long as it is dead, but counts once."""
    cluster.queue(j1=ADMIN, j2={"Reason": "Resources"})
    cluster.claim("1")
    cluster.claim("2")
    assert cluster.run().returncode == 0
    assert cluster.done() == ["release 1"]
    cluster.queue(j1=ADMIN, j2=ADMIN)
    assert cluster.run().returncode == 0
    assert cluster.done() == []
    cluster.beat("2000 enforce 300\n")  # it lived again, held them, and died
    assert cluster.run().returncode == 0
    assert cluster.done() == ["release 1", "release 2"]


def test_a_job_on_its_way_out_is_released_once_it_is_back(cluster: Cluster) -> None:
    cluster.queue(j1={"Reason": "None", "StateCompact": "CG"})
    cluster.claim("1")
    assert cluster.run().returncode == 0
    cluster.queue(j1=REQUEUED)
    assert cluster.run().returncode == 0
    assert cluster.done() == ["release 1"]


def test_what_slurm_does_not_release_is_said_and_tried_again(cluster: Cluster) -> None:
    cluster.queue(j1={**ADMIN, "stuck": True}, j2=ADMIN)
    cluster.claim("1")
    cluster.claim("2")
    ended = cluster.run()
    assert (ended.returncode, ended.stdout) == (1, "synsched watchdog: 1 held job given back to Slurm\n")
    assert ended.stderr == "synsched watchdog: 1 could not be released: Access/permission denied for job 1\n"
    cluster.done()
    assert cluster.run().returncode == 1
    assert cluster.done() == ["release 1"]


@pytest.mark.parametrize("damage", ["gone", "no database", "empty", "truncated", "another"])
def test_without_its_database_what_the_hook_held_is_released(cluster: Cluster, damage: str) -> None:
    cluster.queue(j1=ADMIN, j2=HOOKED)
    cluster.claim("1")
    match damage:
        case "gone":
            cluster.database.unlink()
        case "no database":
            cluster.database.write_text("hello" * 1000)
        case "empty":
            cluster.database.write_text("")
        case "truncated":
            cluster.database.write_bytes(cluster.database.read_bytes()[:5000])
        case _:
            cluster.database.unlink()
            with sqlite3.connect(cluster.database) as database:
                database.execute("CREATE TABLE jobs (id TEXT)")
    ended = cluster.run()
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "only jobs that the hook held are given back" in ended.stderr
    assert cluster.done() == ["release 2"]


def test_a_daemon_killed_in_the_middle_of_a_write_leaves_a_database_that_can_be_read(cluster: Cluster) -> None:
    cluster.queue(j1=ADMIN, j2=ADMIN)
    cluster.claim("1")
    writing = (
        "import os, sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute('PRAGMA cache_size = 1')\n"
        "database.execute('BEGIN')\n"
        "database.execute('UPDATE jobs SET held_by_us = 0')\n"
        "database.execute('CREATE TABLE bulk (x)')\n"
        "for _ in range(2000):\n"
        "    database.execute('INSERT INTO bulk VALUES (zeroblob(4000))')\n"
        "os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", writing, str(cluster.database)], check=False)
    assert Path(f"{cluster.database}-journal").stat().st_size > 0
    assert cluster.run().returncode == 0
    assert cluster.done() == ["release 1"]


def test_nobody_else_writes_the_database(cluster: Cluster) -> None:
    cluster.queue(j1=ADMIN)
    cluster.claim("1")
    before = cluster.database.read_bytes()
    cluster.run()
    assert cluster.database.read_bytes() == before


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("code", id="the daemon's code"),
        pytest.param("settings", id="the settings file"),
        pytest.param("environment", id="the virtual environment"),
        pytest.param("start-up", id="what Python loads at its start"),
    ],
)
def test_it_works_while_the_daemon_is_broken(cluster: Cluster, tmp_path: Path, broken: str) -> None:
    cluster.queue(j1=ADMIN, j2=HOOKED)
    cluster.claim("1")
    path = tmp_path / "site"
    path.mkdir()
    for name in ("slurmsched", "sqlite_utils", "cattrs", "sitecustomize", "usercustomize", "json", "subprocess"):
        (path / f"{name}.py").write_text("raise SystemExit('broken')\n")
    settings = tmp_path / "synsched.toml"
    settings.write_text("[rounds\nmode = ?\n")
    env = {
        "code": {"PYTHONPATH": str(path)},
        "settings": {"SYNSCHED_CONF": str(settings)},
        "environment": {"VIRTUAL_ENV": str(path), "PYTHONHOME": str(path), "PATH": f"{path}:/usr/bin:/bin"},
        "start-up": {"PYTHONSTARTUP": str(path / "json.py"), "PYTHONPATH": str(path), "PYTHONUSERBASE": str(path)},
    }[broken]
    ended = cluster.run(env={"PATH": "/usr/bin:/bin", **env})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert cluster.done() == ["release 1", "release 2"]


def test_it_imports_nothing_but_the_standard_library() -> None:
    lines = WATCHDOG.read_text().splitlines()
    modules = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert modules <= sys.stdlib_module_names


def test_a_slurm_that_does_not_answer_ends_it_within_its_limit(cluster: Cluster) -> None:
    cluster.queue(j1=ADMIN, jsleep=30)
    began = time.monotonic()
    ended = cluster.run("--time-limit", "1")
    assert (ended.returncode, ended.stderr) == (1, "synsched watchdog: squeue did not answer within 1 s\n")
    assert time.monotonic() - began < 10


def test_where_time_runs_out_users_with_few_jobs_and_the_daemons_own_holds_come_first(cluster: Cluster) -> None:
    script = (cluster.folder / "squeue").read_text()
    slow = script.replace("wanted = ", "time.sleep(0.4 if '-j' in words else 0)\nwanted = ", 1)
    (cluster.folder / "squeue").write_text(slow)
    his = {f"j{n}": {**USER, "UserName": "mallory", "Comment": "mine"} for n in range(1, 2001)}
    cluster.queue(**his, j5000=ADMIN, j5001=HOOKED)
    cluster.claim("5000")
    assert cluster.run("--time-limit", "2").returncode == 1
    assert cluster.done() == ["release 5000", "release 5001"]


def test_a_slurm_that_is_not_there_is_one_line(cluster: Cluster) -> None:
    (cluster.folder / "squeue").unlink()
    ended = cluster.run()
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert "cannot run" in ended.stderr


def test_two_runs_do_not_meet(cluster: Cluster) -> None:
    cluster.queue(j1=HOOKED)
    state = os.open(f"{cluster.database}.watchdog", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(state, fcntl.LOCK_EX)
    assert cluster.run().returncode == 0
    assert cluster.done() == []
    os.close(state)
    assert cluster.run().returncode == 0
    assert cluster.done() == ["release 1"]


def test_a_state_file_that_cannot_be_made_keeps_nobody_held(cluster: Cluster) -> None:
    cluster.queue(j1=HOOKED)
    assert cluster.run("--state", "/proc/nowhere/state").returncode == 0
    assert cluster.done() == ["release 1"]


def test_the_state_file_is_nobody_elses(cluster: Cluster) -> None:
    cluster.queue(j1=HOOKED)
    cluster.run()
    assert Path(f"{cluster.database}.watchdog").stat().st_mode & 0o777 == 0o600


def test_many_jobs_cost_few_commands(cluster: Cluster) -> None:

    cluster.queue(**{f"j{n}": HOOKED for n in range(1, 1001)})
    assert cluster.run().returncode == 0
    assert len(cluster.done()) == 1000
    assert len((cluster.folder / "asked").read_text().splitlines()) == 2 + 1000 // 200
