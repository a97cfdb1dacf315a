"""Starts name a node that never exists: jobs run where they were placed, and nothing of it is left afterwards."""

from __future__ import annotations

import re

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:3x8", "--placeholder")
PLACEHOLDER = "synsched-never"
ASKED = ("--gres=gpu:8", "-c", "8")


@pytest.fixture
def empty(mini: Mini) -> Mini:
    """No job, and a daemon that was there a moment ago."""
    mini.configure(**SETTINGS)
    for user in ("alice", "bob", "synsched"):
        mini.sure("scancel", f"--user={user}")
    mini.until("nothing is left", lambda: not mini.sure("squeue", "-h").strip())
    for node in dict.fromkeys(mini.sure("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").split()):
        mini.sure("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert mini.synsched("run", "--once").code == 0
    return mini


def named(mini: Mini, job: str) -> tuple[set[str], str]:
    """The nodes that the job names, and those that it excludes, as Slurm shows them."""
    shown = mini.jobs()[job]
    return set(re.sub(r"\(null\)", "", shown["ReqNodeList"]).split(",")) - {""}, shown["ExcNodeList"]


def start(mini: Mini, *jobs: str) -> None:
    assert mini.synsched("run", "--once").code == 0
    for job in jobs:
        mini.until(f"job {job} runs", lambda job=job: mini.state(job) == "RUNNING")


def test_jobs_run_where_they_were_placed_and_nobody_sees_the_placeholder(empty: Mini) -> None:
    mini = empty
    one = mini.train("alice", *ASKED, hint="task=image")
    gang = mini.train("bob", "-N2", *ASKED, hint="task=image")
    start(mini, one, gang)
    seen = mini.jobs()
    assert named(mini, one) == ({seen[one]["NodeList"], PLACEHOLDER}, "(null)")
    assert seen[one]["NumNodes"] == "1"
    assert (seen[gang]["NumNodes"], PLACEHOLDER in named(mini, gang)[0]) == ("2", True)
    assert PLACEHOLDER not in mini.sure("sinfo", "-h", "-N")
    for view in ("status", "explain"):
        said = mini.synsched(view, *([one] if view == "explain" else ["--json"]))
        assert said.code == 0, said.err
        assert PLACEHOLDER not in said.out
    assert mini.synsched("run", "--once", "--json").json["tally"]["writes"] == 0, "they have what was planned"


def test_what_an_owner_names_and_excludes_is_kept(empty: Mini) -> None:
    mini = empty
    pinned = mini.train("alice", "-w", "v100-2", *ASKED, hint="task=image")
    away = mini.train("bob", "-x", "v100-1", *ASKED, hint="task=image")
    start(mini, pinned, away)
    assert mini.jobs()[pinned]["NodeList"] == "v100-2"
    assert mini.jobs()[away]["NodeList"] == "v100-3"
    assert named(mini, away) == ({"v100-3", PLACEHOLDER}, "v100-1")
    mini.sure("scontrol", "requeue", f"{pinned},{away}")
    mini.until("both wait", lambda: {mini.state(job) for job in (pinned, away)} == {"PENDING"})
    assert mini.synsched("release").code == 0
    assert named(mini, pinned)[0] == {"v100-2"}
    assert named(mini, away) == (set(), "v100-1")


def test_a_job_that_an_administrator_requeues_is_not_kept_to_its_node(empty: Mini) -> None:
    mini = empty
    job = mini.train("alice", *ASKED, hint="task=image")
    start(mini, job)
    first = mini.jobs()[job]["NodeList"]
    mini.sure("scontrol", "update", f"NodeName={first}", "State=DRAIN", "Reason=test")
    mini.sure("scontrol", "requeue", job)
    mini.until("it waits", lambda: mini.state(job) == "PENDING")
    mini.until("a round starts it", lambda: mini.synsched("run", "--once").code or mini.state(job) == "RUNNING")
    assert mini.jobs()[job]["NodeList"] != first


def test_a_restart_of_slurmctld_moves_no_job(empty: Mini) -> None:
    mini = empty
    job = mini.train("alice", *ASKED, hint="task=image")
    start(mini, job)
    where = mini.jobs()[job]["NodeList"]
    mini.cluster("stop", "ctl")
    mini.cluster("start", "ctl")
    mini.until("slurmctld answers", lambda: mini.run("scontrol", "ping").code == 0)
    assert (mini.state(job), mini.jobs()[job]["NodeList"]) == ("RUNNING", where)
    assert named(mini, job)[0] == {where, PLACEHOLDER}


@pytest.mark.parametrize("by", ["release", "watchdog"])
def test_after_a_kill_between_update_and_release_the_job_gets_its_own_request_back(empty: Mini, by: str) -> None:
    mini = empty
    job = mini.train("alice", *ASKED, hint="task=image")
    for step in range(1, 20):
        killed = mini.run(
            "env", "PYTHONPATH=/opt/slurmsched", "python3", "-m", "tests.slurm.killing", str(step), "run", "--once",
            user="synsched",
        )  # fmt: skip
        assert killed.code == 137, "the round ended before its update"
        if PLACEHOLDER in named(mini, job)[0]:
            break
        assert mini.state(job) == "PENDING"
    assert mini.jobs()[job]["Priority"] == "0", "it is pinned and still held"
    if by == "release":
        assert mini.synsched("release").code == 0
    else:
        options = ("--heartbeat", "/var/lib/synsched/heartbeat", "--database", "/var/lib/synsched/synsched.db", "--now")
        mini.sure("python3", "-IS", "/opt/slurmsched/hooks/watchdog.py", *options, user="synsched")
    assert named(mini, job)[0] == set()
    mini.until("Slurm starts it", lambda: mini.state(job) == "RUNNING")


def test_a_start_that_slurm_refuses_is_taken_back_whole(empty: Mini) -> None:
    """The node is taken by a job of another partition at the moment of the start: no other job waits longer for it."""
    mini = empty
    mini.configure(**{**SETTINGS, "rounds": {**SETTINGS["rounds"], "settle_timeout": 4}})
    for node in ("v100-2", "v100-3"):
        mini.sure("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    job = mini.train("alice", *ASKED, hint="task=image")
    refused = (
        "import subprocess; from slurmsched.cli import main\n"
        "from slurmsched.backends.slurm.backend import SlurmBackend as B\n"
        "done = B.execute\n"
        "def execute(self, operations):\n"
        "    if any(o.verb == 'release' for o in operations):\n"
        "        subprocess.run(['sbatch', '-p', 'debug', '--gres=gpu:8', '--chdir=/tmp', '--wrap', 'sleep 600'])\n"
        "        subprocess.run(['sleep', '3'])\n"
        "    return done(self, operations)\n"
        "B.execute = execute\n"
        "main(['run', '--once'])\n"
    )
    mini.sure("env", "PYTHONPATH=/opt/slurmsched", "python3", "-c", refused, user="synsched", timeout=120)
    shown = mini.jobs()[job]
    assert (shown["JobState"], shown["Priority"], shown["ReqNodeList"]) == ("PENDING", "0", "(null)")
