"""What the scheduler says to the copies of a forked job, read by a job that believes little of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.jobside import ReportError
from slurmsched.jobside.dispatch import (
    DISPATCH_FOLDER,
    MAX_DISPATCH_BYTES,
    Dispatch,
    decode_dispatch,
    encode_dispatch,
    read_dispatch,
)

WORD = Dispatch("12", 1000, 2000.0, {0: 60, 1: 30, 4: 0})


def written(spool: Path, data: bytes) -> Path:
    (spool / DISPATCH_FOLDER).mkdir(exist_ok=True)
    path = spool / DISPATCH_FOLDER / "12.json"
    path.write_bytes(data)
    return path


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    written(tmp_path, encode_dispatch(WORD))
    assert read_dispatch(tmp_path, "12", now=1500.0) == WORD


def test_nothing_is_said_where_there_is_no_file(tmp_path: Path) -> None:
    assert read_dispatch(tmp_path / "nowhere", "12", now=0.0) is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\x00garbage", id="garbage"),
        pytest.param(b"[" * 50_000, id="deeply nested"),
        pytest.param(b" " * (MAX_DISPATCH_BYTES + 1), id="too long"),
        pytest.param(encode_dispatch(Dispatch("13", 1000, 2000.0, {0: 1})), id="of another job"),
        pytest.param(encode_dispatch(Dispatch("12", 1000, 1499.0, {0: 1})), id="stale"),
        pytest.param(encode_dispatch(Dispatch("12", 1000, 2000.0, {0: 0})), id="no steps for anybody"),
        pytest.param(encode_dispatch(Dispatch("12", 1000, 2000.0, {0: -1, 1: 5})), id="negative steps"),
        pytest.param(encode_dispatch(WORD).replace(b"60", b"6e1"), id="half steps"),
        pytest.param(encode_dispatch(WORD).replace(b'"4"', b'"four"'), id="a copy without a number"),
        pytest.param(encode_dispatch(WORD).replace(b"2000.0", b"Infinity"), id="valid for ever"),
        pytest.param(encode_dispatch(WORD).replace(b'"version":1', b'"version":2'), id="of another version"),
    ],
)
def test_what_cannot_be_believed_is_not_there(tmp_path: Path, data: bytes) -> None:
    written(tmp_path, data)
    assert read_dispatch(tmp_path, "12", now=1500.0) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = written(tmp_path, b"")
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(encode_dispatch(WORD))
    path.symlink_to(tmp_path / "elsewhere")
    assert read_dispatch(tmp_path, "12", now=1500.0) is None


def test_a_fifo_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = written(tmp_path, b"")
    path.unlink()
    os.mkfifo(path)
    assert read_dispatch(tmp_path, "12", now=1500.0) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_strangers_word_is_no_word(tmp_path: Path) -> None:
    path = written(tmp_path, encode_dispatch(WORD))
    os.chown(path, 4321, -1)
    assert read_dispatch(tmp_path, "12", now=1500.0) is None
    os.chown(tmp_path, 4321, -1)
    assert read_dispatch(tmp_path, "12", now=1500.0) == WORD, "the spool is the daemon's: so is its word"


@given(some.recursive(some.none() | some.booleans() | some.integers() | some.floats() | some.text(), some.lists))
def test_any_json_is_a_dispatch_or_an_error(value: object) -> None:
    for said in (
        value,
        {**json.loads(encode_dispatch(WORD)), "steps": value},
        {**json.loads(encode_dispatch(WORD)), "until": value},
    ):
        try:
            decode_dispatch(json.dumps(said).encode())
        except ReportError:
            continue
        assert isinstance(said, dict)
