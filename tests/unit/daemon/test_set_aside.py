"""Jobs that cannot be read for a while: nothing of ours is lost on them, and they are no better off for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.daemon.cleanup import release_all
from slurmsched.model import Hold, JobState, Result, Verb
from slurmsched.rounds.set_aside import MAX_HOLD
from slurmsched.settings.definition import ManageSettings, Mode
from tests.builders import node
from tests.unit.daemon.hiding import Hiding
from tests.unit.daemon.world import PERIOD, World

PARTITION = "gpu"


def hiding(folder: Path, **other: object) -> tuple[World, Hiding]:
    world = World(folder, **other)  # type: ignore[arg-type]  # what a test says of its world
    world.settings = replace(world.settings, manage=ManageSettings(partitions=(PARTITION,)))
    backend = Hiding(world.simulated)
    world.backend = backend
    return world, backend


def claims(world: World) -> dict[str, tuple[int, int]]:
    rows = world.store.database.rows("SELECT id, held_by_us, reshaped FROM jobs")
    return {row["id"]: (row["held_by_us"], row["reshaped"]) for row in rows}


def displaced(folder: Path) -> tuple[World, Hiding]:
    """Job 1 has the node and has had much service; job 2 is new and wants all of it. Decided in the next round."""
    world, backend = hiding(folder)
    world.submit(8)
    world.rounds(1)
    world.later(3600.0)
    world.submit(8)
    return world, backend


def test_a_job_that_hides_for_one_look_after_it_was_requeued_keeps_its_claim_and_its_request(tmp_path: Path) -> None:
    world, backend = displaced(tmp_path)
    original = world.store.database.rows("SELECT original FROM jobs WHERE id = '1'")
    world.rounds(1)
    assert world.held() == {"1"}
    backend.hidden = frozenset({"1"})
    world.rounds(1)
    backend.hidden = frozenset()
    world.rounds(1)
    assert claims(world)["1"][0] == 1
    assert world.store.database.rows("SELECT original FROM jobs WHERE id = '1'") == original
    release_all(world.backend, world.store, world.clock, 10.0)
    assert world.held() == set()


def test_a_job_that_hides_while_it_is_being_requeued_is_found_again_as_ours(tmp_path: Path) -> None:
    world, backend = displaced(tmp_path)
    backend.choose = lambda seen: frozenset(
        job.id for job in seen.jobs if job.id == "1" and job.state is not JobState.RUNNING
    )
    world.rounds(1)
    assert claims(world)["1"][0] == 1
    backend.choose, backend.hidden = None, frozenset()
    world.rounds(1)
    assert world.held() == {"1"}
    assert claims(world)["1"][0] == 1
    assert "is held by an administrator" not in world.store.database.rows("SELECT sentence FROM jobs")[0]["sentence"]


@pytest.mark.parametrize(
    "restarted", [pytest.param(False, id="the same process"), pytest.param(True, id="another process")]
)
def test_release_gives_back_a_hold_of_a_job_that_cannot_be_read(tmp_path: Path, restarted: bool) -> None:
    world, backend = displaced(tmp_path)
    world.rounds(1)
    assert world.held() == {"1"}
    backend.hidden = frozenset({"1"})
    if restarted:
        world.store.close()
        world.store = world.opened()
    released = release_all(world.backend, world.store, world.clock, 10.0)
    assert released.jobs == ("1",)
    assert world.held() == set()


def test_a_job_that_hides_is_no_victim_and_its_newcomer_waits(tmp_path: Path) -> None:
    world, backend = displaced(tmp_path)
    backend.hidden = frozenset({"1"})
    world.rounds(1)
    assert world.where() == {"1": ("n1",), "2": ()}


def test_a_victim_that_hides_during_its_lead_stays_and_its_newcomer_waits_for_the_next_round(tmp_path: Path) -> None:
    world, backend = displaced(tmp_path)
    backend.choose = lambda _: frozenset({"1"} if backend.looks > 3 else ())
    began = world.clock.now()
    world.round()
    assert world.where() == {"1": ("n1",), "2": ()}
    assert world.clock.now() - began < PERIOD
    assert world.store.journal.open_intents() == ()


def waiting_beside_one_that_cannot_be_read(folder: Path) -> tuple[World, Hiding]:
    """Job 1 runs on the whole node, job 2 waits for it, job 3 asks for little, is not held and cannot be read."""
    world, backend = hiding(folder)
    world.submit(8, work=2 * PERIOD + 100.0)
    world.rounds(1)
    world.submit(8)
    world.hook_holds = False
    world.submit(8)
    backend.hidden = frozenset({"3"})
    return world, backend


def test_a_job_that_cannot_be_read_waits_behind_the_managed_ones(tmp_path: Path) -> None:
    world, backend = waiting_beside_one_that_cannot_be_read(tmp_path)
    outcomes = world.round().outcomes
    (held,) = (outcome for outcome in outcomes if outcome.operation.subject == "3")
    assert (held.operation.verb, held.result) == (Verb.HOLD, Result.DONE)
    assert held.operation.sentence == "job 3 is set aside: its record cannot be read"
    assert world.held() == {"2", "3"}
    world.rounds(4)
    assert world.where()["2"] == ("n1",)
    assert backend.hidden == {"3"}


def test_it_is_let_go_in_a_round_in_which_nobody_waits_for_resources(tmp_path: Path) -> None:
    world, _ = waiting_beside_one_that_cannot_be_read(tmp_path)
    world.rounds(1)
    world.cluster.lifecycle.cancel(world.cluster.jobs["2"], world.cluster.now)
    world.rounds(1)
    assert world.held() == set()


def test_it_is_let_go_after_a_day_even_if_somebody_waits(tmp_path: Path) -> None:
    world, _ = waiting_beside_one_that_cannot_be_read(tmp_path)
    world.simulated.submit(replace(world.cluster.jobs["1"].submission, work=10 * MAX_HOLD, comment=""))
    world.rounds(1)
    world.later(MAX_HOLD / 2)
    world.rounds(1)
    assert "3" in world.held()
    world.later(MAX_HOLD / 2)
    world.rounds(1)
    assert "3" not in world.held()
    world.rounds(2)
    assert "3" not in world.held()


def test_it_is_managed_as_usual_once_it_can_be_read(tmp_path: Path) -> None:
    world, backend = waiting_beside_one_that_cannot_be_read(tmp_path)
    world.rounds(1)
    assert claims(world)["3"] == (1, 0)
    backend.hidden = frozenset()
    world.rounds(1)
    assert world.held() == {"2", "3"}
    asked = world.store.database.rows("SELECT original, owner FROM jobs WHERE id = '3'")[0]
    assert '"gpus":8' in asked["original"]
    assert asked["owner"] == "alice"
    world.cluster.lifecycle.cancel(world.cluster.jobs["1"], world.cluster.now)
    world.cluster.lifecycle.cancel(world.cluster.jobs["2"], world.cluster.now)
    world.rounds(2)
    assert world.where() == {"3": ("n1",)}


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.PRIORITIZE])
def test_where_slurm_places_jobs_that_cannot_be_read_are_not_held(tmp_path: Path, mode: Mode) -> None:
    world, _ = waiting_beside_one_that_cannot_be_read(tmp_path)
    world.in_mode(mode)
    world.rounds(1)
    assert "3" not in world.held()


def test_in_a_partition_that_is_not_managed_it_is_left_alone(tmp_path: Path) -> None:
    world, _ = waiting_beside_one_that_cannot_be_read(tmp_path)
    world.settings = replace(world.settings, manage=ManageSettings(partitions=("other",)))
    world.rounds(1)
    assert world.cluster.jobs["3"].hold is Hold.NONE


def test_what_is_set_aside_is_told_with_its_reason_and_forgotten_when_it_can_be_read(tmp_path: Path) -> None:
    world, backend = waiting_beside_one_that_cannot_be_read(tmp_path)
    world.rounds(1)
    query = "SELECT job, owner, partition, reason FROM set_aside"
    assert world.store.database.rows(query) == [
        {"job": "3", "owner": "alice", "partition": PARTITION, "reason": "its record cannot be read"}
    ]
    backend.hidden = frozenset()
    world.rounds(1)
    assert world.store.database.rows(query) == []


def test_no_node_is_given_twice_while_its_job_cannot_be_read(tmp_path: Path) -> None:
    world, backend = hiding(tmp_path, nodes=(node("n1"), node("n2")))
    world.submit(8)
    world.rounds(1)
    backend.hidden = frozenset({"1"})
    world.submit(8)
    world.rounds(1)
    assert sorted(world.where().values()) == [("n1",), ("n2",)]


def test_release_goes_on_until_a_job_that_cannot_be_read_is_seen_to_be_let_go(tmp_path: Path) -> None:
    world, backend = displaced(tmp_path)
    backend.choose = lambda seen: frozenset({"1"} if seen.jobs_by_id["1"].state is not JobState.RUNNING else ())
    world.round()
    backend.simply_ignores = 2
    released = release_all(world.backend, world.store, world.clock, 60.0)
    assert world.held() == set()
    assert [outcome.result for outcome in released.outcomes if outcome.operation.subject == "1"] == [Result.DONE]
