"""The settings as people see them: in a listing, in the shipped file, on the reference page."""

from __future__ import annotations

import re
from pathlib import Path

from slurmsched.installation import template_values
from slurmsched.settings import Settings, load_settings_file
from slurmsched.settings.file import setting_rows
from slurmsched.template_files import render

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_every_setting_says_where_its_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "synsched.toml"
    file.write_text("[rounds]\nperiod = 60\n")
    shown = {row.name: row for row in setting_rows(load_settings_file(file))}
    assert (shown["rounds.period"].value, shown["rounds.period"].origin) == ('"1m"', str(file))
    assert (shown["rounds.mode"].value, shown["rounds.mode"].origin) == ('"observe"', "default")


def test_every_setting_is_documented() -> None:
    assert all(row.doc and not row.doc.endswith(".") for row in setting_rows())


def test_the_shipped_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "synsched.toml"
    file.write_text(render("synsched.toml", **template_values()))
    loaded = load_settings_file(file)
    assert loaded.settings == Settings()
    assert not loaded.given


def test_the_shipped_file_shows_every_default_in_a_form_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "synsched.toml"
    file.write_text(re.sub(r"(?m)^#(\w+ = )", r"\1", render("synsched.toml", **template_values())))
    loaded = load_settings_file(file)
    assert loaded.settings == Settings()
    assert loaded.given == {row.name for row in setting_rows()}


def test_a_file_with_changes_is_rendered_with_them(tmp_path: Path) -> None:
    file = tmp_path / "synsched.toml"
    file.write_text('[manage]\nqos = ["normal"]\n')
    changed = load_settings_file(file)
    file.write_text(render("synsched.toml", **template_values(changed)))
    assert load_settings_file(file) == changed


def test_the_reference_page_is_what_the_definition_says() -> None:
    assert PAGE.read_text() == render("settings.md", **template_values()), "run 'make docs'"
