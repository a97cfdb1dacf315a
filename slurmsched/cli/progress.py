"""Progress bars. A separate module, so that `status` starts faster without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import Progress, track

from slurmsched.cli.output import console

T = TypeVar("T")


def with_progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Yields the items, with a progress bar on standard error if that is a terminal."""
    screen = console(to_errors=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield from items
    else:
        yield from track(items, description=label, console=screen, transient=True)


@contextmanager
def progress_reporter(label: str) -> Iterator[Callable[[float], None]]:
    """Yields a function that takes the part done, from 0 to 1, and shows it if standard error is a terminal."""
    screen = console(to_errors=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield lambda _part: None
        return
    with Progress(console=screen, transient=True) as shown:
        bar = shown.add_task(label, total=1.0)
        yield lambda part: shown.update(bar, completed=part)
