"""The reference page of all commands, written from the commands themselves: `python -m slurmsched.cli.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from typing import Final

import click

from slurmsched.cli.commands import COMMANDS
from slurmsched.cli.program import main

_PAGE_HEAD: Final = """\
# Commands

Written from the commands themselves by `make docs`; do not edit.

`-h` or `--help` after any command prints the same. Before the command stand `-c FILE` (`--config`), another settings
file, and `-V` (`--version`). `synsched` is also `python -m slurmsched`.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 blocked by the mode, a pause or missing rights. An error is one line on
standard error that says what to do. Where something is listed, `--json` prints it with a `schema` number, which is
raised when a key changes its meaning or goes away. `NO_COLOR`, `TERM=dumb` and `COLUMNS` are heeded; in a pipe nothing
is cut off.
"""


def reference_page() -> str:
    """The page, as Markdown; the same under every release of click."""
    parts = [_PAGE_HEAD]
    context = click.Context(main, info_name="synsched")
    for section, names in COMMANDS.items():
        parts.append(f"\n## {section}\n")
        for name in names:
            command = main.get_command(context, name)
            parts += _command_section(command, f"synsched {name}") if command else ()
    return "".join(parts)


def _command_section(command: click.Command, path: str) -> Iterator[str]:
    usage = " ".join(filter(None, (path, *map(_argument, _arguments(command)))))
    yield f"\n### {path}\n\n"
    text, _, example = cleandoc(command.help or "").partition("\b\nExample:\n")
    if not isinstance(command, click.Group):
        yield f"`{usage}`\n\n"
    yield f"{text.strip()}\n"
    options = [option for option in command.params if isinstance(option, click.Option)]
    if options:
        yield "\n| option | meaning |\n|---|---|\n"
        yield from (f"| {_option_names(option)} | {_option_meaning(option)} |\n" for option in options)
    yield "\n```sh\n" + cleandoc(example) + "\n```\n"
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _command_section(child, f"{path} {name}")


def _arguments(command: click.Command) -> Iterator[click.Argument]:
    return (argument for argument in command.params if isinstance(argument, click.Argument))


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _option_names(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or _value_form(option)}"
    return (
        ", ".join(f"`{name}`" for name in option.opts[:-1])
        + (", " if option.opts[1:] else "")
        + (f"`{option.opts[-1]}{value}`")
    )


def _value_form(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "\\|".join(map(str, option.type.choices))
    return (option.name or "").upper()


def _option_meaning(option: click.Option) -> str:
    default = f" Default: {option.default}." if option.show_default else ""
    return (option.help or "").replace("|", "\\|") + default


if __name__ == "__main__":
    sys.stdout.write(reference_page())
