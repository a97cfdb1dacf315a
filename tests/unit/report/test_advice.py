"""What is advised by runs that have ended: of time, CPUs, memory and GPUs, and of a week by user."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmsched.model import AccountedRun, RunEnd
from slurmsched.report.advice import (
    NothingLearntError,
    WorkAdvice,
    advise_job,
    advise_user,
    week_summary,
)
from slurmsched.store.finished_runs import AccountingCursor
from slurmsched.store.read_only import ReadOnlyStore
from slurmsched.store.store import Store
from tests.builders import job, node, snapshot

NOW, HOUR, DAY = 1_790_000_000.0, 3600.0, 86400.0


def run(number: int, **other: object) -> AccountedRun:
    """A run of an hour on two GPUs, of which everything was measured."""
    fields = dict[str, object](owner="alice", name="train-7", ended=NOW - 60.0 * number, seconds=HOUR)
    fields |= {"end": RunEnd.COMPLETED, "gpus": 2, "gpu_type": "v100", "cpus": 16, "memory": 65_536}
    fields |= {"time_limit": round(DAY), "cpu_seconds": 2 * HOUR, "gathered": True, "peak_memory": 10_000}
    fields |= {"gpu_use": 0.9, "idle_gpus": 0}
    return AccountedRun(str(number), **{**fields, **other})  # type: ignore[arg-type]


def runs(count: int, first: int = 1, **other: object) -> list[AccountedRun]:
    return [run(number, **other) for number in range(first, first + count)]


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(Store.in_memory(NOW)) as made:
        yield made


def remember(store: Store, *ended: AccountedRun) -> ReadOnlyStore:
    store.finished_runs.record(AccountingCursor(NOW), ended)
    copy = sqlite3.connect(":memory:")
    store.database._database.conn.backup(copy)
    copy.row_factory = sqlite3.Row
    return ReadOnlyStore(copy, Path("memory"))


def advice(store: Store, *ended: AccountedRun) -> WorkAdvice:
    (work,) = advise_user(remember(store, *ended), "alice", NOW)
    return work


def sentence(work: WorkAdvice, resource: str) -> str:
    return next(advice.sentence for advice in work.resources if advice.resource == resource)


def test_three_runs_that_used_little_of_what_they_had_are_advised_less_of_it(store: Store) -> None:
    work = advice(store, *runs(3))
    assert (work.kind, work.runs, work.name, work.gpus) == ("name and GPUs", 3, "train-7", 2)
    assert {advice.resource: advice.sentence for advice in work.resources} == {
        "time": "asked for 1 d; all of 3 runs completed within 1 h: 1 h 15 min is enough",
        "CPUs": "had 8 per GPU, of which 1.0 were busy in all of 3 runs: 2 are enough",
        "memory": "had 64G on a node, of which 9.8G were in use in 3 runs: 12G are enough, if files need not be cached",
        "GPUs": "had 2, busy for 90 % of the time in 3 runs",
    }
    assert work.sbatch == "sbatch --time=1:15:00 --cpus-per-gpu=2 --mem=12G"


def test_fewer_than_three_runs_advise_nothing_and_it_is_said(store: Store) -> None:
    work = advice(store, *runs(2))
    assert work.sbatch == ""
    assert all(advice.advised is None for advice in work.resources)
    assert sentence(work, "time") == "nothing is advised: 2 runs completed with 2 GPUs, 3 are needed"
    assert sentence(work, "CPUs") == "nothing is advised: 2 runs had their CPU time gathered, 3 are needed"


def test_what_was_not_gathered_is_not_advised(store: Store) -> None:
    work = advice(store, *runs(9, gathered=False, cpu_seconds=2 * HOUR, gpu_use=None))
    assert work.sbatch == "sbatch --time=1:15:00"
    assert sentence(work, "CPUs") == "nothing is advised: no run had their CPU time gathered, 3 are needed"
    assert sentence(work, "GPUs") == "nothing is advised: no run had the use of GPUs gathered, 3 are needed"


TIMES = [
    pytest.param([HOUR] * 19 + [DAY / 2], [], "--time=1:15:00", id="95 % of 20 runs count, not the longest"),
    pytest.param([HOUR] * 18 + [DAY / 2], [], "--time=14:30:00", id="of 19 runs the longest"),
    pytest.param([0.9 * DAY] * 3, [], "", id="runs nearly as long as their limit keep it"),
    pytest.param([2 * DAY] * 3, [], "", id="never longer than asked for"),
    pytest.param([HOUR] * 9, [DAY], "", id="a tenth of the runs ended at their limit: it is not shortened"),
    pytest.param([HOUR] * 19, [DAY], "--time=1:15:00", id="a twentieth of them may"),
]


@pytest.mark.parametrize(("completed", "timed_out", "option"), TIMES)
def test_the_time_limit(store: Store, completed: list[float], timed_out: list[float], option: str) -> None:
    ended = [run(number, seconds=seconds) for number, seconds in enumerate(completed, start=1)]
    ended += [run(100 + n, seconds=seconds, end=RunEnd.TIMED_OUT) for n, seconds in enumerate(timed_out)]
    assert next(advice.option for advice in advice(store, *ended).resources if advice.resource == "time") == option


def test_a_job_is_as_long_as_all_its_runs_together(store: Store) -> None:
    ended = runs(3, seconds=HOUR)
    ended += [run(n, ended=NOW - DAY, seconds=5 * HOUR, end=RunEnd.REQUEUED) for n in (1, 2, 3)]
    assert "--time=7:30:00" in advice(store, *ended).sbatch


def test_runs_on_another_number_of_gpus_tell_nothing_of_time(store: Store) -> None:
    work = advice(store, run(1, gpus=4, cpus=32), *runs(5, first=2))
    assert sentence(work, "time") == "nothing is advised: 1 run completed with 4 GPUs, 3 are needed"
    assert "--cpus-per-gpu=2" in work.sbatch


CPUS = [
    pytest.param({"cpu_seconds": 16 * HOUR, "gpu_use": 0.4}, "--cpus-per-gpu=16", id="all busy, GPUs not: twice"),
    pytest.param({"cpu_seconds": 16 * HOUR, "gpu_use": 0.95}, "", id="all busy and the GPUs too: as it is"),
    pytest.param({"cpu_seconds": 8 * HOUR}, "", id="half busy: as it is"),
    pytest.param({"cpu_seconds": 0.0}, "--cpus-per-gpu=1", id="none busy: one"),
]


@pytest.mark.parametrize(("use", "option"), CPUS)
def test_cpus(store: Store, use: dict[str, object], option: str) -> None:
    assert next(one.option for one in advice(store, *runs(4, **use)).resources if one.resource == "CPUs") == option


def test_one_run_that_needed_all_its_cpus_keeps_them(store: Store) -> None:
    assert "--cpus" not in advice(store, *runs(40), run(99, cpu_seconds=16 * HOUR, gpu_use=0.2)).sbatch


def test_where_the_use_of_gpus_is_unknown_the_advice_says_so(store: Store) -> None:
    work = advice(store, *runs(3, gpu_use=None))
    assert sentence(work, "CPUs").endswith("2 are enough (how busy GPUs were was not gathered)")


MEMORY = [
    pytest.param({"peak_memory": 60_000}, "", id="nearly all in use"),
    pytest.param({"peak_memory": None}, "", id="not gathered"),
    pytest.param({"nodes": 2, "peak_memory": 20_000}, "--mem=24G", id="of two nodes, each has half"),
]


@pytest.mark.parametrize(("use", "option"), MEMORY)
def test_memory(store: Store, use: dict[str, object], option: str) -> None:
    assert next(one.option for one in advice(store, *runs(3, **use)).resources if one.resource == "memory") == option


def test_a_job_of_several_gpus_that_used_one_is_advised_one_with_cpus_for_all_its_work(store: Store) -> None:
    work = advice(store, *runs(3, gpus=4, cpus=32, cpu_seconds=8 * HOUR, gpu_use=0.24, idle_gpus=3))
    assert sentence(work, "GPUs") == (
        "had 4, busy for 24 % of the time in 3 runs; 3 of them idle in each: use all, or ask for 1"
    )
    assert work.sbatch == "sbatch --gres=gpu:1 --time=1:15:00 --cpus-per-gpu=16 --mem=12G"


def test_gpus_that_one_run_used_are_kept(store: Store) -> None:
    assert "--gres" not in advice(store, *runs(9, idle_gpus=1, gpu_use=0.5), run(20)).sbatch


def test_gpus_that_are_all_used_a_little_are_not_taken_for_idle_ones(store: Store) -> None:
    assert "--gres" not in advice(store, *runs(3, gpus=4, cpus=32, gpu_use=0.24)).sbatch


def test_of_several_nodes_no_options_are_made_up(store: Store) -> None:
    work = advice(store, *runs(3, nodes=2, idle_gpus=1, gpu_use=0.5))
    assert sentence(work, "GPUs").endswith("1 of them idle in each: use all, or ask for 1")
    assert "--gres" not in work.sbatch


def test_idle_gpus_are_told_and_no_option_helps(store: Store) -> None:
    work = advice(store, *runs(3, gpu_use=0.01, idle_gpus=2))
    assert sentence(work, "GPUs") == "had 2, busy for 1 % of the time in 3 runs: does the program use them?"
    assert "--gres" not in work.sbatch


def test_runs_that_failed_are_short_or_are_old_tell_nothing(store: Store) -> None:
    ended = [*runs(3, end=RunEnd.FAILED), *runs(3, 10, seconds=30.0), *runs(3, 20, ended=NOW - 90 * DAY)]
    with pytest.raises(NothingLearntError, match="no run of alice is known from the last 60 days"):
        advice(store, *ended)


def test_the_nearest_kind_with_three_runs_counts(store: Store) -> None:
    near, far = {"script": "abc", "folder": "/a"}, {"script": "old", "folder": "/a", "seconds": 9 * HOUR}
    few = advice(store, *runs(2, **near), *runs(5, 10, **far))
    assert (few.kind, few.runs) == ("name and GPUs", 7)
    enough = advice(store, run(3, **near))
    assert (enough.kind, enough.runs) == ("script, folder and GPUs", 3)


def test_a_waiting_job_is_advised_by_runs_of_its_owners_work_alone(store: Store) -> None:
    seen = snapshot([node()], [job(50, 2, name="train-9"), job(51, name="train-9", user="bob")], time=NOW - 60)
    store.state.record_poll(None, seen, {"50", "51"})
    reader = remember(store, *runs(3))
    assert advise_job(reader, "50", NOW) == advise_job(reader, "1", NOW)
    with pytest.raises(NothingLearntError, match="no run of the same work as job 51 is known"):
        advise_job(reader, "51", NOW)
    with pytest.raises(NothingLearntError, match="job 52 is not known here"):
        advise_job(reader, "52", NOW)


def test_an_array_is_advised_by_its_tasks(store: Store) -> None:
    reader = remember(store, *(run(n, array_job="7") for n in range(1, 4)))
    assert advise_job(reader, "7", NOW).runs == 3


def test_of_an_owner_with_many_runs_the_latest_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmsched.store.read_only._MAX_RUNS_OF_OWNER", 4)
    work = advice(store, *runs(4), *runs(5, 10, seconds=9 * HOUR), *runs(5, 20, owner="bob"))
    assert (work.runs, work.at) == (4, NOW - 60.0)
    assert "--time=1:15:00" in work.sbatch


def test_a_week_by_user_tells_the_most_idle_first(store: Store) -> None:
    ended = [
        *runs(3, gpu_use=0.75, time_limit=round(2 * HOUR)),
        *runs(2, 10, owner="bob", gpu_use=0.1, idle_gpus=1, time_limit=None),
        *runs(1, 20, owner="carol", gpu_use=None),
        run(30, owner="carol", ended=NOW - 8 * DAY),
    ]
    week = week_summary(remember(store, *ended), NOW)
    found = [(user.user, user.runs, user.gpu_hours, user.measured, user.limit_ratio) for user in week.users]
    assert found == [("bob", 2, 4.0, 4.0, None), ("alice", 3, 6.0, 6.0, 2.0), ("carol", 1, 2.0, 0.0, 24.0)]
    assert [user.idle for user in week.users] == pytest.approx([3.6, 1.5, 0.0])
    assert [(work.user, work.name, work.runs) for work in week.works] == [
        ("bob", "train-7", 2),
        ("alice", "train-7", 3),
    ]


def test_of_a_run_that_began_before_the_week_its_part_counts(store: Store) -> None:
    week = week_summary(remember(store, run(1, ended=NOW - 7 * DAY + HOUR, seconds=100 * HOUR)), NOW)
    assert week.users[0].gpu_hours == 2.0


def any_run(number: int, busy: float | None, **other: float) -> AccountedRun:
    """A run whose processes kept this part of its CPUs busy."""
    return run(number, **other, cpu_seconds=None if busy is None else busy * other["cpus"] * other["seconds"])


ANY_RUN = st.builds(
    any_run,
    st.integers(1, 9),
    st.none() | st.floats(0, 1),
    seconds=st.floats(60.0, 9 * DAY),
    end=st.sampled_from(RunEnd),
    gpus=st.integers(1, 3),
    cpus=st.integers(1, 64),
    memory=st.integers(0, 10**6),
    nodes=st.integers(1, 3),
    time_limit=st.none() | st.integers(60, 10**6),
    gathered=st.booleans(),
    peak_memory=st.none() | st.integers(1, 10**6),
    gpu_use=st.none() | st.floats(0, 1),
    idle_gpus=st.none() | st.integers(0, 3),
    gpu_type=st.sampled_from(["", "v100"]),
    ended=st.floats(NOW - 50 * DAY, NOW),
)


@given(st.lists(ANY_RUN, max_size=12))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_less_is_advised_only_by_three_runs_and_never_below_what_was_used(
    ended: list[AccountedRun],
) -> None:
    with closing(Store.in_memory(NOW)) as store:
        reader = remember(store, *ended)
        week_summary(reader, NOW)
        try:
            works = advise_user(reader, "alice", NOW)
        except NothingLearntError:
            return
    for work in works:
        for advice in work.resources:
            assert (advice.advised is None) == (not advice.option)
            if advice.advised is None:
                continue
            assert advice.runs >= 3
            if advice.had is None or advice.advised <= 0.9 * advice.had:
                assert advice.used is not None
                assert advice.resource == "GPUs" or advice.advised >= min(advice.used + 1, 1.2 * advice.used)
            else:
                assert advice.resource == "CPUs"
                assert advice.advised > advice.had
