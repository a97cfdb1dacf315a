"""Job ids, lists and sizes as Slurm's commands take them."""

from __future__ import annotations

import contextlib

import click
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurmsched.cli.parameters import job_ids, names, size


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
