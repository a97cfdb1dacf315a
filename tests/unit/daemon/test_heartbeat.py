"""The dead-man's switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.daemon.heartbeat import PAUSED, STOPPED, Beat, Heartbeat, HeartbeatError


def test_its_first_line_is_time_mode_and_period(tmp_path: Path) -> None:
    Heartbeat(tmp_path / "heartbeat").beat(1700000000.9, "enforce", 300.0, "opt_in = yes\n")
    assert (tmp_path / "heartbeat").read_text() == "1700000000 enforce 300\nopt_in = yes\n"


def test_everybody_may_read_it_and_no_other_file_is_left(tmp_path: Path) -> None:
    Heartbeat(tmp_path / "heartbeat").beat(1.0, "enforce", 300.0)
    assert (tmp_path / "heartbeat").stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["heartbeat"]


def test_it_is_read_back(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "heartbeat")
    heartbeat.beat(1700000000.0, PAUSED, 60.0, "opt_in = yes\n")
    assert heartbeat.last() == Beat(1700000000.0, PAUSED, 60.0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no file"),
        pytest.param("", id="an empty file"),
        pytest.param("soon enforce 300\n", id="no number"),
        pytest.param("1 enforce\n", id="a word too few"),
        pytest.param("\udcff\udcfe", id="no text"),
    ],
)
def test_what_cannot_be_read_is_no_sign_of_life(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "heartbeat").write_bytes(text.encode(errors="surrogateescape"))
    assert Heartbeat(tmp_path / "heartbeat").last() is None


@pytest.mark.parametrize(
    ("beat", "stale"),
    [
        pytest.param(Beat(1000.0, "enforce", 300.0), False, id="fresh"),
        pytest.param(Beat(100.0, "enforce", 300.0), True, id="silent for too long"),
        pytest.param(Beat(1000.0, STOPPED, 300.0), True, id="stopped just now"),
        pytest.param(Beat(1000.0, PAUSED, 300.0), False, id="paused, but somebody is there"),
    ],
)
def test_who_schedules(beat: Beat, stale: bool) -> None:
    assert beat.stale(now=1001.0, after=900.0) is stale


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeartbeatError, match=r"cannot write the heartbeat .*/nowhere/heartbeat: No such file"):
        Heartbeat(tmp_path / "nowhere" / "heartbeat").beat(1.0, "enforce", 300.0)
