"""Whole rounds on a simulated cluster: what is changed, what is not, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.simulated import Fault, FaultPlan, SimulatedBackend, SimulatedEventKind
from slurmsched.daemon.scheduler import schedule_round
from slurmsched.model import Hold, ReasonCode, Result, Verb
from slurmsched.settings.definition import ManageSettings, Mode
from slurmsched.store.errors import FullStoreError
from tests.builders import node
from tests.unit.daemon.world import World

DONE, BLOCKED, OVERTAKEN = Result.DONE, Result.BLOCKED, Result.OVERTAKEN


def done(world: World) -> list[tuple[str, str, str]]:
    """The journal: verb, subject, result."""
    rows = world.store.database.rows("SELECT verb, subject, result FROM operations ORDER BY id")
    return [(row["verb"], row["subject"], row["result"]) for row in rows]


def rows(world: World, query: str) -> list[dict[str, Any]]:
    return world.store.database.rows(query)


def displacing(folder: Path, **other: Any) -> World:
    """Job 1 has the whole node and has had much service; job 2 is new and wants all of it too."""
    world = World(folder, **other)
    world.submit(8)
    world.rounds(1)
    world.later(3600.0)
    world.submit(8)
    return world


def test_a_job_that_the_hook_held_starts_where_it_was_placed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(2, "model=resnet50")
    world.round()
    assert world.where() == {"1": ("n1",)}
    assert done(world)[-1] == ("release", "1", "done")


def test_a_round_is_recorded_with_its_figures_its_overview_and_a_recording(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(2)
    report = world.round()
    (row,) = rows(world, "SELECT * FROM rounds")
    assert {
        "id": report.id,
        "mode": "enforce",
        "system": "synergy",
        "ordering": "las",
        "error": "",
    }.items() <= row.items()
    assert {"nodes": 1, "jobs": 1, "managed": 1, "waiting": 1, "running": 0, "writes": 2}.items() <= row.items()
    assert row["finished"] is not None
    assert '"name":"n1"' in row["overview"]
    assert row["snapshot"] is not None


def test_each_managed_job_is_remembered_with_its_place_and_its_reason(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(8)
    world.submit(8)
    world.round()
    first, second = rows(world, "SELECT rank, state, target, sentence FROM jobs ORDER BY id")
    assert (first["rank"], first["state"], second["rank"], second["state"]) == (1, "running", 2, "pending")
    assert '"node":"n1"' in first["target"]
    assert second["target"] is None
    assert second["sentence"].startswith("job 2 waits behind 1 job in")


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (
            "BadConstraints",
            "job 1 was not started by Slurm (BadConstraints): it is tried again when that has changed, at",
        ),
        ("QOSGrpBilling", "job 1 waits because of a limit of its account or QOS: QOSGrpBilling"),
    ],
)
def test_a_job_that_slurm_did_not_start_is_not_said_to_start(tmp_path: Path, refusal: str, told: str) -> None:
    world = World(tmp_path)
    world.cluster.refused["1"] = refusal
    world.submit(8)
    world.round()
    (one,) = rows(world, "SELECT sentence, target, reason FROM jobs")
    assert one["sentence"].startswith(told)
    assert one["target"] is None
    assert told in one["reason"]


def test_a_displaced_job_is_signalled_given_its_lead_and_waits_held(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    began = world.clock.now()
    world.round()
    assert world.where() == {"1": (), "2": ("n1",)}
    assert world.held() == {"1"}
    notified, requeued = rows(
        world, "SELECT finished FROM operations WHERE verb IN ('notify', 'requeue') ORDER BY finished"
    )
    assert requeued["finished"] - notified["finished"] >= 30
    assert world.clock.now() - began < 120


def test_history_says_what_happened_to_a_job(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    world.rounds(2)
    kinds = [row["kind"] for row in rows(world, "SELECT kind FROM events WHERE job = '1' ORDER BY id")]
    assert kinds == ["seen", "reshaped", "released", "started", "displaced"]


def test_a_round_over_an_unchanged_cluster_changes_nothing(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    world.rounds(2)
    assert world.round().outcomes == ()


@pytest.mark.parametrize(
    "mode", [pytest.param(Mode.OBSERVE, id="observe"), pytest.param(Mode.ADVISE, id="advise, without notes")]
)
def test_modes_that_only_look_change_nothing(tmp_path: Path, mode: Mode) -> None:
    world = World(tmp_path, mode=mode)
    world.submit(8)
    world.submit(8)
    before = world.cluster.snapshot()
    report = world.round()
    assert all(outcome.result is BLOCKED for outcome in report.outcomes)
    assert world.simulated.calls.writes == 0
    assert world.cluster.snapshot() == before


def test_what_would_be_done_is_shown_in_observe_mode(tmp_path: Path) -> None:
    world = World(tmp_path, mode=Mode.OBSERVE)
    world.submit(8)
    world.submit(8)
    world.round()
    (row,) = rows(world, "SELECT verb, subject, result, detail FROM operations")
    assert row == {"verb": "hold", "subject": "2", "result": "blocked", "detail": "the mode is observe"}


def pause(world: World) -> None:
    world.store.switches.pause("root", "new drives", 1.0)


def disable(world: World) -> None:
    Path(world.settings.hook.disable_file).touch()


@pytest.mark.parametrize(
    ("close", "said"),
    [
        pytest.param(pause, "paused by root: new drives", id="paused"),
        pytest.param(disable, "disable exists", id="the disable file is there"),
    ],
)
def test_while_it_is_switched_off_nothing_is_changed_and_why_is_said(
    tmp_path: Path, close: Callable[[World], None], said: str
) -> None:
    world = displacing(tmp_path)
    close(world)
    writes = world.simulated.calls.writes
    outcomes = world.round().outcomes
    assert world.simulated.calls.writes == writes
    assert {(outcome.result, outcome.detail.endswith(said)) for outcome in outcomes} == {(BLOCKED, True)}


def test_a_pause_in_the_middle_of_a_round_is_heeded_before_the_next_batch(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    elsewhere = world.opened()

    def tick() -> None:
        elsewhere.switches.pause("root", "", 1.0)

    outcomes = schedule_round(world.site(), world.store, world.clock, tick=tick).outcomes
    assert {outcome.operation.verb for outcome in outcomes if outcome.result is DONE} <= {Verb.NOTIFY, Verb.UPDATE}
    assert world.where() == {"1": ("n1",), "2": ()}
    assert world.store.journal.open_intents() == ()
    elsewhere.close()


def test_a_stop_in_the_middle_of_a_round_finishes_what_is_in_hand(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    asked: list[bool] = []
    report = schedule_round(
        world.site(), world.store, world.clock, tick=lambda: asked.append(True), stopping=lambda: bool(asked)
    )
    assert {outcome.detail for outcome in report.outcomes if outcome.result is BLOCKED} == {"the daemon is stopping"}
    assert world.store.journal.open_intents() == ()
    assert rows(world, "SELECT error FROM rounds ORDER BY id DESC LIMIT 1") == [{"error": ""}]


def test_a_poll_that_nobody_answers_is_recorded_and_the_next_round_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, disturbances=FaultPlan(unanswered_polls=frozenset({1})))
    world.submit(2)
    with pytest.raises(UnreachableError):
        world.round()
    assert "does not answer" in rows(world, "SELECT error FROM rounds")[0]["error"]
    world.round()
    assert world.where() == {"1": ("n1",)}


@pytest.mark.parametrize("answered", [0, 1])
@pytest.mark.parametrize("execution", [3, 4, 5, 6])
def test_an_execution_that_is_broken_off_is_read_back_by_the_next_round(
    tmp_path: Path, execution: int, answered: int
) -> None:
    world = displacing(tmp_path, disturbances=FaultPlan(interrupted_executions={execution: answered}))
    undisturbed = displacing(tmp_path_beside(tmp_path))
    undisturbed.rounds(3)
    broken = 0
    for _ in range(3):
        try:
            world.rounds(1)
        except UnreachableError:
            broken += 1
            world.later(60.0)
    assert broken <= 1
    assert world.where() == undisturbed.where()
    assert world.store.journal.open_intents() == ()
    assert {result for _, _, result in done(world)} <= {"done", "failed", "overtaken"}


def tmp_path_beside(tmp_path: Path) -> Path:
    beside = tmp_path / "undisturbed"
    beside.mkdir()
    return beside


def test_a_job_that_is_cancelled_between_plan_and_apply_is_overtaken(tmp_path: Path) -> None:
    cancelled = Fault(SimulatedEventKind.CANCELLED, "1")
    world = World(tmp_path, disturbances=FaultPlan(before_execution={1: (cancelled,)}))
    world.submit(2)
    outcomes = world.round().outcomes
    assert outcomes
    assert {outcome.result for outcome in outcomes} == {OVERTAKEN}
    world.rounds(2)
    assert rows(world, "SELECT state FROM jobs") == [{"state": "finished"}]


def test_a_victim_that_ends_during_its_lead_is_overtaken_and_its_place_is_used(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    ends = Fault(SimulatedEventKind.CANCELLED, "1")
    world.simulated = SimulatedBackend(
        world.cluster, world.clock, faults=FaultPlan(timed=((world.clock.now() + 10, ends),))
    )
    world.backend = world.simulated
    world.round()
    assert world.where() == {"2": ("n1",)}
    assert ("requeue", "1", "done") not in done(world)


@pytest.mark.parametrize("execution", range(1, 8))
def test_when_a_node_dies_in_a_round_nothing_stays_behind_that_nobody_knows_of(tmp_path: Path, execution: int) -> None:
    world = displacing(tmp_path)
    dies = Fault(SimulatedEventKind.NODE_DOWN, "n1")
    world.simulated = SimulatedBackend(
        world.cluster, world.clock, faults=FaultPlan(before_execution={execution: (dies,)})
    )
    world.backend = world.simulated
    world.rounds(3)
    waiting = {row["id"] for row in rows(world, "SELECT id FROM jobs WHERE held_by_us")}
    assert world.held() <= waiting
    world.cluster.set_node("n1", node("n1").state)
    world.later(3600.0)
    world.rounds(2)
    assert sorted(map(len, world.where().values())) == [0, 1]


def test_a_start_that_does_not_happen_is_taken_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(2)
    world.simulated = SimulatedBackend(
        world.cluster,
        world.clock,
        faults=FaultPlan(before_execution={2: (Fault(SimulatedEventKind.NODE_DRAINED, "n1"),)}),
    )
    world.backend = world.simulated
    outcomes = world.round().outcomes
    assert ("release", "1", "undone") in done(world)
    assert ReasonCode.NOT_STARTED in {outcome.operation.reason.code for outcome in outcomes}
    assert world.held() == {"1"}
    assert world.pinned() == set()


def test_a_job_that_did_not_start_is_tried_again_once_its_node_is_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(2)
    world.simulated = SimulatedBackend(
        world.cluster,
        world.clock,
        faults=FaultPlan(before_execution={2: (Fault(SimulatedEventKind.NODE_DRAINED, "n1"),)}),
    )
    world.backend = world.simulated
    world.rounds(1)
    assert world.where() == {"1": ()}
    world.cluster.set_node("n1", node("n1").state)
    world.rounds(1)
    assert world.where() == {"1": ("n1",)}


def no_more_pages(world: World, spare: int = 0) -> None:
    """What SQLite says of a full disk, after so many more pages."""
    (pages,) = rows(world, "PRAGMA page_count")
    rows(world, f"PRAGMA max_page_count = {pages['page_count'] + spare}")


def begin_rounds_for_ever(world: World) -> None:
    while True:
        world.store.journal.begin_round(0.0, "x" * 50, "", "")


def test_with_no_space_to_begin_a_round_nothing_is_changed(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    no_more_pages(world)
    with pytest.raises(FullStoreError):
        begin_rounds_for_ever(world)
    writes = world.simulated.calls.writes
    with pytest.raises(FullStoreError, match="no space left for"):
        world.round()
    assert world.simulated.calls.writes == writes


def test_when_space_runs_out_in_a_round_nothing_is_done_without_a_journal(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    for index in range(400):  # so that the journal's last page is nearly full
        world.store.database.insert("events", {"at": 0.0, "job": "x", "kind": "seen", "sentence": "x" * index})
    no_more_pages(world)
    writes, journalled = world.simulated.calls.writes, len(done(world))
    for _ in range(20):
        try:
            world.rounds(1)
            world.submit(8)
        except FullStoreError:
            break
    else:
        pytest.fail("space never ran out")
    assert world.simulated.calls.writes - writes <= len(done(world)) - journalled
    world.restart()
    world.later(60.0)
    world.rounds(2)
    assert world.store.journal.open_intents() == ()
    assert world.held() == {
        row["id"] for row in rows(world, "SELECT id FROM jobs WHERE held_by_us AND state = 'pending'")
    }


def test_leaving_enforce_gives_back_what_is_held(tmp_path: Path) -> None:
    world = displacing(tmp_path)
    world.rounds(1)
    assert world.held() == {"1"}
    world.in_mode(Mode.OBSERVE)
    world.rounds(1)
    assert world.held() == set()
    assert world.pinned() == set()
    assert rows(world, "SELECT id FROM jobs WHERE held_by_us") == []


def test_a_job_that_is_no_longer_managed_is_given_back_and_the_others_are_not(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(8)
    world.submit(8)
    world.submit(8, qos="private")
    world.rounds(1)
    assert world.held() == {"2", "3"}
    world.settings = replace(world.settings, manage=ManageSettings(qos=("private",), opt_in=False))
    world.rounds(1)
    assert world.held() == {"3"}


def test_a_hold_of_its_owner_is_never_released(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(2, held=True)
    world.rounds(2)
    assert world.held() == {"1"}
    world.in_mode(Mode.OBSERVE)
    world.rounds(1)
    assert world.held() == {"1"}


def test_a_job_that_is_not_managed_is_never_touched(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(8, hint="")
    world.submit(8, hint="")
    world.rounds(2)
    assert world.simulated.calls.writes == 0
    assert world.cluster.jobs["2"].hold is Hold.NONE
