"""The jobs that hold the simulator against Slurm: what is drawn and submitted, what a sleeper does, what counts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from slurmsched.backends.simulated import SimulatedBackend, VirtualClock, VirtualCluster
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.fidelity.validation import (
    LONGEST,
    SHORTEST,
    USUAL_ROUND,
    Fidelity,
    LiveJobResult,
    SleeperJobs,
    compare_with_simulation,
    generate_workload,
    hint_comment,
    shorten_period,
)
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.profiles import shipped_profiles
from slurmsched.settings import PolicySettings, Settings
from slurmsched.template_files import render
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster

NODES = load_cluster("v100:2x8:24:64G,t4:1x2:8:32G").nodes
KNOWN = {node.name: node for node in NODES}


def drawn(jobs: int = 60, seed: int = 1) -> tuple[TraceJob, ...]:
    return generate_workload(NODES, jobs, np.random.default_rng(seed)).jobs


def test_every_drawn_job_fits_a_node_with_its_proportional_share() -> None:
    for job in drawn():
        homes = [node for node in NODES if job.gpu_type in node.gpu_types]
        assert job.gpus <= max(len(node.gpus) for node in homes)
        share = homes[0].proportional_share(job.gpus)
        assert (job.cpus, job.memory) == (share.cpus, share.memory)
        assert SHORTEST - 0.1 <= job.duration <= LONGEST + 0.1


def test_work_arrives_somewhat_faster_than_the_gpus_do_it() -> None:
    jobs = drawn(4000)
    arrived = sum(job.gpus * job.duration for job in jobs) / jobs[-1].arrival
    assert arrived == pytest.approx(1.3 * sum(len(node.gpus) for node in NODES), rel=0.1)


def test_where_rounds_are_longer_the_same_jobs_are_too() -> None:
    usual, longer = drawn(), generate_workload(NODES, 60, np.random.default_rng(1), 4 * USUAL_ROUND).jobs
    for job, of_longer in zip(usual, longer, strict=True):
        assert of_longer.duration == pytest.approx(4 * job.duration, abs=0.25)
        assert of_longer.arrival == pytest.approx(4 * job.arrival, abs=0.5)
        assert (of_longer.gpus, of_longer.model, of_longer.cpus) == (job.gpus, job.model, job.cpus)


def test_another_seed_draws_other_jobs_and_the_same_the_same() -> None:
    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)


def test_a_sleeper_asks_for_what_its_job_asks_and_says_how_it_checkpoints(tmp_path: Path) -> None:
    asked: list[tuple[Sequence[str], str]] = []

    def sbatch(options: Sequence[str], script: str) -> str:
        asked.append((options, script))
        return "17"

    job = TraceJob("3", 0.0, 2, 40.0, "resnet18", gpu_type="v100", cpus=6, memory=16384)
    assert SleeperJobs(shipped_profiles(), KNOWN, tmp_path, sbatch).submit_job(job) == "17"
    ((options, script),) = asked
    assert {
        "--gres=gpu:v100:2",
        "--cpus-per-task=6",
        "--mem=16384M",
        "--requeue",
        f"--comment={hint_comment(job)}",
    } <= set(options)
    assert "work=40000" in script
    speeds = [int(word) for word in script.split("speeds=(")[1].split(")")[0].split()]
    assert len(speeds) == 25
    assert speeds[6] == 1000  # its share
    assert speeds[1] < 1000 < speeds[18]


def _sleeper(folder: Path, seconds: float, cpus: int = 1) -> subprocess.Popen[bytes]:
    script = render("sleeper.sh", seconds=seconds, folder=folder, speeds=[1000, 1000, 4000])
    environment = {**os.environ, "SLURM_JOB_ID": "5", "SLURM_CPUS_ON_NODE": str(cpus)}
    return subprocess.Popen(["bash", "-c", script], env=environment)


def test_a_sleeper_with_more_cpus_is_done_sooner(tmp_path: Path) -> None:
    began = time.monotonic()
    assert _sleeper(tmp_path, 2.0, cpus=2).wait(30) == 0
    quick = time.monotonic() - began
    assert _sleeper(tmp_path, 2.0, cpus=1).wait(30) == 0
    assert 0.5 <= quick < time.monotonic() - began - quick


def test_a_sleeper_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = _sleeper(tmp_path, 60.0)
    time.sleep(1.0)  # it has to have set its trap
    while not (tmp_path / "5").exists() or not (tmp_path / "5").read_text():
        first.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
    first.kill()
    first.wait(10)
    reached = int((tmp_path / "5").read_text())
    assert 500 <= reached < 60_000
    (tmp_path / "5").write_text("59500")
    assert _sleeper(tmp_path, 60.0).wait(20) == 0
    assert not (tmp_path / "5").exists()


def test_a_quick_cluster_waits_for_everything_in_proportion() -> None:
    usual = Settings()
    quick = shorten_period(usual, 15.0)
    assert quick.rounds.period == 15.0
    factor = 15.0 / usual.rounds.period
    assert quick.policy.las_queues == tuple(bound * factor for bound in usual.policy.las_queues)
    assert quick.checkpoint.lead == usual.checkpoint.lead * factor
    assert quick.tickets.quantum == usual.tickets.quantum * factor
    assert quick.tickets.wide_quantum == usual.tickets.wide_quantum * factor
    assert quick.guards.restart_cost == usual.guards.restart_cost * factor
    assert quick.guards.min_run_time == usual.guards.min_run_time * factor


def site() -> SchedulerContext:
    clock = VirtualClock(0.0)
    settings = shorten_period(Settings(policy=PolicySettings(system="synergy")), USUAL_ROUND)
    return SchedulerContext(settings, SimulatedBackend(VirtualCluster(NODES), clock), Knowledge())


def test_a_lone_job_is_foretold_to_the_second_and_a_slow_slurm_is_not_faithful() -> None:
    trace = generate_workload(NODES, 2, np.random.default_rng(3))
    alone = type(trace)(trace.name, trace.jobs[:1])
    (job,) = alone.jobs
    took = job.duration + 15.0
    lived = {job.id: LiveJobResult(0.0, took, 0)}
    found = compare_with_simulation(alone, site(), NODES, lived)
    assert found.simulated_avg_jct_s == pytest.approx(job.duration, abs=16.0)
    assert np.subtract(found.avg_jct_range_s, found.simulated_avg_jct_s) == pytest.approx([-0.5, 2.0])
    assert np.subtract(found.makespan_range_s, found.simulated_makespan_s) == pytest.approx([-0.5, 2.0])
    slow = compare_with_simulation(alone, site(), NODES, {job.id: LiveJobResult(0.0, 2 * took, 0)})
    assert slow.avg_jct_ratio == pytest.approx(found.avg_jct_ratio / 2)
    assert not slow.ok


def test_simulated_jobs_have_the_time_limits_that_slurm_gave_them() -> None:
    """By its limit a job of one GPU would end after the place of the gang before it is free, so that it waits."""
    gpus = {node.name: len(node.gpus) for node in NODES if node.gpus[0].type == "t4"}
    assert gpus == {"t4-1": 2}
    jobs = tuple(
        TraceJob(str(number), 0.0, wide, seconds, "resnet18", gpu_type="t4", gpus_per_node=wide, cpus=1, memory=1024)
        for number, wide, seconds in ((1, 1, 60.0), (2, 2, 30.0), (3, 1, 10.0))
    )
    ends = list[dict[str, float]]()
    for limit in (None, 3600):
        lived = {job.id: LiveJobResult(at, 200.0, 0, limit) for job, at in zip(jobs, (1.0, 2.0, 20.0), strict=True)}
        found = compare_with_simulation(Trace("t", jobs), site(), NODES, lived)
        ends.append({job.job: job.simulated_end_s for job in found.by_job})
    by_duration, by_limit = ends
    assert by_duration["3"] < by_duration["1"] < by_duration["2"]
    assert by_limit["1"] < by_limit["2"] < by_limit["3"]


@pytest.mark.parametrize(
    ("ended", "jct", "makespan", "ok"),
    [
        pytest.param(30, (0.96, 0.96), (1.04, 1.04), True, id="both near"),
        pytest.param(30, (0.9, 1.2), (0.8, 1.04), True, id="chance decides, and this was one of its outcomes"),
        pytest.param(30, (0.94, 0.94), (1.0, 1.0), False, id="mean JCT too short"),
        pytest.param(30, (1.0, 1.0), (1.06, 1.2), False, id="makespan too long, whatever chance decides"),
        pytest.param(29, (1.0, 1.0), (1.0, 1.0), False, id="a job never ended"),
    ],
)
def test_what_is_faithful(ended: int, jct: tuple[float, float], makespan: tuple[float, float], ok: bool) -> None:
    ranges = {
        "avg_jct_range_s": (100.0 * jct[0], 100.0 * jct[1]),
        "makespan_range_s": (500.0 * makespan[0], 500.0 * makespan[1]),
    }
    found = Fidelity(30, ended, 100.0, 100.0 * jct[0], jct[0], 500.0, 500.0 * makespan[0], makespan[0], 2, 2, **ranges)
    assert found.ok is ok
