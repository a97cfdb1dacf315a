"""Gandiva_fair's figures, and what they are measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.experiments import Task
from slurmsched.experiments.gandiva.plain import plain_utilisation
from slurmsched.experiments.gandiva.slicing import SUSPENDED, Slicing, had_by_user, sliced
from slurmsched.experiments.table import EXPERIMENTS, reproduce
from slurmsched.knowledge import sample_speedups
from slurmsched.policies.gandiva_fair import Strider
from slurmsched.simulation import World
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import load_cluster


def queue(*sizes: int) -> list[Strider]:
    return [Strider(str(place), 1.0, size) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "servers", "used"),
    [
        pytest.param((4,), 1, 1.0, id="one gang that fills the server"),
        pytest.param((1, 1), 1, 0.5, id="too few jobs"),
        pytest.param((1, 4), 1, 0.25, id="nobody passes a gang that does not fit"),
        pytest.param((3, 3), 2, 0.75, id="a gang lies on one server"),
    ],
)
def test_plain_stride_leaves_gpus_idle(sizes: tuple[int, ...], servers: int, used: float) -> None:
    assert plain_utilisation(queue(*sizes), servers, 4, 4) == pytest.approx(used)


def two_users() -> World:
    jobs = tuple(TraceJob(str(n), 0.0, 4, 1e7, model="vae", user=f"user{n % 2}") for n in range(4))
    return World(load_cluster("k80:1x4").nodes, Trace("two users", jobs), sample_speedups())


@pytest.mark.parametrize("restart", [0.0, 15.0])
def test_what_users_had_leaves_out_what_restarts_took(restart: float) -> None:
    run = sliced(two_users(), Slicing(60.0, restart), 1200.0)
    had = had_by_user(run, restart)
    assert {*had} == {"user0", "user1"}
    slices = 20 - 4  # the first of each job costs nothing
    assert sum(kinds["k80"] for kinds in had.values()) == pytest.approx(4 * (1200 - restart * slices), rel=0.02)


def test_a_run_ends_when_it_is_told_to() -> None:
    run = sliced(two_users(), SUSPENDED, 330.0)
    assert (run.rounds, {job.state for job in run.jobs}) == (6, {"UNFINISHED"})
    assert sum(job.service for job in run.jobs) == pytest.approx(4 * 330, rel=0.01)


def test_everybody_is_near_the_fair_share_on_one_kind_of_gpu(tmp_path: Path) -> None:
    assert reproduce("gandiva-homogeneous", Task(tmp_path)).ok


def test_both_experiments_are_there() -> None:
    for name in ("gandiva-homogeneous", "gandiva-trading"):
        assert EXPERIMENTS[name].load().__name__ == name.removeprefix("gandiva-")
