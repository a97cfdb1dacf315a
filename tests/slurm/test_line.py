"""Ways around the line, tried by ordinary users; and a watchdog that works while the daemon is broken."""

from __future__ import annotations

import json
import time

import pytest

from tests.slurm.conftest import OLDEST_AND_LATEST, SETTINGS
from tests.slurm.mini import CHECKOUT, Mini, Said

CLUSTER = ("--nodes", "v100:2x8")
pytestmark = pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")

LOOKS = 2.5
"""Seconds after which Slurm has started what it may start: it looks every second here."""
HEARTBEAT, DATABASE = "/var/lib/synsched/heartbeat", "/var/lib/synsched/synsched.db"
UPDATES = """
import json, sqlite3
store = sqlite3.connect("file:/var/lib/synsched/synsched.db?mode=ro", uri=True)
updates = "SELECT commands FROM operations WHERE verb = 'reshape' ORDER BY id DESC LIMIT 16"
print(json.dumps([commands for (commands,) in store.execute(updates)]))
"""
"""The commands of the last sixteen updates of jobs."""
BROKEN = """
import sys
sys.exit("the daemon's code is broken")
"""


@pytest.fixture(autouse=True)
def _alive(mini: Mini) -> None:
    """A scheduler that enforces and has looked just now; nobody's jobs from before."""
    for user in ("alice", "bob", "mallory"):
        mini.sure("scancel", "-u", user)
    mini.until("their jobs are gone", lambda: not mini.sure("squeue", "-h", "-a").strip())
    mini.configure(**SETTINGS)
    ended = mini.synsched("run", "--once")
    assert ended.code == 0, ended.err


def submit(mini: Mini, *options: str, user: str = "mallory") -> Said:
    return mini.run("sbatch", "--parsable", f"--chdir=/home/{user}", "--output=/dev/null", *options, "--wrap",
                    "sleep 600", user=user)  # fmt: skip


def submitted(mini: Mini, *options: str, user: str = "mallory") -> str:
    said = submit(mini, *options, user=user)
    assert said.code == 0, said.err
    return said.out.strip().split(";")[0]


def waits_for_a_round(mini: Mini, job: str) -> bool:
    seen = mini.jobs()[job]
    return (seen["JobState"], seen["Reason"], seen["Priority"]) == ("PENDING", "JobHeldUser", "0")


def died(mini: Mini) -> None:
    mini.sure("sh", "-c", f"echo '1000 enforce 300' > {HEARTBEAT}", user="synsched")


def paused(mini: Mini) -> None:
    """The hook neither holds nor refuses then."""
    mini.sure("sh", "-c", f"echo '{int(time.time())} paused 300' > {HEARTBEAT}", user="synsched")


def watchdog(mini: Mini, *words: str) -> Said:
    """As cron runs it."""
    line = next(
        line.split(" ", 6)[6].replace("/etc/synsched/watchdog.py", "/opt/slurmsched/hooks/watchdog.py")
        for line in mini.sure("synsched", "render", "synsched.cron").splitlines()
        if line.startswith("*/5")
    )
    return mini.run("sh", "-c", " ".join((line, *words)), user="synsched")


def test_an_owner_cannot_release_what_the_hook_holds(mini: Mini) -> None:
    job = submitted(mini, "--gpus=1")
    array = submitted(mini, "--gpus=1", "--array=1-2")
    for words in (
        ("release", job), ("update", f"JobId={job}", "Priority=5"), ("release", f"{array}_2"), ("release", array),
        ("release", "JobName=wrap"),
    ):  # fmt: skip
        said = mini.run("scontrol", *words, user="mallory")
        assert "denied" in said.out + said.err
    assert mini.sure("squeue", "-h", "-r", "-O", "Reason:12", "-u", "mallory").split() == ["JobHeldUser"] * 3
    assert mini.run("scontrol", "release", job, user="synsched").code == 0
    mini.until("the operator's release counts", lambda: mini.state(job) == "RUNNING")


def test_no_other_way_gets_a_job_in_front(mini: Mini) -> None:
    held = submitted(mini, "-H", "--gpus=1")
    assert mini.run("scontrol", "release", held, user="mallory").code == 0
    again = submitted(mini, "--gpus=1")
    mini.run("scontrol", "hold", again, user="mallory")
    mini.run("scontrol", "release", again, user="mallory")
    unmarked = submitted(mini, "--gpus=1")
    mini.run("scontrol", "update", f"JobId={unmarked}", "Comment=mine", user="mallory")
    mini.run("scontrol", "release", unmarked, user="mallory")
    elsewhere = submitted(mini, "-p", "debug", "--gpus=1", "--begin=now+1hour")
    mini.run("scontrol", "update", f"JobId={elsewhere}", "Partition=gpu", user="mallory")
    mini.run("scontrol", "update", f"JobId={elsewhere}", "StartTime=now", user="mallory")
    without_shards = submitted(mini, "--gres=gpu:1,shard:0")
    pinned = submitted(mini, "--gpus=1", "-w", "v100-2", "--priority=99999")
    time.sleep(LOOKS)
    for job in (held, again, unmarked, elsewhere, without_shards, pinned):
        assert waits_for_a_round(mini, job), mini.jobs()[job]
    assert mini.synsched("run", "--once").code == 0
    assert {mini.state(job) for job in (held, again, unmarked, elsewhere, without_shards, pinned)} == {"RUNNING"}


def test_an_array_larger_than_the_cluster_fills_it_and_holds_up_nobody_behind_it(mini: Mini) -> None:
    array = submitted(mini, "--array=0-19%18", "--gres=gpu:1", "-c1", "--comment=synsched:ckpt=usr1@2", user="bob")
    behind = submitted(mini, "--gres=gpu:1", "-c1", user="alice")
    assert mini.synsched("run", "--once").code == 0
    running = mini.sure("squeue", "-h", "-r", "-t", "R", "-u", "bob", "-o", "%i").split()
    assert len(running) == 16, mini.sure("squeue", "-r")
    assert records(mini, array) == {"16-19%18": "JobHeldUser"}, (
        "those that did not start are one record, held as they were"
    )
    used = json.loads(mini.sure("python3", "-c", UPDATES, user="synsched"))
    assert not [commands for commands in used if f"JobId={array}_" in commands], "each by the number of its own record"
    mini.sure("scancel", *running, user="bob")
    mini.until("the GPUs are free", lambda: not mini.sure("squeue", "-h", "-t", "R,CG", "-u", "bob").strip())
    assert mini.synsched("run", "--once").code == 0
    left = mini.sure("squeue", "-h", "-r", "-t", "R", "-u", "bob", "-o", "%i").split()
    assert sorted(left) == [f"{array}_{task}" for task in range(16, 20)], mini.sure("squeue", "-r")
    assert mini.state(behind) == "RUNNING"


def records(mini: Mini, array: str) -> dict[str, str]:
    """Why each record of the array waits, by its tasks: slurmctld has one for all those to which nothing was done."""
    shown = mini.sure("scontrol", "-o", "show", "job", array)
    waiting = [line for line in shown.splitlines() if " JobState=PENDING " in line]
    return {line.split(" ArrayTaskId=")[1].split()[0]: line.split(" Reason=")[1].split()[0] for line in waiting}


def test_an_array_is_held_and_given_back_as_one_record(mini: Mini) -> None:
    paused(mini)
    fills = [submitted(mini, "--gres=gpu:8", "-c1") for _ in range(2)]
    mini.until("both nodes are taken", lambda: all(mini.state(job) == "RUNNING" for job in fills))
    array = submitted(mini, "--array=0-9", "--gres=gpu:1", "-c1", user="bob")
    mini.sure("scancel", f"{array}_3", user="bob")
    mini.sure("scontrol", "hold", f"{array}_5", user="bob")
    mini.round()
    assert records(mini, array) == {"0-2,4,6-9": "JobHeldAdmin", "5": "JobHeldUser"}
    assert mini.synsched("release").code == 0
    given_back = records(mini, array)
    assert given_back.keys() == {"0-2,4,6-9", "5"}
    assert (given_back["5"], "Held" in given_back["0-2,4,6-9"]) == ("JobHeldUser", False), "that hold is its owner's"
    mini.round()
    mini.sure("scancel", fills[0])
    mini.until("a node is free", lambda: mini.sure("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "1")
    mini.round()
    running = mini.sure("squeue", "-h", "-r", "-t", "R", "-u", "bob", "-o", "%K").split()
    assert sorted(running) == ["0", "1", "2", "4", "6", "7", "8", "9"]
    assert records(mini, array) == {"5": "JobHeldUser"}


def test_a_wide_job_is_overtaken_by_another_partition_once_and_not_twice(mini: Mini) -> None:
    """Slurm's queue is one for all partitions that share nodes: a held job has no turn in it, one given back has."""
    elsewhere = ("-p", "debug", "--gres=gpu:8", "-c1", "--time=60")
    there = [submitted(mini, *elsewhere) for _ in range(2)]
    mini.until("both nodes are taken", lambda: all(mini.state(job) == "RUNNING" for job in there))
    wide = submitted(mini, "--gres=gpu:8", "-N2", "-c1", "--time=30", user="bob")
    mini.round()
    assert mini.jobs()[wide]["Priority"] == "0"
    time.sleep(1)  # Slurm shows whole seconds: who was submitted in the same one did not come later
    overtakes = submitted(mini, *elsewhere)
    mini.sure("scancel", there[0])
    mini.until("it came later and starts first", lambda: mini.state(overtakes) == "RUNNING")
    mini.round()
    assert mini.jobs()[wide]["Priority"] != "0"
    assert f"job {overtakes} came later, is not managed, and started before it" in mini.explained(wide)

    again = submitted(mini, *elsewhere)
    mini.sure("scancel", overtakes)
    mini.until("a node is free", lambda: mini.sure("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "1")
    mini.round()
    time.sleep(LOOKS)
    assert (mini.state(again), mini.state(wide)) == ("PENDING", "PENDING")
    mini.sure("scancel", there[1])
    mini.until("it has both nodes", lambda: mini.state(wide) == "RUNNING")
    assert mini.state(again) == "PENDING"


def test_exclusive_jobs_say_which_gpus_they_take(mini: Mini) -> None:
    refused = submit(mini, "--exclusive", "-N1")
    assert refused.code != 0
    assert mini.sure("squeue", "-h", "-u", "mallory") == ""
    assert waits_for_a_round(mini, submitted(mini, "--exclusive", "-N1", "--gres=gpu:8"))


def test_a_job_that_has_run_waits_for_a_round_as_well(mini: Mini) -> None:
    job = submitted(mini, "--gpus=1", "--requeue")
    assert mini.synsched("run", "--once").code == 0
    mini.until("it runs", lambda: mini.state(job) == "RUNNING")
    mini.sure("scontrol", "requeuehold", job, user="mallory")
    mini.until("it waits again", lambda: mini.state(job) == "PENDING")
    mini.run("scontrol", "release", job, user="mallory")
    mini.run("scontrol", "update", f"JobId={job}", "StartTime=now", user="mallory")
    time.sleep(LOOKS)
    assert mini.state(job) == "PENDING"


@pytest.mark.parametrize("length", [990, 1024])
def test_a_comment_too_long_for_the_mark_is_refused(mini: Mini, length: int) -> None:
    said = submit(mini, "--gpus=1", f"--comment={'x' * length}")
    assert said.code != 0
    assert "shorten it to 900 bytes" in said.err
    assert waits_for_a_round(mini, submitted(mini, "--gpus=1", f"--comment={'x' * 900}"))


def test_line_breaks_and_names_of_slurms_fields_are_refused(mini: Mini) -> None:
    for option in (
        "--job-name=x\nJobId=145 ", "--comment=x\nJobId=145 ", "--network=x CPU_IDs=0-23 GRES=gpu:v100:8(IDX:0-7)",
        "--comment=synsched: TresPerJob=gres/gpu:999999999", "--mail-user=x TresPerJob=gres/gpu:7",
        "--network=x ReqTRES=node=0,mem=10G",
    ):  # fmt: skip
        said = submit(mini, "-H", "--gpus=1", option)
        assert said.code != 0, option
        assert "synsched: the job's " in said.err
    job = submitted(mini, "-H", "--gpus=1", "--comment=lr=0.1 Epochs=3 Nodes=4")
    for change in ("Comment=x\nJobId=1 ", "JobName=x\nJobId=1 "):
        said = mini.run("scontrol", "update", f"JobId={job}", change, user="mallory")
        assert "denied" in said.out + said.err
    assert mini.sure("squeue", "-h", "-j", job, "-o", "%k").strip() == "lr=0.1 Epochs=3 Nodes=4"


def test_the_watchdog_works_while_the_daemon_is_broken(mini: Mini) -> None:
    """The code, the settings and the environment are broken, one job was never seen by a round, one poses."""
    fills = [submitted(mini, "--gres=gpu:8", "-c", "24", user="alice") for _ in range(2)]
    assert mini.synsched("run", "--once").code == 0
    assert {mini.state(job) for job in fills} == {"RUNNING"}
    waits = submitted(mini, "--gres=gpu:8", "-c", "24", user="bob")
    paused(mini)
    taken = submitted(mini, "--gres=gpu:8", "-c", "24", user="bob")
    assert mini.synsched("run", "--once").code == 0
    assert mini.jobs()[taken]["Reason"] == "JobHeldAdmin"
    late = submitted(mini, "--gres=gpu:8", "-c", "24", user="bob")
    own = submitted(mini, "-H", "--gres=gpu:8", user="alice")
    by_admin = submitted(mini, "--gres=gpu:8", "-p", "debug", user="alice")
    mini.sure("scontrol", "hold", by_admin)
    paused(mini)
    poses = submitted(
        mini, "-H", "--gres=gpu:8", f"--comment=synsched:x\n{own}{' ' * 27}JobHeldUser synsched:held=hook"
    )

    mini.sure("sh", "-c", "mkdir -p /tmp/broken/slurmsched && cat > /tmp/broken/slurmsched/__init__.py", stdin=BROKEN)
    given = watchdog(mini)
    assert (given.code, given.out, given.err) == (0, "", ""), "the daemon seems to live: nothing is done"
    died(mini)
    mini.write("/etc/synsched/synsched.toml", "[rounds\n")
    broken = ("env", "PYTHONPATH=/tmp/broken", "PYTHONHOME=/tmp/broken")
    assert mini.run(*broken, "synsched", "release", "--if-stale", user="synsched").code != 0
    command = (
        "python3", "-IS", "/opt/slurmsched/hooks/watchdog.py", "--heartbeat", HEARTBEAT, "--database", DATABASE,
    )  # fmt: skip
    given = mini.run(*broken, *command, user="synsched")
    assert (given.code, given.err) == (0, "")
    assert given.out == "synsched watchdog: 3 held jobs given back to Slurm\n"
    seen = mini.jobs()
    assert all(seen[job]["Priority"] != "0" for job in (waits, taken, late))
    assert all(seen[job].get("ReqNodeList", "(null)") == "(null)" for job in (waits, taken, late))
    assert all(seen[job]["Priority"] == "0" for job in (own, by_admin, poses))

    mini.sure("scontrol", "hold", waits)
    assert mini.run(*command, user="synsched").code == 0
    assert mini.jobs()[waits]["Priority"] == "0", "an administrator's hold after ours is his"


def test_the_bare_commands_of_the_guide_release_what_the_hook_held_and_nothing_else(mini: Mini) -> None:
    guide = (CHECKOUT / "docs/admin.md").read_text()
    commands = guide.partition("    squeue -h -a -r -t PD")[2].partition("\n\n")[0]
    held = submitted(mini, "--gres=gpu:8", "-c", "24", user="bob")
    own = submitted(mini, "-H", "--gres=gpu:8", user="alice")
    died(mini)
    submitted(mini, "-H", "--gres=gpu:8", f"--comment=synsched: x\n{own} JobHeldUser synsched:held=hook")
    mini.sure("sh", "-c", "squeue -h -a -r -t PD" + commands, user="synsched")
    seen = mini.jobs()
    assert seen[held]["Priority"] != "0"
    assert seen[own]["Priority"] == "0"
