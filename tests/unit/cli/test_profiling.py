"""Profiles measured, and what jobs measure of themselves, as people and programs see it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurmsched.backends.simulated import SimulatedBackend, VirtualClock, VirtualCluster
from slurmsched.backends.slurm import submission
from slurmsched.jobside.report import Report, Stage
from slurmsched.jobside.spool import Spool
from slurmsched.model import MeasuredRate
from slurmsched.store.measurements import Measurements, RateSample
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site


@pytest.fixture
def slurm(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """One node of 2 GPUs and 12 CPUs, where each job has told its rate once it is submitted; what was submitted."""
    site.clock = VirtualClock(NOON)
    monkeypatch.chdir(site.folder)
    backend = SimulatedBackend(VirtualCluster([node("v100-1", gpus=2, cpus=12)], start=NOON), site.clock)
    monkeypatch.setattr("slurmsched.cli.cluster.connect", lambda _settings: backend)
    submitted: list[tuple[str, ...]] = []

    def submit(options: Sequence[str], _script: str, *_: object, extra_env: Mapping[str, str]) -> str:
        submitted.append(tuple(options))
        (cpus,) = (int(word.partition("=")[2]) for word in options if "cpus-per-task" in word)
        done = 100 * min(cpus, 4)
        number = str(len(submitted))
        report = Report(number, 0, Stage.MEASURED, 1.0, done, done, 10.0, done / 10, cpus=cpus)
        Spool(Path(extra_env["SYNSCHED_SPOOL"]), number).write(report)
        return number

    monkeypatch.setattr(submission, "submit", submit)
    monkeypatch.setattr(submission, "has_ended", lambda *_: True)
    monkeypatch.setattr(submission, "cancel", lambda *_: None)
    return submitted


def test_a_model_is_profiled_and_shown(site: Site, slurm: list[tuple[str, ...]]) -> None:
    result = site.run("profile", "run", "--model", "mine", "--gpu", "v100", "--", "-p", "gpu", "job.sh", "--fast")
    assert result.exit_code == 0, result.output
    assert slurm[0][-4:] == ("-p", "gpu", "job.sh", "--fast")
    assert "12 CPUs: 40 steps/s" in result.stderr
    assert f"{len(slurm)} runs for 12 combinations; written to profiles.json" in result.stdout
    profile = site.json("profile", "show", "mine", "--profiles", str(site.folder / "profiles.json"))
    assert profile["scaling"]["v100"]["rate"] == [40.0]  # type: ignore[index]  # JSON
    assert profile["measured"] == NOON
    assert [path.name for path in site.folder.glob(".synsched-profile-*")] == []


def test_a_program_gets_the_matrix_and_the_file(site: Site, slurm: list[tuple[str, ...]]) -> None:
    arguments = (
        "--model",
        "mine",
        "--gpu",
        "2",
        "--cpus",
        "1,2",
        "--out",
        "own.json",
        "--json",
        "--",
        "sbatch",
        "j.sh",
    )
    result = site.run("profile", "run", *arguments)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["matrix"]["cpus"] == [1.0, 2.0]
    assert (told["file"], told["runs"]) == ("own.json", 2)
    assert {options[-1] for options in slurm} == {"j.sh"}
    assert "--cpus-per-task=4" in slurm[0], "two CPUs for each of two GPUs"


def test_gpus_that_no_node_has_are_refused(site: Site, slurm: list[tuple[str, ...]]) -> None:
    result = site.run("profile", "run", "--model", "mine", "--gpu", "a100:4", "job.sh")
    assert result.exit_code == 2
    assert "no node has 4 a100 GPUs" in result.stderr
    assert not slurm


def remember(site: Site, *points: tuple[float, float]) -> None:
    """Job 1 of alice's had so many CPUs per GPU, and did so many steps per second."""
    running = job(1, hint="model=mine", on=[share()])
    site.round(snapshot([node()], [running], time=NOON - 60))
    database = site.opened()
    gains = [
        RateSample(
            "1", MeasuredRate("v100", 1, 1, cpus, 64_000.0, 3.0, 64_000.0, 0.0, NOON - 300), round(rate * 100), 100.0
        )
        for cpus, rate in points
    ]
    Measurements(database).record((), gains, (), NOON)
    database.close()


def test_what_jobs_measure_stands_beside_what_was_profiled(site: Site) -> None:
    remember(site, (3.0, 20.0), (6.0, 66.0))
    entry = {"cpus": [1, 3, 6], "speed": [10, 30, 60], "rate": [30]}
    own = site.folder / "own.json"
    own.write_text(json.dumps({"models": {"mine": {"measured": 1, "gpu": {"v100": entry}}}}))
    assert site.lines("profile", "measured", "--profiles", str(own)) == [
        "JOBID USER  MODEL GPUS   CPU/GPU STEPS/S PROFILE DRIFT   AGE",
        "1     alice mine  1 v100       3      20      30 -33 % 5 min",
        "1     alice mine  1 v100       6      66      60 +10 % 5 min",
    ]


def test_drift_is_not_claimed_of_a_profile_in_another_unit(site: Site) -> None:
    remember(site, (3.0, 20.0))
    (entry,) = site.json("profile", "measured")["jobs"]  # type: ignore[misc, index]  # JSON
    assert (entry["drift"], entry["profiled"], entry["measured"]["rate"]) == (None, None, 20.0)


def test_bench_jobside_keeps_its_contract(site: Site) -> None:
    told = site.json("bench", "jobside", "--reports", "30", "--repeat", "2", "--model", "2M")
    own = {"step_us", "paced_us", "paced_percent", "reports", "ingest_s"}
    assert set(told) == {"schema", "consolidations", *own}
    assert told["reports"] == 30
    first = told["consolidations"][0]
    assert set(first) == {"form", "copies", "model_mb", "seconds", "peak_mb", "peak_own_mb"}
    assert (first["form"], first["copies"], first["model_mb"]) == ("safetensors", 3, 2)


def test_bench_jobside_refuses_a_model_of_nothing(site: Site) -> None:
    said = site.run("bench", "jobside", "--model", "1K")
    assert said.exit_code == 2
    assert "write --model 64M" in said.stderr


def test_who_is_not_believed_is_named_by_doctor(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = site.folder / "spool"
    spool.mkdir()
    spool.chmod(0o1777)
    site.configure(f'[reports]\nspool = "{spool}"\n')
    remember(site, (3.0, 20.0))
    database = site.opened()
    database.write("INSERT INTO complaints VALUES ('job 7 of mallory', 'reports as job 1', 1.0)")
    database.close()
    monkeypatch.setenv("PATH", str(spool))  # no Slurm
    said = site.run("doctor", columns=300).stdout
    assert f"reports: are read from {spool}" in said
    assert "reports: job 7 of mallory: reports as job 1" in said
