"""`synsched doctor` over a simulated cluster and rehearsed answers."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from pwd import getpwnam

import pytest

from slurmsched.backends.simulated import SimulatedBackend, VirtualClock, VirtualCluster
from slurmsched.backends.slurm import submission
from slurmsched.backends.slurm.commands import Commands
from slurmsched.cli.doctor import become
from slurmsched.doctor.finding import Verdict
from slurmsched.doctor.installation import check_settings
from slurmsched.settings.definition import Settings
from slurmsched.settings.file import LoadedSettings, load_settings_file
from slurmsched.store.store import Store
from tests.builders import node, snapshot
from tests.unit.cli.conftest import NOON, Site
from tests.unit.jobside.users import as_user, needs_users, open_folder

NOBODY = getpwnam("nobody")

CONFIGURATION = """\
Configuration data as of 2026-09-21T14:13:20
AccountingStorageTRES   = cpu,mem,gres/gpu
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
    answers = {"config": CONFIGURATION, "partition": "PartitionName=gpu\n"}
    monkeypatch.setattr(Commands, "read", lambda _commands, *argv: answers[argv[-1]])
    monkeypatch.setattr(submission, "dry_run", lambda *_arguments: COMPLAINT)
    site.round(snapshot([node()], time=NOON))
    site.beat()
    return site


def test_a_good_installation_exits_0(slurm: Site) -> None:
    lines = slurm.lines("doctor", columns=200)
    assert {line.split()[0] for line in lines if not line.startswith(" ")} <= {"ok", "hint"}
    assert "hint hook: answers at submission, but is of another release" in lines


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


def test_a_broken_settings_file_is_a_finding_and_everything_else_is_looked_at(slurm: Site) -> None:
    slurm.configure('[rounds]\nmode = "enforced"\nsettle = 5\n')
    result = slurm.run("doctor", columns=300)
    assert result.exit_code == 1
    assert result.stderr == ""
    mend = [line for line in result.stdout.splitlines() if line.startswith("MEND")]
    assert [line.partition(": expected")[0] for line in mend[:2]] == [
        "MEND settings: rounds.mode is 'enforced'",
        "MEND settings: unknown setting rounds.settle: did you mean settle_timeout?",
    ]
    assert "ok   clock: agrees with slurmctld's" in result.stdout


def test_settings_that_the_daemon_refused_are_a_finding_until_they_are_read(slurm: Site) -> None:
    with closing(Store.open(slurm.database, NOON)) as store:
        store.switches.record_settings("synsched.toml: rounds.mode is 'x'", NOON - 60.0)
    result = slurm.run("doctor", columns=300)
    assert result.exit_code == 1
    assert "MEND settings: the daemon keeps the settings from before " in result.stdout
    assert (
        ": synsched.toml: rounds.mode is 'x'\n       'systemctl reload synsched' reads the corrected file"
        in result.stdout
    )


def test_a_policy_to_compare_with_is_a_hint(slurm: Site) -> None:
    slurm.configure('[policy]\nsystem = "tetris"\n')
    assert any(
        line.startswith("hint settings: policy tetris is there to compare with") for line in slurm.lines("doctor")
    )


@needs_users
def test_root_looks_as_the_user_that_rounds_run_as() -> None:
    with open_folder() as folder:
        site = Site(folder)
        site.configure()
        site.config.chmod(0o600)
        os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)

        def looks() -> None:
            become(load_settings_file(site.config).settings, None)
            assert os.getresuid() == (NOBODY.pw_uid,) * 3
            assert os.getresgid() == (NOBODY.pw_gid,) * 3
            findings = list(check_settings(LoadedSettings(Settings(), site.config), None, ()))
            assert [finding.sentence for finding in findings if finding.verdict is Verdict.PROBLEM] == [
                f"{NOBODY.pw_name} may not read {site.config}"
            ]

        as_user(0, looks)


def test_only_root_looks_as_another_user(slurm: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 64001)
    result = slurm.run("doctor", "--user", "root")
    assert (result.exit_code, "only root looks as another user" in result.stderr) == (2, True)


@needs_users
def test_a_user_that_does_not_exist_is_wrong_usage(slurm: Site) -> None:
    result = slurm.run("doctor", "--user", "nosuch")
    assert (result.exit_code, "there is no user nosuch" in result.stderr) == (2, True)
