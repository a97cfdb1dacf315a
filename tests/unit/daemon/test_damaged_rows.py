"""A value in the database that a disk or a hand has changed: rounds and views go on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from io import StringIO
from itertools import product
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from slurmsched.daemon.scheduler import SchedulerContext, schedule_round
from slurmsched.model import MeasuredRate, Operation, Reason, ReasonCode, SynschedError, Verb
from slurmsched.report.job_view import explain_job, explanation_view, history_view, job_history
from slurmsched.report.status import cluster_status, status_view
from slurmsched.store.measurements import LastReport, RateSample, RejectedReport
from slurmsched.store.read_only import open_read_only
from slurmsched.store.store import Store
from tests.builders import node
from tests.unit.daemon.world import World

EVERY_ROW = {"no UTF-8": "CAST(x'ff7b' AS TEXT)", "a list": "'[1]'"}
LAST_ROW = {"other words": "'hibernating'"}
TABLES = (
    "complaints",
    "events",
    "jobs",
    "operations",
    "policy_state",
    "rates",
    "reported",
    "requests_by_day",
    "rounds",
    "service",
    "switches",
    "unreadable",
    "upkeep",
)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Jobs that run, wait held and have ended, and something in every table."""
    world = World(tmp_path_factory.mktemp("world"), (node("n1"), node("n2")))
    world.submit(8, work=400.0)
    for gpus in (8, 4, 8, 2):
        world.submit(gpus)
    world.rounds(4)
    store, now = world.store, world.clock.now()
    measured = MeasuredRate("v100", 8, 1, 3.0, 4.0, 3.0, 4.0, 2.0, now)
    store.measurements.record([LastReport("2", 0, now, 100, 7, 5.0)], [RateSample("2", measured, 7, 5.0)],
                              [RejectedReport("job 2 of alice", "claims too much")], now)  # fmt: skip
    number = store.journal.begin_round(now, "enforce", "synergy", "las")
    store.journal.record_intents(number, [(0, Operation(Verb.NOTIFY, "2", Reason(ReasonCode.START)))], now)
    store.database.write("INSERT INTO unreadable VALUES ('events', '7', 'at is text', ?)", (now,))
    store.switches.pause("root", "new drives", now)
    store.close()
    return world


def damaged(world: World, folder: Path, change: str, table: str) -> Path:
    """A copy of its database with one change that no trigger noticed."""
    path = folder / "synsched.db"
    path.write_bytes(world.path.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 our own table
        connection.execute(change)
        for _, trigger in triggers:
            connection.execute(trigger)
        connection.execute("COMMIT")
    return path


def columns(world: World, table: str) -> list[str]:
    with closing(sqlite3.connect(world.path)) as connection:
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def one_more_round(world: World, path: Path) -> None:
    """By a new process over the damaged database, and the same cluster."""
    backend, clock = deepcopy((world.simulated, world.clock))
    with closing(Store.open(path, world.clock.now(), check_interval=0.0)) as store:
        store.database._database.conn.execute("PRAGMA synchronous = OFF")
        schedule_round(SchedulerContext(world.settings, backend, world.knowledge), store, clock)


def shown(world: World, path: Path) -> Iterator[str]:
    """What `status`, `history` and `explain` say."""
    screen = Console(file=StringIO(), width=120)
    now = world.clock.now()
    with open_read_only(path) as opened:
        whole = cluster_status(opened, world.settings, now, None)
        screen.print(status_view(whole, every_node=True))
        yield from whole.problems
        for job in ("1", "2", "3", "5"):
            try:
                screen.print(history_view(job_history(opened, job), True))
                screen.print(explanation_view(explain_job(opened, job), now))
            except SynschedError as error:
                yield str(error)
        opened.rates()
        opened.rejected_reports()
        opened.recording()
        opened.array_tasks("1")
        opened.operations_of_round(1)
        opened.policy_state("synergy")


@pytest.mark.parametrize("table", TABLES)
def test_no_value_in_no_column_keeps_a_round_or_a_view_from_going_on(before: World, tmp_path: Path, table: str) -> None:
    tried, failed = 0, []
    for column, damage in product(columns(before, table), (*EVERY_ROW.values(), *LAST_ROW.values())):
        last = f"WHERE {column} = (SELECT {column} FROM {table} ORDER BY 1 DESC LIMIT 1)"  # noqa: S608 our own table
        change = f"UPDATE {table} SET {column} = {damage} {last if damage in LAST_ROW.values() else ''}"  # noqa: S608
        try:
            path = damaged(before, tmp_path, change, table)
        except sqlite3.IntegrityError:
            continue  # SQLite itself keeps such a value out
        tried += 1
        try:
            said = list(shown(before, path))
            one_more_round(before, path)
            said += shown(before, path)
        except Exception as error:
            failed.append((change, repr(error)))
        else:
            assert not [words for words in said if "\n" in words]
    assert failed == []
    assert tried


def test_of_two_hundred_files_with_a_few_bytes_changed_each_is_read_or_told_to_be_damaged(
    before: World, tmp_path: Path
) -> None:
    whole, dice, told = before.path.read_bytes(), Random(7), list[str]()
    path = tmp_path / "synsched.db"
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(dice.randint(1, 40)):
            content[dice.randrange(len(content))] = dice.randrange(256)
        path.write_bytes(content)
        for command in (lambda: list(shown(before, path)), lambda: remembered(before, path)):
            try:
                command()
            except SynschedError as error:
                told.append(str(error))
    assert 0 < len(told) < 400
    assert not [words for words in told if "\n" in words]


def remembered(world: World, path: Path) -> None:
    """What a round reads and writes of its own."""
    seen = world.simulated.observe()
    with closing(Store.open(path, world.clock.now(), check_interval=0.0)) as store:
        store.database._database.conn.execute("PRAGMA synchronous = OFF")
        store.switches.current_pause()
        store.journal.open_intents()
        store.state.record_poll(None, seen, seen.jobs_by_id)
        store.state.load_state(seen, "synergy")
        store.state.prune(world.clock.now(), 90, 10)
