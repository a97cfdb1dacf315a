"""A checkpoint that takes long is awaited between rounds: the round that notifies ends, and others are decided on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.model import Hold, JobState
from slurmsched.settings.definition import CheckpointSettings
from tests.builders import node
from tests.unit.daemon.world import PERIOD, World

LONGEST = CheckpointSettings().longest_lead


def displacing(folder: Path, hint: str, nodes: int = 1) -> World:
    """Job 1 runs on n1 and has had much service; the last job is new and wants all of a node, where none is free."""
    world = World(folder, nodes=[node(f"n{number}") for number in range(1, nodes + 1)])
    for _ in range(nodes):
        world.submit(8, hint)
    world.rounds(1)
    world.later(3600.0)
    world.submit(8)
    return world


def lasting(world: World, round_of: Callable[[World], object] = World.round) -> float:
    began = world.clock.now()
    round_of(world)
    return world.clock.now() - began


def signals(world: World) -> list[tuple[str, str]]:
    rows = world.store.database.rows(
        "SELECT verb, subject FROM operations WHERE verb IN ('notify', 'requeue') AND result = 'done' ORDER BY id"
    )
    return [(row["verb"], row["subject"]) for row in rows]


def test_a_lead_without_end_makes_a_round_no_longer_than_none(tmp_path: Path) -> None:
    folders = tmp_path / "endless", tmp_path / "short"
    for folder in folders:
        folder.mkdir()
    endless = lasting(displacing(folders[0], "ckpt=usr1@9999999d"))
    short = lasting(displacing(folders[1], "ckpt=usr1@30"))
    assert endless <= short < 60.0


def test_the_place_changes_hands_once_the_longest_lead_is_over(tmp_path: Path) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d")
    began = world.clock.now()
    while world.where()["1"]:
        world.rounds(1)
    assert LONGEST <= world.clock.now() - began <= LONGEST + 2 * PERIOD
    assert world.where() == {"1": (), "2": ("n1",)}
    assert signals(world) == [("notify", "1"), ("requeue", "1")]
    assert world.held() == {"1"}


def test_while_it_is_awaited_its_newcomer_says_for_what_it_waits(tmp_path: Path) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d")
    world.rounds(2)
    runs, waits = world.store.database.rows("SELECT sentence, reason FROM jobs ORDER BY id")
    assert waits["sentence"].startswith("job 2 replaces job 1 once its checkpoint is written, by ")
    assert "writes its checkpoint until " in runs["reason"]
    assert "then gives way to job 2" in runs["reason"]


def test_a_daemon_that_is_killed_meanwhile_sends_no_second_signal_and_requeues_in_time(tmp_path: Path) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d")
    world.round()
    assert signals(world) == [("notify", "1")]
    world.restart()
    world.rounds(1)
    world.later(LONGEST)
    world.rounds(1)
    assert signals(world) == [("notify", "1"), ("requeue", "1")]
    assert world.where() == {"1": (), "2": ("n1",)}


def test_nobody_else_is_displaced_for_the_newcomer_meanwhile(tmp_path: Path) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d", nodes=2)
    world.rounds(2)
    assert len(signals(world)) == 1
    assert sum(not where for where in world.where().values()) == 1


def test_another_job_starts_meanwhile_where_there_is_room(tmp_path: Path) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d", nodes=2)
    world.round()
    (told,) = (subject for _, subject in signals(world))
    other = next(job for job in ("1", "2") if job != told)
    world.cluster.lifecycle.cancel(world.cluster.jobs[other], world.cluster.now)
    world.later(60.0)
    small = world.submit(1)
    world.round()
    assert world.where()[small] != ()
    assert world.cluster.jobs[told].state is JobState.RUNNING


@pytest.mark.parametrize("gone", [False, True], ids=["its newcomer waits", "its newcomer is gone"])
def test_a_job_whose_newcomer_is_gone_runs_on(tmp_path: Path, gone: bool) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d")
    world.round()
    if gone:
        world.cluster.lifecycle.cancel(world.cluster.jobs["2"], world.cluster.now)
    world.later(LONGEST)
    world.rounds(2)
    assert (world.where()["1"] == ("n1",)) is gone


def test_a_checkpoint_that_is_reported_written_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d")
    world.settings = replace(world.settings, reports=replace(world.settings.reports, spool=str(tmp_path / "spool")))
    monkeypatch.setattr("slurmsched.daemon.scheduler.ingest", lambda *_: None)
    monkeypatch.setattr(
        "slurmsched.daemon.scheduler.checkpointed_jobs", lambda _, jobs: frozenset(job.id for job in jobs)
    )
    world.rounds(2)
    assert world.where() == {"1": (), "2": ("n1",)}
    assert signals(world) == [("notify", "1"), ("requeue", "1")]


def test_a_lead_that_a_round_can_wait_for_is_waited_for_as_before(tmp_path: Path) -> None:
    world = displacing(tmp_path, "ckpt=usr1@110")
    assert lasting(world) >= 110.0
    assert world.where() == {"1": (), "2": ("n1",)}


def test_the_hold_of_the_newcomer_stays_ours(tmp_path: Path) -> None:
    world = displacing(tmp_path, "ckpt=usr1@9999999d")
    world.rounds(2)
    assert world.cluster.jobs["2"].hold is not Hold.NONE
    assert world.store.database.rows("SELECT held_by_us FROM jobs WHERE id = '2'") == [{"held_by_us": 1}]
