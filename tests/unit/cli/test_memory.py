"""The memory of the daemon: what the rendered unit allows, and what `synsched run` does to itself."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Site


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scontrol that knows a cluster of 2 nodes and 30,000 jobs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "scontrol"
    command.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '  *config) printf "SLURM_VERSION = 24.11.5\\nMaxJobCount = 30000\\n" ;;\n'
        '  *node) printf "NodeName=a State=IDLE\\nNodeName=b State=IDLE\\n" ;;\n'
        "esac\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.usefixtures("slurm")
def test_a_unit_is_rendered_for_the_size_of_the_cluster(site: Site) -> None:
    lines = site.lines("render", "synsched.service", columns=300)
    assert "MemoryMax=2387M" in lines
    assert any("for 2 nodes and 30000 jobs" in line for line in lines)


def test_a_unit_is_rendered_where_slurm_cannot_be_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "MemoryMax=1387M" in site.lines("render", "synsched.service", columns=300)


@pytest.mark.usefixtures("slurm")
def test_a_round_runs_with_a_limit_to_its_own_memory(site: Site) -> None:
    site.configure("[daemon]\nmemory_max = 4000\n")
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    site.run("run", "--once")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    assert 0 < soft < 6000 * 1024 * 1024
    assert hard == resource.RLIM_INFINITY
