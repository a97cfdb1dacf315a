"""A job for all GPUs of a node beside a stream of small ones: it starts as soon as on plain Slurm, whatever the order.

Two equal nodes get the same jobs at the same moments: one is managed, the other is Slurm's, with backfill.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x4/12c/100g", "--set", "PriorityWeightJobSize=0", "--set", "PriorityWeightFairshare=0")
pytestmark = pytest.mark.parametrize("mini", ["sid"], indirect=True, scope="module")

PERIOD: Final = 5.0
"""Seconds between the full rounds of the daemon."""
SLACK: Final = 1.2
"""Times Slurm's own wait that the managed job may wait, and a period more, and what two rounds take."""
PARTITIONS: Final = {"gpu": "v100-1", "debug": "v100-2"}
LIVE: Final = ("synergy/fifo", "synergy/las", "gandiva-fair", "gavel", "hadar", "tesserae/ftf")
"""Policies that decide by different orders; of all of them the simulated clusters tell."""
ENDS: Final = (16, 19, 22, 25)
"""Seconds after which the jobs that have the GPUs of a node first end, one by one, whenever they began."""
SUBMIT: Final = "cd; sbatch --parsable -p {} --gres=gpu:{} -c {} --mem=1000 -t 1 -o /dev/null --wrap '{}'"
STREAM: Final = f"""
rm -f ~/stop
until [ -e ~/stop ]; do
    {SUBMIT.format("gpu", 1, 1, "sleep 20")}
    {SUBMIT.format("debug", 1, 1, "sleep 20")}
    sleep 2
done
"""
"""More small jobs than the GPUs of a node can take, on each of the two."""
LET_GO: Final = 20
"""Seconds that each of them runs: where Slurm started some before a managed job, it waits until these have ended."""


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    for partition, node in PARTITIONS.items():
        mini.sure("scontrol", "update", f"PartitionName={partition}", f"Nodes={node}")
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    yield
    site.run("sh", "-c", "touch ~alice/stop; scancel -u alice")
    site.until("nothing is left", lambda: not site.sure("squeue", "-h").strip())


@pytest.fixture
def daemon(site: Mini, request: pytest.FixtureRequest) -> Iterator[str]:
    """The daemon under the policy of the story, which restarts nobody; its name."""
    name, _, order = request.param.partition("/")
    rounds = {**SETTINGS["rounds"], "period": PERIOD, "early_interval": 1}
    guards = {**SETTINGS["guards"], "min_run_time": 3600}
    chosen = {"system": name, **({"order": order} if order else {})}
    site.configure(**{**SETTINGS, "rounds": rounds, "guards": guards, "policy": chosen})
    site.run("rm", "-f", "/var/lib/synsched/heartbeat")
    pid = site.sure("sh", "-c", "synsched run > /tmp/daemon.log 2>&1 & echo $!", user="synsched").strip()
    try:
        site.until("the daemon has decided", lambda: "enforce" in site.run("cat", "/var/lib/synsched/heartbeat").out)
        yield request.param
    finally:
        site.run("kill", pid)
        site.until("the daemon has stopped", lambda: site.run("kill", "-0", pid).code != 0)


def waited(site: Mini, job: str) -> float:
    """Seconds from its submission to its start, by Slurm's clock."""
    record = site.jobs()[job]
    start, submit = (datetime.fromisoformat(record[key]) for key in ("StartTime", "SubmitTime"))
    return (start - submit).total_seconds()


@pytest.mark.parametrize("daemon", LIVE, indirect=True)
def test_it_waits_no_longer_than_on_plain_slurm(site: Mini, daemon: str) -> None:
    now = int(site.sure("date", "+%s"))
    first = [submitted(site, partition, 1, f"sleep $(({now + end} - $(date +%s)))")
             for end in ENDS for partition in PARTITIONS]  # fmt: skip
    site.until("all GPUs are in use", lambda: all(site.state(job) == "RUNNING" for job in first), ENDS[0])
    wide = {partition: submitted(site, partition, 4, "sleep 1") for partition in PARTITIONS}

    site.sure("sh", "-c", f"({STREAM}) > /dev/null 2>&1 &", user="alice")
    site.until("both have started", lambda: all(site.state(job) != "PENDING" for job in wide.values()), 120)

    managed, plain = (waited(site, wide[partition]) for partition in PARTITIONS)
    print(f"\n{daemon:15} waited {managed:3.0f} s, {plain:3.0f} s on plain Slurm")
    happened = site.synsched("history", wide["gpu"]).out
    assert managed <= longest_wait(site, plain, now), happened


def longest_wait(site: Mini, plain: float, since: float) -> float:
    """Seconds that a managed job may wait that was submitted since then, where one on plain Slurm waited so long."""
    return SLACK * plain + PERIOD + site.two_rounds(since)


def submitted(site: Mini, partition: str, gpus: int, does: str) -> str:
    return site.sure("sh", "-c", SUBMIT.format(partition, gpus, gpus, does), user="alice").strip()


@pytest.mark.parametrize("daemon", ["synergy/fifo"], indirect=True)
@pytest.mark.parametrize(
    ("gpus", "count"), [pytest.param(4, 1, id="one for the whole node"), pytest.param(1, 6, id="six for a GPU each")]
)
def test_jobs_that_only_slurm_can_place_do_not_come_before_it_for_ever(
    site: Mini, daemon: str, gpus: int, count: int
) -> None:
    now = int(site.sure("date", "+%s"))
    first = [submitted(site, partition, 1, f"sleep $(({now + end} - $(date +%s)))")
             for end in ENDS for partition in PARTITIONS]  # fmt: skip
    site.until("all GPUs are in use", lambda: all(site.state(job) == "RUNNING" for job in first), ENDS[0])
    waiting = {partition: [submitted(site, partition, gpus, "sleep 8") for _ in range(count)]
               for partition in PARTITIONS}  # fmt: skip

    site.sure("sh", "-c", f"({STREAM.replace('sbatch', 'sbatch --extra=any')}) > /dev/null 2>&1 &", user="alice")
    jobs = [job for of in waiting.values() for job in of]
    site.until("all have started", lambda: all(site.state(job) != "PENDING" for job in jobs), 180)

    managed, plain = (max(waited(site, job) for job in waiting[partition]) for partition in PARTITIONS)
    print(f"\n{daemon}, beside jobs that are let go: waited {managed:3.0f} s, {plain:3.0f} s on plain Slurm")
    longest = longest_wait(site, plain, now) + LET_GO
    assert managed <= longest, "those that came before it ended, and no others"


def test_before_maintenance_starts_what_ends_in_time_and_the_others_are_told(site: Mini) -> None:
    site.configure(**SETTINGS)
    for node in PARTITIONS.values():
        site.sure("scontrol", "create", "reservation", f"ReservationName=works-{node}", f"Nodes={node}",
                  "StartTime=now+30minutes", "Duration=60", "Users=root", "Flags=MAINT")  # fmt: skip
    try:
        assert site.synsched("run", "--once").code == 0
        short, long = ([limited(site, partition, minutes) for partition in PARTITIONS] for minutes in (9, 99))

        assert site.synsched("run", "--once").code == 0
        site.until("the short ones run", lambda: all(site.state(job) == "RUNNING" for job in short))
        assert {site.state(job) for job in long} == {"PENDING"}, "as on plain Slurm"
        told = " ".join(site.synsched("explain", long[0]).out.split())
        assert "v100-1 is free but reserved from" in told
        assert "(works-v100-1), before it would end" in told
    finally:
        for node in PARTITIONS.values():
            site.run("scancel", "-u", "alice")
            site.sure("scontrol", "delete", f"ReservationName=works-{node}")


def limited(site: Mini, partition: str, minutes: int) -> str:
    """A small job with this time limit."""
    words = f"sbatch --parsable -p {partition} --gres=gpu:1 -c 1 --mem=1000 -t {minutes} -o /dev/null --wrap 'sleep 99'"
    return site.sure("sh", "-c", f"cd; {words}", user="alice").strip()
