"""The race: both clusters get the same jobs, rounds follow the rules, and the figures come out the same each time."""

from __future__ import annotations

import click
import numpy as np
import pytest

from slurmsched.backends.simulated import Submission
from slurmsched.cli.demo import demo
from slurmsched.demo.race import (
    Arrival,
    RaceError,
    RaceFrame,
    WorkloadParameters,
    cluster_nodes,
    generate_arrivals,
    run_race,
)
from slurmsched.knowledge import shipped_profiles
from slurmsched.model import JobState, Request, Result
from slurmsched.settings.definition import PolicySettings, Settings

NODES = cluster_nodes("v100:1x8,k80:1x8")
WORKLOAD = generate_arrivals(
    np.random.default_rng(2), NODES, 25, WorkloadParameters(size_weights={1: 5, 2: 3, 4: 2, 8: 1}, load=1.5)
)


def image_job(at: float, gpus: int, work: float) -> Arrival:
    request = Request(gpus=gpus, gpus_per_node=gpus, cpus=3 * gpus, memory=62_500 * gpus)
    return Arrival(at, Submission("alice", request, work, 86_400, comment="synsched:model=resnet18,ckpt=usr1"))


def test_both_finish_every_job_and_the_figures_are_the_same_each_time() -> None:
    first = run_race(NODES, WORKLOAD)
    assert first.plain.finished == first.rounds.finished == first.plain.jobs == first.rounds.jobs == 25
    assert first == run_race(NODES, WORKLOAD)


def test_what_people_are_shown_is_at_least_as_good_as_plain_slurm_in_each_column() -> None:
    """By the defaults of `synsched demo`. Other seeds are not as good in each: docs/unified.md."""
    shown = {option.name: option.default for option in demo.params if isinstance(option, click.Option)}
    nodes = cluster_nodes(shown["cluster"])
    result = run_race(nodes, generate_arrivals(np.random.default_rng(shown["seed"]), nodes, shown["jobs"]))
    for column in ("mean_jct", "median_jct", "p99_jct", "makespan", "worst_fairness"):
        assert getattr(result.rounds, column) <= getattr(result.plain, column), column
    assert result.rounds.finished == result.plain.finished == shown["jobs"]


def test_plain_slurm_never_restarts_a_job_and_has_no_rounds() -> None:
    plain = run_race(NODES, WORKLOAD).plain
    assert (plain.restarts, plain.rounds) == (0, 0)


def test_every_operation_of_the_rounds_is_done_as_read_back() -> None:
    became: list[Result] = []
    run_race(NODES, WORKLOAD, on_round=lambda frame: became.extend(o.result for o in frame.report.outcomes))
    assert became
    assert set(became) <= {Result.DONE, Result.OVERTAKEN}


def test_no_job_of_the_rounds_runs_slower_than_at_its_gpu_share() -> None:
    known, nodes = shipped_profiles(), {node.name: node for node in NODES}

    def check(frame: RaceFrame) -> None:
        for job in frame.report.snapshot.jobs_in_state(JobState.RUNNING):
            assert known.relative_speed(job, job.allocations, nodes) >= 1.0 - 1e-9

    run_race(NODES, WORKLOAD, on_round=check)


def test_a_running_job_has_exactly_what_was_decided_for_it() -> None:
    def check(frame: RaceFrame) -> None:
        running = {job.id: job for job in frame.report.snapshot.jobs_in_state(JobState.RUNNING)}
        for target in frame.report.result.decision.targets.values():
            if target.job in running:
                decided = {share.node: share.resources for share in target.allocations}
                assert {share.node: share.resources for share in running[target.job].allocations} == decided

    run_race(NODES, WORKLOAD, on_round=check)


def test_a_lone_cpu_hungry_job_is_given_the_cores_nobody_else_wants() -> None:
    comparison = run_race(cluster_nodes("v100:1x8"), [image_job(0.0, 2, 10_000.0)])
    assert comparison.plain.mean_jct == 10_000
    assert comparison.rounds.mean_jct == pytest.approx(10_000 / 2.1, abs=300)


def test_a_frame_shows_both_clusters_at_the_same_moment() -> None:
    frames: list[RaceFrame] = []
    run_race(NODES, WORKLOAD[:5], on_round=frames.append)
    assert [frame.elapsed for frame in frames] == sorted(frame.elapsed for frame in frames)
    assert all(frame.plain.time == frame.report.snapshot.time for frame in frames)


def test_the_policy_of_the_settings_decides() -> None:
    settings = Settings(policy=PolicySettings(system="hadar"))
    names: set[str] = set()
    run_race(NODES, WORKLOAD[:5], settings, on_round=lambda frame: names.add(frame.report.result.decision.policy))
    assert names == {"hadar"}


def test_a_job_that_can_never_run_is_said_and_not_waited_for() -> None:
    with pytest.raises(RaceError, match="1 job can never run"):
        run_race(NODES, [image_job(0.0, 9, 10.0)])
