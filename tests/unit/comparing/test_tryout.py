"""Tiny months under plain Slurm and under unified, with figures that a person can work out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from slurmsched.comparison.site_shape import derive_shape, most_gpus_held, read_shape
from slurmsched.comparison.tryout import (
    TryoutOptions,
    build_submissions,
    cut_windows,
    period_of,
    run_tryout,
    run_window,
    window_length,
    window_of,
)
from slurmsched.comparison.tryout_figures import size_class, tryout_figures
from slurmsched.simulation import SimulationError
from slurmsched.traces.accounting import AccountedJob
from slurmsched.traces.clusters import load_cluster
from slurmsched.traces.trace import TraceError, TraceJob

NODES = load_cluster("a100:1x4:16:64G").nodes
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
INLINE = TryoutOptions(budget=None)


def job(
    name: str,
    arrival: float,
    gpus: int,
    seconds: float,
    *,
    start: float | None = None,
    user: str = "alice",
    **more: object,
) -> AccountedJob:
    """A job with a limit of twice its length, which Slurm started when it came unless `start` says otherwise."""
    began = arrival if start is None else start
    work = TraceJob(
        name,
        arrival,
        gpus,
        seconds,
        user=user,
        cpus=gpus,
        memory=1024,
        gpus_per_node=gpus,
        time_limit=2 * seconds,
        name="train",
    )
    fields: dict[str, object] = {"end": began + seconds, "state": "COMPLETED", **more}
    return AccountedJob(work, began, **fields)  # type: ignore[arg-type]


def test_two_whole_nodes_of_work_one_after_the_other() -> None:
    """Of two jobs of all four GPUs the second waits 50 minutes: 60 and 110 minutes, 85 on average."""
    jobs = [job("1", 0, 4, HOUR), job("2", 600, 4, HOUR, start=HOUR, user="bob")]
    figures = tryout_figures(run_tryout(jobs, NODES, INLINE))
    assert [column.policy for column in figures.columns] == ["sacct", "slurm", "unified"]
    for column in figures.columns[:2]:
        assert (column.mean_s, column.median_s, column.mean_wait_s) == (85 * MINUTE, 85 * MINUTE, 25 * MINUTE)
        assert column.makespan_s == 2 * HOUR
        assert (column.idle, column.idle_beside_waiting) == pytest.approx((0.0, 0.0))
        assert column.waiting == pytest.approx(1 / 601)
    assert figures.policy.mean_s == pytest.approx(85 * MINUTE, abs=10)
    assert (figures.sooner, figures.later, figures.policy.restarts) == (0, 0, 0)
    assert not figures.range_of("mean").is_known


def test_a_short_job_passes_the_long_ones_that_wait_under_unified() -> None:
    """Four GPUs are taken for an hour; then three jobs of ten hours stand before one of six minutes. Plain Slurm runs
    them in order, unified the short one first."""
    long = [job(str(number), 60.0 * number, 4, 10 * HOUR, user="bob") for number in (2, 3, 4)]
    jobs = [job("1", 0, 4, HOUR), *long, job("5", 300, 4, 6 * MINUTE, user="carol")]
    figures = tryout_figures(run_tryout(jobs, NODES, INLINE))
    assert figures.slurm.mean_s == pytest.approx((1 + 11 + 21 + 31 + 31.1) / 5 * HOUR - (120 + 180 + 240 + 300) / 5)
    assert figures.policy.mean_s < figures.slurm.mean_s
    carol = next(group for group in figures.groups("user") if group.name == "carol")
    assert carol.hours_sooner > 9
    assert carol.slurm_s == pytest.approx(31.1 * HOUR - 300)
    bob = next(group for group in figures.groups("user") if group.name == "bob")
    assert bob.hours_sooner < 0
    assert {loss.user for loss in figures.losses} == {"bob"}
    assert figures.later == len(figures.losses)


def test_idle_gpus_are_those_of_the_time_in_which_jobs_arrive() -> None:
    """Two of four GPUs for an hour, then the next job comes."""
    jobs = [job("1", 0, 2, HOUR), job("2", HOUR, 2, HOUR)]
    figures = tryout_figures(run_tryout(jobs, NODES, INLINE))
    assert figures.recorded.idle == pytest.approx(0.5, abs=0.001)
    assert figures.slurm.idle == pytest.approx(0.5, abs=0.001)
    assert np.isnan(figures.slurm.idle_beside_waiting)
    assert figures.slurm.waiting == 0


def test_jobs_that_still_run_are_load_and_do_not_count() -> None:
    runs = replace(job("1", 0, 4, 2 * HOUR), end=None, state="RUNNING")
    figures = tryout_figures(run_tryout([runs, job("2", 60, 4, MINUTE)], NODES, INLINE))
    assert figures.jobs == 1
    assert figures.slurm.mean_s == 2 * HOUR  # a minute less than the two hours, and its own minute


def test_what_the_cluster_cannot_hold_is_counted_by_reason() -> None:
    jobs = [job("1", 0, 2, MINUTE), job("2", 1, 8, MINUTE), replace(job("3", 2, 2, MINUTE))]
    typed = replace(jobs[2], job=replace(jobs[2].job, gpu_type="h100"))
    run = run_tryout([jobs[0], jobs[1], typed], NODES, INLINE)
    assert run.impossible == {
        "it asks for 1 node with 8 GPUs, and there are 0": 1,
        "no node has GPUs of type h100": 1,
    }
    with pytest.raises(SimulationError, match="the cluster can hold none of the jobs"):
        run_tryout(jobs[1:2], NODES, INLINE)


def test_jobs_from_before_the_period_hold_their_gpus_and_do_not_count() -> None:
    """sacct -S also prints a job that began twenty days earlier: the period begins when the first job ends."""
    old, after = job("1", 0, 2, 20 * DAY), job("2", 19.9 * DAY, 4, HOUR, start=20 * DAY)
    jobs = [old, after, job("3", 20.1 * DAY, 1, MINUTE)]
    assert period_of(jobs) == (20 * DAY, 20.1 * DAY + 1)
    run = run_tryout(jobs, NODES, INLINE)
    assert (run.began_before, len(run.simulated[0].measured), run.simulated[0].carried) == (2, 1, 1)


def test_a_window_is_over_with_its_measured_jobs_and_the_gpus_of_those_that_run_on_are_not_idle() -> None:
    """Two of four GPUs are held for a year by a job that came before, the others by a job for ten minutes of twenty."""
    old = job("1", 0, 2, 365 * DAY)
    jobs = [old, job("2", HOUR, 2, 10 * MINUTE), job("3", HOUR + 20 * MINUTE, 2, 10 * MINUTE)]
    window = window_of(jobs, HOUR, HOUR + 20 * MINUTE)
    for policy in ("slurm", "unified"):
        outcome = run_window(window, NODES, policy, INLINE)
        assert outcome.idle == pytest.approx(0.25, abs=0.01)
        assert (len(outcome.completions), outcome.makespan) == (1, pytest.approx(10 * MINUTE, abs=10))
        assert outcome.rounds < 10


@pytest.mark.parametrize(
    ("wait", "least", "most"),
    [
        pytest.param(0.0, 2 * DAY, 4 * DAY, id="nobody waits, and most rounds are left out"),
        pytest.param(2 * DAY, DAY / 4, DAY / 2, id="all jobs wait, and there is a round at each event"),
    ],
)
def test_windows_are_shorter_where_the_accounting_shows_that_jobs_wait(wait: float, least: float, most: float) -> None:
    jobs = [
        job(str(number), 60.0 * number, 1, HOUR * (1 + number % 50), start=60.0 * number + wait)
        for number in range(int(30 * DAY / MINUTE))
    ]
    assert least <= window_length(jobs, TryoutOptions()) <= most


def test_a_window_begins_with_what_runs_and_what_waits_then() -> None:
    """Two windows of an hour: at the second's start one job has half an hour left, and another waits."""
    jobs = [
        job("1", 0, 4, 1.5 * HOUR),
        job("2", 0.5 * HOUR, 4, HOUR, start=1.5 * HOUR),
        job("3", 2 * HOUR - 1, 1, MINUTE, start=2.5 * HOUR),
    ]
    first, second = (window_of(jobs, *bounds) for bounds in cut_windows(jobs, HOUR))
    assert [found.job.id for found in first.measured] == ["1", "2"]
    assert (second.carried, [found.job.id for found in second.measured]) == (2, ["3"])
    carried = [(found.job.id, found.job.arrival, found.job.duration) for found in second.jobs[:2]]
    assert carried == [("1", 0.0, 0.5 * HOUR), ("2", 0.0, HOUR)]
    assert second.jobs[0].job.time_limit == 2 * HOUR
    assert second.jobs[2].job.arrival == HOUR - 1


def days(count: int, seed: int = 3) -> list[AccountedJob]:
    """Two jobs an hour of one to four GPUs, for so many days."""
    random = np.random.default_rng(seed)
    return [
        job(
            str(number),
            1800.0 * number,
            int(random.integers(1, 5)),
            float(random.integers(600, 7000)),
            user=f"u{number % 3}",
        )
        for number in range(48 * count)
    ]


def test_windows_are_drawn_until_the_time_is_up_and_the_same_seed_draws_the_same() -> None:
    ticks = iter(range(100_000))
    options = TryoutOptions(budget=0.5, processes=1)
    run = run_tryout(days(3), NODES, options, clock=lambda: float(next(ticks)))
    assert len(run.simulated) == 1 < run.windows
    again = run_tryout(days(3), NODES, options, clock=lambda: float(next(ticks)))
    assert again.simulated == run.simulated


def test_ranges_hold_the_change_and_are_the_same_for_the_same_seed() -> None:
    run = run_tryout(days(2), NODES, INLINE)
    figures = tryout_figures(run)
    for known in figures.ranges:
        assert known.is_known
        assert known.low <= known.high
    mean = figures.range_of("mean")
    assert mean.low <= mean.change <= mean.high
    assert mean.change == pytest.approx(figures.policy.mean_s / figures.slurm.mean_s - 1)
    assert tryout_figures(run).ranges == figures.ranges
    assert sum(group.jobs for group in figures.groups("user")) == figures.jobs == 96
    total = sum(group.hours_sooner for group in figures.groups("size"))
    assert total == pytest.approx((figures.slurm.mean_s - figures.policy.mean_s) * figures.jobs / HOUR)


def test_nobody_is_told_how_long_a_job_runs_unless_its_owner_said() -> None:
    plain = replace(job("1", 0, 1, 1234.0), comment="synsched:held=hook")
    hinted = replace(job("2", 0, 1, 1234.0), comment="mine synsched:duration=20m,ckpt=usr2@30,model=bert")
    unlimited = replace(plain, job=replace(plain.job, id="3", time_limit=None))
    found = build_submissions([plain, hinted, unlimited], NODES, checkpoints=False)
    assert {name: one.comment for name, one in found.items()} == {
        "1": "",
        "2": "synsched:model=bert,ckpt=usr2@30,duration=1200",
        "3": "",
    }
    assert (found["3"].time_limit, found["3"].work, found["3"].name) == (None, 1234.0, "train")
    everyone = build_submissions([plain], NODES, checkpoints=True)
    assert everyone["1"].comment == "synsched:ckpt=usr1"


@pytest.mark.parametrize(
    ("gpus", "seconds", "name"),
    [
        (1, 30.0, "1 GPU, under 10 min"),
        (4, 600.0, "2 to 4 GPUs, under 1 h"),
        (64, 1e6, "more than 32 GPUs, 12 h and more"),
    ],
)
def test_size_classes(gpus: int, seconds: float, name: str) -> None:
    assert size_class(gpus, seconds) == name


def test_a_cluster_is_guessed_from_the_gpus_that_jobs_held_at_once() -> None:
    both = [
        job("1", 0, 8, HOUR, ran_on="a100"),
        job("2", 60, 8, HOUR, ran_on="a100"),
        job("3", 9000, 1, HOUR, ran_on="v100"),
    ]
    shape = derive_shape(both)
    kinds = [[gpu.type for gpu in node.gpus] for node in shape.nodes]
    assert kinds == [["a100"] * 8, ["a100"] * 8, ["v100"]]
    assert "a100:2x8,v100:1x1" in shape.notes[0]
    assert most_gpus_held(both) == 16
    one_after_another = [job("1", 0, 8, HOUR), job("2", HOUR, 8, HOUR)]
    assert most_gpus_held(one_after_another) == 8


SCONTROL = """NodeName=gpu1 Arch=x86_64 CoresPerSocket=16
   CPUAlloc=8 CPUEfctv=64 CPUTot=64 CPULoad=0.10
   AvailableFeatures=fast ActiveFeatures=fast
   Gres=gpu:A100:4(S:0-1)
   RealMemory=512000 AllocMem=0 FreeMem=1 Sockets=2 Boards=1
   State=IDLE+DRAIN ThreadsPerCore=2
   Partitions=gpu
   Reason=NodeName=gpu9 broken [root@2026-10-01]

NodeName=cpu1 CoresPerSocket=16 CPUTot=64 RealMemory=1000 State=IDLE
"""


SHOWN = pytest.mark.parametrize(
    "text",
    [
        pytest.param(SCONTROL, id="scontrol show node"),
        pytest.param(
            "gpu1|64|512000|gpu:A100:4(S:0-1)|fast\ngpu1|64|512000|gpu:A100:4|fast\ncpu1|64|1000|(null)|", id="sinfo"
        ),
        pytest.param("NODELIST|CPUS|MEMORY|GRES\ngpu1|64|512000|gpu:A100:4\n", id="sinfo with headings"),
    ],
)


@SHOWN
def test_nodes_are_read_from_a_pipe_as_a_shell_makes_it(text: str, tmp_path: Path) -> None:
    """`--cluster <(scontrol show node)`."""
    pipe = tmp_path / "63"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    assert len(read_shape(str(pipe)).nodes) == 1
    writer.join(10)


@SHOWN
def test_nodes_are_read_from_what_slurm_prints(text: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.txt"
    file.write_text(text)
    shape = read_shape(str(file))
    (node,) = shape.nodes
    assert (node.name, node.total.cpus, node.total.memory, node.gpu_types) == ("gpu1", 64, 512000, frozenset({"a100"}))
    assert node.used.gpus == 0
    assert len(shape.notes) == ("DRAIN" in text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "NODELIST NODES PARTITION STATE\ngpu1 1 gpu idle", "nodes.txt:1: expected what 'sinfo -h", id="plain sinfo"
        ),
        pytest.param("cpu1|64|1000|(null)", "none of its nodes has a GPU", id="no GPU"),
        pytest.param("gpu1|64|1000|gpu:999999999", "up to 64 GPUs each", id="GPUs that fill the memory, by sinfo"),
        pytest.param(
            "NodeName=gpu1 CPUTot=4 RealMemory=1000 Gres=gpu:a100:999999999 State=IDLE\n",
            "expected up to 64 GPUs",
            id="GPUs that fill the memory, by scontrol",
        ),
        pytest.param("gpu1|many|1000|gpu:4", "nodes.txt:1: expected NODES|CPUS|MEMORY|GRES", id="no number"),
    ],
)
def test_what_are_no_nodes(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.txt"
    file.write_text(text)
    with pytest.raises(TraceError) as raised:
        read_shape(str(file))
    assert words in str(raised.value)
