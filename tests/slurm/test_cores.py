"""Nodes of two threads per core, of two sockets, and with CPUs that their GPUs do not divide.

Managed jobs use every GPU that the same jobs use under Slurm alone, and Slurm refuses none of the starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.slurm.conftest import OLDEST_AND_LATEST, SETTINGS, TIMERS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x4/12c/2t/100g,p100:1x8/22c/80g")
USER: Final = "alice"
UNITS: Final = ("CR_Core_Memory", "CR_CPU_Memory", "CR_Socket_Memory", "CR_Core")
"""What Slurm shares out, as SelectTypeParameters says it; the last shares out no memory."""
THREADS, SINGLE = "-x p100-1", "-w p100-1"
MIXES: Final = {
    "odd CPUs": [f"{THREADS} --gres=gpu:1 --mem=900 -c {cpus}" for cpus in (1, 3, 3, 1, 5, 1, 3, 1)],
    "as many as fit, and more": [f"{THREADS} --gres=gpu:1 --mem=900 -c 3"] * 8,
    "one CPU each, the default memory per CPU": [f"{THREADS} --gres=gpu:1"] * 8,
    "memory per CPU that is short": [f"{THREADS} --gres=gpu:1 -c 3 --mem-per-cpu=8000"] * 8,
    "one thread of each core": [
        f"{THREADS} --gres=gpu:1 --mem=900 -c {c} --hint=nomultithread" for c in (1, 2, 3, 1, 2)
    ],
    "one thread, by the other option": [f"{THREADS} --gres=gpu:1 --mem-per-cpu=9000 -c 2 --threads-per-core=1"] * 6,
    "CPUs per GPU": [f"{THREADS} --gpus=1 --cpus-per-gpu=3 --mem-per-gpu=900"] * 6,
    "tasks of one CPU": [f"{THREADS} --gres=gpu:1 --mem=900 -n 3"] * 6,
    "gangs and single GPUs": [
        f"{THREADS} -N 2 --gpus-per-node=2 --ntasks-per-node=2 -c 1 --mem=900",
        f"{THREADS} --gpus=2 -n 2 -c 3 --mem=900",
        *[f"{THREADS} --gres=gpu:1 --mem=900 -c 1"] * 3,
    ],
    "a gang of a task for each GPU": [f"{THREADS} -N 2 --gpus-per-node=4 --ntasks-per-node=4 -c 3 --mem=900"],
    "eight jobs of two CPUs on 22": [f"{SINGLE} --gres=gpu:1 --mem=900 -c 2"] * 8,
    "all GPUs with all 22 CPUs": [f"{SINGLE} --gres=gpu:8 --mem=900 -c 22"],
    "more memory than the node has": [f"{SINGLE} --gres=gpu:1 --mem=60000 -c 2"] * 4,
    "seven GPUs with 22 CPUs": [f"{SINGLE} --gres=gpu:7 -n 7 --mincpus=22 --mem=900"],
}

CORE: Final = (
    "odd CPUs", "as many as fit, and more", "memory per CPU that is short", "gangs and single GPUs",
    "eight jobs of two CPUs on 22", "all GPUs with all 22 CPUs", "more memory than the node has",
)  # fmt: skip
"""Tried with everything that Slurm may share out, and on every release; the others with cores on one."""


@pytest.fixture(scope="module", params=UNITS)
def site(mini: Mini, request: pytest.FixtureRequest) -> Mini:
    """The cluster, which shares out these: all of them on one release, cores on the others."""
    parameters, release = request.param, mini.name.rpartition("-")[2]
    if release != "sid" and parameters != UNITS[0]:
        pytest.skip(f"{parameters} is tried on sid")
    if shared_out(mini) != parameters.upper():
        sharing = ("--set", f"SelectTypeParameters={parameters}")
        mini.cluster("up", "--anew", "--release", release, "--kill-wait", "5", *TIMERS, *CLUSTER, *sharing)
    mini.configure(**{**SETTINGS, "policy": {"system": "synergy", "order": "fifo"}})
    done = mini.synsched("run", "--once")  # the hook holds jobs only where somebody schedules
    assert done.code == 0, done.err
    return mini


def shared_out(mini: Mini) -> str:
    """What Slurm's configuration says that it shares out."""
    config = mini.sure("scontrol", "show", "config").splitlines()
    return next(line for line in config if line.startswith("SelectTypeParameters")).partition("=")[2].strip()


def cancel_all(mini: Mini) -> None:
    mini.sure("scancel", f"--user={USER}")
    mini.until("nothing is left", lambda: not mini.sure("squeue", "-ah").strip())


def submit(mini: Mini, partition: str, options: str) -> str:
    said = mini.run(
        "sbatch", "--parsable", "-p", partition, f"--chdir=/home/{USER}", "--output=/dev/null", *options.split(),
        "--wrap", "sleep 1000", user=USER,
    )  # fmt: skip
    assert said.code == 0, f"{options}: {said.err}"
    return said.out.strip().split(";")[0]


def gpus_in_use(mini: Mini) -> int:
    """GPUs of all running jobs."""
    shown = mini.sure("squeue", "-h", "-t", "R", "-O", "tres-alloc:200").splitlines()
    amounts = [dict(item.split("=") for item in line.strip().split(",")) for line in shown]
    return sum(int(amount.get("gres/gpu", 0)) for amount in amounts)


def used_by_slurm(mini: Mini, mix: Sequence[str]) -> int:
    """GPUs in use once Slurm alone has started what it can; it looks every second."""
    for options in mix:
        submit(mini, "debug", options)
    steady, last = 0, -1
    while steady < 3:
        mini.sure("sleep", "1")
        now = gpus_in_use(mini)
        steady, last = steady + 1 if now == last else 0, now
    cancel_all(mini)
    return last


@pytest.mark.parametrize("title", MIXES)
@pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")
def test_every_gpu_that_slurm_alone_can_use_is_used(site: Mini, title: str) -> None:
    if title not in CORE and (not site.name.endswith("-sid") or shared_out(site) != UNITS[0].upper()):
        pytest.skip("tried on sid with cores")
    assert_as_many_gpus(site, MIXES[title])


@pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")
def test_what_a_partition_gives_by_gpu_is_planned(site: Mini) -> None:
    """Slurm adds it only when it looks for nodes: until then it shows one CPU for each task."""
    for partition in ("gpu", "debug"):
        site.sure("scontrol", "update", f"PartitionName={partition}", "JobDefaults=DefCpuPerGPU=5,DefMemPerGPU=30000")
    assert_as_many_gpus(site, [f"{THREADS} --gres=gpu:1"] * 6 + [f"{THREADS} --gres=gpu:2 --mem=900"])
    assert_as_many_gpus(site, [f"{THREADS} --gres=gpu:2 -c 2"] * 5)


def assert_as_many_gpus(site: Mini, mix: Sequence[str]) -> None:
    cancel_all(site)
    alone = used_by_slurm(site, mix)
    assert alone
    for options in mix:
        submit(site, "gpu", options)
    done = site.synsched("run", "--once", "--json")
    assert done.code == 0, done.err
    site.until("what was released runs", lambda: "None" not in waiting_reasons(site), 20)
    assert gpus_in_use(site) >= alone, site.sure("squeue")
    assert {outcome["result"] for outcome in done.json["outcomes"]} <= {"done"}
    cancel_all(site)


def waiting_reasons(site: Mini) -> list[str]:
    return site.sure("squeue", "-h", "-t", "PD,CF", "-o", "%r").splitlines()
