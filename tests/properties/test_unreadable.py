"""Whatever cannot be read at whichever look: nothing of ours is lost, and nobody stays held without an owner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.daemon.cleanup import release_all
from slurmsched.model import JobState, Request, Snapshot, decode
from slurmsched.rounds.specs import equivalent, spec_of
from tests.builders import node
from tests.unit.daemon.hiding import Hiding
from tests.unit.daemon.world import World

LOOKS = 40
EVERYBODY = [str(number) for number in range(1, 8)]


def busy(folder: Path) -> tuple[World, Hiding]:
    """Two nodes, some jobs that run and have had service, newcomers that displace them, one that nobody held."""
    world = World(folder, nodes=[node("n1"), node("n2")])
    backend = Hiding(world.simulated)
    world.backend = backend
    for gpus in (8, 4, 4):
        world.submit(gpus, "ckpt=usr1@30")
    world.rounds(1)
    world.later(3600.0)
    for gpus in (8, 6, 2):
        world.submit(gpus, "ckpt=usr1@30")
    world.hook_holds = False
    world.submit(4, "ckpt=usr1@30")
    return world, backend


def nothing_is_lost(world: World, backend: Hiding) -> None:
    """Once all can be read again every hold has its owner and every request its original; all can be given back."""
    backend.choose, backend.hidden = None, frozenset()
    world.round()
    seen = world.simulated.observe()
    rows = {row["id"]: row for row in world.store.database.rows("SELECT id, held_by_us, reshaped, original FROM jobs")}
    held = {job.id for job in seen.jobs_in_state(JobState.PENDING) if job.hold.value != "none"}
    assert {job for job in held if not rows[job]["held_by_us"]} == set()
    for job in seen.jobs_in_state(JobState.PENDING):
        asked = world.cluster.jobs[job.id].submission.request
        assert equivalent(spec_of(decode(Request, rows[job.id]["original"])), spec_of(asked))
        assert rows[job.id]["reshaped"] or equivalent(spec_of(job.current_request), spec_of(asked))
    assert world.store.journal.open_intents() == ()
    release_all(world.backend, world.store, world.clock, 120.0)
    assert (world.held(), world.pinned()) == (set(), set())


def hiding_at(plan: list[frozenset[str]]) -> Callable[[Snapshot], frozenset[str]]:
    looks = iter(plan)
    return lambda _seen: next(looks, frozenset())


@given(st.lists(st.frozensets(st.sampled_from(EVERYBODY)), max_size=LOOKS))
@settings(deadline=None, max_examples=25)
def test_any_records_unreadable_at_any_look_lose_nothing(plan: list[frozenset[str]]) -> None:
    with TemporaryDirectory() as folder:
        world, backend = busy(Path(folder))
        backend.choose = hiding_at(plan)
        world.rounds(3)
        nothing_is_lost(world, backend)
        world.store.close()


@pytest.mark.parametrize(
    "unreadable",
    [pytest.param(EVERYBODY, id="all"), pytest.param(EVERYBODY[:3], id="all that run"), pytest.param(["4"], id="one")],
)
def test_records_unreadable_at_each_look_in_turn_lose_nothing(unreadable: list[str]) -> None:
    look, looks = 0, 1
    while look < looks:
        with TemporaryDirectory() as folder:
            world, backend = busy(Path(folder))
            before = backend.looks
            backend.choose = hiding_at([frozenset()] * look + [frozenset(unreadable)])
            world.rounds(2)
            looks = backend.looks - before
            nothing_is_lost(world, backend)
            world.store.close()
        look += 1
    assert look > 5
