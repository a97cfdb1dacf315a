"""Jobs with parts of GPUs through whole rounds on a simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.simulated import JobSubmit, Submission
from slurmsched.model import JobId, Request
from slurmsched.settings.definition import Manage, Policy
from tests.builders import node
from tests.unit.daemon.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, nodes=[node("n1", 8, shards=10), node("n2", 8, shards=10), node("cpu", 0)])
    made.settings = replace(made.settings, policy=Policy("fgd", "fifo"), manage=Manage(partitions=("gpu",)))
    made.cluster._hook = JobSubmit(Manage(partitions=("gpu",)), lambda _now: True, parts=True)
    return made


def submit(world: World, request: Request) -> JobId:
    return world.simulated.submit(Submission("alice", request, 86400.0))


def test_shards_gather_and_the_other_node_stays_whole(world: World) -> None:
    parts = [submit(world, Request(shards=4, cpus=1)) for _ in range(5)]
    singles = [submit(world, Request(gpus=1, gpus_per_node=1, cpus=2)) for _ in range(3)]
    gang = submit(world, Request(gpus=8, gpus_per_node=8, cpus=8))
    alone = submit(world, Request(cpus=4))
    world.rounds(2)
    where = world.where()
    assert len({where[job] for job in (*parts, *singles)}) == 1
    assert where[gang] not in {(), where[parts[0]]}
    assert where[alone] == ("cpu",)


def test_a_second_round_changes_nothing(world: World) -> None:
    for count in (3, 3, 7, 10):
        submit(world, Request(shards=count, cpus=1))
    world.rounds(1)
    report = world.round()
    assert not [op for op in report.result.plan.operations if op.permitted]


def test_what_slurm_chose_is_what_was_foreseen(world: World) -> None:
    jobs = [submit(world, Request(shards=count, cpus=1)) for count in (7, 4, 6, 3)]
    first = world.round()
    foreseen = {job: first.result.decision.targets[job].shares[0].indices for job in jobs}
    seen = {job.id: job.shares[0].indices for job in world.simulated.observe().jobs}
    assert seen == foreseen


def test_a_job_moves_so_that_a_wide_one_starts_and_keeps_what_it_had_done(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=[node("n1", 8, shards=10), node("n2", 8, shards=10)])
    policy = Policy("fgd", "fifo", defragment=True)
    guards = replace(world.settings.guards, restart_cost=60.0)
    world.settings = replace(world.settings, policy=policy, manage=Manage(partitions=("gpu",)), guards=guards)
    world.cluster._hook = JobSubmit(Manage(partitions=("gpu",)), lambda _now: True, parts=True)
    small = [world.submit(1), world.submit(7)]
    world.rounds(2)
    assert {world.where()[job] for job in small} == {("n1",)}
    extra = world.submit(5)
    world.rounds(1)
    world.cluster.life.cancel(world.cluster.jobs[small[1]], world.clock.now())
    world.later(60)
    gang = world.submit(8)
    world.rounds(3)
    where = world.where()
    assert where[gang] == ("n1",)
    assert where[small[0]] == where[extra] == ("n2",)
    moved = next(job for job in world.simulated.observe().jobs if job.id == small[0])
    assert moved.restarts == 1
    assert world.cluster.jobs[small[0]].work.saved > 0
