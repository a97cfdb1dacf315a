"""What commands print on: a console that fits the screen, and JSON with a schema."""

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
"""Columns in a pipe, where nothing has to be cut."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with a versioned schema.")


def console(to_errors: bool = False) -> Console:
    """As wide as the screen; in a pipe as wide as the text, unless COLUMNS says otherwise. It reads no markup."""
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
    """A mapping or a dataclass as one JSON object on standard output, its schema first."""
    click.echo(json.dumps({"schema": SCHEMA_VERSION, **_without_nan(to_plain(data))}, indent=2, allow_nan=False))


def _without_nan(data: Any) -> Any:
    """JSON knows no NaN and no infinity: what is none is null."""
    match data:
        case float() if not isfinite(data):
            return None
        case dict():
            return {key: _without_nan(value) for key, value in data.items()}
        case list() | tuple():
            return [_without_nan(value) for value in data]
        case _:
            return data
