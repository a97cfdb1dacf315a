"""Giving everything back, with and without a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.daemon.cleanup import no_scheduler_alive, open_store_if_usable, release_all
from slurmsched.daemon.heartbeat import PAUSED, STOPPED, HeartbeatFile
from slurmsched.model import Hold, JobState, Operation, Reason, ReasonCode, Result, Verb
from slurmsched.settings.definition import HookSettings
from slurmsched.store.errors import FullStoreError
from slurmsched.store.store import Store
from tests.unit.daemon.world import World

PATIENCE = 120.0


def displaced(folder: Path) -> World:
    """Job 1 was displaced and waits held and reshaped; 2 runs; 3 waits as the hook held it; 4 is held by its owner."""
    world = World(folder)
    world.submit(8)
    world.rounds(1)
    world.later(3600.0)
    world.submit(6)
    world.rounds(1)
    world.submit(8)
    world.submit(8, held=True)
    world.rounds(1)
    assert world.where() == {"1": (), "2": ("n1",), "3": (), "4": ()}
    assert world.held() == {"1", "3", "4"}
    assert world.pinned() == {"1"}
    return world


def give_back(world: World, store: Store | None, only: set[str] | None = None) -> list[tuple[Verb, str, Result]]:
    released = release_all(world.simulated, store, world.clock, PATIENCE, only)
    return [(outcome.operation.verb, outcome.operation.subject, outcome.result) for outcome in released.outcomes]


def test_shapes_and_holds_of_ours_are_given_back_and_no_others(tmp_path: Path) -> None:
    world = displaced(tmp_path)
    assert give_back(world, world.store) == [
        (Verb.UPDATE, "1", Result.DONE),
        (Verb.RELEASE, "1", Result.DONE),
        (Verb.RELEASE, "3", Result.DONE),
    ]
    assert (world.held(), world.pinned()) == ({"4"}, set())


def test_giving_back_twice_does_nothing_the_second_time(tmp_path: Path) -> None:
    world = displaced(tmp_path)
    give_back(world, world.store)
    assert give_back(world, world.store) == []


def test_only_the_jobs_that_are_named_are_given_back(tmp_path: Path) -> None:
    world = displaced(tmp_path)
    assert release_all(world.simulated, world.store, world.clock, PATIENCE, {"3", "4"}).jobs == ("3",)
    assert world.held() == {"1", "4"}


def test_a_pause_does_not_keep_a_person_from_giving_back(tmp_path: Path) -> None:
    world = displaced(tmp_path)
    world.store.switches.pause("root", "", 1.0)
    give_back(world, world.store)
    assert world.held() == {"4"}


def test_a_job_on_its_way_back_into_the_queue_is_waited_for(tmp_path: Path) -> None:
    world = displaced(tmp_path)
    requeue = Operation(Verb.REQUEUE, "2", Reason(ReasonCode.NEWCOMER_FIRST))
    world.store.journal.record_intents(1, [(0, requeue)], world.clock.now())
    world.simulated.execute([requeue])  # and then the daemon was killed
    assert world.cluster.jobs["2"].state is JobState.COMPLETING
    give_back(world, world.store)
    assert world.held() == {"4"}


@pytest.mark.parametrize("spoil", [pytest.param(None, id="missing"), pytest.param(b"rubbish" * 999, id="damaged")])
def test_without_a_database_what_slurm_shows_of_us_is_given_back(tmp_path: Path, spoil: bytes | None) -> None:
    world = displaced(tmp_path)
    world.store.close()
    world.path.unlink()
    if spoil is not None:
        world.path.write_bytes(spoil)
    store, warning = open_store_if_usable(world.path, world.clock.now())
    assert store is None
    assert warning.endswith("since Slurm does not show which other holds are ours")
    assert give_back(world, store) == [(Verb.RELEASE, "3", Result.DONE)]
    assert world.held() == {"1", "4"}
    assert world.cluster.jobs["1"].hold is Hold.REQUEUED


def test_a_database_that_nobody_has_made_is_not_made_for_it(tmp_path: Path) -> None:
    assert open_store_if_usable(tmp_path / "none.db", 1.0)[0] is None
    assert not (tmp_path / "none.db").exists()


def begin_rounds_for_ever(store: Store) -> None:
    while True:
        store.journal.begin_round(0.0, "x" * 50, "", "")


def test_a_full_disk_keeps_nobody_from_giving_back_and_is_told(tmp_path: Path) -> None:
    world = displaced(tmp_path)
    (pages,) = world.store.database.rows("PRAGMA page_count")
    world.store.database.rows(f"PRAGMA max_page_count = {pages['page_count']}")
    with pytest.raises(FullStoreError):
        begin_rounds_for_ever(world.store)
    released = release_all(world.simulated, world.store, world.clock, PATIENCE)
    assert released.jobs == ("1", "3")
    assert any("no space left" in warning for warning in released.warnings)
    assert (world.held(), world.pinned()) == ({"4"}, set())


@pytest.mark.parametrize(
    ("beat", "nobody"),
    [
        pytest.param((1000.0, "enforce"), False, id="fresh"),
        pytest.param((1000.0, PAUSED), False, id="paused, but alive"),
        pytest.param((10.0, "enforce"), True, id="silent"),
        pytest.param((1000.0, STOPPED), True, id="stopped"),
        pytest.param(None, True, id="never seen"),
    ],
)
def test_the_watchdog_acts_only_when_nobody_schedules(
    tmp_path: Path, beat: tuple[float, str] | None, nobody: bool
) -> None:
    hook = HookSettings(heartbeat=str(tmp_path / "heartbeat"), stale_after=900.0)
    if beat is not None:
        HeartbeatFile(tmp_path / "heartbeat").write(*beat, 300.0)
    assert no_scheduler_alive(hook, now=1100.0) is nobody
