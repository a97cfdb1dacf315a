"""Jobs with parts of GPUs through whole rounds on a simulated cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.simulated import JobSubmitHook, SimulatedBackend, Submission
from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import JobId, Node, Operation, Outcome, Request
from slurmsched.settings.definition import ManageSettings, PolicySettings
from slurmsched.store.read_only import open_read_only
from tests.builders import node
from tests.unit.daemon.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, nodes=[node("n1", 8, shards=10), node("n2", 8, shards=10), node("cpu", 0)])
    made.settings = replace(
        made.settings, policy=PolicySettings("fgd", "fifo"), manage=ManageSettings(partitions=("gpu",))
    )
    made.cluster._hook = JobSubmitHook(ManageSettings(partitions=("gpu",)), lambda _now: True, parts=True)
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
    foreseen = {job: first.result.decision.targets[job].allocations[0].indices for job in jobs}
    seen = {job.id: job.allocations[0].indices for job in world.simulated.observe().jobs}
    assert seen == foreseen


def test_a_job_moves_so_that_a_wide_one_starts_and_keeps_what_it_had_done(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=[node("n1", 8, shards=10), node("n2", 8, shards=10)])
    policy = PolicySettings("fgd", "fifo", defragment=True)
    guards = replace(world.settings.guards, restart_cost=60.0)
    world.settings = replace(world.settings, policy=policy, manage=ManageSettings(partitions=("gpu",)), guards=guards)
    world.cluster._hook = JobSubmitHook(ManageSettings(partitions=("gpu",)), lambda _now: True, parts=True)
    small = [world.submit(1), world.submit(7)]
    world.rounds(2)
    assert {world.where()[job] for job in small} == {("n1",)}
    extra = world.submit(5)
    world.rounds(1)
    world.cluster.lifecycle.cancel(world.cluster.jobs[small[1]], world.clock.now())
    world.later(60)
    gang = world.submit(8)
    world.rounds(3)
    where = world.where()
    assert where[gang] == ("n1",)
    assert where[small[0]] == where[extra] == ("n2",)
    moved = next(job for job in world.simulated.observe().jobs if job.id == small[0])
    assert moved.restarts == 1
    assert world.cluster.jobs[small[0]].work.checkpointed > 0


def packing(folder: Path, nodes: list[Node]) -> World:
    """Pairs are made: beside b, a keeps 0.8 of its speed, and b 0.6 beside a."""
    made = World(folder, nodes=nodes)
    made.settings = replace(
        made.settings, policy=PolicySettings("tesserae-packed", "fifo"), manage=ManageSettings(partitions=("gpu",))
    )
    made.knowledge = Knowledge(
        {model: _beside(model, other) for model, other in (("a", {"b": 0.8}), ("b", {"a": 0.6}))}
    )
    made.cluster._hook = JobSubmitHook(ManageSettings(partitions=("gpu",)), lambda _now: True, parts=True)
    return made


def _beside(model: str, others: dict[str, float]) -> Profile:
    return Profile(model, "", {}, "by hand", {"v100": Scaling((1,), (1.0,), beside=others)})


def half(world: World, model: str, hint: str = "", **other: object) -> JobId:
    said = f"synsched:model={model}{hint}"
    return world.simulated.submit(Submission("alice", Request(shards=5, cpus=1), 86400.0, comment=said, **other))


def devices(world: World) -> dict[JobId, set[tuple[str, int]]]:
    return {job.id: {(s.node, i) for s in job.allocations for i in s.indices} for job in world.simulated.observe().jobs}


def test_pairs_share_a_gpu_once_all_are_taken_and_each_says_how_fast_it_is(tmp_path: Path) -> None:
    packed = packing(tmp_path, [node("n1", 1, shards=10), node("n2", 1, shards=10)])
    hosts = [half(packed, "a"), half(packed, "a")]
    packed.rounds(1)
    guests, refusing = [half(packed, "b"), half(packed, "b")], half(packed, "b", ",pack=no")
    packed.rounds(1)
    decision = packed.round().result.decision
    where = devices(packed)
    assert {frozenset(where[job]) for job in hosts} == {frozenset(where[job]) for job in guests}
    assert {decision.targets[job].speed for job in hosts} == {0.8}
    assert {decision.targets[job].speed for job in guests} == {0.6}
    assert not where[refusing]


def test_whoever_has_no_partner_has_a_whole_gpu_and_pairs_of_a_node_start_in_one_round(tmp_path: Path) -> None:
    packed = packing(tmp_path, [node("n1", 4, shards=10)])
    alone = [half(packed, "a"), half(packed, "a")]
    packed.rounds(1)
    assert sorted(len(on) for on in devices(packed).values()) == [1, 1]
    first = [half(packed, model) for model in "aaabbbbb"]
    packed.rounds(2)
    where = devices(packed)
    users = Counter(device for on in where.values() for device in on)
    assert users == {("n1", 0): 1, ("n1", 1): 1, ("n1", 2): 2, ("n1", 3): 2}
    asked = {job.id: job.current_request.shards for job in packed.simulated.observe().jobs if job.allocations}
    assert asked == dict.fromkeys(alone, 10) | dict.fromkeys((job for job in first if where[job]), 5)
    decision = packed.round().result.decision
    assert sorted(decision.targets[job].speed for job in first if where[job]) == [0.6, 0.6, 0.8, 0.8]


def test_who_gives_way_to_a_newcomer_goes_on_beside_it_and_alone_again_later(tmp_path: Path) -> None:
    """Both jobs of a node give way in one round; the newcomer that shares with nobody gets a GPU of its own."""
    world = packing(tmp_path, [node("n1", 2, shards=10)])
    world.settings = replace(world.settings, policy=PolicySettings("tesserae-packed", "las"))
    old, other = half(world, "a", ",ckpt=usr1@30,duration=2d"), half(world, "x", ",ckpt=usr1@30")
    world.rounds(1)
    world.later(2 * 86400.0 / 10)
    alone, newcomer = half(world, "x", ",pack=no"), half(world, "b", ",duration=2d")
    decision = world.round().result.decision
    assert decision.victims == {old: alone, other: newcomer}
    world.rounds(2)
    where = devices(world)
    assert not where[other]
    assert where[old] == where[newcomer] != where[alone] != set()
    jobs = {job.id: job for job in world.simulated.observe().jobs}
    assert {name: jobs[name].current_request.shards for name in (old, newcomer, alone)} == {
        old: 5,
        newcomer: 5,
        alone: 10,
    }
    assert world.cluster.jobs[old].work.checkpointed > 0
    world.cluster.lifecycle.cancel(world.cluster.jobs[alone], world.clock.now())
    world.cluster.lifecycle.cancel(world.cluster.jobs[other], world.clock.now())
    world.later(3600)
    world.rounds(3)
    where = devices(world)
    assert where[old] | where[newcomer] == {("n1", 0), ("n1", 1)}
    assert len(where[old]) == len(where[newcomer]) == 1


class Interfered(SimulatedBackend):
    """On this cluster somebody else's half of a GPU starts right before the first thing that a round does."""

    stranger: JobId = ""

    def execute(self, operations: Sequence[Operation]) -> tuple[Outcome, ...]:
        if not self.stranger:
            theirs = Submission("bob", Request(shards=5, cpus=1), 86400.0, partitions=("debug",))
            self.stranger = self.submit(theirs)
            self.observe()
        return super().execute(operations)


def test_wide_jobs_share_a_gpu_on_each_of_their_nodes(tmp_path: Path) -> None:
    """On the first node another device is the first with half of it left."""
    packed = packing(tmp_path, [node("n1", 2, shards=10), node("n2", 1, shards=10)])
    wide = Request(shards=10, nodes=2, cpus=2)
    most = packed.simulated.submit(Submission("alice", Request(shards=7, cpus=1, pinned=frozenset({"n1"})), 86400.0))
    packed.rounds(1)
    host, guest = (
        packed.simulated.submit(Submission("alice", wide, 86400.0, comment=f"synsched:model={model}")) for model in "ab"
    )
    packed.rounds(2)
    where = devices(packed)
    assert where[most] == {("n1", 0)}
    assert where[host] == where[guest] == {("n1", 1), ("n2", 0)}


def test_a_pair_that_slurm_did_not_put_together_is_noticed_and_told(tmp_path: Path) -> None:
    world = packing(tmp_path, [node("n1", 2, shards=10, partitions=frozenset({"gpu", "debug"}))])
    world.cluster.widens_shards = False
    host = half(world, "a")
    world.rounds(1)
    guest = half(world, "b")
    world.backend = between = Interfered(world.cluster, world.clock)
    report = world.round()
    assert report.result.decision.targets[guest].beside == (host,)
    where = devices(world)
    assert where[between.stranger] == where[host] == {("n1", 0)}
    assert where[guest] == {("n1", 1)}
    with open_read_only(world.path) as opened:
        assert opened.device_mismatches(report.id) == 1
    told = world.round().result.decision.targets[host]
    assert told.reasons[0].sentence == f"shares GPU 0 of n1 with job {between.stranger}, which no round placed there"
