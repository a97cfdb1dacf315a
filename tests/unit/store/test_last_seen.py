"""When a job was last seen is told once for all unfinished rows, and rows that a poll left as they were are not read
again: neither may cost what is known of our own changes, whatever fails or ran in between."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.daemon.cleanup import _Release
from slurmsched.daemon.log import NO_LOG
from slurmsched.model import (
    Hold,
    Job,
    JobState,
    Operation,
    Outcome,
    Reason,
    ReasonCode,
    Request,
    Result,
    Snapshot,
    Verb,
)
from slurmsched.store import database
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot

DAY = 86400.0


def look(store: Store, *jobs: Job, at: float) -> Snapshot:
    seen = snapshot([node()], jobs, time=at)
    store.state.record_poll(None, seen, {each.id for each in jobs})
    return seen


@pytest.mark.parametrize("verb", [Verb.UPDATE, Verb.HOLD])
def test_what_was_changed_after_the_last_poll_is_given_back_although_the_database_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.1)
    waits = job(7, gpus=2, cpus=6)
    narrowed = replace(waits, current_request=Request(gpus=2, cpus=2), hold=Hold.ADMIN)
    with closing(Store.open(tmp_path / "state.db", 0.0)) as store:
        store.state.load_state(look(store, waits, at=1000.0), "")
        look(store, waits, at=1001.0)  # the end of a round
        number = store.journal.begin_round(1001.0, "enforce", "synergy", "las")
        operation = Operation(verb, "7", Reason(ReasonCode.START))  # an open plan goes on
        (entry,) = store.journal.record_intents(number, [(0, operation)], 1002.0)
        store.journal.record_outcomes([(entry, Outcome(operation, Result.DONE))], 1002.0)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            release = _Release(None, store, None, NO_LOG)  # type: ignore[arg-type]  # no backend is asked
            state = release.state(snapshot([node()], [narrowed], time=1003.0))
        assert release.warnings
        assert (set(state.original_requests), state.held) == (
            ({"7"}, frozenset()) if verb is Verb.UPDATE else (set(), {"7"})
        )


def after_an_older_release(path: Path, first: Job, last: Job, at: float) -> Store:
    """A store in which the job was seen by a poll, then by an older release, which writes it into its row alone."""
    with closing(Store.open(path, 0.0)) as store:
        look(store, first, at=1000.0)
        look(store, last, at=at)
        store.database.write("UPDATE upkeep SET at = 1000 WHERE name = 'polled'")
        store.database.write("UPDATE jobs SET last_seen = ?, held_by_us = 1", (at,))
    return Store.open(path, at)


def test_marks_outlive_one_wrong_poll_also_after_an_older_release_ran(tmp_path: Path) -> None:
    held = job(7, hold=Hold.ADMIN)
    with closing(after_an_older_release(tmp_path / "state.db", held, held, 1000.0 + 3 * DAY)) as store:
        look(store, at=1060.0 + 3 * DAY)
        assert store.database.rows("SELECT held_by_us FROM jobs") == [{"held_by_us": 1}]


def test_a_restart_that_an_older_release_saw_is_no_requeue_by_others(tmp_path: Path) -> None:
    first = job(7, state=JobState.RUNNING, on=[share("n1", 2)], start_time=900.0)
    second = replace(first, start_time=5000.0, restarts=1)
    with closing(after_an_older_release(tmp_path / "state.db", first, second, 6000.0)) as store:
        events = store.state.record_poll(None, snapshot([node()], [second], time=6060.0), {"7"})
    assert "requeued" not in {event.kind.value for event in events}


def test_a_finished_job_that_is_still_shown_is_seen_by_each_poll(tmp_path: Path) -> None:
    ended = job(7, state=JobState.FINISHED, end_time=900.0)
    with closing(Store.open(tmp_path / "state.db", 0.0)) as store:
        for at in (5000.0, 2000.0):  # the clock is set back
            look(store, ended, at=at)
        assert store.database.rows("SELECT last_seen FROM jobs") == [{"last_seen": 2000.0}]
