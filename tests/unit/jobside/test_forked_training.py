"""Copies of one job as processes: the parameters name every step that is in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from slurmsched.jobside import Checkpoints, TrackerError
from slurmsched.jobside.dispatch import DISPATCH_FOLDER, Dispatch, encode_dispatch
from slurmsched.jobside.environment import read_array_task
from slurmsched.jobside.forking import ArrayTask, ForkedJobTracker, ForkedTraining
from slurmsched.jobside.report import Report, decode_report
from tests.unit.jobside.scripts import CHECKOUT, until

COPY: Final = """
import sys, time
from pathlib import Path
from slurmsched.jobside.forking import ArrayTask, ForkedJobTracker, ForkedTraining

steps, pause, slot = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
done = set()

def save(path):
    path.write_text(" ".join(map(str, sorted(done))))

def load(path):
    done.clear()
    done.update(map(int, path.read_text().split()))

def union(copies, target):
    target.write_text(" ".join(sorted({step for copy in copies for step in copy.path.read_text().split()})))

for seed in ForkedTraining(save, load, steps=steps, consolidate=union, every=0.1, slot=slot, grace=2.0):
    assert seed not in done
    done.add(seed)
    time.sleep(pause)
print("over", len(done), flush=True)
"""
"""A step adds its number to the parameters, and the copies' are put together as a set: it shows what is in them."""


class Copies:
    """Three copies of job 12 in one folder."""

    def __init__(self, folder: Path, steps: int, slot: float = 1.0) -> None:
        self.folder, self.steps, self.slot = folder, steps, slot
        self.runs: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "spool" / DISPATCH_FOLDER).mkdir(parents=True)

    def start(self, copy: int, pause: float, run: int = 0) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "SYNSCHED_SPOOL": str(self.folder / "spool"),
            "SLURM_RESTART_COUNT": str(run),
            **surroundings(copy),
        }
        with (self.folder / f"log-{copy}").open("ab") as log:
            self.runs[copy] = subprocess.Popen(
                [sys.executable, "-c", COPY, str(self.steps), str(pause), str(self.slot)],
                cwd=self.folder,
                env=environment,
                stdout=log,
            )

    def say(self, number: int, steps: Mapping[int, int], until: float = 1e12) -> None:
        """As the daemon does."""
        fresh = self.folder / "spool" / DISPATCH_FOLDER / "new"
        fresh.write_bytes(encode_dispatch(Dispatch("12", number, until, steps)))
        fresh.replace(self.folder / "spool" / DISPATCH_FOLDER / "12.json")

    def ledger(self, number: int) -> Any:
        """The account that begins with this round; empty before."""
        path = self.folder / "rounds-12" / f"round-{number:06}" / "ledger.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def report(self, copy: int) -> Path:
        return self.folder / "spool" / str(os.getuid()) / f"12_{copy}.json"

    def saved(self, number: int, copy: int) -> int:
        newest = Checkpoints(self.folder / "rounds-12" / f"round-{number:06}" / f"copy-{copy}").newest()
        return newest.step if newest else 0

    def ended(self) -> list[str]:
        """Once all have: the last line of each."""
        for run in self.runs.values():
            assert run.wait(timeout=600) == 0
        return [(self.folder / f"log-{copy}").read_text().splitlines()[-1] for copy in self.runs]


def surroundings(copy: int, tasks: Sequence[int] = (0, 1, 2)) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(100 + copy),
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": str(copy),
        "SLURM_ARRAY_TASK_MIN": str(min(tasks)),
        "SLURM_ARRAY_TASK_MAX": str(max(tasks)),
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
    }


def test_copies_of_any_speed_do_each_step_once_without_anybodys_word(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=400)
    for copy, pause in enumerate((0.005, 0.01, 0.02)):
        copies.start(copy, pause)
    assert copies.ended() == ["over 400"] * 3
    assert copies.ledger(2)["done"], "the first round ended after its slot"
    fast, _, slow = copies.ledger(2)["given"]
    assert fast > slow, "from then on by speed"


def test_a_copy_that_is_killed_costs_its_own_steps_of_that_round(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=500, slot=3.0)
    for copy in range(3):
        copies.start(copy, 0.01)
    until(lambda: copies.saved(1, 0) > 20)
    copies.runs[0].kill()
    copies.runs[0].wait()
    kept = copies.saved(1, 0)
    until(lambda: bool(copies.ledger(2)))
    assert copies.ledger(2)["counted"][0] == kept
    assert copies.ledger(2)["given"][0] == 0, "nobody waits for it"
    copies.start(0, 0.01, run=1)
    assert copies.ended() == ["over 500"] * 3


def test_a_copy_whose_lease_ends_saves_says_so_and_goes_on_elsewhere(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=600, slot=60.0)
    copies.say(1000, {0: 1, 1: 1, 2: 0})
    for copy in range(3):
        copies.start(copy, 0.005)
    until(lambda: copies.saved(1, 0) > 20 and copies.report(2).exists())
    copies.runs[0].send_signal(signal.SIGUSR1)
    until(lambda: b'"checkpointed"' in copies.report(0).read_bytes())
    for copy in (0, 2):  # the one at a step, the other waiting without any
        copies.runs[copy].send_signal(signal.SIGTERM)
        assert copies.runs[copy].wait(timeout=20) == 128 + signal.SIGTERM
    assert copies.saved(1, 0) == decode_report(copies.report(0).read_bytes()).steps
    for copy in (0, 2):
        copies.start(copy, 0.0, run=1)
    assert copies.ended() == ["over 600"] * 3
    assert copies.ledger(2)["counted"] == [300, 300, 0]


def test_copies_report_the_steps_of_the_whole_job_and_never_backwards(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=300, slot=0.5)
    for copy in range(3):
        copies.start(copy, 0.01)
    said: list[Report] = []
    while copies.runs[1].poll() is None:
        with suppress(OSError):
            said.append(decode_report(copies.report(1).read_bytes()))
        time.sleep(0.01)
    copies.ended()
    assert any(report.steps > 150 for report in said), "more than one copy does"
    for before, after in pairwise(said):
        assert (before.steps, before.done, before.busy) <= (after.steps, after.done, after.busy)
        assert before.done <= after.done <= after.steps
        assert before.busy <= after.busy


def test_the_scheduler_says_how_many_steps_each_does_and_when_a_round_ends(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=1200, slot=60.0)
    copies.say(1000, {0: 600, 1: 600, 2: 0})
    for copy in range(3):
        copies.start(copy, 0.005)
    until(lambda: bool(copies.ledger(1)))
    assert copies.ledger(1)["given"] == [600, 600, 0]
    until(lambda: copies.saved(1, 0) > 5 and copies.saved(1, 1) > 5)
    began = time.monotonic()
    copies.say(1001, {0: 100, 1: 100, 2: 200})
    until(lambda: bool(copies.ledger(2)))
    assert time.monotonic() - began < 30, "long before the slot is over"
    second = copies.ledger(2)
    left = 1200 - second["done"]
    assert sum(second["given"]) == left
    assert second["given"] == pytest.approx([left / 4, left / 4, left / 2], abs=1)
    assert copies.ended() == ["over 1200"] * 3


def test_a_word_that_is_garbage_or_old_changes_nothing(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=150)
    copies.say(1000, {0: 1}, until=5.0)
    for copy in range(3):
        copies.start(copy, 0.005)
    until(lambda: bool(copies.ledger(1)))
    assert copies.ledger(1)["given"] == [50, 50, 50]
    (tmp_path / "spool" / DISPATCH_FOLDER / "12.json").write_bytes(b"\0garbage" * 9000)
    assert copies.ended() == ["over 150"] * 3


def test_a_copy_that_comes_when_all_is_done_only_sees_that(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=60)
    copies.say(1000, {0: 1, 1: 1})
    copies.start(0, 0.0)
    copies.start(1, 0.0)
    assert copies.ended() == ["over 60"] * 2
    copies.start(2, 10.0)
    assert copies.ended() == ["over 60"] * 3


def test_a_folder_of_another_number_of_copies_is_refused(tmp_path: Path) -> None:
    copies = Copies(tmp_path, steps=60)
    copies.say(1000, {0: 1})
    copies.start(0, 0.0)
    copies.ended()
    task = read_array_task(surroundings(0, (0, 1)))
    with pytest.raises(TrackerError, match="account of 3 copies"):
        next(iter(ForkedTraining(Path.touch, Path.exists, steps=60, folder=tmp_path / "rounds-12", task=task)))


@pytest.mark.parametrize(
    ("tasks", "found"),
    [
        pytest.param((0, 1, 2), (0, 1, 2), id="an array"),
        pytest.param((3, 4), (3, 4), id="an array that begins elsewhere"),
        pytest.param((0, 5, 7), None, id="tasks that are not evenly numbered"),
    ],
)
def test_the_copies_are_the_tasks_of_the_array(tasks: tuple[int, ...], found: tuple[int, ...] | None) -> None:
    task = read_array_task(surroundings(tasks[0], tasks))
    assert (task.tasks if task else None) == found


def test_outside_an_array_there_are_no_copies() -> None:
    with pytest.raises(TrackerError, match="--array"):
        ForkedTraining(Path.touch, Path.exists, steps=5, environment={})


def test_each_step_knows_where_the_job_is_and_each_round_that_it_has_begun(tmp_path: Path) -> None:
    def union(_copies: object, target: Path) -> None:
        target.touch()

    tracker, told, loaded = ForkedJobTracker(tmp_path / "rounds", 30, union), list[tuple[int, bool]](), list[Path]()
    for counted in (5, 7):
        fork = tracker.advance([1.0, 1.0])
        Checkpoints(fork.checkpoints(0)).save(counted, Path.touch)
    tracker.advance([2.0, 1.0])
    training = ForkedTraining(
        Path.touch,
        loaded.append,
        steps=30,
        folder=tmp_path / "rounds",
        consolidate=union,
        grace=0.1,
        slot=0.5,
        begun=lambda fork: told.append((fork.number, loaded[-1] == fork.state)),
        task=ArrayTask("12", 0, (0, 1)),
        environment={},
    )
    reached = [training.reached for _ in training]
    assert reached[:12] == [12 + 1.5 * step for step in range(12)], "two thirds of what is left are this copy's"
    assert reached[12:] == [24, 25, 26, 27, 28, 29], "the other copy has done nothing, and gets no more"
    assert told == [(3, True), (4, True)]
