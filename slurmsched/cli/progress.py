"""A bar for what takes more than a moment. In a module of its own: `status` does without it and starts faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import Progress, track

from slurmsched.cli.output import console

T = TypeVar("T")


def with_progress(items: Sequence[T], label: str) -> Iterator[T]:
    """The items, with a bar on standard error while they are gone through; none where that is no screen."""
    screen = console(to_errors=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield from items
    else:
        yield from track(items, description=label, console=screen, transient=True)


@contextmanager
def progress_reporter(label: str) -> Iterator[Callable[[float], None]]:
    """Somebody to be told the part that is done, from 0 to 1, who shows it where there is a screen."""
    screen = console(to_errors=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield lambda _part: None
        return
    with Progress(console=screen, transient=True) as shown:
        bar = shown.add_task(label, total=1.0)
        yield lambda part: shown.update(bar, completed=part)
