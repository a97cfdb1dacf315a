"""What the daemon does with copies, held against the experiment of the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.experiments.mixed.replay_policies import HadarEReplayPolicy
from slurmsched.experiments.mixed.workloads import (
    CLUSTER_NODES,
    estimated_throughputs,
    mix_jobs,
    one_gpu_nodes,
    replay_live,
)
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import daemon_rounds
from slurmsched.simulation.replay import GpuWorkers, ReplayJob, RoundSemantics

THREE_TYPES = GpuWorkers(("v100", "t4", "t4", "k80", "k80"), tuple(range(5)))
THEIR_ROUNDS = RoundSemantics(360.0, exchange_seconds=5.0)
GUESSED = {"v100": 4.0, "t4": 2.0, "k80": 1.0}
REAL = {"wide": (3.1, 2.3, 1.2), "narrow": (4.6, 2.2, 0.8), "even": (2.9, 2.1, 1.5), "fast": (6.1, 3.4, 2.1)}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param({"wide": 8_000, "fast": 9_000}, id="two jobs"),
        pytest.param({"wide": 8_000, "narrow": 5_000, "even": 3_000, "fast": 9_000}, id="four jobs"),
    ],
)
def test_what_the_daemon_does_with_copies_is_worth_its_experiment(steps: dict[str, int]) -> None:
    """Total time and mean completion time with all guards, where the rates of models are guessed at first."""
    jobs = [
        ReplayJob(name, 1, count, dict(zip(GUESSED, REAL[name], strict=True)), model=name)
        for name, count in steps.items()
    ]
    estimated = [replace(job, rates=GUESSED) for job in jobs]
    rounds = replace(daemon_rounds(10.0, 360.0), exchange_seconds=5.0)
    live = replay_live("hadare", jobs, THREE_TYPES, rounds, estimated, copies=len(THREE_TYPES))
    theirs = replay(jobs, THREE_TYPES, HadarEReplayPolicy(dict.fromkeys(steps, GUESSED)), THEIR_ROUNDS)
    assert theirs.makespan / live.makespan >= 0.97
    assert theirs.mean_jct / live.mean_jct >= 0.97


@pytest.mark.parametrize("mix", ["M-3", "M-8"])
@pytest.mark.parametrize("draw", [420, 430, 440])
def test_also_on_the_five_types_of_the_laboratory(mix: str, draw: int) -> None:
    """Jobs end in the middle of rounds there. While its nodes waited for the next round, M-8 of draw 440 took 5.5 %
    longer than in the experiment."""
    nodes = CLUSTER_NODES["lab"]
    jobs = mix_jobs(mix, nodes, draw)
    estimates = {job.model: estimated_throughputs(job.model, nodes) for job in jobs}
    estimated = [replace(job, rates=estimates[job.model]) for job in jobs]
    rounds = replace(daemon_rounds(10.0, 360.0), exchange_seconds=5.0)
    live = replay_live("hadare", jobs, one_gpu_nodes(nodes), rounds, estimated, copies=len(nodes))
    theirs = replay(jobs, one_gpu_nodes(nodes), HadarEReplayPolicy(estimates), THEIR_ROUNDS)
    assert theirs.makespan / live.makespan >= 0.97
