"""pyslurm, JSON and text of one queue on the Slurm that pyslurm belongs to: they agree field by field."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.slurm.conftest import SETTINGS, SOURCE
from tests.slurm.mallory import NO_HOOK
from tests.slurm.mini import Mini
from tests.slurm.test_flags import WAVES

CLUSTER = (
    "--nodes",
    "v100:2x8/24c/200g,p100:2x6/32c/2t/100g,a100:1x4/8c/60g,k80:2x8/22c/80g",
    "--set",
    "MaxJobCount=4000",
)
PROGRAM: Final = "/opt/slurmsched/tests/slurm/agreeing.py"
pytestmark = pytest.mark.parametrize("mini", [SOURCE], indirect=True, scope="module")

SMALL: Final = "--time=10 --cpus-per-task=1 --mem=100"
RUNNING: Final = {
    "GPUs per node": "--gres=gpu:v100:2 --mem=2000 -c 3",
    "GPUs without a type": "--gres=gpu:1 --mem=1500",
    "GPUs per job": "--gpus=2 --mem=1000",
    "GPUs per job and per node": "--gpus=2 --gpus-per-node=1 -N 2 --mem=700",
    "GPUs per task": "--ntasks=2 --gpus-per-task=1 --mem=900",
    "CPUs and memory per GPU": "--gpus=1 --cpus-per-gpu=2 --mem-per-gpu=600",
    "memory per CPU": "--gres=gpu:1 -c 2 --mem-per-cpu=300",
    "two nodes of two threads": "-w p100-[1-2] -N 2 --gres=gpu:p100:1 -c 2 --mem=400",
    "one thread of each core": "--gres=gpu:p100:1 -c 2 --hint=nomultithread --mem=100",
    "shards": "-x k80-[1-2] --gres=shard:3 --mem=500",
    "no GPUs": "-c 2 --mem=200",
    "tasks per node": "-N 2 --ntasks-per-node=2 --gres=gpu:1 --mem=300",
    "a requeued one": "--requeue --gres=gpu:1 --mem=250 -J requeued",
    "one that may not be requeued": "--no-requeue --gres=gpu:1 --mem=250",
    "a suspended one": "--mem=100 -J suspended",
    "one of an array with a limit": "--array=0-9%1 --mem=100 -J array",
    "a heterogeneous one": f"{SMALL} -J het : {SMALL} --gres=gpu:1",
    "a debug partition": "-p debug --mem=120",
    "one that ends well": "--mem=100 -J ends --wrap true",
    "one that fails": "--mem=100 -J ends --wrap false",
    "one that ends late": "--gres=gpu:1 --mem=100 -J lingers --wrap 'trap : TERM; sleep 99 & wait; sleep 99'",
}
WAITING: Final = {
    "GPUs per node": "--hold --gres=gpu:p100:4 -c 4",
    "GPUs per job, nodes in a range": "--hold --gpus=8 -N 2-4",
    "GPUs per job, nodes left open": "--hold --gpus=6",
    "GPUs per task": "--hold --ntasks=4 --gpus-per-task=v100:1",
    "GPUs per socket": "--hold --gpus-per-socket=1 --sockets-per-node=2 -N 1",
    "two types": "--hold --gres=gpu:v100:1,gpu:p100:1",
    "CPUs and memory per GPU": "--hold --gpus-per-node=2 --cpus-per-gpu=3 --mem-per-gpu=2000",
    "memory per CPU": "--hold --gres=gpu:1 -n 3 --mem-per-cpu=700",
    "all memory": "--hold --gres=gpu:1 --mem=0",
    "exclusive": "--hold --exclusive --gres=gpu:1",
    "exclusive to its user": "--hold --exclusive=user --gres=gpu:1",
    "shared": "--hold --oversubscribe --gres=gpu:1",
    "features": "--hold -C 'v100|p100' --gres=gpu:1",
    "nodes named and left out": "--hold -w v100-1 -x p100-1 --gres=gpu:1",
    "several partitions": "--hold -p gpu,debug --gres=gpu:1",
    "shards": "--hold --gres=shard:5",
    "a later begin": "--begin=now+2days --gres=gpu:1",
    "a nice": "--hold --nice=77 --gres=gpu:1",
    "a limit of days": "--hold --time=3-01:02:00 --gres=gpu:1",
    "no limit": "--hold --time=UNLIMITED --gres=gpu:1",
    "a least time": "--hold --time=60 --time-min=20 --gres=gpu:1",
    "a deadline": "--hold --time=5 --deadline=now+5days --gres=gpu:1",
    "an array": "--hold --array=1-20:3%4 --gres=gpu:1",
    "a long array": "--hold --array=0-3000:2 --gres=gpu:1",
    "an array of odd numbers": "--hold --array=3,9,27,81 --gres=gpu:1",
    "a heterogeneous one": f"--hold {SMALL} --gres=gpu:1 : --hold {SMALL} --gpus=2",
    "after another": "--dependency=afterany:1 --gres=gpu:1",
    "after any of several": "'--dependency=afterok:1?afternotok:2' --gres=gpu:1",
    "after all of its name": "--dependency=singleton -J array --gres=gpu:1",
    "a QOS and an account": "--hold --account=vision --gres=gpu:1",
    "threads per core": "--hold --threads-per-core=1 --gres=gpu:1 -c 2",
    "tasks per GPU": "--hold --gpus=2 --ntasks-per-gpu=2",
    "licences and a reason to mail": "--hold --mail-type=ALL --mail-user=x@y --gres=gpu:1",
    "one that is cancelled": "--hold --gres=gpu:1 -J cancelled",
    "one that an administrator holds": "--hold --gres=gpu:1 -J admins",
    "a hint": "--hold --gres=gpu:1 --comment=synsched:task=image,ckpt=usr1@30",
}
FIELDS: Final = (
    "JobId=1 JobState=RUNNING Nodes=v100-2 CPU_IDs=0-11 Mem=102400 GRES=gpu:v100:4(IDX:0-3) TresPerNode=gres/gpu:9"
)
HOSTILE: Final = {
    "fields in its name": f"-J 'x {FIELDS}'",
    "a record in its name": f"-J 'x\nJobId=1 JobName=y\n   {FIELDS}\n'",
    "fields in its comment": f"--comment 'synsched:task=image {FIELDS}'",
    "a name that is no UTF-8": """-J "$(printf '\\377\\376 x')\"""",
    "a comment that is no UTF-8": """--comment "synsched:$(printf '\\303\\050')\"""",
    "a long name": f"-J {'n' * 1000}",
    "a long comment": f"--comment {'c' * 1000}",
    "signs of JSON": """--comment '","jobs":[{"job_id":1}],"x":"\\u0000\\'""",
    "a name that Slurm writes for none": "-J '(null)'",
    "a name of blanks": "-J '   '",
    "control characters": """--comment "$(printf '\\033[2J\\r\\013\\177')\"""",
    "a network that poses": f"--network '{FIELDS}'",
    "mail to fields": f"--mail-type=END --mail-user 'x {FIELDS}'",
}
CHANGES: Final = (
    "scontrol suspend $(squeue -h -n suspended -o %A)",
    "scontrol requeuehold $(squeue -h -n requeued -o %A)",
    "scontrol update JobId=$(squeue -h -n array -t R -o %F)_5 Nice=9",
    "scontrol update NodeName=a100-1 State=DRAIN Reason='bad fan [x]'",
    "scontrol update NodeName=v100-2 Weight=7",
    "scontrol update NodeName=k80-1 State=DOWN Reason=gone",
    (
        "scontrol create reservation ReservationName=works Nodes=k80-2 StartTime=now Duration=1-0"
        " Flags=MAINT,IGNORE_JOBS Accounts=vision"
    ),
    "scancel -n cancelled",
    "job=$(squeue -h -n admins -o %A); scontrol hold $job; scontrol update JobId=$job AdminComment='a b=c'",
    "scancel -n lingers",
)
SUBMIT: Final = """
cd "$HOME"; printf '#!/bin/sh\\nsleep 100000\\n' > j.sh
"""


def submitted(mini: Mini, user: str, options: str) -> str:
    """What sbatch answered, and the titles of the rows that it refused."""
    return mini.sure("env", f"HOME=/home/{user}", "sh", "-c", f"{SUBMIT}{options}", user=user, timeout=300)


TRIES = 12
"""While Slurm tries a job it shows other numbers of nodes, and the current time as its start, for a moment, and of a
part of a heterogeneous job at every second: what does not go away in as many tries is a difference."""


def agreed(mini: Mini, still: Callable[[], bool] = lambda: True) -> Any:
    """What `agreeing.py` found, where all readers say the same, at one of the tries at least; None if they did not,
    once `still` is false."""
    for left in reversed(range(TRIES)):
        try:
            return compared(mini)
        except AssertionError:
            if not still():
                return None
            if not left:
                raise
        time.sleep(1.3)
    return None


def compared(mini: Mini) -> Any:
    """What `agreeing.py` found, which has to be no difference; its seconds and MiB are printed for people."""
    said = mini.run("env", "PYTHONPATH=/opt/slurmsched", "python3", PROGRAM, user="synsched", timeout=120)
    assert said.code == 0, said.err[-2000:]
    found = json.loads(said.out)
    told = ("jobs", "compared_with_json", "seconds", "peak_mib_of_children", "json_mib", "remarks")
    print("\n" + "\n".join(f"{key}: {found[key]}" for key in told))
    assert found["differences"] == {kind: {} for kind in ("jobs", "nodes", "partitions", "reservations", "set_aside")}
    assert found["forms"] == {}
    assert found["json"] == {"commands": {}, "pyslurm": {}}
    assert found["oddities"] == []
    return found


def command(title: str, options: str) -> str:
    """The sbatch of a row; each part of a heterogeneous job names the script's output by itself."""
    first, *others = options.split(" : ")
    script = "" if "--wrap" in options else "j.sh"
    return f"sbatch -Q -o /dev/null {' : '.join([first, *others])} {script} || echo refused: {shlex.quote(title)}"


@pytest.fixture(scope="module")
def full(mini: Mini) -> Mini:
    """The queue of all rows, and jobs in every state that one can be brought into."""
    mini.configure(**SETTINGS)
    mini.install_hook(NO_HOOK)
    mini.sure("scontrol", "create", "reservation", "ReservationName=later", "Nodes=a100-1", "StartTime=now+1hour",
              "Duration=1:00:00", "Users=alice,bob")  # fmt: skip
    mini.sure("scontrol", "create", "reservation", "ReservationName=flexible", "Nodes=a100-1", "StartTime=now+3hours",
              "Duration=1:00:00", "Users=root", "Flags=FLEX,MAGNETIC,DAILY")  # fmt: skip
    submitted(mini, "alice", "\n".join(command(*row) for row in RUNNING.items()))
    mini.until(
        "they run", lambda: "PD" not in mini.sure("squeue", "-h", "-u", "alice", "-o", "%t", "--name=j.sh,lingers")
    )
    submitted(mini, "alice", "\n".join(command(*row) for row in WAITING.items()))
    submitted(
        mini,
        "mallory",
        "\n".join(command(title, f"{options} --hold --gres=gpu:1") for title, options in HOSTILE.items()),
    )
    for change in CHANGES:
        mini.sure("sh", "-c", change)
    return mini


def backend(mini: Mini, name: str, **cluster: object) -> None:
    mini.configure(**{**SETTINGS, "cluster": {"backend": name, **cluster}})


def test_pyslurm_json_and_text_agree_field_by_field(full: Mini) -> None:
    found = agreed(full)
    assert found["jobs"] > 1500
    assert found["compared_with_json"] > 65


def test_only_what_pyslurm_does_not_tell_is_read_by_commands_and_doctor_says_why(full: Mini) -> None:
    backend(full, "auto")
    said = full.synsched("doctor").out
    assert "slurm (pyslurm)" in said
    told = " ".join(said.split())
    assert "pyslurm 25.11.2 reads nodes, reservations and jobs" in told
    for reason in (
        "1 job is read by commands, as pyslurm does not show which devices its shards are on",
        "3 jobs are read by commands, as pyslurm does not show every dependency",
        "1 job is read by commands, as pyslurm cannot read name",
        "1 job is read by commands, as pyslurm cannot read comment",
    ):
        assert reason in told


def test_plans_are_the_same_whichever_way_the_queue_is_read(full: Mini) -> None:
    """Every row that asks for GPUs is managed here; held ones are let go so that they are."""
    ids = full.sure("squeue", "-h", "-u", "alice", "-t", "PD", "-o", "%A").split()
    full.sure("scontrol", stdin="".join(f"release {job}\n" for job in sorted(set(ids))))
    for _ in range(10):
        before, by_pyslurm, after = (plan_by(full, name) for name in ("commands", "pyslurm", "commands"))
        if before == after:  # Slurm starts some of them in the meantime
            break
    assert len(before) > 20
    assert by_pyslurm == before == after


def plan_by(mini: Mini, name: str) -> list[str]:
    """What a plan would do, without the moment at which it was made."""
    backend(mini, name)
    said = mini.synsched("plan", "--json")
    assert said.code == 0, said.err
    return sorted(json.dumps(step, sort_keys=True) for step in said.json["operations"])


END: Final = "while ! {what} $(pgrep -f [p]yslurm_program.py); do :; done 2>/dev/null"
"""Waits for the process that reads, and ends it in the middle of its poll."""


@pytest.mark.parametrize(
    ("what", "told"),
    [
        pytest.param("kill -KILL", "pyslurm was ended by SIGKILL", id="killed"),
        pytest.param("kill -SEGV", "pyslurm was ended by SIGSEGV", id="crashed"),
        pytest.param("kill -STOP", "pyslurm did not answer in time", id="hanging"),
        pytest.param("prlimit --as=20000000 --pid", "pyslurm ended", id="out of memory"),
    ],
)
def test_a_round_goes_on_by_commands_where_pyslurm_ends_in_the_middle(full: Mini, what: str, told: str) -> None:
    backend(full, "auto", timeout=5)
    before = full.synsched("run", "--once", "--json").json["tally"]
    done = full.run("timeout", "60", "bash", "-c", f"({END.format(what=what)}) & synsched run --once --json; wait")
    assert done.code == 0, done.err
    tally = json.loads(done.out)["tally"]
    assert (tally["nodes"], tally["managed"]) == (before["nodes"], before["managed"])
    [problem] = [line for line in full.synsched("status", "--json").json["problems"] if "pyslurm" in line]
    assert problem.startswith(told)
    assert problem.endswith("polls go by commands, and pyslurm is tried again after 1 min")
    after = full.synsched("run", "--once", "--json")
    assert after.code == 0
    assert not [line for line in full.synsched("status", "--json").json["problems"] if "pyslurm" in line]


def test_a_pyslurm_of_another_series_is_not_used_and_doctor_says_so(full: Mini) -> None:
    package = "/opt/other/pyslurm"
    full.sure("sh", "-c", f"mkdir -p {package} && echo '__version__ = \"24.11.0\"' > {package}/__init__.py")
    backend(full, "auto")
    said = " ".join(
        full.run("sh", "-c", "PYTHONPATH=/opt/other:/opt/slurmsched python3 -m slurmsched doctor").out.split()
    )
    assert "slurm (commands)" in said
    assert "polls go by commands: pyslurm 24.11.0 does not fit Slurm 25.11" in said
    backend(full, "pyslurm")
    demanded = full.run("sh", "-c", "PYTHONPATH=/opt/other:/opt/slurmsched python3 -m slurmsched plan")
    assert demanded.code == 1
    assert "pyslurm 24.11.0 does not fit Slurm 25.11: both must be of one X.Y series" in demanded.err


def test_every_form_of_sbatch_is_read_alike_while_it_waits_and_once_it_runs(full: Mini) -> None:
    """The rows of the table of flags: what pyslurm does not show is read by commands, and never otherwise."""
    for user in ("alice", "mallory"):
        full.sure("scancel", "-u", user)
    full.until("the queue is empty", lambda: not full.sure("squeue", "-ah").strip())
    full.sure("scontrol", "update", "NodeName=a100-1", "State=RESUME")
    full.sure("scontrol", "delete", "ReservationName=works")
    forms = {f"{wave}: {title}": asked.options for wave, rows in WAVES.items() for title, asked in rows.items()}
    held = {title: " : ".join(f"--hold {part}" for part in options.split(" : ")) for title, options in forms.items()}
    assert "refused" not in submitted(full, "alice", "\n".join(command(*row) for row in held.items()))
    waiting = set(full.sure("squeue", "-ahr", "-t", "PD", "-o", "%F").split())
    assert len(waiting) >= len(forms)
    agreed(full)
    full.sure("scontrol", stdin="".join(f"release {job}\n" for job in sorted(waiting)))
    ran = set[str]()
    while waiting - ran:
        full.until("some run and nothing moves", lambda: bool(in_state(full, "R")) and is_calm(full))
        if not agree_soon(full):
            continue  # the readers were shown different queues
        ran |= in_state(full, "R")
        full.sure("scancel", "-u", "alice", "-t", "R")


def agree_soon(mini: Mini) -> bool:
    """Whether the queue stayed as it was until all readers said the same."""
    before = queue(mini)
    return agreed(mini, lambda: queue(mini) == before) is not None


def in_state(mini: Mini, state: str) -> set[str]:
    """The numbers of alice's jobs, arrays and heterogeneous jobs in this state."""
    return set(mini.sure("squeue", "-ahr", "-u", "alice", "-t", state, "-o", "%F").split())


def queue(mini: Mini) -> str:
    """Every job and its state."""
    return mini.sure("squeue", "-ahr", "-o", "%i %t")


def is_calm(mini: Mini) -> bool:
    """Whether no job starts or leaves while Slurm looks twice."""
    before = queue(mini)
    mini.sure("sleep", "2.5")
    return before == queue(mini) and " CG" not in before
