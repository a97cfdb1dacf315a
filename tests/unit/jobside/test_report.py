"""What a report may hold, and what of it nobody believes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmsched.jobside.errors import ReportError
from slurmsched.jobside.report import MAX_REPORT_BYTES, Report, Stage, decode_report, encode_report

GOOD = Report("12_3", 1, Stage.RUNNING, 1e9, 120, 100, 50.0, 2.0, 80, "v100-1", (0, 3), 4, 900, 2)


def test_a_report_is_read_as_it_was_written() -> None:
    assert decode_report(encode_report(GOOD)) == GOOD


def test_the_longest_report_that_is_ever_written_is_read() -> None:
    most = 2**53
    long = Report("9" * 64, most, Stage.CHECKPOINTED, 1e15 / 3, most, most, 1e15 / 7, 1e15 / 7, most, "n" * 64,
                  (most,) * 64, most, most, most)  # fmt: skip
    assert len(encode_report(long)) <= MAX_REPORT_BYTES
    assert decode_report(encode_report(long)) == long


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"steps": -1}, "whole numbers", id="steps below zero"),
        pytest.param({"steps": True}, "whole numbers", id="a truth for a number"),
        pytest.param({"steps": 10**400}, "whole numbers", id="a number that no float holds"),
        pytest.param({"rate": 10**400}, "numbers", id="a rate that no float holds"),
        pytest.param({"rate": "fast"}, "numbers", id="words for a number"),
        pytest.param({"job": "1\n2"}, "name", id="a name with a line break"),
        pytest.param({"job": "x" * 65}, "name", id="a name that is too long"),
        pytest.param({"node": "nöde"}, "name", id="a name that no host has"),
        pytest.param({"job": "\u0661\u0662"}, "name", id="digits of another script"),
        pytest.param({"job": "\ud800"}, "name", id="half a character"),
        pytest.param({"node": "n1\u202e"}, "name", id="a mark that turns text round"),
        pytest.param({"stage": "flying"}, "stage", id="a stage that there is not"),
        pytest.param({"stage": ["running"]}, "stage", id="a stage that is a list"),
        pytest.param({"gpus": {"0": 1}}, "GPUs", id="GPUs that are no list"),
        pytest.param({"gpus": [0] * 65}, "GPUs", id="more GPUs than any node has"),
        pytest.param({"more": 1}, "other fields", id="a field too many"),
        pytest.param({"version": 2}, "version", id="another version"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(changed: dict[str, object], said: str) -> None:
    data = json.dumps({**json.loads(encode_report(GOOD)), **changed}).encode()
    with pytest.raises(ReportError, match=said):
        decode_report(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"\xff\xfe", b"[" * 3000, b'{"version":1}', encode_report(GOOD) + b" " * MAX_REPORT_BYTES],
    ids=["nothing", "a list", "null", "no text", "a deep list", "hardly anything", "too long"],
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        decode_report(data)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), -0.5])
@pytest.mark.parametrize("field", ["rate", "busy", "at"])
def test_what_cannot_be_measured_is_refused(field: str, number: float) -> None:
    with pytest.raises(ReportError, match="something else than numbers"):
        decode_report(encode_report(replace(GOOD, **{field: number})))  # type: ignore[arg-type]  # rows


@pytest.mark.parametrize("end", range(0, len(encode_report(GOOD)) - 2, 7))
def test_half_a_report_is_none(end: int) -> None:
    with pytest.raises(ReportError, match="no JSON"):
        decode_report(encode_report(GOOD)[:end])
