"""Looking at the database: what is told, and that nothing is changed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from slurmsched.model import Operation, Outcome, Reason, ReasonCode, Result, SetAsideJob, Verb, cluster_overview, encode
from slurmsched.store.database import Database
from slurmsched.store.jobs import update_jobs
from slurmsched.store.journal import Journal, RoundStatistics
from slurmsched.store.read_only import NoDatabaseError, UnreadableError, open_read_only
from slurmsched.store.store import Switches
from tests.builders import job, node, share, snapshot

HOLD = Operation(Verb.HOLD, "7", Reason(ReasonCode.TAKE_OVER), None, None)


def test_no_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(NoDatabaseError, match="start 'synsched run'"), open_read_only(tmp_path / "none.db"):
        pass


def test_looking_changes_nothing(database: Database, path: Path) -> None:
    before = path.read_bytes()
    with open_read_only(path) as opened:
        assert opened.last_round() is None
        assert opened.overview() is None
        assert opened.jobs() == ()
        assert opened.recording() is None
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            opened._connection.execute("DELETE FROM jobs")
    assert path.read_bytes() == before


def test_the_last_round_is_the_latest_that_went_well(database: Database, path: Path) -> None:
    journal = Journal(database)
    good = journal.begin_round(10.0, "enforce", "synergy", "las")
    journal.finish_round(good, 12.0, RoundStatistics(nodes=3, managed=2, decide_s=0.5))
    bad = journal.begin_round(20.0, "enforce", "synergy", "las")
    journal.finish_round(bad, 21.0, RoundStatistics(), "slurmctld does not answer")
    under_way = journal.begin_round(30.0, "enforce", "synergy", "las")
    with open_read_only(path) as opened:
        last = opened.last_round()
        assert last is not None
        assert (last.id, last.finished, last.nodes, last.decide_s) == (good, 12.0, 3, 0.5)
        assert [row.id for row in opened.rounds(5)] == [under_way, bad, good]


def test_jobs_that_run_come_first_then_the_order_of_the_round(database: Database, path: Path) -> None:
    jobs = [job(number, on=[share()] if number == 4 else ()) for number in (9, 2, 10, 4)]
    update_jobs(database, snapshot([node()], jobs), [one.id for one in jobs])
    database.write("UPDATE jobs SET rank = 1 WHERE id = '10'")
    with open_read_only(path) as opened:
        assert [row.id for row in opened.jobs()] == ["4", "10", "2", "9"]


def test_a_job_was_last_seen_by_the_last_poll_that_showed_it(database: Database, path: Path) -> None:
    polls = [(10.0, (1, 2, 3)), (20.0, (1, 2)), (30.0, (1,))]
    for at, numbers in polls:
        jobs = [job(number, on=[share()] if number == 3 else ()) for number in numbers]
        aside = (SetAsideJob("2", "its record cannot be read"),) if at == 30.0 else ()
        update_jobs(database, snapshot([node()], jobs, time=at, set_aside=aside), [one.id for one in jobs])
    with open_read_only(path) as opened:
        rows = {number: opened.job(number) for number in ("1", "2", "3")}
    assert {number: seen.last_seen for number, seen in rows.items() if seen} == {"1": 30.0, "2": 30.0, "3": 10.0}
    database.write("UPDATE upkeep SET at = 'x' WHERE name = 'polled'")
    with open_read_only(path) as opened:
        assert [row.last_seen for row in opened.jobs()] == [10.0, 10.0], "a damaged time hides no job"


def test_operations_come_with_what_became_of_them(database: Database, path: Path) -> None:
    journal = Journal(database)
    number = journal.begin_round(10.0, "enforce", "synergy", "las")
    (entry,) = journal.record_intents(number, [(0, HOLD)], 11.0)
    journal.record_outcomes([(entry, Outcome(HOLD, Result.DONE, ("scontrol hold 7",)))], 12.0)
    with open_read_only(path) as opened:
        (done,) = opened.operations("7")
        assert (done.verb, done.result, done.commands) == (Verb.HOLD, Result.DONE, ("scontrol hold 7",))
        assert (done.reason.code, done.undo) == (ReasonCode.TAKE_OVER, HOLD.undo())
        assert opened.operations_of_round(number) == (done,)


def test_tasks_of_an_array_are_found_in_order(database: Database, path: Path) -> None:
    jobs = [job(name) for name in ("5_10", "5_2", "51_1", "5x1")]
    update_jobs(database, snapshot([node()], jobs), [one.id for one in jobs])
    with open_read_only(path) as opened:
        assert opened.array_tasks("5") == ("5_2", "5_10")


def test_a_switch_tells_who_and_why(database: Database, path: Path) -> None:
    Switches(database).pause("root", "upgrade", 5.0)
    with open_read_only(path) as opened:
        paused = opened.switch("paused")
        assert paused is not None
        assert (paused.set_by, paused.value, paused.at) == ("root", "upgrade", 5.0)
        assert opened.switch("other") is None


def test_the_overview_is_the_one_of_the_latest_round_that_has_one(database: Database, path: Path) -> None:
    journal, seen = Journal(database), cluster_overview(snapshot([node()]))
    number = journal.begin_round(10.0, "enforce", "synergy", "las")
    database.write("UPDATE rounds SET overview = ? WHERE id = ?", (encode(seen), number))
    journal.begin_round(20.0, "enforce", "synergy", "las")
    with open_read_only(path) as opened:
        assert opened.overview() == seen


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "no round has been recorded in it yet", id="an empty file"),
        pytest.param(b"no database at all" * 100, "move it away", id="something else"),
    ],
)
def test_what_is_no_database_of_ours_is_told_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "odd.db"
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match=said) as caught, open_read_only(path) as opened:
        opened.jobs()
    assert "\n" not in str(caught.value)


def test_a_job_in_words_of_another_version_is_left_out_and_told_of(database: Database, path: Path) -> None:
    update_jobs(database, snapshot([node()], [job(1), job(2)]), ["1", "2"])
    database.write("UPDATE jobs SET state = 'hibernating' WHERE id = '1'")
    with open_read_only(path) as opened:
        assert [row.id for row in opened.jobs()] == ["2"]
        (told,) = opened.unreadable_rows()
        assert told.sentence == ("row 1 of jobs cannot be read and is left out: 'hibernating' is not a valid JobState")


def test_a_reader_waits_for_a_writer_and_sees_one_moment(database: Database, path: Path) -> None:
    update_jobs(database, snapshot([node()], [job(1)]), ["1"])
    with open_read_only(path) as opened:
        assert len(opened.jobs()) == 1
        other = sqlite3.connect(path, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("DELETE FROM jobs").connection.commit()
        other.close()
        assert len(opened.jobs()) == 1
