"""What doctor says of the installed systemd unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurmsched.doctor.finding import Verdict
from slurmsched.doctor.installation import check_unit
from slurmsched.installation import template_values
from slurmsched.settings import LoadedSettings, ReportSettings, Settings
from slurmsched.template_files import render

SHARED = replace(Settings(), reports=ReportSettings(spool="/shared/all jobs/100%"))


def installed(folder: Path, settings: Settings) -> Path:
    unit = folder / "synsched.service"
    unit.write_text(render("synsched.service", **template_values(LoadedSettings(settings))), encoding="utf-8")
    return unit


def test_a_unit_rendered_before_a_path_was_set_has_to_be_rendered_again(tmp_path: Path) -> None:
    (finding,) = check_unit(SHARED, installed(tmp_path, Settings()))
    assert finding.verdict is Verdict.PROBLEM
    assert "/shared/all jobs/100%" in finding.sentence


def test_a_unit_rendered_from_these_settings_is_fine(tmp_path: Path) -> None:
    for settings in (Settings(), SHARED):
        (finding,) = check_unit(settings, installed(tmp_path, settings))
        assert finding.verdict is Verdict.OK


def test_a_unit_of_an_older_release_has_to_be_rendered_again(tmp_path: Path) -> None:
    unit = tmp_path / "synsched.service"
    unit.write_text("[Service]\nExecStart=/bin/synsched run\n", encoding="utf-8")
    (finding,) = check_unit(Settings(), unit)
    assert finding.verdict is Verdict.PROBLEM


def test_a_site_without_systemd_hears_nothing_of_it(tmp_path: Path) -> None:
    assert not list(check_unit(Settings(), tmp_path / "none", tmp_path / "none"))


def test_without_a_unit_of_the_site_that_of_the_package_counts(tmp_path: Path) -> None:
    packaged, own = installed(tmp_path, Settings()), tmp_path / "own.service"
    (finding,) = check_unit(SHARED, own, packaged)
    assert finding.sentence.startswith(f"{packaged} does not let the daemon write to ")
    assert f"> {own}" in finding.remedy
    (finding,) = check_unit(Settings(), own, packaged)
    assert finding.verdict is Verdict.OK
