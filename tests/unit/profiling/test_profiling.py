"""Short runs of a job, as a fake Slurm has them, and the file that they end up in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.knowledge import ProfileError, SensitivityMatrix, load_profiles
from slurmsched.knowledge.refinement import expected_rate
from slurmsched.model import MeasuredRate
from slurmsched.profiling.trial import (
    MeasuredProfile,
    ProfilingError,
    Trial,
    TrialQueue,
    TrialRequest,
    measure_matrix,
    save_profile,
)

SECONDS = 60.0


@dataclass
class Clock:
    time: float = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class Slurm:
    """Jobs wait ten seconds, then train at a speed that saturates at six CPUs, and say so when their time is over."""

    clock: Clock
    spool: Path
    stage: Stage | None = Stage.MEASURED
    given: int | None = None
    """CPUs that every job gets instead of those asked for."""
    waits: float = 10.0
    submitted: list[tuple[str, ...]] = field(default_factory=list)
    told: list[Mapping[str, str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def submit(self, options: Sequence[str], told: Mapping[str, str]) -> str:
        self.submitted.append(tuple(options))
        self.told.append(told)
        self.began = self.clock.now()
        return str(len(self.submitted))

    def ended(self, job: str) -> bool:
        lived = self.clock.now() - self.began - self.waits
        if lived >= SECONDS and self.stage is not None:
            asked = next(int(word.partition("=")[2]) for word in self.submitted[-1] if "cpus-per-task" in word)
            cpus = self.given or asked
            rate = 10.0 * min(cpus, 6)
            done = int(rate * SECONDS)
            Spool(self.spool, job).write(Report(job, 0, self.stage, 1.0, done, done, SECONDS, rate, cpus=cpus))
        return lived >= SECONDS

    def trial(self) -> Trial:
        queue = TrialQueue(self.submit, self.ended, self.cancelled.append)
        return Trial(queue, ("-p", "gpu", "train.sh"), self.spool, SECONDS, 3600.0, self.clock)


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(Clock(), tmp_path)


def test_a_run_asks_for_its_shape_and_is_gone_when_it_has_told_its_rate(slurm: Slurm) -> None:
    assert slurm.trial().rate(TrialRequest(2, "v100", 4, 32_000)) == 40.0
    (options,) = slurm.submitted
    assert options[-3:] == ("-p", "gpu", "train.sh")
    assert {"--gres=gpu:v100:2", "--cpus-per-task=4", "--mem=32000M", "--nodes=1", "--time=12"} <= set(options)
    assert slurm.told == [{"SYNSCHED_SPOOL": str(slurm.spool), "SYNSCHED_MEASURE": "60"}]
    assert slurm.cancelled == ["1"]
    assert list((slurm.spool / str(os.getuid())).iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"stage": None}, "ended without a report", id="a program that reports nothing"),
        pytest.param({"stage": Stage.RUNNING}, "ended without a report", id="a program that fails half-way"),
        pytest.param({"given": 12}, "had 12 CPUs instead of 4", id="somebody else sizes the job"),
        pytest.param({"waits": 1e6}, "did not begin to train within 3600 s", id="a full cluster"),
    ],
)
def test_a_run_without_a_rate_says_why_and_leaves_no_job_behind(
    slurm: Slurm, changed: dict[str, object], said: str
) -> None:
    for name, value in changed.items():
        setattr(slurm, name, value)
    with pytest.raises(ProfilingError, match=said):
        slurm.trial().rate(TrialRequest(1, "", 4))
    assert slurm.cancelled == ["1"]


def test_a_matrix_over_cpus_takes_few_runs(slurm: Slurm) -> None:
    said: list[int] = []
    cpus = tuple(float(count) for count in range(1, 13))
    found = measure_matrix(
        slurm.trial(), gpu_type="v100", gpus=1, cpus=cpus, memory=(), on_run=lambda shape, _: said.append(shape.cpus)
    )
    assert not found.matrix.knows_memory
    assert [found.matrix.speed_at(count, 0.0) for count in (1, 3, 6, 12)] == pytest.approx(
        [10.0, 30.0, 60.0, 60.0], rel=0.03
    )
    assert len(said) == len(found.runs) <= 7
    assert not any(word.startswith("--mem") for options in slurm.submitted for word in options)


def found(gpus: int = 1, gpu_type: str = "v100", speed: tuple[float, ...] = (10.0, 30.0)) -> MeasuredProfile:
    matrix = SensitivityMatrix((1.0, 3.0), (), tuple((number,) for number in speed))
    return MeasuredProfile(
        "resnet50", "image", gpu_type, gpus, matrix, speed[1], f"measured on {gpu_type}", 1_790_000_000.0
    )


def test_what_was_measured_is_read_back_beside_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"models": {"gnmt": {"cpus": [1], "speed": [1]}}}))
    save_profile(found(), path)
    save_profile(found(gpu_type="k80", speed=(4.0, 6.0)), path)
    save_profile(found(gpus=4, speed=(35.0, 100.0)), path)
    known = load_profiles(path)
    assert set(known.models) == {"gnmt", "resnet50"}
    profile = known.models["resnet50"]
    assert (profile.source, profile.measured, profile.task) == ("measured on v100", 1_790_000_000.0, "image")
    assert profile.scaling["v100"].gpus == (1, 4)
    assert profile.scaling["v100"].rate == (30.0, 100.0)
    assert profile.scaling["k80"].rate == (6.0,)
    matrix = profile.matrix("k80")
    assert matrix is not None
    assert matrix.speed_at(2, 0) == 5.0


def test_memory_is_written_in_the_unit_of_the_file(tmp_path: Path) -> None:
    matrix = SensitivityMatrix((1.0,), (2048.0, 4096.0), ((1.0, 2.0),))
    save_profile(MeasuredProfile("m", "", "v100", 1, matrix, 2.0, "measured", 1.0), tmp_path / "p.json")
    assert load_profiles(tmp_path / "p.json").models["m"].matrix("v100") == matrix


def test_only_json_of_ours_is_written(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"ends with \.json"):
        save_profile(found(), tmp_path / "profiles.toml")
    (tmp_path / "other.json").write_text('{"other": 1}')
    with pytest.raises(ProfileError):
        save_profile(found(), tmp_path / "other.json")
    assert (tmp_path / "other.json").read_text() == '{"other": 1}'


def test_drift_is_told_where_the_profile_is_in_steps_per_second(tmp_path: Path) -> None:
    save_profile(found(), tmp_path / "p.json")
    profile = load_profiles(tmp_path / "p.json").models["resnet50"]
    point = MeasuredRate("v100", 1, 1, 2.0, 100.0, 3.0, 100.0, 25.0, 0.0)
    assert expected_rate(profile, point) == pytest.approx(20.0)
    assert expected_rate(profile, MeasuredRate("k80", 1, 1, 2.0, 100.0, 3.0, 100.0, 25.0, 0.0)) is None
