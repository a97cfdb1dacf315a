"""No test here starts a process but the one that reads with pyslurm: Slurm's words are recorded or faked."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.backends.slurm.pyslurm_cluster import PyslurmCluster


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one fails, unless the test wants the stand-in for pyslurm, whose cluster runs nothing else."""
    if "cluster" in request.fixturenames:
        return

    def started(command: Sequence[str], *_: Any, **__: Any) -> None:
        raise AssertionError(f"a unit test started {command}")

    monkeypatch.setattr(subprocess, "run", started)
    monkeypatch.setattr(subprocess, "Popen", started)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PyslurmCluster:
    """A cluster that the child process sees in the stand-in for pyslurm."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("standin")))
    monkeypatch.setenv("STANDIN_CLUSTER", str(tmp_path / "cluster.json"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return PyslurmCluster(tmp_path / "cluster.json")
