"""Amounts, durations, moments and GRES strings."""

from __future__ import annotations

import pytest

from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import Gres, parse_gres
from slurmsched.backends.slurm.records import parse_mebibytes, parse_seconds, parse_time


@pytest.mark.parametrize(
    ("text", "amount"),
    [("20000M", 20_000), ("400G", 409_600), ("1.5T", 1_572_864), ("512", 512), ("2048K", 2), ("(null)", 0), ("0", 0)],
)
def test_memory_is_counted_in_mebibytes(text: str, amount: int) -> None:
    assert parse_mebibytes(text) == amount


@pytest.mark.parametrize(
    ("text", "length"),
    [("1-02:03:04", 93_784), ("00:30:00", 1_800), ("05:06", 306), ("UNLIMITED", None), ("Partition_Limit", None)],
)
def test_limits_are_counted_in_seconds(text: str, length: int | None) -> None:
    assert parse_seconds(text) == length


@pytest.mark.parametrize("text", ["Unknown", "N/A", "None", "(null)", ""])
def test_a_time_that_slurm_does_not_know_is_none(text: str) -> None:
    assert parse_time(text) is None


def test_a_moment_is_read_as_utc() -> None:
    assert parse_time("1970-01-02T00:00:01") == 86_401.0


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        pytest.param("gres:gpu:v100:8", [Gres("gpu", "v100", 8)], id="a request of 22.05"),
        pytest.param("gres/gpu:2", [Gres("gpu", "", 2)], id="no type"),
        pytest.param("cpu=2,gres/gpu:v100=1", [Gres("gpu", "v100", 1)], id="per task, beside CPUs"),
        pytest.param("gpu:v100:3(IDX:0,2-3)", [Gres("gpu", "v100", 3, (0, 2, 3))], id="devices in use"),
        pytest.param("gpu:v100:0(IDX:N/A)", [Gres("gpu", "v100", 0)], id="none in use"),
        pytest.param(
            "shard:v100:5(3/10,2/10)", [Gres("shard", "v100", 5, shards_by_device=((3, 10), (2, 10)))], id="shards"
        ),
        pytest.param(
            "shard:k80:0(-/10)", [Gres("shard", "k80", 0, shards_by_device=((0, 10),))], id="26.05, a taken GPU"
        ),
        pytest.param(
            "gpu:a100:4(S:0),gpu:h100:4(S:1)",
            [Gres("gpu", "a100", 4), Gres("gpu", "h100", 4)],
            id="two types",
        ),
        pytest.param("gpu:1g.5gb:7", [Gres("gpu", "1g.5gb", 7)], id="slices of a GPU"),
        pytest.param("(null)", [], id="nothing"),
    ],
)
def test_a_gres_string_is_read_in_every_spelling(text: str, entries: list[Gres]) -> None:
    assert list(parse_gres(text)) == entries


@pytest.mark.parametrize("read", [parse_mebibytes, parse_seconds, parse_time, parse_gres])
@pytest.mark.parametrize("text", ["12 apples", "=", "gpu::(", "-5:00"])
def test_what_makes_no_sense_is_refused_and_not_guessed(read: object, text: str) -> None:
    with pytest.raises(SlurmParseError):
        read(text)  # type: ignore[operator]
