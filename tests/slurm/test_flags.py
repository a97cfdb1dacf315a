"""Forms of sbatch side by side on real daemons: in `debug` under Slurm alone, in `gpu` as managed jobs.

A managed job ends with the same exit status, has at least the same resources, and its script sees the same options. A
form that is let go to Slurm is explained with its reason.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pytest

from tests.slurm.conftest import OLDEST_AND_LATEST, SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x4/12c/60g,p100:1x8/24c/2t/100g,k80:1x8/22c/80g")
USER: Final = "alice"
TASK: Final = "echo task: $SLURM_PROCID"
SRUN: Final = f"srun sh -c '{TASK}'"
EIGHT: Final = f"srun -c 8 sh -c '{TASK}'"
TWELVE: Final = f"srun -c 12 sh -c '{TASK}'"
PARALLEL: Final = """
for step in 1 2; do
    srun --exact -n 1 -c 1 --mem=100 --gpus=0 sh -c 'date +%s.%N; sleep 2; date +%s.%N' > $out.$step &
done
wait
sort -n $out.1 $out.2 | awk -v first=$(sed -n 2p $out.1) 'NR == 2 { print "overlap:", ($1 < first) }'
"""
SCRIPT: Final = """#!/bin/bash
out=$HOME/flags-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}_$SLURM_ARRAY_TASK_ID
exec > $out 2>&1
scontrol -d -o show job $SLURM_JOB_ID | sed 's/^/job: /'
env | grep -E '^SLURM_' | sed 's/^/env: /'
"""
SAME: Final = frozenset(
    {
        "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_NTASKS",
        "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU", "SLURM_GPUS", "SLURM_GPUS_PER_NODE",
        "SLURM_GPUS_PER_TASK", "SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_DISTRIBUTION", "SLURM_ARRAY_TASK_COUNT",
    }
)  # fmt: skip
"""Variables that follow from the options alone."""


@dataclass(frozen=True)
class Form:
    """Options, what the script runs, and words of the reason where it is let go to Slurm."""

    options: str
    runs: str = SRUN
    let_go: str = ""


@dataclass(frozen=True)
class Run:
    """What one job, or one task of an array, saw; `waited` are the seconds to its first start."""

    status: str
    waited: int
    overlap: str
    totals: Mapping[str, int]
    env: Mapping[str, str] = field(repr=False)


def form(options: str, runs: str = SRUN, let_go: str = "") -> Form:
    """A form that leaves out the node with two threads per core, unless it asks for it: Slurm counts cores there."""
    own = "p100" in options or "-x" in options or " : " in options
    return Form(options if own else f"-x p100-1 {options}", runs, let_go)


WAVES: Final[Mapping[str, Mapping[str, Form]]] = {
    "GPUs": {
        "per node": form("--gres=gpu:1"),
        "per node by type": form("--gpus-per-node=v100:2"),
        "in all": form("--gpus=2"),
        "in all by type": form("--gpus=p100:2"),
        "in all and per node": form("--gpus=4 --gpus-per-node=2 -N 2"),
        "per task": form("--ntasks=2 --gpus-per-task=1"),
        "several partitions": form("--gres=gpu:1 --time=2"),
    },
    "GPUs over nodes": {
        "more than a node has": form("--gpus=12"),
        "an odd number": form("--gpus=v100:6 -c 1"),
    },
    "tasks over nodes": {
        "a task each": form("--ntasks=12 --gpus-per-task=1 -c 1"),
        "six of them": form("-n 6 --gpus-per-task=1"),
    },
    "tasks": {
        "GPUs divided by tasks": form("--gpus=5 -n 5"),
        "tasks per GPU": form("--gpus=2 --ntasks=2 --ntasks-per-gpu=1", let_go="--ntasks-per-gpu"),
        "tasks per GPU alone": form("--gpus=2 --ntasks-per-gpu=2", let_go="--ntasks-per-gpu"),
        "tasks per node": form("-N 2 --ntasks-per-node=2 --gpus-per-node=2"),
        "several tasks for one GPU": form("-n 3 --gres=gpu:1"),
        "fewer tasks than two nodes": form(
            "-N 2 -n 4 --ntasks-per-node=4 --gpus-per-node=2 -c 1", let_go="--ntasks-per-node"
        ),
        "four by two": form("-n 4 --ntasks-per-node=2 --gpus-per-node=1 -c 1"),
        "three by two": form("-n 3 --ntasks-per-node=2 --gpus-per-node=1 -c 1", let_go="--ntasks-per-node"),
    },
    "nodes": {
        "one of two": form("-N 1-2 --gres=gpu:1", let_go="--nodes"),
        "one to three": form("-N 1-3 -n 3 --gpus=3"),
        "two, uneven": form("-N 2 --gpus=v100:5 -n 5"),
        "named": form("-w v100-2 --gres=gpu:1"),
        "left out": form("-x v100-1,p100-1 --gres=gpu:1"),
        "at least so many CPUs each": form("--mincpus=6 --gres=gpu:1", let_go="--mincpus"),
    },
    "types over nodes": {
        "three nodes of two types": form("-N 3 --gpus-per-node=3"),
    },
    "CPUs": {
        "per task": form("-c 5 --gres=gpu:1"),
        "per GPU": form("--gpus=2 --cpus-per-gpu=3"),
        "odd ones on threads": form("-c 3 --gres=gpu:p100:1"),
        "one of each core's threads": form("-c 2 --threads-per-core=1 --gres=gpu:p100:1"),
        "without threads by hint": form("-c 2 --hint=nomultithread --gres=gpu:p100:1"),
        "many, a step with all": form("-c 12 --gres=gpu:k80:1", TWELVE),
    },
    "CPUs again": {
        "a hint that could cut": form("-c 8 --gres=gpu:1 --comment=synsched:task=language", EIGHT),
        "a hint that could raise": form("-c 1 --gres=gpu:1 --comment=synsched:model=resnet50"),
        "two steps at a time": form("-n 2 -c 1 --mem=2000 --gres=gpu:1", PARALLEL),
        "two steps at a time, memory per CPU": form("-n 2 -c 1 --mem-per-cpu=1000 --gres=gpu:1", PARALLEL),
        "a step of half the CPUs": form("-c 4 --gres=gpu:1", f"srun -n 1 -c 2 --exact sh -c '{TASK}'"),
    },
    "memory": {
        "per node": form("--mem=3000 --gres=gpu:1"),
        "per CPU": form("--mem-per-cpu=1500 -c 2 --gres=gpu:1"),
        "per GPU": form("--mem-per-gpu=2500 --gpus=2"),
        "per GPU and CPUs per GPU": form("--mem-per-gpu=2500 --cpus-per-gpu=2 --gpus-per-node=2"),
        "per GPU of a step": form("--mem-per-gpu=2000 --gres=gpu:1", f"srun --mem-per-gpu=1000 sh -c '{TASK}'"),
        "per GPU, with a hint": form("--mem-per-gpu=2500 --gpus=1 --comment=synsched:model=resnet50"),
    },
    "all memory": {
        "of one node": form("--mem=0 --gres=gpu:v100:1"),
        "of one node by a large job": form("--mem=0 --gres=gpu:k80:1"),
    },
    "exclusive": {
        "one node": form("--exclusive --gres=gpu:v100:1"),
        "another, all memory": form("--exclusive --mem=0 --gres=gpu:k80:2"),
    },
    "sharing": {
        "shared": form("--oversubscribe --gres=gpu:1", let_go="--oversubscribe"),
        "exclusive to the user": form("--exclusive=user --gres=gpu:v100:1", let_go="--exclusive=user"),
    },
    "constraints": {
        "one feature": form("-C p100 --gres=gpu:1"),
        "one or the other": form("-C 'v100|k80' --gres=gpu:1"),
        "in parentheses": form("-C '(v100|k80)&v100' --gres=gpu:1"),
        "all nodes alike": form("-C '[v100|k80]' -N 2 --gpus-per-node=1"),
        "a preference": form("--prefer=k80 --gres=gpu:1", let_go="--prefer"),
    },
    "counts of features": {
        "one of each": form("-C '[v100*1&p100*1]' -N 2 --gpus-per-node=1"),
    },
    "gangs": {
        "two nodes": form("-N 2 --gpus-per-node=4 --ntasks-per-node=1 -c 6"),
        "two nodes, a task per GPU": form("-N 2 --gpus-per-node=4 --ntasks-per-node=4 -c 1"),
    },
    "gangs again": {
        "GPUs in all on two nodes": form("-N 2 -n 4 --gpus=4"),
        "memory per GPU on two nodes": form("-N 2 --gpus-per-node=2 --mem-per-gpu=1000"),
        "memory per CPU on two nodes": form("-N 2 -n 4 -c 2 --gpus-per-node=2 --mem-per-cpu=500"),
    },
    "sockets": {
        "GPUs per socket": form("--gpus-per-socket=1 --sockets-per-node=2 -N 1", let_go="socket"),
        "tasks per socket": form("--gres=gpu:1 -n 2 --ntasks-per-socket=1", let_go="--ntasks-per-socket"),
        "tasks per core": form("--gres=gpu:p100:1 -n 2 --ntasks-per-core=1", let_go="--ntasks-per-core"),
        "cores and sockets": form(
            "--gres=gpu:1 --sockets-per-node=1 --cores-per-socket=2", let_go="--sockets-per-node"
        ),
    },
    "kinds": {
        "a heterogeneous job": form("--gres=gpu:1 : --gres=gpu:1", let_go="heterogeneous"),
        "no GPU": form("-c 2", let_go="GPU"),
        "a part of a GPU": form("--gres=shard:3", let_go="shard"),
        # not with -N 1-2 and --gpus: slurmctld of 24.11.5 dies of it, whatever partition it is for
        "spread": form("--spread-job --gres=gpu:1 -N 2", let_go="--spread-job"),
    },
    "time": {
        "a limit": form("--time=3 --gres=gpu:1"),
        "a least limit": form("--time=30 --time-min=2 --gres=gpu:1", let_go="--time-min"),
        "no limit": form("--time=UNLIMITED --gres=gpu:1"),
        "a begin in the past": form("--begin=now-1hour --gres=gpu:1"),
        "nice": form("--nice=50 --gres=gpu:1"),
    },
    "arrays": {
        "three tasks": form("--array=0-2 --gres=gpu:1"),
        "one at a time": form("--array=1,5%1 --gres=gpu:1"),
    },
    "environment": {
        "nothing exported to steps": form("--gres=gpu:1", "srun env -i PATH=$PATH sh -c 'echo task: x'"),
        "as in a container": form("--gres=gpu:2 -n 2", "srun env -u SLURM_NTASKS sh -c 'echo task: $SLURM_LOCALID'"),
        "no step at all": form("--gres=gpu:1", "echo task: 0"),
        "a script that fails": form("--gres=gpu:1", "false"),
        "a step that fails": form("--gres=gpu:1", "srun sh -c 'exit 7'"),
        "overcommitted": form("--overcommit -n 4 --gres=gpu:1", let_go="--overcommit"),
    },
}
REFUSED: Final = (
    "-N 1 -n 25 --gpus=1",
    "--ntasks-per-node=60 --gpus=1",
    "-N 1 -n 9 --gpus-per-task=1",
    "--gpus=64",
    "--gpus=1 --mem=900G",
    "-N 9 --gpus=9",
    "--gpus=1 -c 99",
    "--gpus-per-node=9",
)
"""What Slurm refuses at submission on this cluster."""
STARTS: Final = 5
"""Seconds that a start may take longer than under Slurm alone, beside the two rounds for which it may wait: if Slurm
refuses the first start, the next round makes another."""


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.configure(**SETTINGS)
    done = mini.synsched("run", "--once")
    assert done.code == 0, done.err
    return mini


def submit(site: Mini, partition: str, asked: Form) -> str:
    """The number of a job that runs the form's script in this partition."""
    return submitted(site, partition, asked)[0]


def submitted(site: Mini, partition: str, asked: Form) -> tuple[str, str]:
    """The same, and what sbatch says."""
    home, options = f"/home/{USER}", shlex.split(asked.options)
    if partition == "debug":  # a hint opts in there too
        options = [option for option in options if not option.startswith("--comment=")]
    answer = site.run(
        "env", f"HOME={home}", "sbatch", "--parsable", "-p", partition, f"--chdir={home}", "--output=/dev/null",
        *options, user=USER, stdin=f"{SCRIPT}{asked.runs}\n",
    )  # fmt: skip
    assert answer.code == 0, f"{partition}: sbatch {asked.options}: {answer.err}"
    return answer.out.strip().split(";")[0].split("+")[0], answer.err


def runs_of(site: Mini, job: str) -> list[Run]:
    """What the job's script wrote, by task."""
    files = site.sure("sh", "-c", f"ls /home/{USER}/ | grep '^flags-{job}_[0-9]*$' || true").split()
    words = ("env", "SLURM_TIME_FORMAT=%s", "sacct", "-nPX", "-j", job, "-o", "Submit,Start,State,ExitCode")
    rows = [line.split("|", 2) for line in site.sure(*words).splitlines()]
    status = " ".join(sorted(state for _, _, state in rows))
    waited = max((int(start) - int(submitted) for submitted, start, _ in rows if start.isdigit()), default=0)
    return [read_run(site.sure("cat", f"/home/{USER}/{name}"), status, waited) for name in sorted(files)]


def read_run(text: str, status: str, waited: int) -> Run:
    lines = Counter(line.split(":")[0] for line in text.splitlines())
    record = next((line for line in text.splitlines() if line.startswith("job: ")), "")
    tres = re.search(r" (?:Alloc)?TRES=(\S+)", record)
    amounts = dict(item.split("=") for item in tres[1].split(",")) if tres else {}
    totals = {
        "nodes": int(amounts.get("node", 0)),
        "CPUs": int(amounts.get("cpu", 0)),
        "MiB": mebibytes(amounts.get("mem", "0")),
        "GPUs": int(amounts.get("gres/gpu", 0)),
    }
    totals["tasks"] = lines["task"]
    env = dict(line.removeprefix("env: ").split("=", 1) for line in text.splitlines() if line.startswith("env: "))
    totals["CPUs per task"] = int(env.get("SLURM_CPUS_PER_TASK", 0))
    overlap = next((line for line in text.splitlines() if line.startswith("overlap:")), "")
    return Run(status, waited, overlap, totals, env)


def mebibytes(text: str) -> int:
    units = {"M": 1, "G": 1024, "T": 1024 * 1024}
    return int(float(text.rstrip("MGT")) * units.get(text[-1], 1))


def losses(alone: Sequence[Run], managed: Sequence[Run], later: float) -> Iterator[str]:
    """What the managed job has less, or otherwise; it may start so many seconds later."""
    if len(alone) != len(managed):
        yield f"{len(managed)} scripts ran instead of {len(alone)}"
        return
    for one, other in zip(alone, managed, strict=True):
        for what in ("status", "overlap"):
            if getattr(one, what) != getattr(other, what):
                yield f"{what} {getattr(other, what)!r} instead of {getattr(one, what)!r}"
        if other.waited > one.waited + later:
            yield f"started after {other.waited} s instead of {one.waited}"
        for what, amount in one.totals.items():
            # Without -N the number of nodes is Slurm's choice, and ours.
            if what != "nodes" and other.totals[what] < amount:
                yield f"{other.totals[what]} {what} instead of {amount}"
        for name in sorted(SAME):
            if one.env.get(name) != other.env.get(name):
                yield f"{name}={other.env.get(name)} instead of {one.env.get(name)}"


def finish(site: Mini, jobs: Mapping[str, str], began: float, *, rounds: bool) -> tuple[list[str], float]:
    """Wait until the queue is empty; the titles of the jobs that have not ended, and the most seconds that one had to
    wait for a round, from the first submission (`began`) on."""
    ends = [began]

    def left() -> set[str]:
        return {line.split("_")[0].split("+")[0] for line in site.sure("squeue", "-ah", "-o", "%i").split()}

    for _ in range(8):
        if rounds:
            done = site.synsched("run", "--once")
            assert done.code == 0, done.err
        ends.append(time.monotonic())
        try:
            site.until("all have ended", lambda: not left(), 5 if rounds else 15)
        except AssertionError:
            continue
        break
    stuck = left()
    return [title for title, job in jobs.items() if job in stuck], max(b - a for a, b in pairwise(ends))


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")
def test_a_managed_job_has_what_the_same_script_has_under_slurm_alone(site: Mini, wave: str) -> None:
    forms = WAVES[wave]
    began = time.monotonic()
    alone = {title: submit(site, "debug", asked) for title, asked in forms.items()}
    stuck = [f"{title}: does not end under Slurm alone" for title in finish(site, alone, began, rounds=False)[0]]
    began = time.monotonic()
    answers = {title: submitted(site, "gpu", asked) for title, asked in forms.items()}
    managed = {title: job for title, (job, _) in answers.items()}
    marks = dict(line.split("|") for line in site.sure("squeue", "-ah", "-p", "gpu", "-o", "%A|%k").splitlines())
    not_held = [title for title, job in managed.items() if not forms[title].let_go and "held=hook" not in marks[job]]
    assert not not_held, f"left to Slurm without need: {not_held}"
    told = {
        title: said + site.synsched("explain", job).out for title, (job, said) in answers.items() if forms[title].let_go
    }
    unended, between = finish(site, managed, began, rounds=True)
    stuck += [f"{title}: never starts or ends: {site.synsched('explain', managed[title]).out}" for title in unended]
    if stuck:
        site.sure("scancel", f"--user={USER}")
        site.until("nothing is left", lambda: not site.sure("squeue", "-ah").strip())
    pairs = {title: (runs_of(site, alone[title]), runs_of(site, managed[title])) for title in forms}
    worse = [
        f"{title} ({forms[title].options}): {loss}"
        for title, pair in pairs.items()
        for loss in losses(*pair, 2 * between + STARTS)
    ]
    later = [b.waited - a.waited for one, other in pairs.values() for a, b in zip(one, other, strict=False)]
    print(f"{wave}: {len(forms)} forms, started {min(later)} to {max(later)} s later than under Slurm alone")
    unsaid = [
        f"{title}: not told why it is let go: {text}" for title, text in told.items() if forms[title].let_go not in text
    ]
    assert not stuck + worse + unsaid, "\n" + "\n".join(stuck + worse + unsaid)


@pytest.mark.parametrize("options", REFUSED)
@pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")
def test_what_no_node_can_hold_is_slurms_to_refuse(site: Mini, options: str) -> None:
    answers = [
        site.run("sbatch", "--parsable", "-p", partition, *shlex.split(options), user=USER, stdin=f"{SCRIPT}{SRUN}\n")
        for partition in ("debug", "gpu")
    ]
    alone, managed = answers
    assert managed.code == alone.code
    if alone.code:
        assert alone.err.splitlines()[-1] in managed.err
        return
    # a job that Slurm accepts waits in its queue, and not under our hold
    job = managed.out.strip()
    site.synsched("run", "--once")
    shown = site.jobs()
    assert shown[job]["Reason"] == shown[alone.out.strip()]["Reason"]
    site.sure("scancel", job, alone.out.strip())


@pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")
def test_a_job_whose_dependency_failed_is_not_held_and_told_so(site: Mini) -> None:
    def sbatch(*options: str) -> str:
        return site.sure(
            "sbatch", "--parsable", "--output=/dev/null", *options, user=USER, stdin="#!/bin/bash\nexit 3\n"
        )

    first = sbatch("-p", "debug", "--hold").strip()
    job = sbatch("-p", "gpu", "--gres=gpu:1", f"--dependency=afterok:{first}").strip()
    site.synsched("run", "--once")
    assert "waits for its dependency" in site.synsched("explain", job).out
    site.sure("scontrol", "release", first)
    site.until("its dependency failed", lambda: "(failed)" in site.jobs()[job]["Dependency"])
    site.synsched("run", "--once")
    site.until("Slurm tells why", lambda: site.jobs()[job]["Reason"] == "DependencyNeverSatisfied")
    assert "HeldUser" not in site.sure("squeue", "-h", "-o%r")
    told = site.synsched("explain", job).out
    assert f"can never start, since its dependency failed: afterok:{first}" in told, told
    site.sure("scancel", job)


@pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")
def test_gpus_on_each_node_of_a_range_stay_let_go_once_the_job_runs(site: Mini) -> None:
    script = "#!/bin/bash\nsleep 300\n"
    options = ("-p", "gpu", "-N1-2", "--gres=gpu:1", "--parsable", "--output=/dev/null")
    job = site.sure("sbatch", *options, user=USER, stdin=script).strip()
    site.until("Slurm starts it", lambda: site.state(job) == "RUNNING")
    site.synsched("run", "--once")
    told = " ".join(site.synsched("explain", job).out.split())
    assert told.startswith(f"job {job} is not managed: it asks for GPUs on each node of a range (--nodes)"), told
    assert not site.synsched("status", "--json").json["jobs"]
    site.sure("scancel", job)
    site.until("it is gone", lambda: job not in site.sure("squeue", "-h", "-o%i").split())


def test_the_forms_are_many() -> None:
    assert sum(len(forms) for forms in WAVES.values()) >= 60
