"""`synsched schema`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.json_schema import command_schema, json_commands
from slurmsched.cli.parameters import completion


def _offered_commands(_invocation: Invocation) -> Iterator[tuple[str, str]]:
    return ((path.partition(" ")[0], "") for path in json_commands())


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...", shell_complete=completion(_offered_commands))
def schema(*, words: tuple[str, ...]) -> None:
    """Print the JSON schema of a command's --json.

    The schema (draft 2020-12) is strict: these keys and no others, with the unit of each. Without a command, lists the
    commands that print JSON.

    \b
    Example:
      synsched schema status
      synsched schema trace show > trace-show.schema.json
    """
    commands, path = json_commands(), " ".join(words)
    if not words:
        click.echo("\n".join(commands))
    elif path in commands:
        click.echo(json.dumps(command_schema(path, commands[path]), indent=2))
    else:
        raise click.UsageError(f"'synsched {path}' prints no JSON: 'synsched schema' lists the commands that do")
