"""One job's trouble is that job's alone: the round goes on without it and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from slurmsched.daemon.isolation import RoundFailedError
from slurmsched.daemon.keepalive import SystemdNotifier
from slurmsched.daemon.loop import DaemonLoop
from slurmsched.daemon.process import SignalRequests
from slurmsched.daemon.scheduler import RoundReport, schedule_round
from slurmsched.model import Job, JobState
from slurmsched.policies.pipeline import Pipeline
from slurmsched.policies.stages import Situation
from slurmsched.rounds import scope
from slurmsched.store import jobs as job_rows
from tests.builders import node
from tests.unit.daemon.world import PERIOD, World, log_to

ERRORS = [MemoryError, ZeroDivisionError, OverflowError, RecursionError, RuntimeError]


def poisoned(job: Job) -> bool:
    return job.name == "poison"


def failing_over_poison(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> list[int]:
    """From now on no decision is possible with a job of that name in it; how often one was tried."""
    whole, tries = Pipeline.decide, list[int]()

    def decide(self: Pipeline, situation: Situation) -> object:
        tries.append(len(situation.jobs))
        if any(poisoned(job) for job in situation.jobs):
            raise kind("x" * 10_000)
        return whole(self, situation)

    monkeypatch.setattr(Pipeline, "decide", decide)
    return tries


def told(world: World) -> tuple[RoundReport, list[str]]:
    said: list[str] = []
    return schedule_round(world.site(), world.store, world.clock, log=log_to(said)), said


def aside(world: World) -> dict[str, str]:
    return {row["job"]: row["reason"] for row in world.store.database.rows("SELECT job, reason FROM set_aside")}


@pytest.mark.parametrize("kind", ERRORS)
def test_a_job_over_which_deciding_fails_is_set_aside_and_all_others_are_scheduled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    world = World(tmp_path, nodes=[node(f"n{number}") for number in range(4)])
    failing_over_poison(monkeypatch, kind)
    world.submit(8)
    world.submit(8)
    world.submit(8, name="poison")
    world.submit(8)
    _, said = told(world)
    assert {job for job, where in world.where().items() if where} == {"1", "2", "4"}
    assert list(aside(world)) == ["3"]
    assert aside(world)["3"].startswith(f"deciding about it fails ({kind.__name__} in ")
    assert len(said) == 2
    assert said[1] == "decided without 1 job that made it fail: 3"
    assert max(map(len, said)) < 2000


def test_an_unchanged_job_that_made_deciding_fail_is_left_out_from_the_start_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    tries = failing_over_poison(monkeypatch, MemoryError)
    world.submit(1, name="poison")
    world.submit(1)
    world.rounds(1)
    tries.clear()
    _, said = told(world)
    assert (len(tries), said) == (1, [])
    assert list(aside(world)) == ["1"]
    world.later(3600.0)
    _, said = told(world)
    assert said


def test_once_it_is_other_than_it_was_it_is_decided_on_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    failing_over_poison(monkeypatch, MemoryError)
    world.submit(1, name="poison")
    world.rounds(1)
    monkeypatch.undo()
    cluster_job = world.cluster.jobs["1"]
    cluster_job.nice, cluster_job.last_view = 7, None
    world.rounds(1)
    assert aside(world) == {}
    assert world.where() == {"1": ("n1",)}


def test_many_culprits_are_found_among_many_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, nodes=[node(f"n{number}") for number in range(5)])
    failing_over_poison(monkeypatch, MemoryError)
    for number in range(40):
        world.submit(1, name="poison" if number in (3, 4, 30) else "train")
    world.rounds(1)
    assert sorted(aside(world)) == ["31", "4", "5"]
    assert sum(bool(where) for where in world.where().values()) == 37


def test_without_time_to_find_the_culprit_all_that_changed_stay_out_and_the_others_are_scheduled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.submit(8)
    world.rounds(1)
    world.later(4000.0)
    failing_over_poison(monkeypatch, MemoryError)
    monkeypatch.setattr("slurmsched.daemon.isolation._TRIES", 0)
    world.submit(8)
    world.submit(1, name="poison")
    world.rounds(1)
    assert set(aside(world)) >= {"3"}
    assert world.where()["3"] == ()
    assert [row["error"] for row in world.store.database.rows("SELECT error FROM rounds")] == ["", ""]


def always(kind: type[BaseException]) -> Callable[..., NoReturn]:
    def fails(*_: object, **__: object) -> NoReturn:
        raise kind("mallory\nwas here")

    return fails


def test_a_round_that_no_job_is_to_blame_for_fails_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.submit(1)
    monkeypatch.setattr(Pipeline, "decide", always(MemoryError))
    with pytest.raises(RoundFailedError) as raised:
        world.round()
    assert str(raised.value).startswith("the round could not be decided: MemoryError")
    assert "mallory" not in str(raised.value)
    assert "\n" not in str(raised.value)
    (row,) = world.store.database.rows("SELECT error, finished FROM rounds")
    assert row["error"] == str(raised.value)
    assert row["finished"] is not None


@pytest.mark.parametrize(
    "where", ["slurmsched.daemon.scheduler.run_round", "slurmsched.backends.recorded.RecordingPacker.pack"]
)
def test_no_error_in_a_round_ends_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    world = World(tmp_path)
    world.submit(1)
    requests, said, began = SignalRequests(), list[str](), world.clock.now()
    monkeypatch.setattr(where, always(MemoryError))
    sleep = world.clock.sleep

    def sleeping(seconds: float) -> None:
        sleep(seconds)
        if world.clock.now() - began > 200.0:
            monkeypatch.undo()
        if world.clock.now() - began > 3 * PERIOD:
            requests.stop = True

    world.clock.sleep = sleeping  # type: ignore[method-assign]  # what happens meanwhile
    DaemonLoop(
        world.site(),
        world.site,
        world.store,
        world.clock,
        requests=requests,
        systemd=SystemdNotifier({}),
        log=log_to(said),
    ).run(keep_holds=True)
    assert world.where() == {"1": ("n1",)}
    assert "mallory" not in " ".join(said)
    assert len(said) == 3
    assert said[-1].startswith("rounds succeed again after ")


def test_a_job_of_which_nobody_can_tell_whether_it_is_managed_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.submit(1, name="poison")
    world.submit(1)
    whole = scope._without_whole_gpus
    monkeypatch.setattr(scope, "_without_whole_gpus", lambda job: always(KeyError)() if poisoned(job) else whole(job))
    world.rounds(1)
    assert world.where() == {"1": (), "2": ("n1",)}
    assert aside(world)["1"].startswith("whether it is managed cannot be determined (KeyError in ")


def test_a_job_that_cannot_be_explained_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurmsched.daemon import isolation  # noqa: PLC0415 what is replaced in it is this test's

    world = World(tmp_path)
    world.submit(1)
    world.submit(1, name="poison")
    whole = isolation.explain
    monkeypatch.setattr(
        isolation,
        "explain",
        lambda result, job: always(ValueError)() if poisoned(result.snapshot.jobs_by_id[job]) else whole(result, job),
    )
    world.rounds(1)
    assert world.where() == {"1": ("n1",), "2": ()}
    assert aside(world)["2"].startswith("it cannot be explained (ValueError")


def test_a_job_that_cannot_be_written_down_is_set_aside(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(1, name="\ud800")
    world.submit(1)
    world.rounds(1)
    assert world.where() == {"1": (), "2": ("n1",)}
    assert "UnicodeEncodeError" in aside(world)["1"]


@pytest.mark.parametrize("column", ["state", "original"])
def test_a_row_that_cannot_be_read_costs_its_job_alone(tmp_path: Path, column: str) -> None:
    world = World(tmp_path)
    world.submit(8)
    world.submit(8)
    world.submit(8)
    world.rounds(1)
    waiting = sorted(job for job, where in world.where().items() if not where)
    world.store.database.write(f"UPDATE jobs SET reshaped = 1, {column} = '[no' WHERE id = ?", (waiting[0],))  # noqa: S608 a column of ours
    world.cluster.lifecycle.cancel(world.cluster.jobs["1"], world.cluster.now)
    world.rounds(2)
    assert sorted(world.where()[job] for job in waiting) == [(), ("n1",)]
    assert [row["error"] for row in world.store.database.rows("SELECT error FROM rounds")] == [""] * 3


def test_reports_that_make_reading_fail_do_not_end_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.settings = replace(world.settings, reports=replace(world.settings.reports, spool=str(tmp_path / "spool")))
    world.submit(1)
    monkeypatch.setattr("slurmsched.daemon.scheduler.ingest", always(RecursionError))
    _, said = told(world)
    assert world.where() == {"1": ("n1",)}
    assert said[0].startswith("the reports of jobs are ignored: RecursionError")


def test_a_running_job_over_which_deciding_fails_keeps_its_place_and_its_service_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.submit(8, name="poison")
    world.rounds(1)
    failing_over_poison(monkeypatch, MemoryError)
    world.submit(8)
    world.later(1000.0)
    world.rounds(2)
    assert world.where() == {"1": ("n1",), "2": ()}
    (row,) = world.store.database.rows("SELECT TOTAL(gpu_seconds) AS sum FROM service WHERE job = '1'")
    assert row["sum"] > 8 * 1000
    assert world.cluster.jobs["1"].state is JobState.RUNNING
    assert job_rows.update_jobs is not None
