"""Amounts as people read them."""

from __future__ import annotations

import pytest

from slurmsched.model.reasons import format_gpu_hours, pluralise
from slurmsched.report.quantities import duration, memory, per_gpu


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (-3, "0 s"),
        (0.034, "34 ms"),
        (59.9, "59 s"),
        (61, "1 min 1 s"),
        (601, "10 min"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (90_000, "1 d 1 h"),
        (172_801, "2 d"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("mebibytes", "said"), [(0, "0M"), (512, "512M"), (512_000, "500G"), (1536, "1.5G"), (2 * 1024 * 1024, "2T")]
)
def test_memory_is_written_as_slurm_takes_it(mebibytes: int, said: str) -> None:
    assert memory(mebibytes) == said


@pytest.mark.parametrize(("cpus", "gpus", "said"), [(24, 8, "3"), (20, 8, "2.5"), (4, 0, "-")])
def test_cpus_for_each_gpu(cpus: int, gpus: int, said: str) -> None:
    assert per_gpu(cpus, gpus) == said


def test_one_is_singular() -> None:
    assert [pluralise(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(9000, "2.5 GPU-hours"), (0, "0.0 GPU-hours"), (15, "0.004 GPU-hours"), (180, "0.1 GPU-hours")],
)
def test_service_is_told_in_gpu_hours(seconds: float, text: str) -> None:
    assert format_gpu_hours(seconds) == text
