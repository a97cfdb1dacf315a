"""Shares by equal tickets of a gang over nodes, beside jobs whose slices are longer than a round, and of a user beside
another whose jobs cannot be sliced. What everybody had is read from Slurm's accounting."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import pytest

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x4/12c/100g")
pytestmark = pytest.mark.parametrize("mini", ["sid"], indirect=True, scope="module")

GPUS: Final = 8
SLICE: Final = 8
"""Seconds of a slice, about two rounds, of jobs of any width."""
FAIR: Final = {
    **SETTINGS,
    "rounds": {**SETTINGS["rounds"], "period": 5},
    "policy": {"system": "gandiva-fair"},
    "tickets": {"quantum": SLICE, "wide_quantum": SLICE},
    "guards": {"min_run_time": 1, "restart_cost": 0, "moves_per_round": 4 * GPUS, "moves_per_job_day": 1_000_000},
    "checkpoint": {"lead": 1},
}
ROUNDS: Final = 10
"""At least so many, until a turn of the gang has ended: of whole turns it has half."""
TOLERANCE: Final = 0.15
"""Of all GPU time in so many rounds, that is: one slice."""
ONE_GPU: Final = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=1000")
GANG: Final = ("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4", "--cpus-per-task=4", "--mem=4000")


@pytest.fixture(scope="module")
def site(mini: Mini) -> Mini:
    mini.configure(**FAIR)
    return mini


@pytest.fixture(autouse=True)
def nothing_left(site: Mini) -> Iterator[None]:
    """Each story begins with an idle cluster and accounts in which nobody is due anything."""
    round_(site)
    yield
    site.clear("alice", "bob")


def round_(site: Mini, then: float = 0) -> None:
    """One round, and so many seconds in which all do as it says."""
    site.round()
    time.sleep(then)


def submit(site: Mini, user: str, count: int, *options: str, hint: str = "ckpt=usr1@1") -> list[str]:
    return [site.train(user, *options, hint=hint) for _ in range(count)]


def running(site: Mini, jobs: Collection[str]) -> set[str]:
    seen = site.jobs()
    return {job for job in jobs if seen[job]["JobState"] == "RUNNING"}


def gpu_seconds(site: Mini, since: int) -> Counter[str]:
    """By user, of all runs of all jobs until now, as Slurm's accounting has them."""
    until = int(site.sure("date", "+%s"))
    text = site.sure(
        "env", "SLURM_TIME_FORMAT=%s",
        "sacct", "-a", "-n", "-P", "-X", "-D", "-S", "now-1hours", "-o", "User,Start,End,AllocTRES",
    )  # fmt: skip
    had = Counter[str]()
    for user, start, end, allocated in (line.split("|") for line in text.splitlines()):
        gpus = re.search(r"gres/gpu=(\d+)", allocated)
        if gpus and start.isdecimal():
            last = int(end) if end.isdecimal() else until
            had[user] += int(gpus[1]) * max(0, last - max(int(start), since))
    return had


def test_a_gang_over_two_nodes_gets_its_share_beside_narrow_jobs_whose_slices_are_longer_than_a_round(
    site: Mini,
) -> None:
    """It needs all GPUs, and no moment has them free: slices that began at different times end at different times."""
    submit(site, "alice", GPUS // 2, *ONE_GPU)
    round_(site, SLICE / 2)
    submit(site, "alice", GPUS + GPUS // 2, *ONE_GPU)
    (gang,) = submit(site, "bob", 1, *GANG)
    since, turns = int(site.sure("date", "+%s")), ""
    while len(turns) < ROUNDS or not (turns.endswith("G-") or len(turns) == 2 * ROUNDS):
        round_(site, 1)
        turns += "G" if running(site, [gang]) else "-"
    had = gpu_seconds(site, since)
    print(f"\nGPU-seconds: {dict(had)}; the gang ran after these rounds: {turns}")
    assert "G-" in turns, "it takes turns"
    assert abs(had["bob"] / had.total() - 0.5) <= TOLERANCE


def test_who_has_no_checkpoints_is_charged_for_what_her_jobs_hold(site: Mini) -> None:
    """Jobs that could never be preempted any more start within her share, and what they hold is all that she has."""
    unsliced = submit(site, "alice", GPUS, *ONE_GPU, hint="")
    his = submit(site, "bob", GPUS, *ONE_GPU)
    round_(site)
    since, held = int(site.sure("date", "+%s")), running(site, unsliced)
    assert len(held) == GPUS // 2
    sliced = submit(site, "alice", 2, *ONE_GPU)
    for _ in range(4):
        round_(site, SLICE / 2)
        assert running(site, unsliced) == held
        assert len(running(site, his)) == GPUS // 2
        assert not running(site, sliced), "she has her share"
    had = gpu_seconds(site, since)
    print(f"\nGPU-seconds: {dict(had)}")
    assert had["bob"] / had.total() == pytest.approx(0.5, abs=TOLERANCE)
    waits = next(job for job in unsliced if job not in held)
    told = " ".join(site.synsched("explain", waits).out.split())
    assert "once started it could not be preempted, and such jobs of alice hold 4 GPUs of a share of 4.00 GPUs" in told

    gone = sorted(held)[:2]
    site.sure("scancel", *gone)
    site.until("two of hers have gone", lambda: not {"RUNNING", "COMPLETING"} & {site.state(job) for job in gone})
    for _ in range(4):  # in the first of them he may have what he is behind
        round_(site, SLICE / 2)
        if len(running(site, unsliced)) == GPUS // 2:
            break
    assert len(running(site, unsliced)) == GPUS // 2, "two others of hers come in their place"
