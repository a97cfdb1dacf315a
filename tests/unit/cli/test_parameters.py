"""Job ids, lists and sizes as Slurm's commands take them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import click
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.cli.parameters import (
    parse_cpu_points,
    parse_gpus,
    parse_job_ids,
    parse_mebibyte_list,
    parse_mebibytes,
    parse_seconds,
    split_names,
)


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("1,2", ["1", "2"]),
        ("12_[0-2]", ["12_0", "12_1", "12_2"]),
        ("12_[0-1,7],5", ["12_0", "12_1", "12_7", "5"]),
    ],
)
def test_job_ids(text: str, jobs: list[str]) -> None:
    assert list(parse_job_ids(text)) == jobs


@pytest.mark.parametrize(
    "text", ["", "x", "12_", "12_[3-1]", "12_[0-99999999]", "1;2", "12_[]", "-1", "1,,2", "12_[0-]"]
)
def test_what_is_no_job_id_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a job id: write 12, 12_3, 1,2 or"):
        parse_job_ids(text)


@given(some.text(alphabet="0123456789_[],-x", max_size=20))
def test_any_text_is_job_ids_or_refused(text: str) -> None:
    with contextlib.suppress(click.BadParameter):
        assert all(job.replace("_", "").isdigit() for job in parse_job_ids(text))


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("4G", 4096), ("512M", 512), ("512", 512), ("1t", 1024**2), ("2048K", 2)]
)
def test_sizes(text: str, mebibytes: int) -> None:
    assert parse_mebibytes(text) == mebibytes


@pytest.mark.parametrize("text", ["", "G", "4 G", "-4G", "4GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        parse_mebibytes(text)


def test_names_are_divided_by_commas() -> None:
    assert split_names("alice,bob") == ("alice", "bob")
    assert split_names("") == ()


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("v100", ("v100", 1)), ("v100:4", ("v100", 4)), ("4", ("", 4)), ("rtx_2080:2", ("rtx_2080", 2))],
)
def test_gpus_of_a_type(text: str, gpus: tuple[str, int]) -> None:
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize(
    ("text", "points"), [("1-3", (1.0, 2.0, 3.0)), ("8,1,4", (1.0, 4.0, 8.0)), ("1-2,2", (1.0, 2.0))]
)
def test_numbers_of_cpus(text: str, points: tuple[float, ...]) -> None:
    assert parse_cpu_points(text) == points


def test_times_and_sizes() -> None:
    assert (parse_seconds("90"), parse_seconds("5m")) == (90, 300)
    assert parse_mebibyte_list("32G,16G") == (16384.0, 32768.0)
    assert parse_mebibyte_list("") == ()


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_gpus, "v100:0"),
        (parse_gpus, ":2"),
        (parse_gpus, ""),
        (parse_cpu_points, "0-2"),
        (parse_cpu_points, "3-1"),
        (parse_cpu_points, ""),
        (parse_cpu_points, "1-"),
        (parse_seconds, "soon"),
        (parse_seconds, ""),
        (parse_mebibyte_list, "much"),
    ],
)
def test_what_is_none_of_these_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(click.BadParameter, match="write"):
        read(text)
