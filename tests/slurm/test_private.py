"""PrivateData: ordinary users see their own jobs only, and nothing of theirs holds up the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:1x8", "--set", "PrivateData=jobs,users,usage,cloud")
FOLDER = "/var/lib/synsched"
SCRATCH = "/tmp/private"  # noqa: S108 - in the container
ASK_FOR_EVER = f"""
import socket
kept = []
for part in ("current", "history") * 40:
    made = socket.socket(socket.AF_UNIX)
    made.connect("{FOLDER}/export/" + part + ".sock")
    kept.append(made)
print("connected", flush=True)
import time; time.sleep(15)
"""


@pytest.fixture(scope="module")
def jobs(mini: Mini) -> Iterator[tuple[str, str]]:
    """A daemon with rounds every four seconds, and a job of alice's and one of bob's in the queue."""
    mini.sure("install", "-d", "-m", "1777", SCRATCH)
    mini.configure(**{**SETTINGS, "rounds": {**SETTINGS["rounds"], "mode": "observe", "period": 4}})
    own = mini.train("alice", "--gres=gpu:4", "-c", "4", "--job-name=alices-paper")
    other = mini.train("bob", "--gres=gpu:8", "-c", "4", "--job-name=bobs-paper")
    mini.sure("sh", "-c", f"umask 077; synsched run > {SCRATCH}/log 2>&1 & echo $! > {SCRATCH}/pid", user="synsched")
    mini.until("both jobs are in a round", lambda: {own, other} <= set(shown(mini, "synsched")))
    yield own, other
    mini.run("sh", "-c", f"kill $(cat {SCRATCH}/pid)", user="synsched")


def shown(mini: Mini, user: str) -> list[str]:
    said = mini.synsched("status", "--json", user=user)
    return [job["id"] for job in said.json["jobs"]] if said.code == 0 else []


def test_each_user_sees_the_own_jobs_and_administrators_all(mini: Mini, jobs: tuple[str, str]) -> None:
    own, other = jobs
    assert shown(mini, "alice") == [own]
    assert shown(mini, "bob") == [other]
    assert shown(mini, "carol") == []
    assert set(shown(mini, "root")) == set(shown(mini, "synsched")) == {own, other}
    for command in (["status"], ["explain", own], ["history", own, "--commands"], ["free"]):
        said = mini.synsched(*command, user="alice")
        assert (said.code, said.err) == (0, ""), said.err
        assert "bob" not in said.out
        assert f"job {other}" not in said.out
    assert mini.synsched("explain", other, user="alice").code == 1


def test_files_that_everybody_may_read_name_nobodys_jobs(mini: Mini, jobs: tuple[str, str]) -> None:
    said = mini.sure("sh", "-c", f"cat {FOLDER}/export/*.json", user="carol")
    for word in ("alice", "bob", *(f'"{job}"' for job in jobs)):
        assert word not in said


def test_users_can_neither_read_the_database_nor_take_the_lock(mini: Mini, jobs: tuple[str, str]) -> None:
    assert len(jobs) == 2
    assert mini.run("flock", "-n", f"{FOLDER}/synsched.db.lock", "true", user="alice").code != 0
    assert "Permission denied" in mini.run("flock", "-n", f"{FOLDER}/synsched.db.lock", "true", user="alice").err


def test_who_asks_without_end_and_reads_nothing_holds_up_no_round_and_no_other_user(
    mini: Mini, jobs: tuple[str, str]
) -> None:
    before = mini.synsched("status", "--json").json["round"]["id"]
    asking = mini.run(
        "sh",
        "-c",
        f"cat > {SCRATCH}/ask.py; nohup python3 {SCRATCH}/ask.py > {SCRATCH}/ask.log 2>&1 &",
        user="alice",
        stdin=ASK_FOR_EVER,
    )
    assert asking.code == 0, asking.err
    mini.until("she asks", lambda: "connected" in mini.run("cat", f"{SCRATCH}/ask.log").out)
    assert shown(mini, "bob") == [jobs[1]]
    mini.until(
        "two more rounds", lambda: mini.synsched("status", "--json").json["round"]["id"] >= before + 2, seconds=60
    )


def test_a_second_scheduler_of_the_cluster_says_whom_it_found_and_changes_nothing(
    mini: Mini, jobs: tuple[str, str]
) -> None:
    assert len(jobs) == 2
    settings = mini.sure("cat", "/etc/synsched/synsched.toml").replace('"observe"', '"enforce"')
    mini.write(f"{SCRATCH}/another.toml", f'{settings}\n[storage]\npath = "{SCRATCH}/another/synsched.db"\n')
    mini.sure("mkdir", "-p", f"{SCRATCH}/another", user="synsched")
    said = mini.synsched("-c", f"{SCRATCH}/another.toml", "run", "--once", "--json")
    assert f"process {mini.sure('cat', f'{SCRATCH}/pid').strip()} schedules this cluster too" in said.err
    assert said.json["tally"]["writes"] == 0
    assert shown(mini, "alice") == [jobs[0]]


def test_without_a_daemon_one_line_says_what_is_missing(mini: Mini, jobs: tuple[str, str]) -> None:
    assert len(jobs) == 2
    mini.sure("sh", "-c", f"kill $(cat {SCRATCH}/pid)", user="synsched")
    mini.until("it has ended", lambda: mini.run("test", "-e", f"{FOLDER}/export/current.sock").code != 0)
    said = mini.synsched("status", user="alice")
    assert said.code == 0
    assert said.err.startswith("synsched: PrivateData of slurm.conf hides jobs, usage, users: only a running")
    assert "v100-1" in said.out
