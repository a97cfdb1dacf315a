"""Whole rounds with jobs that report: what they measured is decided by, and whoever is saved waits no longer."""

from __future__ import annotations

import getpass
import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.backends.simulated import Submission
from slurmsched.daemon.job_reports import checkpointed_jobs
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.model import JobId, Request
from slurmsched.settings.definition import ReportSettings
from tests.builders import job, share
from tests.unit.daemon.world import DAY, World


def reporting(folder: Path) -> World:
    world = World(folder)
    world.settings = replace(world.settings, reports=ReportSettings(spool=str(folder)))
    return world


def submit(world: World, gpus: int) -> JobId:
    request = Request(gpus=gpus, gpus_per_node=gpus, cpus=3 * gpus)
    return world.simulated.submit(Submission(getpass.getuser(), request, DAY, comment="synsched:ckpt=usr1@30"))


def say(world: World, number: JobId, stage: Stage = Stage.RUNNING, done: int = 200) -> None:
    report = Report(number, 0, stage, world.clock.now(), done, done, done / 2, 2.0)
    Spool(Path(world.settings.reports.spool), number).write(report)


def test_a_round_remembers_what_a_job_reports(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    number = submit(world, 4)
    world.rounds(1)
    say(world, number)
    report = world.round()
    assert report.result.situation.knowledge.own == {}, "one point says nothing of ratios"
    (point,) = world.store.measurements.rates([number])[number]
    assert (point.gpu_type, point.gpus, point.rate) == ("v100", 4, 2.0)
    assert world.store.state.load_state(report.snapshot, "synergy").measured == {number: (point,)}


@pytest.mark.parametrize(("stage", "least", "most"), [(Stage.CHECKPOINTED, 0, 10), (Stage.RUNNING, 30, 60)])
def test_a_displaced_job_that_says_it_is_saved_is_requeued_at_once(
    tmp_path: Path, stage: Stage, least: float, most: float
) -> None:
    world = reporting(tmp_path)
    first = submit(world, 8)
    world.rounds(20)
    submit(world, 8)
    say(world, first, stage)
    world.round()
    times = {
        row["verb"]: row["finished"]
        for row in world.store.database.rows("SELECT verb, finished FROM operations WHERE subject = ?", (first,))
    }
    assert least <= times["requeue"] - times["notify"] < most


@pytest.mark.parametrize(
    ("report", "saved"),
    [
        pytest.param({}, True, id="it is"),
        pytest.param({"stage": Stage.RUNNING}, False, id="it trains"),
        pytest.param({"run": 1}, False, id="in another run"),
        pytest.param({"job": "2"}, False, id="another job is"),
    ],
)
def test_who_is_saved(tmp_path: Path, report: dict[str, object], saved: bool) -> None:
    plain = Report("1", 0, Stage.CHECKPOINTED, 1.0, 5, 5, 5.0, 1.0)
    Spool(tmp_path, "1").write(replace(plain, **report))  # type: ignore[arg-type]  # rows
    found = checkpointed_jobs(tmp_path, [job(1, on=[share()])], lambda _user: os.getuid())
    assert found == (frozenset({"1"}) if saved else frozenset())
