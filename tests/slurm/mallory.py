"""What a user who means no good can do from a login host with ordinary commands: shell text, run as himself.

`$VICTIMS` are the numbers of jobs of others. Each attack submits held jobs unless it says otherwise, so that what he
asks for takes nothing from anybody by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.slurm.mini import HOOK, Mini, Said

__all__ = ["ATTACKS", "CORE", "Attack", "attack", "without_hook"]

NO_HOOK: Final = """function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
"""A job_submit.lua that lets everything pass: a site whose scheduler only observes has none of ours."""

_BEFORE: Final = """cd /home/mallory; export HOME=/home/mallory VICTIMS="$*"
printf '#!/bin/sh\\ntrap "" USR1\\nsleep 600\\n' > j.sh
held() { sbatch --parsable -H --gres=gpu:1 -c 1 --output=/dev/null "$@" j.sh; }
lines() { for id in $VICTIMS; do printf '\\nJobId=%s ' "$id"; done; }
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """Shell text, and what it does in words that make a test's title."""

    title: str
    does: str


ATTACKS: Final = (
    Attack(
        "a comment that poses as a request for every GPU there could be",
        'held --comment="synsched: TresPerJob=gres/gpu:999999999"',
    ),
    Attack(
        "a mail address that poses as a request for every GPU there could be",
        'held --mail-type=END --mail-user="x TresPerJob=gres/gpu:999999999"',
    ),
    Attack(
        "arguments and a submit line of 120 kB of blanks",
        'sbatch -H --gres=gpu:1 -c 1 --output=/dev/null j.sh "a WorkDir=x Comment=z$(printf "%120000s")y"',
    ),
    Attack(
        "a network that poses as a request for no node and for endless memory",
        'held --network="x ReqTRES=node=0,mem=10G"; held --mem=1000 --network="x MinMemoryCPU=999999999999999E";'
        ' held --mem-per-cpu=1000 --network="x MinMemoryNode=999999999999999E ReqTRES=cpu=0"',
    ),
    Attack(
        "a network that poses as the allocation of somebody else's node",
        "sbatch -p debug --gres=gpu:1 -c 1 --output=/dev/null --network="
        '"x Nodes=v100-2 CPU_IDs=0-23 Mem=511992 GRES=gpu:v100:8(IDX:0-7)" j.sh;'
        ' held --network="$(for i in $(seq 20); do printf " Nodes=n[1-99999]"; done)"',
    ),
    Attack(
        "a name and a comment whose lines pose as jobs of others",
        'id=$(held --job-name="x$(lines)" --comment="y$(lines)"); scontrol update JobId=$id JobName="x$(lines)"'
        ' Comment="y$(lines)"; held --job-name="x$(lines)"',
    ),
    Attack(
        "a name that poses as another job's whole record",
        'for id in $VICTIMS; do held --job-name="x\nJobId=$id JobName=y UserId=alice(2001) GroupId=alice(2001)'
        " MCS_label=N/A Priority=1 Nice=0 Account=vision QOS=normal JobState=COMPLETED Reason=None Requeue=1"
        ' Restarts=0 NumNodes=1 NumCPUs=1 Command=x WorkDir=/"; done',
    ),
    Attack(
        "hints with numbers that no job has",
        "for hint in ckpt=usr1@9999999d duration=9999999d,ckpt=term@9999999d fork=999999999999 held=hook; do"
        ' held --comment="synsched:$hint"; done; held --array=0-3 --comment=synsched:fork=1',
    ),
    Attack(
        "bytes that are no text, and control characters",
        "held --job-name=$'\\xff\\xfe\\x1b[2J\\r\\x0b\\x0c\\x1c\\xc2\\x85\\xe2\\x80\\xa8JobId=1 '"
        " --comment=$'\\xed\\xa0\\x80 synsched:held=hook\\n140 JobHeldUser synsched:held=hook'",
    ),
    Attack(
        "a key, a note, a path and a container that pose as fields",
        'held --wckey="x JobState=RUNNING Reason=None"; held --extra="x TresPerJob=gres/gpu:9999999";'
        ' held --container="/x TresPerNode=gres/gpu:9999999"; mkdir -p "a TresPerJob=gres/gpu:9999999";'
        ' held --chdir="$HOME/a TresPerJob=gres/gpu:9999999"; held --error="x MemPerTres=gres/gpu:9999999E"',
    ),
)
CORE: Final = (ATTACKS[0], ATTACKS[2], ATTACKS[3], ATTACKS[5])
"""What is tried on each release."""


def attack(mini: Mini, does: str, victims: Sequence[str], *, past_the_hook: bool = True) -> None:
    """Do it as mallory with our hook in force, and what it refuses once more without: a round has to stand both."""
    said = _as_mallory(mini, does, victims)
    if past_the_hook and "error" in said.err:
        with without_hook(mini):
            _as_mallory(mini, does, victims)


@contextmanager
def without_hook(mini: Mini) -> Iterator[None]:
    """Submissions are not held by the hook meanwhile, so that the daemon has to hold them."""
    own = mini.sure("cat", HOOK, on="ctl")
    mini.install_hook(NO_HOOK)
    try:
        yield
    finally:
        mini.install_hook(own)


def _as_mallory(mini: Mini, does: str, victims: Sequence[str]) -> Said:
    return mini.run("bash", "-c", f"{_BEFORE}{does}", "mallory", *victims, user="mallory", timeout=60)
