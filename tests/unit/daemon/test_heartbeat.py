"""The dead-man's switch."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from slurmsched.daemon.heartbeat import (
    MAX_AHEAD,
    PAUSED,
    STOPPED,
    HeartbeatError,
    HeartbeatFile,
    HeartbeatRecord,
    ProcessIdentity,
)


def test_its_first_line_is_time_mode_and_period(tmp_path: Path) -> None:
    HeartbeatFile(tmp_path / "heartbeat").write(1700000000.9, "enforce", 300.0, "opt_in = yes\n")
    assert (tmp_path / "heartbeat").read_text() == "1700000000 enforce 300\nopt_in = yes\n"


def test_everybody_may_read_it_and_no_other_file_is_left(tmp_path: Path) -> None:
    HeartbeatFile(tmp_path / "heartbeat").write(1.0, "enforce", 300.0)
    assert (tmp_path / "heartbeat").stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["heartbeat"]


def test_it_is_read_back(tmp_path: Path) -> None:
    heartbeat = HeartbeatFile(tmp_path / "heartbeat")
    heartbeat.write(1700000000.0, PAUSED, 60.0, "opt_in = yes\n")
    assert heartbeat.read() == HeartbeatRecord(1700000000.0, PAUSED, 60.0)


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
    assert HeartbeatFile(tmp_path / "heartbeat").read() is None


@pytest.mark.parametrize(
    ("beat", "stale"),
    [
        pytest.param(HeartbeatRecord(1000.0, "enforce", 300.0), False, id="fresh"),
        pytest.param(HeartbeatRecord(100.0, "enforce", 300.0), True, id="silent for too long"),
        pytest.param(HeartbeatRecord(1000.0, STOPPED, 300.0), True, id="stopped just now"),
        pytest.param(HeartbeatRecord(1000.0, PAUSED, 300.0), False, id="paused, but somebody is there"),
        pytest.param(
            HeartbeatRecord(1121.0, "enforce", 300.0), False, id="two minutes ahead: clocks may be a little off"
        ),
        pytest.param(HeartbeatRecord(1122.0, "enforce", 300.0), True, id="from the future: the clock was set back"),
    ],
)
def test_who_schedules(beat: HeartbeatRecord, stale: bool) -> None:
    assert beat.is_stale(now=1001.0, after=900.0) is stale


def test_the_hook_draws_the_same_line_in_the_future() -> None:
    hook = (Path(__file__).parents[3] / "hooks" / "job_submit.lua").read_text()
    limits = re.findall(r"(?:AHEAD = |age >= -)([0-9]+)", hook)
    assert limits == [str(MAX_AHEAD)]


ELSEWHERE = ProcessIdentity(7, "ctl2", "b00", 12)


@pytest.mark.parametrize(
    ("beat", "rival"),
    [
        pytest.param(HeartbeatRecord(1000.0, "enforce", 300.0, ELSEWHERE), True, id="of another host"),
        pytest.param(HeartbeatRecord(1000.0, STOPPED, 300.0, ELSEWHERE), False, id="of one that stopped"),
        pytest.param(HeartbeatRecord(10.0, "enforce", 300.0, ELSEWHERE), False, id="of one that is silent"),
        pytest.param(HeartbeatRecord(1000.0, "enforce", 300.0, ProcessIdentity.current()), False, id="our own"),
        pytest.param(
            HeartbeatRecord(1000.0, "enforce", 300.0, replace(ProcessIdentity.current(), started=0)),
            False,
            id="of one that died",
        ),
        pytest.param(HeartbeatRecord(1000.0, "enforce", 300.0), False, id="of a release that did not say"),
    ],
)
def test_who_else_schedules(tmp_path: Path, beat: HeartbeatRecord, rival: bool) -> None:
    heartbeat = HeartbeatFile(tmp_path / "heartbeat")
    heartbeat.write(beat.at, beat.mode, beat.period, "opt_in = yes\n", beat.daemon)
    read = heartbeat.read()
    assert read == beat
    assert (read.rival(now=1001.0, after=900.0) is not None) is rival


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeartbeatError, match=r"cannot write the heartbeat .*/nowhere/heartbeat: No such file"):
        HeartbeatFile(tmp_path / "nowhere" / "heartbeat").write(1.0, "enforce", 300.0)
