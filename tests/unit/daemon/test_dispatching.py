"""What copies of forked jobs are told: in whole rounds, and as files that nobody else can write."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from slurmsched.backends.simulated import Submission
from slurmsched.daemon.dispatch_files import make_dispatches, write_dispatches
from slurmsched.jobside.dispatch import DISPATCH_FOLDER, Dispatch, read_dispatch
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.model import JobId, JobState, Request, Target
from slurmsched.settings.definition import Mode, ReportSettings
from tests.builders import job, node, share, snapshot
from tests.unit.daemon.world import DAY, World
from tests.unit.jobside.users import ALICE, needs_users, open_folder, start_as_user

WORD = Dispatch("7", 5, 100.0, {0: 3, 1: 0})
NODES = (node("a", 1, "v100", cpus=6), node("b", 1, "p100", cpus=6), node("c", 1, "k80", cpus=6))


def forked(folder: Path, mode: Mode = Mode.ENFORCE) -> tuple[World, JobId]:
    """Three copies of a job of 9000 steps on three nodes."""
    world = World(folder, NODES, mode)
    policy = replace(world.settings.policy, system="hadare")
    world.settings = replace(world.settings, policy=policy, reports=ReportSettings(spool=str(folder / "spool")))
    (folder / "spool").mkdir()
    request = Request(gpus=1, gpus_per_node=1, cpus=3)
    comment = "synsched:fork=9000,ckpt=usr1@30"
    submission = Submission(getpass.getuser(), request, DAY, comment=comment)
    return world, world.simulated.submit(submission, tasks=3)


def said(world: World, array: JobId) -> Dispatch | None:
    return read_dispatch(Path(world.settings.reports.spool), array, world.clock.now())


def report(world: World, copy: JobId, where: str, steps: int, rate: float) -> None:
    seconds = 100.0
    told = Report(copy, 0, Stage.RUNNING, world.clock.now(), steps, round(rate * seconds), seconds, rate, node=where)
    Spool(Path(world.settings.reports.spool), copy).write(told)


def test_copies_that_run_are_told_their_steps_and_told_anew_as_they_are_measured(tmp_path: Path) -> None:
    world, array = forked(tmp_path)
    world.rounds(1)
    first = said(world, array)
    assert first is not None
    assert sum(first.steps.values()) == 9000
    assert len(first.steps) == 3
    where = {copy: nodes[0] for copy, nodes in world.where().items()}
    assert sorted(where.values()) == ["a", "b", "c"]
    for copy, on in where.items():
        report(world, copy, on, 3000, rate={"a": 30.0, "b": 20.0, "c": 10.0}[on])
    world.rounds(1)
    second = said(world, array)
    assert second is not None
    assert second.number > first.number
    steps = {on: second.steps[int(copy.rpartition("_")[2])] for copy, on in where.items()}
    assert steps == {"a": 3000, "b": 2000, "c": 1000}
    told = world.store.state.load_state(world.simulated.observe(), "hadare")
    assert told.policy_state["done"] == {array: 3000}


def test_nobody_is_told_anything_where_slurm_places(tmp_path: Path) -> None:
    world, array = forked(tmp_path, Mode.PRIORITIZE)
    world.rounds(2)
    assert said(world, array) is None


def test_a_word_is_forgotten_with_its_job(tmp_path: Path) -> None:
    world, array = forked(tmp_path)
    world.rounds(1)
    folder = Path(world.settings.reports.spool) / DISPATCH_FOLDER
    assert [path.name for path in folder.iterdir()] == [f"{array}.json"]
    write_dispatches(folder.parent, (), {"99"})
    assert list(folder.iterdir()) == []


def test_only_copies_that_run_where_they_were_placed_are_told() -> None:
    def target(task: int, where: str, steps: int | None) -> Target:
        return Target(f"7_{task}", (share(where),), steps=steps)

    def copy(task: int, where: str, **other: object) -> object:
        on = [share(where)] if where else []
        return job(f"7_{task}", hint="fork=100", array_job="7", on=on, **other)

    cluster = [node(name) for name in "abcd"]
    seen = snapshot(
        cluster, [copy(0, "a"), copy(1, "c"), copy(2, ""), copy(3, "d", state=JobState.COMPLETING), copy(4, "b")]
    )
    targets = [target(0, "a", 60), target(1, "b", 20), target(2, "b", 10), target(3, "d", 5), target(4, "b", 0)]
    assert make_dispatches(targets, seen, 1, 2.0) == (Dispatch("7", 1, 2.0, {0: 60, 4: 0}),)
    assert make_dispatches([target(4, "b", 0)], seen, 1, 2.0) == (), "no steps for anybody are no word"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_spool_that_is_not_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / DISPATCH_FOLDER).mkdir()
    os.chown(tmp_path / DISPATCH_FOLDER, 4321, -1)
    (complaint,) = write_dispatches(tmp_path, [WORD], {"7"})
    assert complaint.sentence == "contains dispatched, which belongs to user number 4321: have it removed"
    assert list((tmp_path / DISPATCH_FOLDER).iterdir()) == []


def test_a_spool_that_cannot_be_written_costs_no_round(tmp_path: Path) -> None:
    (complaint,) = write_dispatches(tmp_path / "nowhere", [WORD], {"7"})
    assert "copies cannot be written" in complaint.sentence


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / DISPATCH_FOLDER).symlink_to(tmp_path / "elsewhere")
    (complaint,) = write_dispatches(tmp_path, [WORD], {"7"})
    assert "is a link" in complaint.sentence
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / DISPATCH_FOLDER).mkdir()
    (tmp_path / DISPATCH_FOLDER).chmod(0o777)
    (complaint,) = write_dispatches(tmp_path, [WORD], {"7"})
    assert "can be written by others" in complaint.sentence
    assert list((tmp_path / DISPATCH_FOLDER).iterdir()) == []


def test_a_spool_where_users_can_remove_what_is_anothers_is_not_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (complaint,) = write_dispatches(tmp_path, [WORD], {"7"})
    assert "lets users remove and rename what is another's" in complaint.sentence
    assert list(tmp_path.iterdir()) == []


def test_copies_of_all_users_can_read_it_whatever_the_daemons_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert write_dispatches(tmp_path, [WORD], {"7"}) == ()
    finally:
        os.umask(before)
    folder = tmp_path / DISPATCH_FOLDER
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "7.json")] == [0o755, 0o644]


def test_nothing_is_removed_but_old_words(tmp_path: Path) -> None:
    assert write_dispatches(tmp_path, [WORD], {"7"}) == ()
    folder = tmp_path / DISPATCH_FOLDER
    for name in ("8.json", ".8.json.1a2b", ".8.json.4711", "notes", "x.json", "9.json.bak"):
        (folder / name).touch()
    (folder / "10.json").mkdir()
    (folder / "11.json").symlink_to(tmp_path)
    assert write_dispatches(tmp_path, (), {"7"}) == ()
    assert {path.name for path in folder.iterdir()} == {"7.json", "notes", "x.json", "9.json.bak", "10.json", "11.json"}


@needs_users
def test_a_link_that_comes_and_goes_never_leads_the_daemon_into_another_folder() -> None:
    with open_folder() as base:
        spool, victim = base / "spool", base / "victim"
        spool.mkdir()
        spool.chmod(0o1777)
        victim.mkdir()
        for number in range(100, 140):
            (victim / f"{number}.json").touch()
        folder = spool / DISPATCH_FOLDER
        attacker = start_as_user(ALICE, lambda: toggle(folder, victim))
        rounds, deadline = 0, time.monotonic() + 2.0
        try:
            while rounds < 200 or time.monotonic() < deadline:
                write_dispatches(spool, [WORD] if rounds % 100 == 0 else (), {"7"})
                rounds += 1
                with suppress(FileNotFoundError):
                    found = folder.lstat()
                    if found.st_uid == os.geteuid():  # no other can take it away: this is the attacker's next chance
                        shutil.rmtree(folder)
        finally:
            os.kill(attacker, signal.SIGKILL)
            os.waitpid(attacker, 0)
        assert {path.name for path in victim.iterdir()} == {f"{number}.json" for number in range(100, 140)}


def toggle(folder: Path, victim: Path) -> None:
    """A link, nothing, a link, nothing, now and then a folder, for as long as the test lets it."""
    for turn in count():
        with suppress(OSError):
            folder.symlink_to(victim)
        with suppress(OSError):
            folder.unlink()
        if turn % 50 == 0:
            with suppress(OSError):
                folder.mkdir()
            with suppress(OSError):
                folder.rmdir()
