"""What an owner writes never changes what becomes of another's job, crashes nothing, and costs in proportion."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

import pytest

from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.bench.hostile_rounds import run_hostile
from slurmsched.bench.hostile_slurm import FakeJob, FakeSlurm, SlurmRelease
from slurmsched.bench.hostile_text import NODES, NOW
from slurmsched.rounds.round import paused_collector

RECORDS = 6_000
HONEST = FakeJob(1000, "alice", 2001, 2, NOW - 500, text={"comment": b"synsched:task=image"})
HOSTILE = FakeJob(1001, "mallory", 2004, 1, NOW - 400, node="n1", indices=(0,), start_time=NOW - 300)
FILLED = {
    "blanks behind a comment": b"a WorkDir=x Comment=z%b y",
    "brackets of node lists": b" Nodes=%b CPU_IDs=0 Mem=1 GRES=gpu:v100:1(IDX:0)",
    "parts of a GRES": b" TresPerNode=gres/gpu:%b",
    "records of others": b"x%b\nJobId=1000 JobName=y",
}
PIECES = {
    "blanks behind a comment": b" ",
    "brackets of node lists": b"n[1-9],",
    "parts of a GRES": b"(",
    "records of others": b"\nJobId=1000 ",
}


def backend(release: SlurmRelease) -> tuple[SlurmBackend, FakeSlurm]:
    """A reader that has seen the cluster with an honest job, so that only jobs are new to it."""
    slurm = FakeSlurm(release, NODES[:1], (HONEST,))
    reader = SlurmBackend(Commands(30.0, runner=slurm), CommandSource(), lambda: float(NOW), user=lambda: "synsched")
    reader.observe()
    return reader, slurm


def long_job(kind: str, size: int) -> FakeJob:
    """Arguments of about `size` bytes, as 22.05 shows them, and the submit line of 26.05."""
    text = FILLED[kind] % (PIECES[kind] * (size // len(PIECES[kind])))
    return replace(
        HOSTILE,
        scontrol_line=b"",
        squeue_cells={},
        text={"arguments": text, "comment": text[:1024], "network": text[:1024]},
    )


def cpu_seconds(release: SlurmRelease, job: FakeJob) -> float:
    """The least of three polls that see the job for the first time beside an honest one, without rendering it."""
    spent = []
    for _ in range(3):
        reader, slurm = backend(release)
        slurm.jobs.append(job)
        with paused_collector():  # as in a round
            slurm.own_cpu_seconds, began = 0.0, time.thread_time()
            reader.observe()
            spent.append(time.thread_time() - began - slurm.own_cpu_seconds)
    return min(spent)


@pytest.mark.timeout(600)
def test_thousands_of_hostile_jobs_change_nothing_for_anybody_else() -> None:
    found = run_hostile(RECORDS, seed=1, workers=1)
    assert found.records >= RECORDS
    assert (found.crashes, found.changed_jobs, found.misread_jobs, found.lost_jobs) == (0, 0, 0, 0), found.examples


def test_twice_the_hostile_jobs_take_no_more_memory() -> None:
    few, many = run_hostile(1_000, seed=2), run_hostile(4_000, seed=2)
    assert many.peak_rss_mb < 1.5 * few.peak_rss_mb


@pytest.mark.timeout(60)
@pytest.mark.parametrize("release", SlurmRelease, ids=str)
@pytest.mark.parametrize("kind", FILLED)
def test_reading_a_record_takes_time_in_proportion_to_its_length(release: SlurmRelease, kind: str) -> None:
    cpu_seconds(release, long_job(kind, 500))
    # Short ones first: where time grows with the square of the length, the long ones would take hours.
    for size, times in ((2_000, 4), (64_000, 8)):
        short, long = (cpu_seconds(release, long_job(kind, length)) for length in (size, times * size))
        assert long < 2.5 * times * max(short, 0.0005), (
            f"{times} times the length took {long / short:.0f} times as long"
        )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("release", SlurmRelease, ids=str)
@pytest.mark.parametrize("kind", FILLED)
def test_reading_a_record_takes_memory_in_proportion_to_its_length(release: SlurmRelease, kind: str) -> None:
    size = 100_000
    reader, slurm = backend(release)
    slurm.jobs.append(long_job(kind, size))
    tracemalloc.start()
    try:
        reader.observe()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000 + 20 * size
