"""Output of commands: a console as wide as the terminal, JSON with a schema number, and progress bars."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from slurmsched.jobside.atomic_files import replace_file_in
from slurmsched.model import SynschedError, to_plain
from slurmsched.report.status import SCHEMA_VERSION

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_PIPE_WIDTH: Final = 10_000
"""Columns if the output is a pipe, so that nothing is cut off."""


class JsonOption(click.Option):
    """`--json`, and the documents that the command prints with it: the names of frozen dataclasses below `slurmsched.`,
    as `model.plan:Plan`, with properties that are printed too, as in `fidelity.validation:Fidelity+ok`."""

    def __init__(self, *args: Any, documents: tuple[str, ...], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.documents = documents


def json_option(*documents: str) -> Callable[[F], F]:
    """Returns the option `--json` of a command that prints these documents, whose schemas `synsched schema` prints."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        cls=JsonOption,
        documents=documents,
        help="Print JSON with a versioned schema.",
    )


def json_documents(command: click.Command) -> tuple[str, ...]:
    """Returns the documents that a command prints with `--json`; none without that option."""
    return next((option.documents for option in command.params if isinstance(option, JsonOption)), ())


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


def typed_command() -> str:
    """Returns this command as a shell takes it again."""
    return f"synsched {shlex.join(sys.argv[1:])}"


def print_json(document: object, *properties: str) -> None:
    """Prints a dataclass as one JSON object, its schema number first, with these properties of it beside its fields.

    Raises TypeError for a document that the command does not name: it has no schema.
    """
    context = click.get_current_context()
    kind = type(document)
    name = "+".join((f"{kind.__module__.removeprefix('slurmsched.')}:{kind.__name__}", *properties))
    if name not in json_documents(context.command):
        raise TypeError(f"{context.command_path} names no document {name} in its json_option")
    printed = to_plain(document) | {key: to_plain(getattr(document, key)) for key in properties}
    click.echo(json.dumps({"schema": SCHEMA_VERSION, **_without_nan(printed)}, indent=2, allow_nan=False))


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


def with_progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Yields the items, with a progress bar on standard error if that is a terminal."""
    from rich.progress import track  # noqa: PLC0415  # `status` starts faster without it

    screen = console(to_errors=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield from items
    else:
        yield from track(items, description=label, console=screen, transient=True)


@contextmanager
def progress_reporter(label: str) -> Iterator[Callable[[float], None]]:
    """Yields a function that takes the part done, from 0 to 1, and shows it if standard error is a terminal."""
    from rich.progress import Progress  # noqa: PLC0415  # as above

    screen = console(to_errors=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield lambda _part: None
        return
    with Progress(console=screen, transient=True) as shown:
        bar = shown.add_task(label, total=1.0)
        yield lambda part: shown.update(bar, completed=part)


class PageFileError(SynschedError):
    """The file of a page cannot be written; the message names it and why."""


def check_page_file(path: Path | None) -> None:
    """Finds out whether this file can be written, before hours of work are spent on it. Raises PageFileError."""
    if path is None:
        return
    try:
        if _is_replaced(path):
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        else:
            with path.open("ab"):
                pass
    except OSError as error:
        raise PageFileError(f"cannot write {path}: {error.strerror or error}") from error


def write_page(path: Path, text: str) -> None:
    """Writes a page, which readers see whole, or the last one. Raises PageFileError."""
    try:
        if _is_replaced(path):
            file = path.resolve()
            folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                replace_file_in(folder, file.name, text.encode(), 0o644, fsync=False)
            finally:
                os.close(folder)
        else:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PageFileError(f"cannot write {path}: {error.strerror or error}") from error


def _is_replaced(path: Path) -> bool:
    """Whether a new file takes its place, as of a regular one; a pipe or a terminal is written to."""
    return path.is_file() or not path.exists()
