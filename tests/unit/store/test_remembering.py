"""What a round leaves for the next one, and for how long."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.recorded import pack_recording, unpack_recording
from slurmsched.knowledge import Knowledge
from slurmsched.model import (
    ClusterOverview,
    Explanation,
    Hold,
    Job,
    Operation,
    Outcome,
    Reason,
    ReasonCode,
    Request,
    Result,
    SchedulerState,
    Snapshot,
    Target,
    Verb,
    decode,
)
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.refusals import RefusedStart, refused_starts
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.settings.definition import Mode, RoundSettings, Settings
from slurmsched.store.database import Database
from slurmsched.store.state import USUAL_REQUESTS_WINDOW
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot

DAY = 86400.0
BACK = Reason(ReasonCode.START)
ROOT = Identity("root", Privilege.SLURM_USER)


@pytest.fixture
def store() -> Store:
    return Store.in_memory()


def sighted(store: Store, *jobs: Job, at: float = 1000.0) -> Snapshot:
    seen = snapshot([node()], jobs, time=at)
    store.state.record_poll(None, seen, {each.id for each in jobs})
    return seen


def journalled(store: Store, operation: Operation, at: float = 1000.0) -> None:
    number = store.journal.begin_round(at, "enforce", "synergy", "las")
    (entry,) = store.journal.record_intents(number, [(0, operation)], at)
    store.journal.record_outcomes([(entry, Outcome(operation, Result.DONE))], at)


def remembered(store: Store, *jobs: Job) -> tuple[int, RoundResult]:
    seen = sighted(store, *jobs)
    settings = Settings(rounds=RoundSettings(mode=Mode.ENFORCE))
    result = run_round(seen, SchedulerState(), settings, Knowledge(), ROOT)
    number = store.journal.begin_round(1000.0, "enforce", "synergy", "las")
    store.state.record_decision(number, result, explain, lambda: pack_recording(seen, SchedulerState()))
    return number, result


def test_a_job_that_was_never_changed_leaves_nothing_to_remember(store: Store) -> None:
    seen = sighted(store, job(7, gpus=2))
    assert replace(store.state.load_state(seen, "synergy"), usual=()) == SchedulerState()


def test_the_original_request_of_a_reshaped_job_and_only_of_that(store: Store) -> None:
    sighted(store, job(7, gpus=2, cpus=6), job(8, gpus=2, cpus=6))
    journalled(store, Operation(Verb.UPDATE, "7", BACK))
    wide = Request(gpus=2, cpus=12)
    seen = sighted(store, job(7, request=wide), job(8, gpus=2, cpus=6))
    assert store.state.load_state(seen, "synergy").original_requests == {"7": Request(gpus=2, cpus=6)}


def test_the_nice_of_a_job_that_we_ranked(store: Store) -> None:
    sighted(store, job(7, nice=10))
    journalled(store, Operation(Verb.PRIORITIZE, "7", BACK, 10, 500))
    assert store.state.load_state(sighted(store, job(7, nice=500)), "synergy").nices == {"7": 10}


@pytest.mark.parametrize(
    ("first", "then", "held"),
    [
        pytest.param(job(7), job(7, hold=Hold.ADMIN), {"7"}, id="we held it"),
        pytest.param(job(7), job(7), set(), id="we held it, and somebody let it go"),
    ],
)
def test_whose_holds_are_ours(store: Store, first: Job, then: Job, held: set[str]) -> None:
    sighted(store, first)
    journalled(store, Operation(Verb.HOLD, "7", BACK))
    assert store.state.load_state(sighted(store, then), "synergy").held == held


def test_a_job_that_ended_is_not_remembered_for_another_with_its_number(store: Store) -> None:
    sighted(store, job(7, gpus=2, cpus=6), at=100.0)
    journalled(store, Operation(Verb.UPDATE, "7", BACK))
    journalled(store, Operation(Verb.HOLD, "7", BACK))
    sighted(store, at=200.0)
    seen = sighted(store, job(7, gpus=4, hold=Hold.ADMIN, submit_time=250.0), at=300.0)
    assert replace(store.state.load_state(seen, "synergy"), usual=()) == SchedulerState()


def test_attained_service_is_up_to_the_snapshot(store: Store) -> None:
    seen = sighted(store, job(7, on=[share(gpus=2)], start_time=900.0, run_time=100.0))
    state = store.state.load_state(seen, "synergy")
    assert (state.service, state.service_by_type) == ({"7": 200.0}, {"7": {"v100": 200.0}})


def refused(at: float, reason: str = "ReqNodeNotAvail", tries: int = 1) -> RefusedStart:
    """Slurm did not start job 7 on n1."""
    release = Operation(Verb.RELEASE, "7", Reason(ReasonCode.START, {"nodes": "n1"}))
    undone = Outcome(release, Result.UNDONE, detail=reason)
    known: dict[str, RefusedStart] = {}
    for _ in range(tries):
        (known["7"],) = refused_starts([undone], snapshot([node()], [job(7)], at), known, at)
    return known["7"]


@pytest.mark.parametrize(
    ("tries", "later", "stalled", "let_go"),
    [
        pytest.param(1, 5.0, True, False, id="at once: no"),
        pytest.param(1, 15.0, False, False, id="after fifteen seconds: yes"),
        pytest.param(2, 15.0, True, False, id="refused twice, after as long: no"),
        pytest.param(2, 30.0, False, False, id="refused twice, after twice as long: yes"),
        pytest.param(3, 5.0, True, True, id="refused three times: it is left to Slurm"),
        pytest.param(3, 3600.0, True, True, id="and stays so"),
        pytest.param(3, 90000.0, False, False, id="for a day"),
        pytest.param(2, -29.0, True, False, id="the clock was set back"),
        pytest.param(
            2, -3600.0, False, False, id="the clock was set back by an hour: it keeps nothing back for longer"
        ),
    ],
)
def test_when_a_refused_start_is_tried_again(
    store: Store, tries: int, later: float, stalled: bool, let_go: bool
) -> None:
    store.state.record_refusals([refused(10 * DAY, tries=tries)])
    state = store.state.load_state(sighted(store, job(7), at=10 * DAY + later), "synergy")
    assert state.stalled == ({"7": "ReqNodeNotAvail"} if stalled else {})
    assert state.let_go == (frozenset({"7"}) if let_go else frozenset())


def test_each_job_has_its_explanation_rank_and_target(store: Store) -> None:
    remembered(store, job(7, gpus=8, hint="model=bert"), job(8, gpus=8, hint="model=bert"), job(9))
    rows = {row["id"]: row for row in store.database.rows("SELECT * FROM jobs")}
    assert decode(Explanation, rows["7"]["reason"]).headline == rows["7"]["sentence"]
    assert decode(Target, rows["7"]["target"]).nodes == ("n1",)
    assert (rows["7"]["rank"], rows["8"]["rank"], rows["8"]["target"]) == (1, 2, None)
    assert (rows["9"]["rank"], rows["9"]["target"]) == (None, None)
    assert rows["9"]["sentence"].startswith("job 9 is not managed: it has no synsched: hint")


def _changes(database: Database) -> int:
    return int(database.rows("SELECT total_changes() AS changes")[0]["changes"])


def test_what_is_decided_as_in_the_last_round_is_not_written_again(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "synsched.db", 1.0)) as store:
        jobs = [job(number, gpus=8, hint="model=bert") for number in range(1, 31)]
        written = []
        for _ in range(3):
            before = _changes(store.database)
            remembered(store, *jobs)
            written.append(_changes(store.database) - before)
    assert written[0] > 60, "a row for each job, and what was decided about it"
    assert written[2] == written[1] < 20


@pytest.mark.parametrize("by", ["another process", "a refused start", "an end"])
def test_what_others_wrote_of_a_job_is_replaced_by_the_next_decision(tmp_path: Path, by: str) -> None:
    with closing(Store.open(tmp_path / "synsched.db", 1.0)) as store:
        remembered(store, job(7, gpus=8, hint="model=bert"))
        if by == "another process":
            with closing(sqlite3.connect(tmp_path / "synsched.db")) as other, other:
                other.execute("UPDATE jobs SET sentence = 'x', target = NULL WHERE id = '7'")
        elif by == "a refused start":
            store.state.record_reasons({"7": Reason(ReasonCode.STALLED, {"reason": "Licenses"})})
        else:
            sighted(store)
        remembered(store, job(7, gpus=8, hint="model=bert"))
        (row,) = store.database.rows("SELECT sentence, target FROM jobs WHERE id = '7'")
        assert row["sentence"] == decode(Explanation, _reason(store)).headline
        assert decode(Target, row["target"]).nodes == ("n1",)


def _reason(store: Store) -> str:
    return str(store.database.rows("SELECT reason FROM jobs WHERE id = '7'")[0]["reason"])


@pytest.mark.parametrize("by", ["nobody", "this process", "another process"])
def test_rows_that_are_read_ahead_count_unless_somebody_has_written_since(tmp_path: Path, by: str) -> None:
    with closing(Store.open(tmp_path / "synsched.db", 1.0)) as store:
        sighted(store, job(7, gpus=8, hold=Hold.ADMIN))
        store.state.read_ahead(1500.0)
        if by == "another process":
            with closing(sqlite3.connect(tmp_path / "synsched.db")) as other, other:
                other.execute("UPDATE jobs SET held_by_us = 1 WHERE id = '7'")
        elif by == "this process":  # an operation of a poll that failed
            store.database.write("UPDATE jobs SET held_by_us = 1 WHERE id = '7'")
        seen = sighted(store, job(7, gpus=8, hold=Hold.ADMIN), at=2000.0)
        assert ("7" in store.state.load_state(seen, "synergy").held) is (by != "nobody")


@pytest.mark.parametrize("by", ["this process", "another process"])
def test_what_is_written_between_polls_of_a_job_that_has_not_changed_is_read(tmp_path: Path, by: str) -> None:
    held = "UPDATE jobs SET held_by_us = 1, boosted = 1, original_nice = 5, script = 's', folder = '/f' WHERE id = '7'"
    with closing(Store.open(tmp_path / "synsched.db", 1.0)) as store:
        both = job(7, hold=Hold.ADMIN, nice=9), job(8, hold=Hold.ADMIN, nice=9)
        for at in (1000.0, 1010.0, 1020.0):
            store.state.read_ahead(at)
            assert store.state.load_state(sighted(store, *both, at=at), "synergy").held == frozenset()
        if by == "this process":
            store.database.write(held)
        else:
            with closing(sqlite3.connect(tmp_path / "synsched.db")) as other, other:
                other.execute(held)
        for at in (1030.0, 1040.0, 1050.0):
            store.state.read_ahead(at)
            state = store.state.load_state(sighted(store, *both, at=at), "synergy")
            assert (state.held, state.nices) == ({"7"}, {"7": 5})
        store.database.write("UPDATE jobs SET held_by_us = 0, original_nice = 'damaged' WHERE id = '7'")
        state = store.state.load_state(sighted(store, *both, at=1060.0), "synergy")
        assert (state.held, state.nices) == (frozenset(), {"7": 0}), "and repaired, where it cannot be read"


def test_the_overview_and_the_recording_come_back(store: Store) -> None:
    number, result = remembered(store, job(7, gpus=8, hint="model=bert"))
    (row,) = store.database.rows("SELECT overview, snapshot FROM rounds WHERE id = ?", (number,))
    assert [use.name for use in decode(ClusterOverview, row["overview"]).nodes] == ["n1"]
    assert unpack_recording(row["snapshot"]).snapshot == result.snapshot


def test_a_policys_state_is_given_to_the_same_policy_only(store: Store) -> None:
    store.database.insert("policy_state", {"system": "synergy", "state": '{"passes":{"alice":3}}'})
    seen = sighted(store)
    assert store.state.load_state(seen, "synergy").policy_state == {"passes": {"alice": 3}}
    assert store.state.load_state(seen, "slurm").policy_state == {}


def test_only_the_latest_overviews_are_kept(store: Store) -> None:
    numbers = [remembered(store, job(7, hint="model=bert"))[0] for _ in range(25)]
    store.state.prune(1000.0, keep_days=90, keep_snapshots=2)
    rows = store.database.rows("SELECT id FROM rounds WHERE overview IS NOT NULL ORDER BY id")
    assert [row["id"] for row in rows] == numbers[-20:]


def test_only_the_latest_recordings_are_kept(store: Store) -> None:
    numbers = [remembered(store, job(7, hint="model=bert"))[0] for _ in range(5)]
    store.state.prune(1000.0, keep_days=90, keep_snapshots=2)
    kept = store.database.rows("SELECT id FROM rounds WHERE snapshot IS NOT NULL ORDER BY id")
    assert [row["id"] for row in kept] == numbers[-2:]


def test_old_history_is_dropped_and_what_lives_is_kept(store: Store) -> None:
    lives = job(7, hold=Hold.ADMIN)
    sighted(store, lives, job(8, on=[share()], start_time=0.0, run_time=50.0), at=100.0)
    journalled(store, Operation(Verb.HOLD, "7", BACK), at=100.0)
    unknown = store.journal.begin_round(100.0, "enforce", "synergy", "las")
    store.journal.record_intents(unknown, [(0, Operation(Verb.NOTIFY, "7", BACK))], 100.0)
    sighted(store, lives, at=200.0)
    store.state.prune(100 * DAY, keep_days=90, keep_snapshots=2)
    assert [row["id"] for row in store.database.rows("SELECT id FROM jobs")] == ["7"]
    assert store.database.rows("SELECT * FROM service") == []
    assert store.database.rows("SELECT * FROM events") == []
    assert [entry.round for entry in store.journal.open_intents()] == [unknown]
    assert [row["id"] for row in store.database.rows("SELECT id FROM rounds")] == [unknown]
    assert store.state.load_state(sighted(store, lives, at=300.0), "synergy").held == {"7"}


def test_a_requeue_that_renews_the_time_of_submission_is_seen_through(store: Store) -> None:
    """Slurm sets it anew; who came first is still known, and ranks by it."""
    sighted(store, job("7", hint="task=image", submit_time=500.0))
    again = (
        job("7", hint="task=image", submit_time=900.0, restarts=1),
        job("8", hint="task=image", submit_time=600.0),
    )
    seen = sighted(store, *again, at=1000.0)
    memory = store.state.load_state(seen, "synergy")
    assert memory.submitted == {"7": 500.0}
    settings = Settings(rounds=RoundSettings(mode=Mode.ENFORCE))
    settings = replace(settings, policy=replace(settings.policy, order="fifo"))
    result = run_round(seen, memory, settings, Knowledge(), ROOT)
    assert [ranked.job for ranked in result.decision.order] == ["7", "8"]


def test_what_was_asked_for_lately_is_usual(store: Store) -> None:
    jobs = [job(1, gpus=2), job(2, gpus=2), job(3, gpus=1)]
    seen = snapshot([node()], jobs)
    store.state.record_poll(None, seen, ["1", "2", "3"])
    later = snapshot([node()], [], seen.time + USUAL_REQUESTS_WINDOW / 2)
    usual = dict(store.state.load_state(later, "fgd").usual)
    assert usual == {jobs[0].original_request: 2, jobs[2].original_request: 1}
    assert store.state.load_state(replace(later, time=seen.time + USUAL_REQUESTS_WINDOW + 1), "fgd").usual == ()


HOUR = 3600.0


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_was_set_by_an_hour_takes_no_service_away(store: Store, hours: int) -> None:
    runs = job(7, on=[share(gpus=2)], start_time=10 * DAY - 600, run_time=600.0)
    sighted(store, runs, at=10 * DAY)
    later = replace(runs, run_time=600.0 + hours * HOUR)
    service = store.state.load_state(sighted(store, later, at=10 * DAY + hours * HOUR), "synergy").service
    assert service["7"] >= 1200.0


def test_a_clock_that_is_an_hour_ahead_drops_nothing_too_early(store: Store) -> None:
    sighted(store, job(8), at=100.0)
    sighted(store, at=200.0)
    store.state.prune(100.0 + 90 * DAY + HOUR - 1, keep_days=90, keep_snapshots=2)
    assert [row["id"] for row in store.database.rows("SELECT id FROM jobs")] == ["8"]
    store.state.prune(200.0 + 90 * DAY + 2 * HOUR, keep_days=90, keep_snapshots=2)
    assert store.database.rows("SELECT id FROM jobs") == []


def test_a_clock_that_jumps_years_ahead_drops_little_before_it_is_set_right(store: Store) -> None:
    now = 1000 * DAY
    for number, at in enumerate((now - 80 * DAY, now - DAY)):
        sighted(store, job(number), at=at)
        sighted(store, at=at)
    store.state.prune(now, keep_days=90, keep_snapshots=2)
    for _ in range(10):
        store.state.prune(now + 3000 * DAY, keep_days=90, keep_snapshots=2)
    store.state.prune(now + 300, keep_days=90, keep_snapshots=2)
    assert [row["id"] for row in store.database.rows("SELECT id FROM jobs ORDER BY id")] == ["0", "1"]


def test_an_ended_job_that_is_still_held_by_us_is_not_dropped(store: Store) -> None:
    sighted(store, job(7, hold=Hold.ADMIN), at=100.0)
    journalled(store, Operation(Verb.HOLD, "7", BACK), at=100.0)
    store.database.write("UPDATE jobs SET state = 'finished'")
    store.state.prune(200 * DAY, keep_days=90, keep_snapshots=2)
    assert [row["held_by_us"] for row in store.database.rows("SELECT held_by_us FROM jobs")] == [1]


def test_a_damaged_row_costs_its_own_job_alone_and_is_told_of(store: Store) -> None:
    both = (job(7, gpus=2, cpus=6, hold=Hold.ADMIN), job(8, gpus=2, cpus=6, hold=Hold.ADMIN))
    sighted(store, *both)
    for number in ("7", "8"):
        journalled(store, Operation(Verb.HOLD, number, BACK))
        journalled(store, Operation(Verb.UPDATE, number, BACK))
    store.database.write("UPDATE jobs SET original = '{\"gpus\":[', held_by_us = 'maybe' WHERE id = '7'")
    wide = Request(gpus=2, cpus=12)
    again = [replace(each, original_request=wide, current_request=wide) for each in both]
    memory = store.state.load_state(sighted(store, *again), "synergy")
    assert memory.original_requests == {"8": Request(gpus=2, cpus=6)}
    assert memory.held == {"7", "8"}
    remembered(store, *again)
    (told,) = store.database.rows("SELECT place, row, problem FROM unreadable")
    assert (told["place"], told["row"]) == ("jobs", "7")
    assert "cannot read a stored Request" in told["problem"]


@pytest.mark.parametrize(
    "poison",
    [
        Request(gpus=999_999_999, gpus_per_node=1),
        Request(gpus=1, gpus_per_node=999_999_999),
        Request(gpus=1, nodes=999_999_999),
        Request(gpus=1, cpus=10**12),
        Request(gpus=1, memory=10**18),
        Request(gpus=-1),
    ],
)
def test_what_the_cluster_could_never_give_is_not_usual(store: Store, poison: Request) -> None:
    seen = snapshot([node()], [job(1, gpus=2), job(2, request=poison)])
    store.state.record_poll(None, seen, ["1", "2"])
    assert dict(store.state.load_state(seen, "fgd").usual) == {seen.jobs[0].original_request: 1}


@pytest.mark.parametrize("ours", ["held_by_us", "reshaped", "boosted"])
def test_a_job_of_which_something_is_ours_is_kept_however_old_its_row_is(store: Store, ours: str) -> None:
    sighted(store, job(7), at=100.0)
    store.database.write(f"UPDATE jobs SET {ours} = 1, state = 'finished' WHERE id = '7'")  # noqa: S608 own column
    store.state.prune(100 * DAY, keep_days=90, keep_snapshots=2)
    assert [row["id"] for row in store.database.rows("SELECT id FROM jobs")] == ["7"]
    sighted(store, at=100 * DAY)
    store.state.prune(100 * DAY, keep_days=90, keep_snapshots=2)
    assert store.database.rows("SELECT id FROM jobs") == []
