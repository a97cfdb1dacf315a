"""Runs that have ended in the database: how far accounting was read, what counts for whom, and forgetting."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmsched.backends.protocol import JobOrigin
from slurmsched.model import (
    AccountedRun,
    CpuNeed,
    ExpectedLength,
    ExpectedTime,
    IdleGpus,
    Job,
    MeasuredRate,
    OutOfMemory,
    QueueForecast,
    RunEnd,
    StartForecast,
)
from slurmsched.store.finished_runs import FIRST_SPAN, AccountingCursor, FinishedRuns
from slurmsched.store.measurements import LastReport, PairSample, RateSample, RejectedReport
from slurmsched.store.store import Store
from tests.builders import job, node, snapshot

NOW, HOUR, DAY = 1_790_000_000.0, 3600.0, 86400.0


@pytest.fixture
def store() -> Store:
    return Store.in_memory(NOW)


def run(number: int, ended: float = NOW, owner: str = "alice", name: str = "train-7", **other: object) -> AccountedRun:
    fields: dict[str, object] = {"gpu_type": "v100", "cpu_seconds": 1.0 * HOUR, "gathered": True, "gpu_use": 0.9}
    fields |= {"seconds": HOUR, "end": RunEnd.COMPLETED} | other
    return AccountedRun(str(number), owner, name, ended, gpus=1, cpus=8, memory=8192, **fields)  # type: ignore[arg-type]


def waiting(number: int = 100, **other: object) -> Job:
    return job(number, name="train-9", **other)  # type: ignore[arg-type]


def remember(store: Store, *runs: AccountedRun) -> None:
    store.finished_runs.record(AccountingCursor(NOW), runs)


def test_what_is_stored_comes_back_as_it_was(store: Store) -> None:
    known = [
        run(1),
        run(2, time_limit=60, peak_memory=5, peak_gpu_use=0.5, gpu_memory=9, idle_gpus=1, model="bert", array_job="2"),
    ]
    remember(store, *known)
    remember(store, *known)
    assert sorted(store.finished_runs.runs(0.0), key=lambda one: one.job) == known, "what comes twice counts once"


def test_what_slurmdbd_learns_later_of_a_run_replaces_what_it_knew(store: Store) -> None:
    remember(store, *(run(number, cpu_seconds=None, gathered=False) for number in range(3)))
    assert not store.finished_runs.use_of((waiting(),), NOW)["100"].needs
    remember(store, *(run(number) for number in range(3)))
    assert store.finished_runs.use_of((waiting(),), NOW)["100"].needs == (CpuNeed("v100", 2.0, spares=True),)


def test_accounting_is_read_from_two_weeks_ago_on_window_by_window(store: Store) -> None:
    first = store.finished_runs.cursor(NOW)
    assert first.window(NOW) == (NOW - 14 * DAY - 600, NOW - 14 * DAY + FIRST_SPAN)
    after, _ = first.after((), NOW)
    store.finished_runs.record(after)
    again = store.finished_runs.cursor(NOW)
    assert again == after
    assert again.window(NOW) == (after.reached - 60, after.reached + 2 * FIRST_SPAN), "little ended: a longer window"


@given(
    st.lists(st.integers(10, 900), min_size=1, max_size=30),
    st.integers(0, 600),
    st.integers(0, 300),
    st.integers(0, 400),
    st.booleans(),
)
def test_an_end_of_which_slurmdbd_hears_five_minutes_late_is_read(
    gaps: list[int], begin: int, late: int, ended_after: int, fails: bool
) -> None:
    """Rounds are `gaps` apart. Where accounting does not answer once, the next answer tells it."""
    now, cursor, read, heard = NOW + begin, AccountingCursor(NOW + begin, span=DAY), False, False
    ended = now + ended_after
    for gap in [*gaps, 300]:
        now += gap
        window = cursor.window(now)
        if window is None:
            continue
        if fails:
            cursor, fails = cursor.failed("no answer", now), False
            continue
        heard |= now >= ended + late
        read |= heard and window[0] <= ended <= window[1]
        cursor, _ = cursor.after((), now)
    assert read or not heard or now // 300 == (ended + late) // 300


def test_most_questions_read_a_minute_again_and_one_in_five_minutes_ten() -> None:
    cursor, read_again = AccountingCursor(NOW, span=DAY, asked=NOW), list[float]()
    for _ in range(10):
        now = cursor.reached + 60
        window = cursor.window(now)
        assert window is not None
        read_again.append(cursor.reached - window[0])
        cursor, _ = cursor.after((), now)
    assert sorted(read_again) == [60] * 8 + [600] * 2


def test_at_most_a_day_is_asked_for_and_never_the_future() -> None:
    cursor, now = AccountingCursor.first(NOW), NOW
    for _ in range(40):
        window = cursor.window(now)
        assert window is not None
        assert window[1] <= now
        assert window[1] - cursor.reached <= DAY
        cursor, _ = cursor.after((), now)
        now += 300
    assert cursor.reached == now - 300, "it has caught up"


def test_a_clock_that_was_set_back_asks_nothing() -> None:
    assert AccountingCursor(NOW).window(NOW - DAY) is None


@pytest.mark.parametrize(
    ("reached", "asked_from"),
    [
        pytest.param(300.0, None, id="the clock was set back by five minutes: it waits for these"),
        pytest.param(20 * DAY, -DAY, id="the clock was weeks ahead: it does not wait for weeks"),
        pytest.param(-40 * DAY, -40 * DAY, id="nobody asked for weeks: all of these are read"),
        pytest.param(-20_000 * DAY, -14 * DAY, id="the clock was at its beginning: decades are not read day by day"),
    ],
)
def test_a_clock_that_was_wrong_and_is_right_again_stops_no_learning(
    store: Store, reached: float, asked_from: float | None
) -> None:
    store.finished_runs.record(AccountingCursor(NOW + reached))
    window = store.finished_runs.cursor(NOW).window(NOW)
    assert (window and window[0]) == (None if asked_from is None else NOW + asked_from - 600)


def test_after_a_failure_it_waits_longer_each_time_and_asks_for_less() -> None:
    cursor = AccountingCursor(NOW - DAY, span=HOUR)
    waits = []
    for _ in range(6):
        cursor = cursor.failed("slurmdbd is down", NOW)
        waits.append(next(w for w in range(0, 7200, 60) if cursor.window(NOW + w) is not None))
    assert waits == [300, 600, 1200, 2400, 3600, 3600]
    assert (cursor.reached, cursor.span, cursor.problem) == (NOW - DAY, 60.0, "slurmdbd is down")
    answered, _ = cursor.after((), NOW + HOUR)
    assert (answered.failures, answered.problem) == (0, "")


def test_what_is_read_again_makes_no_page_too_long() -> None:
    cursor = AccountingCursor(NOW - 120, span=HOUR)
    burst = [run(number, NOW - 150) for number in range(6_000)]
    after, kept = cursor.after([*burst, run(6_000, NOW - 60)], NOW)
    assert (after.reached, after.span) == (NOW, 2 * HOUR), "it goes on from now, and not a second at a time"
    assert len(kept) == 6_001, "slurmdbd may have learnt of some of them only now"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 8))
def test_however_runs_end_none_is_left_out_and_it_comes_to_an_end(ends: list[int], page: int) -> None:
    """With pages of `page` runs; each answer is what ended within the window, as sacct gives it."""
    ended = [run(number, NOW - 40 + end) for number, end in enumerate(ends)]
    cursor, seen = AccountingCursor(NOW - 41, span=30.0), set[str]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("slurmsched.store.finished_runs._PAGE", page)
        for _ in range(200):
            window = cursor.window(NOW)
            if window is None:
                break
            found = sorted((one for one in ended if window[0] <= one.ended <= window[1]), key=lambda one: one.ended)
            before = cursor.reached
            cursor, kept = cursor.after(found, NOW)
            assert cursor.reached > before
            seen |= {one.job for one in kept}
    assert cursor.reached == NOW
    assert seen == {one.job for one in ended}


def test_earlier_runs_of_the_same_work_count_for_their_owner_alone(store: Store) -> None:
    remember(store, *(run(number) for number in range(3)))
    mine, theirs, other = waiting(), waiting(101, user="bob"), job(102, name="other")
    use = store.finished_runs.use_of((mine, theirs, other), NOW)
    assert use.keys() == {"100"}
    assert (use["100"].kind, use["100"].runs, use["100"].needs) == (
        "name and GPUs",
        3,
        (CpuNeed("v100", 2.0, spares=True),),
    )


def test_earlier_runs_of_the_same_model_count_where_the_work_has_none(store: Store) -> None:
    remember(store, *(run(number, model="bert", peak_memory=4096) for number in range(3)))
    named, nameless = job(100, name="other", hint="model=bert"), job(101, hint="model=bert")
    use = store.finished_runs.use_of((named, nameless), NOW)
    assert {number: one.runs for number, one in use.items()} == {"100": 3, "101": 3}


def test_nothing_that_another_user_does_changes_what_is_known_of_a_job(store: Store) -> None:
    remember(store, *(run(number) for number in range(3)))
    before = store.finished_runs.use_of((waiting(),), NOW)
    forged = [run(n, owner="mallory", cpu_seconds=0.0, script="x", folder="/home/alice") for n in range(10, 60)]
    remember(store, *forged, *(replace(one, owner="alice x", model="bert") for one in forged))
    assert store.finished_runs.use_of((waiting(),), NOW) == before


def test_jobs_with_the_same_script_and_folder_are_nearer(store: Store) -> None:
    seen = snapshot([node()], [waiting(1), waiting(2)], time=NOW - DAY)
    store.state.record_poll(None, seen, {"1", "2"})
    store.finished_runs.record_origins({"1": JobOrigin("abc", "/a"), "2": JobOrigin("abc", "/b")})
    assert store.finished_runs.unknown_origins(("1", "2", "3")) == ()
    remember(store, *(run(number, script="abc", folder="/a") for number in range(10, 13)))
    remember(store, *(run(number, script="abc", folder="/c", cpu_seconds=3 * HOUR) for number in range(20, 23)))
    use = store.finished_runs.use_of((waiting(1), waiting(2)), NOW)
    assert (use["1"].kind, use["1"].needs[0].cpus) == ("script, folder and GPUs", 2.0)
    assert (use["2"].kind, use["2"].needs[0].cpus) == ("name and GPUs", 6.0)


def test_what_accounting_lacks_is_taken_from_what_rounds_saw_of_the_job(store: Store) -> None:
    seen = snapshot([node()], [waiting(1, hint="model=bert", gpus=1)], time=NOW - DAY)
    store.state.record_poll(None, seen, {"1"})
    store.finished_runs.record_origins({"1": JobOrigin("abc", "/a")})
    remember(store, run(1), replace(run(1, ended=NOW - 5), owner="bob"))
    theirs, mine = store.finished_runs.runs(0.0)
    assert (mine.script, mine.folder, mine.model) == ("abc", "/a", "bert")
    assert (theirs.script, theirs.model) == ("", ""), "an older job with the same id"


def test_old_runs_are_pruned(store: Store) -> None:
    remember(store, run(1, NOW - 100 * DAY), run(2, NOW - DAY))
    store.finished_runs.prune(NOW - 90 * DAY)
    assert [one.job for one in store.finished_runs.runs(0.0)] == ["2"]


def test_only_so_many_runs_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmsched.store.finished_runs._MAX_RUNS", 3)
    remember(store, *(run(number, NOW + number) for number in range(5)))
    store.finished_runs.prune(0.0)
    assert [one.job for one in store.finished_runs.runs(0.0)] == ["2", "3", "4"]


def learnt_of(store: Store, owner: str, number: int) -> None:
    """One row of everything that is learnt of a user."""
    rate = MeasuredRate("v100", 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, NOW)
    store.state.record_poll(None, snapshot([node()], [waiting(number, user=owner)], time=NOW), {str(number)})
    store.measurements.record(
        [LastReport(str(number), 0, NOW, 1, 1, 1.0)],
        [RateSample(str(number), rate, 5, 5.0, f"{owner} train")],
        [RejectedReport(f"job {number} of {owner}", "is wrong"), RejectedReport(f"user {owner}", "is unknown")],
        NOW,
        [PairSample(f"{owner} train", "carol x", "v100", 1, 1.0, 20, 20.0, NOW)],
    )
    store.measurements.record_out_of_memory([OutOfMemory(owner, "bert", "carol", "gpt", NOW)])
    remember(store, run(number, owner=owner))
    idle = IdleGpus(str(number), owner, 1, 1, NOW - HOUR, NOW)
    store.measurements.record_idle([*store.measurements.idle_gpus().values(), idle])
    told = StartForecast(str(number), ExpectedTime(NOW, NOW, NOW), ExpectedTime(NOW, NOW, NOW), 9, 0)
    store.start_forecasts.record(QueueForecast(NOW, NOW, 9, (told,)), NOW)


def test_all_that_was_learnt_of_a_user_is_deleted_and_said_and_nothing_of_others(store: Store) -> None:
    learnt_of(store, "al", 1)
    learnt_of(store, "alice", 2)
    deleted = store.finished_runs.forget("al", NOW)
    assert dict(deleted) == {
        "finished runs": 1,
        "reports": 1,
        "rates of jobs": 1,
        "rates of families": 1,
        "rates beside others": 1,
        "pairs out of memory": 1,
        "complaints": 2,
        "forecasts of starts": 3,
        "idle GPUs": 1,
    }
    assert not any(store.finished_runs.forget("al", NOW).values())
    assert all(store.finished_runs.forget("alice", NOW).values())


def test_a_daemon_that_runs_knows_at_once_of_what_others_have_deleted(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "a.db", NOW)) as daemon, closing(Store.open(tmp_path / "a.db", NOW)) as command:
        remember(daemon, *(run(number) for number in range(3)))
        assert daemon.finished_runs.use_of((waiting(),), NOW)["100"].needs
        command.finished_runs.forget("alice", NOW + 5)
        assert daemon.finished_runs.use_of((waiting(),), NOW + 10) == {}


def test_a_name_with_wildcards_forgets_nobody_else(store: Store) -> None:
    learnt_of(store, "alice", 2)
    assert not any(store.finished_runs.forget("%", NOW).values())
    assert not any(store.finished_runs.forget("a_ice", NOW).values())


def test_what_was_forgotten_is_not_learnt_again(store: Store) -> None:
    store.finished_runs.forget("alice", NOW)
    remember(store, run(1, NOW - 60), run(2, NOW + 60), run(3, NOW - 60, owner="bob"))
    assert {one.job for one in store.finished_runs.runs(0.0)} == {"2", "3"}


def test_a_damaged_row_is_left_out(store: Store) -> None:
    remember(store, *(run(number) for number in range(4)))
    store.database.write("UPDATE finished_runs SET cpus = 'many', ended = ? WHERE job = '0'", (NOW + 1,))
    store.database.write("UPDATE accounting SET reached = 'x'")
    assert store.finished_runs.use_of((waiting(),), NOW)["100"].runs == 3
    assert store.finished_runs.cursor(NOW) == AccountingCursor.first(NOW)


def lengths(store: Store, *jobs: Job, at: float = NOW) -> dict[str, ExpectedLength]:
    seen = snapshot([node()], jobs, time=at)
    store.state.record_poll(None, seen, seen.jobs_by_id.keys())
    known = store.finished_runs.lengths_of(seen, {}, {})
    store.finished_runs.record_forecasts()
    return dict(known)


ENDS = st.sampled_from([RunEnd.COMPLETED, RunEnd.REQUEUED, RunEnd.TIMED_OUT, RunEnd.CANCELLED])


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), ENDS, st.integers(60, 90_000)), max_size=12), st.integers(0, 12))
def test_a_new_daemon_knows_the_lengths_that_the_old_one_knew(
    drawn: list[tuple[int, RunEnd, int]], before: int
) -> None:
    store = Store.in_memory(NOW)
    ended = [run(n, NOW + place, end=end, seconds=float(long)) for place, (n, end, long) in enumerate(drawn)]
    remember(store, *ended[:before])
    over = {one.job for one in ended[:before] if one.end is not RunEnd.REQUEUED}
    lengths(store, *(waiting(n, hint="duration=1h") for n in range(6) if str(n) not in over))
    remember(store, *ended[before:])
    old, new = store.finished_runs, FinishedRuns(store.database)
    seen = snapshot([node()], [waiting(100), waiting(101, gpus=2)], time=NOW + HOUR)
    assert new.lengths_of(seen, {}, {}) == old.lengths_of(seen, {}, {})


def test_lengths_are_those_of_the_owner_and_gone_once_they_are_to_be_forgotten(store: Store) -> None:
    remember(store, *(run(number) for number in range(3)))
    jobs = [waiting(100), waiting(101, user="bob")]
    assert {job: known.runs for job, known in lengths(store, *jobs).items()} == {"100": 3}
    store.finished_runs.forget("alice", NOW + 1)
    assert store.database.rows("SELECT id FROM jobs WHERE likely_from IS NOT NULL AND owner = 'alice'") == []
    assert lengths(store, *jobs, at=NOW + 2) == {}


def test_runs_are_read_again_daily_so_that_those_that_are_deleted_no_longer_count(store: Store) -> None:
    remember(store, run(1), run(2, ended=NOW - 9 * DAY))
    assert lengths(store, waiting())["100"].runs == 2
    store.finished_runs.prune(NOW - DAY)
    assert lengths(store, waiting(), at=NOW + HOUR)["100"].runs == 2
    assert lengths(store, waiting(), at=NOW + DAY)["100"].runs == 1


def test_a_round_under_way_brings_nothing_back_of_who_is_forgotten_meanwhile(tmp_path: Path) -> None:
    jobs = [waiting(100), waiting(101, user="bob")]
    seen = snapshot([node()], jobs, time=NOW)
    with closing(Store.open(tmp_path / "a.db", NOW)) as daemon, closing(Store.open(tmp_path / "a.db", NOW)) as command:
        remember(daemon, *(run(number) for number in range(3)), *(run(number, owner="bob") for number in range(3, 6)))
        daemon.state.record_poll(None, seen, seen.jobs_by_id.keys())
        assert daemon.finished_runs.lengths_of(seen, {}, {}).keys() == {"100", "101"}
        command.finished_runs.forget("alice", NOW + 1)
        daemon.finished_runs.record_forecasts()
        rows = daemon.database.rows("SELECT owner FROM jobs WHERE likely_from IS NOT NULL")
        assert [row["owner"] for row in rows] == ["bob"]


def test_a_clock_that_was_ahead_as_one_was_forgotten_keeps_nothing_of_the_next(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "a.db", NOW)) as daemon, closing(Store.open(tmp_path / "a.db", NOW)) as command:
        remember(daemon, *(run(number) for number in range(3)))
        command.finished_runs.forget("carol", NOW + 50_000)
        assert lengths(daemon, waiting())["100"].runs == 3
        assert daemon.finished_runs.use_of((waiting(),), NOW)["100"].needs
        command.finished_runs.forget("alice", NOW + 5)
        assert lengths(daemon, waiting(), at=NOW + 10) == {}
        assert daemon.finished_runs.use_of((waiting(),), NOW + 10) == {}


def test_no_byte_of_what_was_forgotten_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(Store.open(path, NOW)) as store:
        remember(store, *(run(number, folder="/home/alice/a-secret-folder") for number in range(50)))
        assert b"a-secret-folder" in path.read_bytes()
        store.finished_runs.forget("alice", NOW)
        assert b"a-secret-folder" not in path.read_bytes()
        assert [file.name for file in tmp_path.iterdir() if file.name.startswith("a.db-")] == []
