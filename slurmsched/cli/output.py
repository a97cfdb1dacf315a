"""Output of commands: a console as wide as the terminal, and JSON with a schema number."""

from __future__ import annotations

import json
import os
import sys
from math import isfinite
from typing import Any, Final

import click
from rich.console import Console

from slurmsched.model import to_plain
from slurmsched.report.status import SCHEMA_VERSION

_PIPE_WIDTH: Final = 10_000
"""Columns if the output is a pipe, so that nothing is cut off."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with a versioned schema.")


def console(to_errors: bool = False) -> Console:
    """Returns a console without markup: as wide as the terminal; in a pipe as the text, unless COLUMNS is set."""
    stream = sys.stderr if to_errors else sys.stdout
    endless = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=stream,
        width=_PIPE_WIDTH if endless else None,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=endless,
    )


def print_json(data: object) -> None:
    """Prints a mapping or a dataclass as one JSON object, its schema number first."""
    click.echo(json.dumps({"schema": SCHEMA_VERSION, **_without_nan(to_plain(data))}, indent=2, allow_nan=False))


def _without_nan(data: Any) -> Any:
    """Replaces NaN and infinity by null, because JSON has neither."""
    match data:
        case float() if not isfinite(data):
            return None
        case dict():
            return {key: _without_nan(value) for key, value in data.items()}
        case list() | tuple():
            return [_without_nan(value) for value in data]
        case _:
            return data
