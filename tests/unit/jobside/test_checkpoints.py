"""A checkpoint is there whole or not at all, whenever the writer is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import slurmsched.jobside.atomic_files
import slurmsched.jobside.checkpoints
from slurmsched.jobside import CheckpointError, Checkpoints
from tests.unit.jobside.killing import killed_at

WATCHED = {slurmsched.jobside.checkpoints.__file__, slurmsched.jobside.atomic_files.__file__, __file__}


def state(step: int) -> Callable[[Path], None]:
    """Two files in a folder, written in more than one go."""

    def write(path: Path) -> None:
        path.mkdir()
        with (path / "weights").open("w", encoding="utf-8") as file:
            file.write(f"{step} ")
            file.flush()
            file.write("weights")
        (path / "optimizer").write_text(str(step), encoding="utf-8")

    return write


def read(checkpoints: Checkpoints) -> int | None:
    """The step of the newest, whose files all say so."""
    found = checkpoints.newest()
    if found is None:
        return None
    assert (found.state / "weights").read_text(encoding="utf-8") == f"{found.step} weights"
    assert (found.state / "optimizer").read_text(encoding="utf-8") == str(found.step)
    return found.step


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, so none waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("before", [0, 2], ids=lambda count: f"{count} before it")
def test_a_kill_at_any_line_of_a_save_leaves_the_last_or_the_new_one(tmp_path: Path, before: int) -> None:
    line, seen = 0, set[int | None]()
    while True:
        checkpoints = Checkpoints(tmp_path / str(line))
        for step in range(1, before + 1):
            checkpoints.save(step, state(step))
        killed = killed_at(line, lambda checkpoints=checkpoints: checkpoints.save(9, state(9)), WATCHED)  # type: ignore[misc]  # bound now
        seen.add(read(checkpoints))
        checkpoints.save(10, state(10))
        assert read(checkpoints) == 10
        assert {path.name[:5] for path in checkpoints.folder.iterdir()} == {"step-"}
        if not killed:
            break
        line += 1
    assert line > 50
    assert seen == {before or None, 9}


def test_a_kill_at_any_line_of_saving_a_step_again_loses_nothing(tmp_path: Path) -> None:
    line = 0
    while True:
        checkpoints = Checkpoints(tmp_path / str(line))
        checkpoints.save(5, state(5))
        killed = killed_at(line, lambda checkpoints=checkpoints: checkpoints.save(5, state(5)), WATCHED)  # type: ignore[misc]  # bound now
        assert read(checkpoints) == 5
        if not killed:
            break
        line += 1


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda folder: (folder / "state" / "weights").write_text("?"), id="a file is another"),
        pytest.param(lambda folder: (folder / "state" / "optimizer").unlink(), id="a file is gone"),
        pytest.param(lambda folder: (folder / "state" / "more").touch(), id="a file too many"),
        pytest.param(lambda folder: (folder / "manifest.json").write_text("{"), id="half a manifest"),
        pytest.param(lambda folder: (folder / "manifest.json").unlink(), id="no manifest"),
    ],
)
def test_a_spoilt_one_is_passed_over_for_the_one_before(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, state(step))
    spoil(checkpoints.at(2).folder)
    assert read(checkpoints) == 1
    checkpoints.save(2, state(2))
    assert read(checkpoints) == 2


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, 6):
        checkpoints.save(step, state(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000000004", "step-000000000005"]


def test_a_save_function_that_writes_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="wrote no"):
        Checkpoints(tmp_path).save(1, lambda path: None)


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot use the checkpoints in"):
        Checkpoints(tmp_path / "file" / "below").save(1, state(1))
