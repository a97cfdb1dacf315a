"""What doctor says of the installed systemd unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurmsched.doctor.finding import Verdict
from slurmsched.doctor.unit import about_unit
from slurmsched.installation import installation
from slurmsched.rendering import render
from slurmsched.settings import Loaded, Reports, Settings

SHARED = replace(Settings(), reports=Reports(spool="/shared/all jobs/100%"))


def installed(folder: Path, settings: Settings) -> Path:
    unit = folder / "synsched.service"
    unit.write_text(render("synsched.service", **installation(Loaded(settings))), encoding="utf-8")
    return unit


def test_a_unit_rendered_before_a_path_was_set_has_to_be_rendered_again(tmp_path: Path) -> None:
    (finding,) = about_unit(SHARED, installed(tmp_path, Settings()))
    assert finding.verdict is Verdict.MEND
    assert "/shared/all jobs/100%" in finding.sentence


def test_a_unit_rendered_from_these_settings_is_fine(tmp_path: Path) -> None:
    for settings in (Settings(), SHARED):
        (finding,) = about_unit(settings, installed(tmp_path, settings))
        assert finding.verdict is Verdict.FINE


def test_a_unit_of_an_older_release_has_to_be_rendered_again(tmp_path: Path) -> None:
    unit = tmp_path / "synsched.service"
    unit.write_text("[Service]\nExecStart=/bin/synsched run\n", encoding="utf-8")
    (finding,) = about_unit(Settings(), unit)
    assert finding.verdict is Verdict.MEND


def test_a_site_without_systemd_hears_nothing_of_it(tmp_path: Path) -> None:
    assert not list(about_unit(Settings(), tmp_path / "none"))
