"""kill -9 at every step of a round's journal, and a slurmctld that goes away: the next round ends where it should."""

from __future__ import annotations

import re

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini, Said

CLUSTER = ("--nodes", "v100:1x8")
QUICK = {
    **SETTINGS,
    "policy": {"system": "synergy", "order": "las", "las_queues": [8, 100000]},
    "guards": {"min_run_time": 1, "restart_cost": 1, "moves_per_job_day": 100},
    "checkpoint": {"lead": 1},
}


def train(mini: Mini) -> str:
    return mini.train("alice", "--gres=gpu:8", "-c", "24", hint="task=image,ckpt=usr1@1")


def killed_at(mini: Mini, step: int) -> Said:
    """One round that dies at this step; 0 lets it live."""
    return mini.run(
        "env", "PYTHONPATH=/opt/slurmsched", "python3", "-m", "tests.slurm.killing", str(step), "run", "--once",
        user="synsched",
    )  # fmt: skip


def newcomer_to(mini: Mini, running: str) -> str:
    """A newcomer that the next round lets displace the running job."""
    mini.until("it has attained service", lambda: mini.jobs()[running]["RunTime"] >= "00:00:02")
    newcomer = train(mini)
    assert mini.jobs()[newcomer]["Reason"] == "JobHeldUser"
    return newcomer


def assert_targets(mini: Mini, newcomer: str, displaced: str) -> None:
    seen = mini.jobs()
    assert seen[newcomer]["JobState"] == "RUNNING"
    assert (seen[displaced]["JobState"], seen[displaced]["Restarts"]) == ("PENDING", "1")
    assert any(line.startswith("checkpoint") for line in mini.log("alice", displaced))
    ours = {job["id"] for job in mini.synsched("status", "--json").json["jobs"] if job["held_by_us"]}
    held = {job for job, at in seen.items() if at["JobState"] == "PENDING" and at["Priority"] == "0"}
    assert held == {displaced}
    assert held <= ours


@pytest.fixture
def running(mini: Mini) -> str:
    """The only job, which runs: a story owes nothing to the one before it, which may have failed anywhere."""
    mini.configure(**QUICK)
    mini.sure("scancel", "--user=alice")
    mini.until("nothing is left", lambda: not mini.sure("squeue", "-h").strip())
    assert mini.synsched("run", "--once").code == 0
    first = train(mini)
    assert mini.synsched("run", "--once").code == 0
    assert mini.state(first) == "RUNNING"
    return first


def newcomer_instead_of(mini: Mini, running: str) -> str:
    """A newcomer that runs in place of this job."""
    newcomer = newcomer_to(mini, running)
    assert mini.synsched("run", "--once").code == 0
    assert_targets(mini, newcomer, running)
    return newcomer


def test_killed_at_every_step_the_next_round_reaches_the_same_targets(mini: Mini, running: str) -> None:
    displaced, newcomer = running, newcomer_to(mini, running)
    undisturbed = killed_at(mini, 0)
    assert undisturbed.code == 0, undisturbed.err
    assert_targets(mini, newcomer, displaced)
    found = re.search(r"steps (\d+)", undisturbed.err)
    assert found is not None
    steps = int(found[1])
    assert steps >= 20

    for step in range(1, steps + 1):
        mini.sure("scancel", displaced)
        displaced, newcomer = newcomer, newcomer_to(mini, newcomer)
        assert killed_at(mini, step).code == 137, f"step {step} of {steps} was not reached"
        again = mini.synsched("run", "--once")
        assert again.code == 0, f"after a kill at step {step}: {again.out}{again.err}"
        assert_targets(mini, newcomer, displaced)


def test_the_watchdog_gives_back_what_a_dead_daemon_held(mini: Mini, running: str) -> None:
    newcomer_instead_of(mini, running)
    assert mini.synsched("release", "--if-stale").code == 0
    assert mini.jobs()[running]["Priority"] == "0", "a fresh heartbeat: nothing is released"
    mini.sure("sh", "-c", "echo '1000 enforce 300' > /var/lib/synsched/heartbeat", user="synsched")
    said = mini.synsched("release", "--if-stale")
    assert said.code == 0, said.err
    seen = mini.jobs()[running]
    assert seen["Priority"] != "0"
    assert seen["ReqNodeList"] == "(null)"
    late = train(mini)
    assert mini.jobs()[late]["Reason"] != "JobHeldUser", "nobody schedules: the hook holds nothing"
    mini.sure("scancel", running, late)
    assert mini.synsched("run", "--once").code == 0


STATE = "/var/lib/slurm/slurmctld/job_state"
SAVED = "/var/lib/slurm/saved_job_state"


def save_state(mini: Mini, job: str) -> None:
    """A copy of slurmctld's jobs as they are now, once it has written them: it does so once one of them has changed."""
    now = int(mini.sure("date", "+%s", on="ctl"))
    mini.sure("sh", "-c", f"sleep 1; scontrol update JobId={job} AdminComment=saved", on="ctl")
    mini.until("slurmctld has saved its jobs", lambda: int(mini.sure("stat", "-c", "%Y", STATE, on="ctl")) > now)
    mini.sure("cp", "-p", STATE, SAVED, on="ctl")


def roll_back(mini: Mini) -> None:
    """slurmctld is killed before it has saved what came since, and starts again."""
    back = f"p=$(pidof slurmctld); kill -STOP $p; cp -p {SAVED} {STATE}; kill -KILL $p"
    mini.run("sh", "-c", back, on="ctl")
    mini.cluster("stop", "ctl")
    mini.cluster("start", "ctl")
    mini.until("slurmctld answers", lambda: mini.run("scontrol", "ping").code == 0)


def test_a_hold_that_a_killed_slurmctld_brings_back_is_released_and_an_administrators_is_not(
    mini: Mini, running: str
) -> None:
    newcomer = newcomer_instead_of(mini, running)
    mini.sure("scancel", newcomer)
    mini.until("its GPUs are free", lambda: mini.jobs()[newcomer]["JobState"] == "CANCELLED")
    save_state(mini, running)
    assert mini.synsched("run", "--once").code == 0
    assert mini.state(running) == "RUNNING"
    roll_back(mini)
    back = mini.jobs()[running]
    assert (back["JobState"], back["Priority"], back["Reason"]) == ("PENDING", "0", "job_requeued_in_held_state")
    mini.until("the node is free", lambda: mini.sure("sinfo", "-h", "-p", "gpu", "-o", "%t").strip() == "idle")
    # Slurm kills what is left of the run that it has forgotten, and fails a job that it starts in the same second.
    mini.sure("sleep", "3")
    assert mini.synsched("run", "--once").code == 0
    mini.until("it runs again", lambda: mini.state(running) == "RUNNING")

    mini.sure("scontrol", "requeuehold", running, on="ctl")
    mini.until("it waits", lambda: mini.state(running) == "PENDING")
    assert mini.jobs()[running]["Reason"] == "job_requeued_in_held_state"
    assert mini.synsched("run", "--once").code == 0
    assert mini.jobs()[running]["Priority"] == "0", "an administrator's hold stays"
    assert "is held by an administrator" in mini.synsched("explain", running).out
    mini.sure("scancel", running)
    first = train(mini)
    assert mini.synsched("run", "--once").code == 0
    assert mini.state(first) == "RUNNING"


def test_a_daemon_that_starts_while_slurmdbd_is_down_leaves_jobs_to_slurm(mini: Mini, running: str) -> None:
    newcomer_instead_of(mini, running)
    mini.cluster("stop", "dbd")
    with mini.daemon():
        assert " observe " in mini.sure("head", "-1", "/var/lib/synsched/heartbeat")
        mini.until("what was held is given back", lambda: mini.jobs()[running]["Priority"] != "0")
        late = train(mini)
        assert mini.jobs()[late]["Reason"] != "JobHeldUser"
        assert "are unknown, since Slurm's accounting does not answer" in mini.synsched("doctor").out
        assert mini.sure("cat", "/tmp/daemon.log").count("jobs are left to Slurm") == 1  # noqa: S108 in a container
    mini.cluster("start", "dbd")
    with mini.daemon():
        assert " enforce " in mini.sure("head", "-1", "/var/lib/synsched/heartbeat")
    mini.sure("scancel", running, late)
    assert mini.synsched("run", "--once").code == 0, "the hook holds jobs again"


def test_killed_while_slurmctld_restarts_the_next_round_reaches_the_same_targets(mini: Mini, running: str) -> None:
    newcomer = newcomer_to(mini, running)
    # Step 6 is behind the first batch: the job has its signal, and nothing has been recorded of it.
    assert killed_at(mini, 6).code == 137
    mini.cluster("stop", "ctl")
    unanswered = mini.synsched("run", "--once")
    assert unanswered.code == 1
    assert "slurmctld" in unanswered.err
    recovered, *said = unanswered.err.strip().splitlines()
    assert "did not end: it was killed" in recovered
    assert len(said) == 1
    mini.cluster("start", "ctl")
    mini.until("slurmctld answers", lambda: mini.run("scontrol", "ping").code == 0)
    mini.until("the node is back", lambda: mini.sure("sinfo", "-h", "-p", "gpu", "-o", "%t").strip() == "alloc")
    again = mini.synsched("run", "--once")
    assert again.code == 0, again.out + again.err
    assert_targets(mini, newcomer, running)
