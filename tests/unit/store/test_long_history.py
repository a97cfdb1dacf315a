"""A round's part in the database beside a long history: found by index, and the same as by plain queries."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.recorded import pack_recording
from slurmsched.bench.store import time_accounting, time_store
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    Block,
    BlockCause,
    Operation,
    Reason,
    ReasonCode,
    Request,
    SchedulerState,
    Verb,
    decode,
    encode,
)
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings
from slurmsched.store.database import Database
from slurmsched.store.measurements import Measurements
from slurmsched.store.service import DAY, AttainedService
from slurmsched.store.state import USUAL_REQUESTS_WINDOW, StateStore
from slurmsched.store.store import Store
from tests.builders import job, node, snapshot

NOW = 200 * DAY
LONG = ("jobs", "operations", "events", "service", "rounds", "rates", "reported")

jobs = st.tuples(
    st.sampled_from(["1", "2", "3", "4_1", "4_2"]),
    st.integers(1, 3),
    st.one_of(st.floats(NOW - 2 * USUAL_REQUESTS_WINDOW, NOW), st.integers(185, 201).map(lambda day: day * DAY)),
    st.sampled_from(["pending", "finished"]),
)
runs = st.tuples(st.sampled_from(["1", "2", "3", "9"]), st.floats(0, NOW), st.floats(0, 1e6))
moves = st.tuples(
    st.sampled_from(["1", "2", "3"]),
    st.sampled_from(["requeue", "release"]),
    st.sampled_from(["done", "undone", "refused"]),
    st.floats(NOW - 2 * DAY, NOW),
)
words = st.tuples(st.sampled_from(["1", "2", "3", "9"]), st.floats(1, 1000), st.integers(1, 3))


def filled(known: list[tuple[str, int, float, str]]) -> Database:
    database = Store.in_memory().database
    for number, gpus, seen, state in known:
        database.write("DELETE FROM jobs WHERE id = ?", (number,))
        database.insert("jobs", {"id": number, "owner": "alice", "first_seen": 0, "last_seen": seen, "state": state,
                                 "original": encode(Request(gpus=gpus))})  # fmt: skip
    return database


@given(st.lists(jobs, max_size=12), st.lists(st.tuples(jobs, st.booleans()), max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_usual_requests_are_those_that_counting_all_jobs_gives(
    first: list[tuple[str, int, float, str]], changes: list[tuple[tuple[str, int, float, str], bool]]
) -> None:
    database = filled(first)
    for (number, gpus, seen, _), drop in changes:
        if drop:
            database.write("DELETE FROM jobs WHERE id = ?", (number,))
        else:
            changed = (encode(Request(gpus=gpus)), seen, number)
            database.write("UPDATE jobs SET original = ?, last_seen = ? WHERE id = ?", changed)
    plain = {
        decode(Request, row["original"]): row["times"]
        for row in database.rows(
            "SELECT original, count(*) AS times FROM jobs WHERE last_seen > ? GROUP BY original",
            (NOW - USUAL_REQUESTS_WINDOW,),
        )
    }
    assert dict(StateStore(database).load_state(snapshot([node("n1", 8)], time=NOW), "synergy").usual) == plain


@given(st.lists(jobs, max_size=6), st.lists(runs, max_size=8), st.lists(moves, max_size=8), st.lists(words, max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_remembered_of_the_jobs_here_is_what_reading_all_rows_gives(
    known: list[tuple[str, int, float, str]],
    ran: list[tuple[str, float, float]],
    moved: list[tuple[str, str, str, float]],
    said: list[tuple[str, float, int]],
) -> None:
    database = filled(known)
    database.insert("rounds", {"id": 1, "started": 0, "mode": "enforce", "system": "synergy", "ordering": "las"})
    for number, since, seconds in ran:
        database.write("INSERT OR REPLACE INTO service VALUES (?, ?, ?, 'v100')", (number, since, seconds))
    for number, verb, result, at in moved:
        database.insert("operations", {"round": 1, "position": 0, "verb": verb, "subject": number, "reason": "{}",
                                       "sentence": "", "result": result, "intended": at, "finished": at})  # fmt: skip
    for number, seconds, gpus in said:
        database.write("INSERT OR REPLACE INTO reported VALUES (?, 0, 1, 7, 7, ?, NULL, NULL)", (number, seconds))
        database.write(
            "INSERT OR REPLACE INTO rates VALUES (?, 'v100', ?, 1, 3, 4, 3, 4, 100, ?, 5)", (number, gpus, seconds)
        )
    here = ("1", "3", "4_2", "9")
    service: defaultdict[str, float] = defaultdict(float)
    for row in database.rows("SELECT * FROM service ORDER BY run_started"):
        service[row["job"]] += row["gpu_seconds"]
    places: defaultdict[str, list[float]] = defaultdict(list)
    for row in database.rows("SELECT o.* FROM operations o JOIN jobs j ON j.id = o.subject ORDER BY o.finished, o.id"):
        if row["verb"] == "requeue" and row["result"] in ("done", "undone") and row["finished"] > NOW - DAY:
            places[row["subject"]].append(row["finished"])
    found = AttainedService(database).gpu_seconds_by_type(here)
    assert {number: of_types["v100"] for number, of_types in found.items()} == pytest.approx(
        {number: sum_ for number, sum_ in service.items() if number in here}
    )
    assert AttainedService(database).moves(NOW, here) == {n: tuple(at) for n, at in places.items() if n in here}
    rates = Counter(row["job"] for row in database.rows("SELECT job FROM rates"))
    measured = Measurements(database).rates(here)
    assert {number: len(points) for number, points in measured.items()} == {n: c for n, c in rates.items() if n in here}
    last = {row["job"]: row["busy"] for row in database.rows("SELECT job, busy FROM reported")}
    assert {n: word.timed_seconds for n, word in Measurements(database).last_reports(here).items()} == {
        n: busy for n, busy in last.items() if n in here
    }


@contextmanager
def recorded(database: Database) -> Iterator[list[str]]:
    """Every statement that is run inside the block, with its values."""
    statements: list[str] = []
    connection = database._database.conn
    connection.set_trace_callback(statements.append)
    yield statements
    connection.set_trace_callback(None)


def test_no_statement_of_a_round_goes_through_a_whole_table() -> None:
    store = Store.in_memory()
    seen = snapshot([node()], [job(7, gpus=2, hint="model=bert"), job(8, gpus=1)])
    with recorded(store.database) as statements:
        store.journal.close_interrupted_rounds(1.0)
        number = store.journal.begin_round(1.0, "enforce", "synergy", "las")
        store.state.record_poll(number, seen, seen.jobs_by_id)
        assert store.journal.open_intents() == ()
        memory = store.state.load_state(seen, "synergy")
        identity = Identity("root", Privilege.SLURM_USER)
        result = run_round(seen, memory, Settings(), Knowledge(), identity)
        store.state.record_decision(number, result, explain, lambda: pack_recording(seen, SchedulerState()))
        store.state.prune(2.0, 90, 200)
        hold = Operation(Verb.HOLD, "7", Reason(ReasonCode.START))
        store.journal.record_blocked(number, [(0, hold)], Block(BlockCause.MODE, ""), 1.0)
        store.measurements.record((), (), (), 1.0)
    assert len(statements) > 20
    whole = [
        (statement, step["detail"])
        for statement in statements
        if statement.startswith(("SELECT", "UPDATE", "DELETE"))
        for step in store.database.rows(f"EXPLAIN QUERY PLAN {statement}")
        if re.match(rf"SCAN ({'|'.join((*LONG, *'ojr'))})( USING COVERING INDEX sqlite_autoindex\w*)?$", step["detail"])
    ]
    assert whole == []


def steps_of_a_poll(ended: int) -> int:
    """Hundreds of steps of SQLite's machine that a poll takes after so many jobs ended today that rounds had sized."""
    store, many = Store.in_memory(), [job(number, gpus=1) for number in range(10, 10 + ended)]
    seen = snapshot([node()], [job(7, gpus=2), job(8, gpus=1)], time=NOW)
    before = snapshot([node()], [*seen.jobs, *many], time=NOW - 60)
    for number, at in enumerate((before, seen), start=1):
        store.journal.begin_round(at.time, "enforce", "synergy", "las")
        store.state.record_poll(number, at, at.jobs_by_id)
        store.database.write("UPDATE jobs SET reshaped = 1 WHERE id >= '10'")
    taken: list[int] = []
    store.database._database.conn.set_progress_handler(lambda: taken.append(1), 100)
    store.state.record_poll(2, seen, seen.jobs_by_id)
    store.database._database.conn.set_progress_handler(None, 0)
    marked = "SELECT count(*) AS jobs FROM jobs WHERE state = 'finished' AND reshaped"
    assert store.database.rows(marked) == [{"jobs": ended}], "for a day they are known, should one have been misread"
    return len(taken)


def test_a_poll_takes_as_long_however_many_jobs_ended_today() -> None:
    assert steps_of_a_poll(2_000) <= steps_of_a_poll(20) + 5


def test_a_round_beside_ten_thousand_finished_jobs_takes_a_few_hundredths_of_a_second() -> None:
    measured = time_store(10_000, range(3))
    assert measured.rows == 10_000
    assert measured.total_s < 0.2


def test_a_round_reads_what_ended_lately_however_many_runs_are_known() -> None:
    few, many = (time_accounting(finished, range(1)) for finished in (1_000, 10_000))
    assert (few.pages, many.pages) == (1, 2)
    assert many.file_mb > 4 * few.file_mb
    assert [one.ended for one in many.rounds] == [0, 100, 5_000]
    assert few.rounds[1].mb == pytest.approx(many.rounds[1].mb, rel=0.02)
