"""The manual pages: every command, option, setting, policy and hint is there, and mandoc and groff find no fault."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from inspect import cleandoc
from pathlib import Path

import click
import pytest

from slurmsched.cli import reference
from slurmsched.cli.commands import COMMANDS
from slurmsched.cli.program import EXIT_STATUS, main
from slurmsched.model.hints import HINT_KEYS
from slurmsched.policies.policies import POLICIES
from slurmsched.settings.file import setting_rows
from tests.unit.cli.test_commands import EVERY

PAGES = reference.manual_pages("2026-11-24")
PACKAGES = {"mandoc": "mandoc", "groff": "groff-base"}


def checker(name: str) -> str:
    """The path of a program that reads manual pages; skips without it, and fails in continuous integration."""
    command = shutil.which(name)
    if command is None:
        if "CI" in os.environ:
            pytest.fail(f"{name} is missing, which 'make setup' installs")
        pytest.skip(f"NOT TESTED: {name} is missing: install the package {PACKAGES[name]}")
    return command


def words(page: str) -> str:
    """The page on one line: its text as a reader sees it, between the macros of roff."""
    text = re.sub(r"\\f[BIPR]|\\&", "", PAGES[page])
    for escape, character in {"\\-": "-", "\\(aq": "'", "\\(dq": '"', "\\(ti": "~", "\\e": "\\"}.items():
        text = text.replace(escape, character)
    return " ".join(text.split())


def rendered(lines: list[str]) -> str:
    """What mandoc makes of lines of roff, on one line."""
    source = "\n".join((".TH X 1 2026-11-24", ".SH NAME", "x \\- y", ".SH TEXT", *lines, ""))
    shown = subprocess.run([checker("mandoc"), "-T", "utf8"], input=source, capture_output=True, text=True, check=True)
    return " ".join(re.sub(".\b", "", shown.stdout).partition("TEXT")[2].rpartition("2026-11-24")[0].split())


def test_each_command_has_a_page() -> None:
    commands = {f"synsched-{name}.1" for section in COMMANDS.values() for name in section}
    assert set(PAGES) == commands | {"synsched.1", "synsched.toml.5", "synsched-hints.7"}


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_every_option_of_a_command_is_in_its_page(path: tuple[str, ...], command: click.Command) -> None:
    page = PAGES["-".join(("synsched", *path[:1])) + ".1"]
    tags = [tag.replace("\\-", "-") for tag in re.findall(r"(?m)^\.TP\n(.*)$", page)]
    context = click.Context(command, info_name="synsched", help_option_names=["-h", "--help"])
    for option in command.get_params(context):
        if isinstance(option, click.Option):
            shown = [tag for tag in tags if all(f"\\fB{name}\\fP" in tag for name in option.opts)]
            assert shown, option.opts
            assert option.is_flag or any("\\fI" in tag for tag in shown), option.opts


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_the_page_says_what_the_help_says(path: tuple[str, ...], command: click.Command) -> None:
    text = cleandoc(command.help or "").partition("\b\nExample:")[0]
    for paragraph in text.strip().split("\n\n")[1:]:
        assert " ".join(paragraph.split()) in words("-".join(("synsched", *path[:1])) + ".1")


@pytest.mark.parametrize("page", [page for page in PAGES if page.endswith(".1")])
def test_every_command_page_tells_its_exit_status(page: str) -> None:
    part = words(page).partition(" .SH EXIT STATUS ")[2].partition(" .SH ")[0].lower()
    assert part == " ".join(f".tp {code} {meaning}." for code, meaning in EXIT_STATUS.items())


def test_the_help_tells_the_same_exit_status() -> None:
    told = " ".join((main.help or "").split())
    assert ", ".join(f"{code} {meaning}" for code, meaning in EXIT_STATUS.items()) in told


def test_every_setting_and_policy_is_in_the_page_of_settings() -> None:
    text = words("synsched.toml.5")
    for row in setting_rows():
        doc = row.doc.replace("`", "")
        assert f".TP {row.key} = {row.default} {doc[:1].upper()}{doc[1:]}. The value is {row.form}." in text, row.name
    assert all(f".TP {name} " in text for name in POLICIES)


def test_every_hint_is_in_the_page_of_hints() -> None:
    text = words("synsched-hints.7")
    for key in HINT_KEYS.values():
        assert key.meaning.replace("`", "")[1:] in text
        assert key.example in text


def test_pages_refer_to_pages_that_exist() -> None:
    for name in PAGES:
        named = set(re.findall(r"\b(synsched[a-z.-]*)\((\d)\)", words(name)))
        assert {f"{page}.{section}" for page, section in named} <= set(PAGES), name


@pytest.mark.parametrize("argv", [["mandoc", "-T", "lint"], ["groff", "-man", "-ww", "-z", "-T", "utf8"]])
def test_mandoc_and_groff_find_no_fault(argv: list[str], tmp_path: Path) -> None:
    for name, page in PAGES.items():
        (tmp_path / name).write_text(page, encoding="ascii")
    found = subprocess.run(
        [checker(argv[0]), *argv[1:], *PAGES], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_mandoc_finds_fault_with_a_page_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "wrong.1"
    file.write_text(PAGES["synsched.1"].replace(".SH", ".XX"), encoding="ascii")
    found = subprocess.run([checker("mandoc"), "-T", "lint", str(file)], capture_output=True, text=True, check=False)
    assert "unknown macro" in found.stdout


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(".TH is no request here", id="a line that begins with a dot"),
        pytest.param("'so neither", id="a line that begins with an apostrophe"),
        pytest.param(r"C:\new \fBold", id="backslashes"),
        pytest.param("--mem=4G -- a - b ~/x ^y \"z\" 'w'", id="hyphens, tildes, carets and quotes"),
        pytest.param("one … two · café", id="beyond ASCII"),
        pytest.param("word " * 30 + ".dot at the start of a wrapped line" * 3, id="long lines"),
    ],
)
def test_any_text_is_shown_as_it_is(text: str) -> None:
    assert rendered(reference._lines(text)) == " ".join(text.split())


def test_backticks_are_bold() -> None:
    assert reference._roff("say `no-requeue`") == "say \\fBno\\-requeue\\fP"
