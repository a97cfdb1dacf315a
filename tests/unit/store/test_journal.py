"""The write-ahead journal, and what it makes ours."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from slurmsched.model import Block, BlockCause, JobSpec, Operation, Outcome, Reason, ReasonCode, Result, Verb
from slurmsched.store.database import Database
from slurmsched.store.jobs import update_jobs
from slurmsched.store.journal import ActivityCounts, Journal, JournalEntry, RoundStatistics
from tests.builders import job, snapshot

WHY = Reason(ReasonCode.START, {"nodes": "n1", "gpus": 1, "cpus": 3})
BACK = Reason(ReasonCode.GIVE_BACK)
WIDE = JobSpec(("n1",), 1, 1, 1, "v100", 6, 1000, 1)
NARROW = JobSpec((), 1, 1, 1, "v100", 3, 1000, 1)


def intend(journal: Journal, *operations: Operation) -> tuple[JournalEntry, ...]:
    return journal.record_intents(journal.begin_round(1.0, "enforce", "synergy", "las"), enumerate(operations), 1.0)


def ours(database: Database) -> dict[str, int]:
    (row,) = database.rows("SELECT held_by_us, reshaped, boosted FROM jobs WHERE id = '7'")
    return row


@pytest.fixture
def journal(database: Database) -> Journal:
    update_jobs(database, snapshot(jobs=[job(7)]), {"7"})
    return Journal(database)


def test_rounds_are_numbered_and_finished_with_their_figures(database: Database, journal: Journal) -> None:
    first = journal.begin_round(1.0, "enforce", "synergy", "las")
    assert journal.begin_round(2.0, "enforce", "synergy", "las") == first + 1
    journal.finish_round(first, 3.0, RoundStatistics(nodes=2, jobs=9, decide_s=0.5))
    (row,) = database.rows("SELECT * FROM rounds WHERE id = ?", (first,))
    assert {
        "finished": 3.0,
        "nodes": 2,
        "jobs": 9,
        "decide_s": 0.5,
        "apply_s": None,
        "error": "",
    }.items() <= row.items()


def test_a_round_that_was_killed_is_marked(database: Database, journal: Journal) -> None:
    journal.begin_round(1.0, "enforce", "synergy", "las")
    assert journal.close_interrupted_rounds(9.0) == 1
    assert journal.close_interrupted_rounds(9.0) == 0
    assert [row["error"] for row in database.rows("SELECT error FROM rounds")] == [
        "interrupted: the process was killed"
    ]


def test_an_intent_is_on_disk_when_intend_returns(journal: Journal, path: Path) -> None:
    (entry,) = intend(journal, Operation(Verb.HOLD, "7", WHY))
    other = Journal(Database.open(path))
    assert other.open_intents() == (entry,)


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(Operation(Verb.UPDATE, "7", WHY, NARROW, WIDE), id="a shape before and after"),
        pytest.param(Operation(Verb.NOTIFY, "7", WHY, None, "usr1"), id="a signal"),
        pytest.param(Operation(Verb.PRIORITIZE, "7", WHY, 0, 500), id="a number"),
        pytest.param(Operation(Verb.HOLD, "7", WHY), id="nothing"),
    ],
)
def test_an_intent_comes_back_as_it_was(journal: Journal, operation: Operation) -> None:
    intend(journal, operation)
    assert [entry.operation for entry in journal.open_intents()] == [operation]


def test_an_operation_with_an_outcome_is_no_longer_open(database: Database, journal: Journal) -> None:
    hold, release = intend(journal, Operation(Verb.HOLD, "7", WHY), Operation(Verb.RELEASE, "7", WHY))
    journal.record_outcomes([(hold, Outcome(hold.operation, Result.REFUSED, ("scontrol hold 7",), "no such job"))], 2.0)
    assert journal.open_intents() == (release,)
    (row,) = database.rows("SELECT result, commands, detail, finished FROM operations WHERE id = ?", (hold.row,))
    assert row == {"result": "refused", "commands": '["scontrol hold 7"]', "detail": "no such job", "finished": 2.0}


@pytest.mark.parametrize(
    ("operation", "claim"),
    [
        pytest.param(Operation(Verb.HOLD, "7", WHY), "held_by_us", id="a hold"),
        pytest.param(Operation(Verb.REQUEUE, "7", WHY), "held_by_us", id="a requeue leaves the job held"),
        pytest.param(Operation(Verb.UPDATE, "7", WHY, NARROW, WIDE), "reshaped", id="a shape"),
        pytest.param(Operation(Verb.PRIORITIZE, "7", WHY, 0, 500), "boosted", id="a nice"),
    ],
)
def test_what_an_operation_would_make_ours_is_ours_before_it_is_done(
    database: Database, journal: Journal, operation: Operation, claim: str
) -> None:
    intend(journal, operation)
    assert ours(database) == {"held_by_us": 0, "reshaped": 0, "boosted": 0} | {claim: 1}


@pytest.mark.parametrize(
    ("operation", "result", "left"),
    [
        pytest.param(Operation(Verb.HOLD, "7", WHY), Result.DONE, {"held_by_us": 1}, id="a hold that holds"),
        pytest.param(Operation(Verb.HOLD, "7", WHY), Result.REFUSED, {}, id="a hold that was refused"),
        pytest.param(Operation(Verb.REQUEUE, "7", WHY), Result.REFUSED, {}, id="a requeue of a job that runs on"),
        *(
            pytest.param(Operation(verb, "7", WHY), result, {"held_by_us": 1}, id=f"{verb} whose end nobody saw")
            for verb in (Verb.HOLD, Verb.REQUEUE)
            for result in (Result.OVERTAKEN, Result.FAILED)
        ),
        pytest.param(
            Operation(Verb.UPDATE, "7", WHY, NARROW, WIDE),
            Result.REFUSED,
            {"reshaped": 1},
            id="a shape that was refused and may stand in part",
        ),
        pytest.param(
            Operation(Verb.UPDATE, "7", BACK, WIDE, NARROW), Result.DONE, {}, id="the owner's own shape again"
        ),
        pytest.param(Operation(Verb.PRIORITIZE, "7", BACK, 500, 0), Result.DONE, {}, id="the owner's own nice again"),
        pytest.param(
            Operation(Verb.PRIORITIZE, "7", BACK, 500, 0), Result.FAILED, {"boosted": 1}, id="a nice that stayed"
        ),
    ],
)
def test_what_is_ours_after_the_outcome(
    database: Database, journal: Journal, operation: Operation, result: Result, left: dict[str, int]
) -> None:
    (entry,) = intend(journal, operation)
    journal.record_outcomes([(entry, Outcome(operation, result))], 2.0)
    assert ours(database) == {"held_by_us": 0, "reshaped": 0, "boosted": 0} | left


def test_a_hold_is_given_up_by_a_release_that_is_done_and_by_no_other(database: Database, journal: Journal) -> None:
    intend(journal, Operation(Verb.HOLD, "7", WHY))
    (release,) = intend(journal, Operation(Verb.RELEASE, "7", WHY))
    journal.record_outcomes([(release, Outcome(release.operation, Result.REFUSED))], 2.0)
    assert ours(database)["held_by_us"] == 1
    journal.record_outcomes([(release, Outcome(release.operation, Result.DONE))], 3.0)
    assert ours(database)["held_by_us"] == 0


def test_blocked_operations_are_kept_for_the_latest_round_only(database: Database, journal: Journal) -> None:
    for number in (1, 2, 3):
        round_id = journal.begin_round(float(number), "observe", "synergy", "las")
        journal.record_blocked(
            round_id, [(0, Operation(Verb.HOLD, "7", WHY))], Block(BlockCause.MODE, "mode is observe"), 1.0
        )
    assert [row["round"] for row in database.rows("SELECT round FROM operations")] == [3]
    assert ours(database)["held_by_us"] == 0


def test_every_row_says_how_it_is_taken_back(database: Database, journal: Journal) -> None:
    intend(journal, Operation(Verb.HOLD, "7", WHY), Operation(Verb.NOTIFY, "7", WHY, None, "usr1"))
    hold, notify = database.rows("SELECT undo FROM operations ORDER BY id")
    assert '"verb":"release"' in hold["undo"]
    assert notify["undo"] is None


def test_what_is_recorded_is_counted_and_what_is_not_is_not(database: Database) -> None:
    counts = ActivityCounts()
    journal = Journal(database, counts)
    done, undone = intend(journal, Operation(Verb.RELEASE, "7", WHY), Operation(Verb.RELEASE, "8", WHY))
    outcomes = [(done, Outcome(done.operation, Result.DONE)), (undone, Outcome(undone.operation, Result.DONE))]
    journal.record_outcomes(outcomes, 2.0)
    journal.mark_undone(undone, "Resources")
    held = [(2, Operation(Verb.HOLD, "9", WHY)), (3, Operation(Verb.HOLD, "10", WHY))]
    journal.record_blocked(done.round, held, Block(BlockCause.PAUSED, "paused by root"), 3.0)
    journal.record_skipped(done.round, held[:1], Result.OVERTAKEN, "no longer needed", 3.0)
    expected = {
        (Verb.RELEASE, Result.DONE): 2,
        (Verb.RELEASE, Result.UNDONE): 1,
        (Verb.HOLD, Result.BLOCKED): 2,
        (Verb.HOLD, Result.OVERTAKEN): 1,
    }
    assert (counts.operations, counts.blocked) == (expected, {BlockCause.PAUSED: 2})
    database.close()
    with pytest.raises(sqlite3.ProgrammingError):
        journal.record_blocked(done.round, held, Block(BlockCause.PAUSED, "paused by root"), 4.0)
    assert (counts.operations, counts.blocked) == (expected, {BlockCause.PAUSED: 2})
