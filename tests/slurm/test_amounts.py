"""A script with `srun` inside sees what it asked for, whatever a round changes: managed beside unmanaged."""

from __future__ import annotations

import re

import pytest

from tests.slurm.conftest import OLDEST_AND_LATEST, SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x4/12c/100g")
SCRIPT = """#!/bin/bash
env | grep -E '^SLURM_(CPUS_PER|MEM|NTASKS|NPROCS|GPUS|TRES|JOB_NUM|THREADS|HINT)' | sort > $HOME/amounts-$SLURM_JOB_ID
timeout 25 srun bash -c 'echo step $SLURM_PROCID of $SLURM_NTASKS' 2>&1 | sort >> $HOME/amounts-$SLURM_JOB_ID
echo "srun=${PIPESTATUS[0]}" >> $HOME/amounts-$SLURM_JOB_ID
"""
MAY_GROW = re.compile(r"SLURM_(CPUS_PER_TASK|TRES_PER_TASK|GPUS_ON_NODE)=")
"""What a round may raise; how GPUs lie on nodes is the scheduler's to say."""
FORMS = (
    "--gpus=1",
    "--gpus=1 --mem=8G",
    "--gpus=1 --mem=0",
    "--gpus=1 --mem-per-gpu=10G",
    "--gpus=1 --mem-per-cpu=2G",
    "--gpus=2 --mem-per-cpu=2G -c2",
    "--gpus=2 --cpus-per-gpu=2",
    "--gpus=2 --mem-per-gpu=4G --cpus-per-gpu=2",
    "--gpus=2 -n2 -c2",
    "--gpus=2 --ntasks=2 --ntasks-per-gpu=1",
    "--gpus=5 -n5",
    "--gpus-per-task=1 -n 6",
    "-N2 --gres=gpu:2 -n3",
    "-N2 --gpus=4 -n4",
    "-N2 --gpus=4 --ntasks-per-node=2",
    "-N2 --gres=gpu:2 --ntasks-per-node=2 --mem=0",
    "--gpus=1 --exclusive",
    "--gpus=1 -c2 --threads-per-core=1",
    "--gpus=1 -c2 --hint=nomultithread",
)

pytestmark = pytest.mark.parametrize("mini", OLDEST_AND_LATEST, indirect=True, scope="module")


def run(mini: Mini, form: str, partition: str, hint: str = "") -> list[str]:
    """What the script wrote: its environment, then a line from each task, then how srun ended."""
    home = "/home/alice"
    mini.sure("sh", "-c", f"cat > {home}/amounts.sh", user="alice", stdin=SCRIPT)
    comment = [f"--comment=synsched:{hint}"] if partition == "gpu" else []
    where = ["--parsable", f"--chdir={home}", "--output=/dev/null", "-p", partition, "-t", "3", *comment]
    said = mini.sure("env", f"HOME={home}", "sbatch", *where, *form.split(), f"{home}/amounts.sh", user="alice")
    job = said.splitlines()[-1].split(";")[0]

    def has_run() -> bool:
        state = mini.state(job)
        if state == "PENDING" and partition == "gpu":
            mini.synsched("run", "--once")  # a job before it may still be completing
        return state == "COMPLETED"

    mini.until(f"{form} has run", has_run)
    return mini.sure("cat", f"{home}/amounts-{job}").splitlines()


@pytest.mark.parametrize("hint", ["", "model=resnet50"], ids=["nothing known", "wants CPUs"])
@pytest.mark.parametrize("form", FORMS)
def test_a_managed_script_sees_what_an_unmanaged_one_does(mini: Mini, form: str, hint: str) -> None:
    mini.configure(**{**SETTINGS, "policy": {"system": "synergy", "order": "fifo"}})
    alone, managed = run(mini, form, "debug"), run(mini, form, "gpu", hint)
    assert managed[-1] == "srun=0"
    assert [line for line in managed if not MAY_GROW.match(line)] == [
        line for line in alone if not MAY_GROW.match(line)
    ]
    assert ("CPUS_PER_TASK" in "".join(managed)) == ("CPUS_PER_TASK" in "".join(alone))


def test_explicit_cpus_are_a_floor_for_a_job_that_could_do_with_fewer(mini: Mini) -> None:
    mini.configure(**SETTINGS)
    assert "SLURM_CPUS_PER_TASK=8" in run(mini, "--gpus=1 -c8", "gpu", "task=language")
