"""Wrong things people do, and things that break, on real daemons: one clear line each, and nothing is lost."""

from __future__ import annotations

import subprocess

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini, Said

CLUSTER = ("--nodes", "v100:2x8")


def told(said: Said, words: str, code: int = 1) -> None:
    assert said.code == code, said.out + said.err
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, said.err
    assert words in lines[0]


def test_no_slurm_on_path(mini: Mini) -> None:
    said = mini.run(
        "env", "PATH=/nowhere", "PYTHONPATH=/opt/slurmsched", "/usr/bin/python3", "-m", "slurmsched", "run", "--once",
        user="synsched",
    )  # fmt: skip
    told(said, "PATH")


def test_a_slurm_conf_that_is_not_there(mini: Mini) -> None:
    told(mini.run("env", "SLURM_CONF=/nowhere/slurm.conf", "synsched", "run", "--once", user="synsched"), "SLURM_CONF")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[rounds]\nmod = 'enforce'\n", "mode", id="a typo names the nearest setting"),
        pytest.param("[rounds]\nperiod = 'soon'\n", "period", id="a time that is none"),
        pytest.param("[rounds\n", "synsched.toml", id="no TOML"),
    ],
)
def test_a_broken_configuration(mini: Mini, text: str, words: str) -> None:
    mini.write("/etc/synsched/synsched.toml", text)
    try:
        told(mini.synsched("run", "--once"), words, code=2)
    finally:
        mini.configure(**SETTINGS)


def test_a_slurmctld_that_does_not_answer_in_time(mini: Mini) -> None:
    mini.configure(**{**SETTINGS, "cluster": {"timeout": 3}})
    controller = f"slurmsched-{mini.name}-ctl"
    subprocess.run(["docker", "pause", controller], check=True, capture_output=True)
    try:
        told(mini.synsched("run", "--once"), "did not answer scontrol within 3 s")
    finally:
        subprocess.run(["docker", "unpause", controller], check=True, capture_output=True)
        mini.configure(**SETTINGS)
    mini.until("it answers again", lambda: mini.run("scontrol", "ping").code == 0)


def test_an_ordinary_user_may_not_run_the_rounds(mini: Mini) -> None:
    said = mini.synsched("run", "--once", user="alice")
    assert said.code == 1
    assert len(said.err.strip().splitlines()) == 1


def test_an_operator_of_nothing_is_refused_and_loses_nothing(mini: Mini) -> None:
    """Rounds run by somebody without rights: planned, shown, marked as not permitted."""
    assert mini.synsched("run", "--once").code == 0
    job = mini.train("bob", "--gres=gpu:1", "-c", "3", hint="task=image")
    mini.sure("sh", "-c", "mkdir -p /home/carol/state && cp /etc/synsched/synsched.toml /home/carol/", user="carol")
    mini.sure("sh", "-c", "printf '[storage]\\npath = \"/home/carol/state/db\"\\n[hook]\\nheartbeat = "
              "\"/home/carol/state/heartbeat\"\\n' >> /home/carol/synsched.toml", user="carol")  # fmt: skip
    said = mini.synsched("-c", "/home/carol/synsched.toml", "run", "--once", user="carol")
    assert said.code == 3, said.out + said.err
    assert mini.jobs()[job]["Reason"] == "JobHeldUser"
    assert mini.synsched("run", "--once").code == 0
    assert mini.state(job) == "RUNNING"
    mini.sure("scancel", job)


def test_a_typo_in_a_hint_is_told_at_submission_and_the_job_runs(mini: Mini) -> None:
    assert mini.synsched("run", "--once").code == 0
    said = mini.run(
        "sbatch", "--parsable", "--chdir=/home/bob", "--gres=gpu:1", "--comment=synsched:modle=resnet50", "--wrap",
        "sleep 60", user="bob",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "unknown hint 'modle'" in said.err
    job = said.out.strip()
    assert mini.synsched("run", "--once").code == 0
    assert mini.state(job) == "RUNNING"
    assert "modle" in mini.synsched("status").out
    mini.sure("scancel", job)


def test_two_daemons_at_once(mini: Mini) -> None:
    name = f"slurmsched-{mini.name}-login"
    with subprocess.Popen(
        ["docker", "exec", "--user", "synsched", name, "synsched", "run"], stderr=subprocess.PIPE, text=True
    ) as first:
        try:
            holder = "pgrep -f 'slurmsched run' | grep -qx \"$(cut -d' ' -f1 /var/lib/synsched/synsched.db.lock)\""
            mini.until("it holds the lock", lambda: mini.run("sh", "-c", holder).code == 0)
            second = mini.synsched("run")
            told(second, "already")
            assert mini.synsched("run", "--once").code == 0, "cron is quiet while a daemon runs"
        finally:
            mini.run("pkill", "-TERM", "-f", "slurmsched run")
            first.wait(timeout=60)
    assert first.returncode == 0


def test_a_node_dies_in_the_middle_of_a_round(mini: Mini) -> None:
    quick = {**SETTINGS, "guards": {"min_run_time": 1, "restart_cost": 1}, "policy": {"las_queues": [8, 100000]}}
    mini.configure(**{**quick, "rounds": {**SETTINGS["rounds"], "settle_timeout": 10}})
    assert mini.synsched("run", "--once").code == 0
    old = [mini.train("alice", "--gres=gpu:8", "-c", "24", hint="ckpt=usr1@8") for _ in range(2)]
    assert mini.synsched("run", "--once").code == 0
    assert {mini.state(job) for job in old} == {"RUNNING"}
    mini.until("both have attained service", lambda: min(mini.jobs()[job]["RunTime"] for job in old) >= "00:00:03")
    new = mini.train("bob", "--gres=gpu:8", "-c", "24", hint="ckpt=usr1@1")
    name = f"slurmsched-{mini.name}-login"
    with subprocess.Popen(
        ["docker", "exec", "--user", "synsched", name, "synsched", "run", "--once"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as round_:  # fmt: skip
        mini.until(
            "a job was told to checkpoint",
            lambda: any(line.startswith("checkpoint") for job in old for line in mini.log("alice", job)),
        )
        told_first = next(job for job in old if any("checkpoint" in line for line in mini.log("alice", job)))
        node = mini.jobs()[told_first]["NodeList"]
        mini.cluster("stop", node, "--kill")
        round_.wait(timeout=120)
    mini.sure("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=died")
    mini.until("Slurm has taken its job back", lambda: mini.state(told_first) == "PENDING")
    mini.cluster("start", node)
    mini.until(
        "the node is back", lambda: mini.sure("sinfo", "-h", "-n", node, "-p", "gpu", "-o", "%t").strip() == "idle"
    )
    mini.configure(**{**quick, "guards": {"min_run_time": 3600}})
    assert mini.synsched("run", "--once").code in (0, 3)
    seen = mini.jobs()
    states = [seen[job]["JobState"] for job in (*old, new)]
    assert sorted(states) == ["PENDING", "RUNNING", "RUNNING"], states
    assert mini.synsched("release").code == 0
    assert not [job for job in (*old, new) if mini.jobs()[job]["Priority"] == "0"], "none left held"
