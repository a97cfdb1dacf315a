"""Training scripts on real daemons: preempted by rounds, moved from node to node, and none the worse for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import CHECKOUT, Mini

CLUSTER = ("--nodes", "v100:2x2/6c/20g")
pytestmark = pytest.mark.parametrize("mini", ["bookworm"], indirect=True, scope="module")

SPOOL: Final = "/var/lib/synsched/spool"
TORCH: Final = next(iter((CHECKOUT / ".venv" / "lib").glob("python3.11/site-packages/torch")), None)
PACKAGES: Final = "/opt/slurmsched:/opt/slurmsched/.venv/lib/python3.11/site-packages"
"""The nodes see the checkout with its environment, and bookworm has the Python that the environment was made with."""

ALONE: Final = """#!/bin/bash
trap "" USR1
python3 /opt/slurmsched/examples/train.py --epochs 90 --pause 0.05
"""
APART: Final = """#!/bin/bash
trap "" USR1
export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29511
srun python3 /opt/slurmsched/examples/train.py --epochs 30 --pause 0.05
"""
PIPELINE: Final = """#!/bin/bash
# Each step waits for data that as many workers as there are CPUs prepare, up to four: for so long that the milliseconds
# by which a busy machine wakes it late hardly count.
exec python3 - << END
import os, time
from slurmsched.jobside import Training
training = Training(lambda path: path.touch(), lambda path: None)
while True:
    time.sleep(0.4 / min(int(os.environ["SLURM_CPUS_PER_TASK"]), 4))
    training.step()
END
"""
LIAR: Final = """#!/bin/bash
own=$SYNSCHED_SPOOL/$(id -u)
mkdir -p "$own"
line='{"version":1,"job":"'$VICTIM'","run":0,"stage":"running","at":1,"steps":9,"done":9,"busy":9,"rate":1,"saved":-1,'
line+='"node":"","gpus":[],"cpus":0,"memory":0,"ranks":1}'
echo "$line" > "$own/$SLURM_JOB_ID.json"
echo "$line" > "$own/$VICTIM.json"
for number in $(seq 500); do head -c 5000 /dev/urandom > "$own/$number.junk"; done
sleep 100
"""
SHORT: Final = "#!/bin/bash\nsleep 1\n"
LONGER: Final = "#!/bin/bash\nsleep 8\n"


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    """The cluster with a spool, and rounds that may displace as often as they like."""
    if TORCH is None:
        pytest.skip("PyTorch for Python 3.11 is not in .venv: pip install -e '.[torch]'")
    mini.sure("install", "-d", "-m", "1777", SPOOL)
    own = {
        "guards": {**SETTINGS["guards"], "min_run_time": 1, "restart_cost": 0, "moves_per_job_day": 100},
        "policy": {**SETTINGS["policy"], "las_queues": [1]},
        "reports": {"spool": SPOOL},
    }
    mini.configure(**{**SETTINGS, **own})
    mini.round()
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    """One story that fails costs no other its GPUs."""
    yield
    site.clear("alice", "bob", "carol")


def submit(mini: Mini, user: str, folder: str, script: str, *options: str, **told: str) -> str:
    """A batch job in a folder of its user's; its id."""
    home = f"/home/{user}/{folder}"
    mini.sure("mkdir", "-p", home, user=user)
    mini.sure("sh", "-c", f"cat > {home}/job.sh", user=user, stdin=script)
    variables = {"HOME": f"/home/{user}", "PYTHONPATH": PACKAGES, "SYNSCHED_SPOOL": SPOOL, **told}
    environment = [f"{name}={value}" for name, value in variables.items()]
    return mini.sure(
        "env", *environment, "sbatch", "--parsable", f"--chdir={home}", "--open-mode=append", *options,
        f"{home}/job.sh", user=user,
    ).strip()  # fmt: skip


def losses(mini: Mini, folder: str) -> list[str]:
    return mini.run("cat", f"/home/alice/{folder}/losses.txt").out.splitlines()


def digest(mini: Mini, folder: str) -> str:
    """Of the weights; torch writes the same file for the same tensors."""
    return mini.sure("sha256sum", f"/home/alice/{folder}/weights.pt").split()[0]


def ended(mini: Mini, job: str) -> None:
    """Wait until the job has ended as it should."""

    def state() -> str:
        return mini.jobs().get(job, {}).get("JobState", "")

    mini.until(f"job {job} has ended", lambda: state() in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), 600)
    assert state() == "COMPLETED", mini.run("sh", "-c", f"cat /home/*/*/slurm-{job}.out").out


def reference(mini: Mini, folder: str, script: str, *options: str) -> list[str]:
    """The same without anybody's interference, where nobody schedules but Slurm."""
    ended(mini, submit(mini, "alice", folder, script.replace("--pause 0.05", ""), "-p", "debug", *options))
    return losses(mini, folder)


def trains(mini: Mini, job: str, folder: str) -> None:
    """It has got on, and run for long enough that a newcomer goes first, however fast it gets on."""
    least = len(losses(mini, folder)) + 40
    mini.until("it trains", lambda: len(losses(mini, folder)) > least)
    mini.until("it has attained service", lambda: mini.jobs()[job]["RunTime"] >= "00:00:03")


def test_ten_preemptions_and_moves_change_neither_losses_nor_weights(site: Mini) -> None:
    expected = reference(site, "undisturbed", ALONE, "-c", "2")
    options = ("--gres=gpu:2", "-c", "2", "--requeue", "--comment=synsched:ckpt=usr1@60")
    job = submit(site, "alice", "moved", ALONE, *options)
    site.round()
    places = []
    for move in range(10):
        trains(site, job, "moved")
        places.append(site.jobs()[job]["NodeList"])
        all_of_it = ("--gres=gpu:2", "--nodes=2", "--ntasks-per-node=1", "-c", "2")
        newcomer = submit(site, "bob", "short", SHORT, *all_of_it)
        site.round()
        assert site.jobs()[job]["Restarts"] == str(move + 1)
        ended(site, newcomer)
        taken = submit(
            site, "bob", "longer", LONGER, "-p", "debug", "--gres=gpu:2", "-c", "1", f"--nodelist={places[-1]}"
        )
        site.round()
        site.until("it runs again", lambda: site.state(job) == "RUNNING")
        ended(site, taken)
    ended(site, job)
    assert losses(site, "moved") == expected
    assert digest(site, "moved") == digest(site, "undisturbed")
    print(f"\npreempted {len(places)} times, on {len(set(places))} nodes: {len(expected)} losses and the weights equal")


def test_two_nodes_stop_at_the_same_step_and_go_on(site: Mini) -> None:
    wide = ("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "-c", "1")
    expected = reference(site, "undisturbed-apart", APART, *wide)
    job = submit(site, "alice", "apart", APART, "--gres=gpu:2", *wide, "--requeue", "--comment=synsched:ckpt=usr1@60")
    site.round()
    for move in range(3):
        trains(site, job, "apart")
        newcomer = submit(site, "bob", "short", SHORT, "--gres=gpu:2", "-c", "2")
        site.round()
        assert site.jobs()[job]["Restarts"] == str(move + 1)
        ended(site, newcomer)
        site.round()
    ended(site, job)
    assert losses(site, "apart") == expected
    assert digest(site, "apart") == digest(site, "undisturbed-apart")


def test_a_model_is_profiled_by_real_jobs_and_drift_is_shown(site: Mini) -> None:
    home = "/home/carol/profiling"
    site.sure("mkdir", "-p", home, user="carol")
    site.sure("sh", "-c", f"cat > {home}/job.sh", user="carol", stdin=PIPELINE)
    said = site.sure(
        "env", "HOME=/home/carol", f"PYTHONPATH={PACKAGES}", "sh", "-c",
        f"cd {home} && synsched profile run --model fed --gpu v100 --cpus 1-6 --seconds 4s"
        " -- -p debug --output=/dev/null job.sh",
        user="carol", timeout=400,
    )  # fmt: skip
    print(said)
    shown = site.sure("synsched", "profile", "show", "fed", "--profiles", f"{home}/profiles.json", "--json")
    rows = json.loads(shown)["matrices"]["v100"]
    speed = dict(zip(rows["cpus"], (row[0] for row in rows["speed"]), strict=True))
    assert speed[1] < speed[2] < speed[4]
    assert speed[6] == pytest.approx(speed[4], rel=0.15)


def test_who_lies_is_named_and_nobody_else_is_touched(site: Mini) -> None:
    honest = submit(site, "alice", "honest", ALONE, "--gres=gpu:1", "-c", "1", "--requeue", "--comment=synsched:")
    liar = submit(site, "bob", "liar", LIAR, "--gres=gpu:1", "-c", "1", "--comment=synsched:", VICTIM=honest)
    site.round()
    site.until("the honest job trains", lambda: len(losses(site, "honest")) > 200)
    site.until("the liar has lied", lambda: "2002" in site.run("ls", SPOOL).out)
    rates: dict[str, Any] = {}

    def measured() -> bool:
        site.round()
        told = site.synsched("profile", "measured", "--json").json["jobs"]
        rates.update({entry["job"]: entry for entry in told})
        return bool(rates)

    site.until("the honest job is measured", measured)
    assert set(rates) == {honest}
    assert 2 < rates[honest]["measured"]["rate"] < 25
    told = site.synsched("doctor").out
    assert f"job {liar} of bob: reports as job {honest}" in told
    assert f"user bob: reports about job {honest}, which is alice's: not read" in told
    site.run("scancel", honest, liar)


def test_a_forked_job_does_each_step_once_though_a_copy_is_killed(site: Mini) -> None:
    """Copies at three speeds on two nodes, which nobody tells how many steps to do; the fastest is killed in mid-round,
    and started again."""
    steps, here = 3000, "/opt/slurmsched/examples/forked.py"
    pause = "$(echo 0.01 0.02 0.04 | cut -d ' ' -f $((SLURM_ARRAY_TASK_ID + 1)))"
    script = f"#!/bin/bash\nexec python3 {here} --steps {steps} --slot 5 --pause {pause}\n"
    job = submit(site, "alice", "forked", script, "-p", "debug", "--gres=gpu:1", "-c", "1", "--array=0-2")
    rounds = f"/home/alice/forked/rounds-{job}"

    def ledgers() -> list[Any]:
        said = site.run("sh", "-c", f"cat {rounds}/round-*/ledger.json").out
        return json.loads(f"[{said.replace('}{', '},{')}]")  # type: ignore[no-any-return]  # a list it is

    def over() -> bool:
        return ledgers()[-1]["done"] == steps

    site.until("all have taken part in a round", lambda: any(all(said["counted"]) for said in ledgers()[1:]), 120)
    time.sleep(2)
    site.run("scancel", "--signal=KILL", "--full", f"{job}_0")
    site.until("the copy is dead", lambda: f"{job}_0" not in site.sure("squeue", "-h", "-r", "-o", "%i", "-t", "R"))
    site.run("scontrol", "requeue", f"{job}_0")
    site.until("all steps are done", over, 240)
    said = ledgers()
    print([ledger["counted"] for ledger in said])
    assert sum(sum(ledger["counted"]) for ledger in said) == steps
    for before, after in pairwise(said):
        assert all(done <= given for done, given in zip(after["counted"], before["given"], strict=True))
