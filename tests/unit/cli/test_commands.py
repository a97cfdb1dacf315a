"""What holds for every command: help with an example, a line in the table, errors in one line, a current reference."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from slurmsched.cli import main
from slurmsched.cli.commands import COMMANDS
from slurmsched.cli.reference import reference_page
from tests.unit.cli.conftest import Site

ROOT = Path(__file__).parents[3]


def tree(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from tree(child, (*path, name))


EVERY = [pytest.param(path, command, id=" ".join(("synsched", *path))) for path, command in tree()]


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_every_command_has_help_with_an_example_of_itself(path: tuple[str, ...], command: click.Command) -> None:
    text, _, example = (command.help or "").partition("Example:")
    assert text.strip()
    assert " ".join(("synsched", *path)) in example.replace("--config new.toml ", "")


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(("path", "command"), EVERY)
def test_help_fits_eighty_columns(site: Site, path: tuple[str, ...], command: click.Command, flag: str) -> None:
    lines = site.lines(*path, flag)
    assert "Example:" in " ".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_every_option_is_explained(path: tuple[str, ...], command: click.Command) -> None:
    assert [option.name for option in command.params if isinstance(option, click.Option) and not option.help] == []


def test_the_table_says_of_each_command_what_the_command_says() -> None:
    context = click.Context(main)
    said = {name: entry.summary for section in COMMANDS.values() for name, entry in section.items()}
    commands = {name: main.get_command(context, name) for name in said}
    assert said == {name: (command.help or "").partition("\n")[0] for name, command in commands.items() if command}


@pytest.mark.parametrize("words", [[], ["config"], ["trace"]])
def test_without_a_command_the_help_is_printed(site: Site, words: list[str]) -> None:
    result = site.run(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == site.run(*words, "--help").stdout
    assert result.stdout.count("\n") > 5


def test_the_reference_page_is_current() -> None:
    page = ROOT / "docs" / "commands.md"
    assert page.read_text(encoding="utf-8") == reference_page(), "write it anew with 'make docs'"


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        pytest.param(
            ["stauts"],
            2,
            "synsched: there is no command 'stauts': did you mean 'status'?; see 'synsched --help'",
            id="mistyped",
        ),
        pytest.param(
            ["status", "--jsn"], 2, "synsched status: no such option '--jsn'", id="an option that does not exist"
        ),
        pytest.param(["explain"], 2, "synsched explain: missing argument 'JOBID[,JOBID...]'", id="no job named"),
        pytest.param(
            ["explain", "twelve"],
            2,
            "synsched explain: invalid value for 'JOBID[,JOBID...]': 'twelve' is not a job id: write 12, 12_3, 1,2 or"
            " 12_[0-3]",
            id="what is no job id",
        ),
    ],
)
def test_wrong_usage_is_told_in_one_line(site: Site, arguments: list[str], code: int, line: str) -> None:
    result = site.run(*arguments)
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1
    assert result.stderr.lower().startswith(line.lower().replace("no such option '--jsn'", "no such option"))


@pytest.mark.parametrize(
    "command",
    [["status"], ["free"], ["forecast"], ["explain", "1"], ["history", "1"], ["dump", "--round", "1", "x.round"]],
)
def test_without_a_database_one_line_names_the_command_that_makes_one(site: Site, command: list[str]) -> None:
    result = site.run(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"synsched: no round has been recorded in {site.database} yet: start 'synsched run'\n"


def test_a_wrong_settings_file_is_wrong_usage(site: Site) -> None:
    site.config.write_text("[rounds]\nperoid = 5\n", encoding="utf-8")
    result = site.run("plan")
    assert result.exit_code == 2
    assert result.stderr == f"synsched: {site.config}: unknown setting rounds.peroid: did you mean period?\n"


def test_a_settings_file_that_is_not_there_is_wrong_usage_of_every_command(site: Site) -> None:
    site.config.unlink()
    result = site.run("status")
    assert result.exit_code == 2
    assert result.stderr == f"synsched: {site.config}: cannot be read: No such file or directory; see SYNSCHED_CONF\n"


@pytest.mark.parametrize("slow", ["numpy", "scipy", "jinja2", "sqlite_utils"])
def test_what_users_call_often_starts_without_what_it_does_not_need(slow: str) -> None:
    code = f"import sys, slurmsched.cli.status, slurmsched.cli.job; sys.exit({slow!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_rounds_from_cron_start_without_scipy_which_takes_longer_than_all_else() -> None:
    code = "import sys, slurmsched.cli.cluster; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
