"""Job ids, lists and sizes as Slurm's commands take them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import click
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.cli.parameters import cpu_points, gpus_of_type, job_ids, names, size, sizes, time


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
    assert list(job_ids(text)) == jobs


@pytest.mark.parametrize(
    "text", ["", "x", "12_", "12_[3-1]", "12_[0-99999999]", "1;2", "12_[]", "-1", "1,,2", "12_[0-]"]
)
def test_what_is_no_job_id_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no job id: write 12, 12_3, 1,2 or"):
        job_ids(text)


@given(some.text(alphabet="0123456789_[],-x", max_size=20))
def test_any_text_is_job_ids_or_refused(text: str) -> None:
    with contextlib.suppress(click.BadParameter):
        assert all(job.replace("_", "").isdigit() for job in job_ids(text))


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("4G", 4096), ("512M", 512), ("512", 512), ("1t", 1024**2), ("2048K", 2)]
)
def test_sizes(text: str, mebibytes: int) -> None:
    assert size(text) == mebibytes


@pytest.mark.parametrize("text", ["", "G", "4 G", "-4G", "4GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size"):
        size(text)


def test_names_are_divided_by_commas() -> None:
    assert names("alice,bob") == ("alice", "bob")
    assert names("") == ()


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("v100", ("v100", 1)), ("v100:4", ("v100", 4)), ("4", ("", 4)), ("rtx_2080:2", ("rtx_2080", 2))],
)
def test_gpus_of_a_type(text: str, gpus: tuple[str, int]) -> None:
    assert gpus_of_type(text) == gpus


@pytest.mark.parametrize(
    ("text", "points"), [("1-3", (1.0, 2.0, 3.0)), ("8,1,4", (1.0, 4.0, 8.0)), ("1-2,2", (1.0, 2.0))]
)
def test_numbers_of_cpus(text: str, points: tuple[float, ...]) -> None:
    assert cpu_points(text) == points


def test_times_and_sizes() -> None:
    assert (time("90"), time("5m")) == (90, 300)
    assert sizes("32G,16G") == (16384.0, 32768.0)
    assert sizes("") == ()


@pytest.mark.parametrize(
    ("read", "text"),
    [(gpus_of_type, "v100:0"), (gpus_of_type, ":2"), (gpus_of_type, ""), (cpu_points, "0-2"), (cpu_points, "3-1"),
     (cpu_points, ""), (cpu_points, "1-"), (time, "soon"), (time, ""), (sizes, "much")],
)  # fmt: skip
def test_what_is_none_of_these_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(click.BadParameter, match="write"):
        read(text)
