"""`synsched doctor` over a simulated cluster and rehearsed answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmsched.backends.simulated import SimulatedBackend, VirtualClock, VirtualCluster
from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import Commands
from tests.builders import node, snapshot
from tests.unit.cli.conftest import NOON, Site

CONFIGURATION = """\
Configuration data as of 2026-09-21T14:13:20
GresTypes               = gpu
JobSubmitPlugins        = lua
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
"""
COMPLAINT = "sbatch: synsched: unknown hint 'doctor': known are model\n"


@pytest.fixture
def slurm(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site at which nothing has to be mended."""
    site.configure('[rounds]\nmode = "enforce"\n[manage]\npartitions = ["gpu"]\n')
    backend = SimulatedBackend(VirtualCluster([node()], start=NOON), VirtualClock(NOON))
    monkeypatch.setattr("slurmsched.cli.cluster.connect", lambda _settings: backend)
    monkeypatch.setattr(Commands, "read", lambda _commands, *_argv: CONFIGURATION)
    monkeypatch.setattr(submission, "dry_run", lambda *_arguments: COMPLAINT)
    site.round(snapshot([node()], time=NOON))
    site.beat()
    return site


def test_a_good_installation_exits_0(slurm: Site) -> None:
    lines = slurm.lines("doctor", columns=200)
    assert {line.split()[0] for line in lines if not line.startswith(" ")} <= {"ok", "hint"}
    assert "ok   hook: answers at submission" in lines


def test_what_has_to_be_mended_exits_1_and_says_how(slurm: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "dry_run", lambda *_arguments: "")
    result = slurm.run("doctor", columns=200)
    assert result.exit_code == 1
    assert "MEND hook: did not answer a test submission" in result.stdout
    assert "install hooks/job_submit.lua" in result.stdout


def test_json_has_stable_keys(slurm: Site) -> None:
    told = slurm.json("doctor")
    assert list(told) == ["schema", "well", "findings"]
    findings = told["findings"]
    assert isinstance(findings, list)
    assert list(findings[0]) == ["topic", "verdict", "sentence", "remedy"]


def test_without_slurm_everything_else_is_looked_at(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = site.run("doctor", columns=200)
    assert result.exit_code == 1
    assert "MEND Slurm: no scontrol on PATH" in result.stdout
    assert "hint database:" in result.stdout
