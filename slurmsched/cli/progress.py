"""A bar for what takes more than a moment. In a module of its own: `status` does without it and starts faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.progress import track

from slurmsched.cli.output import console

__all__ = ["progress"]

T = TypeVar("T")


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a bar on standard error while they are gone through; none where that is no screen."""
    screen = console(to_errors=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield from items
    else:
        yield from track(items, description=what, console=screen, transient=True)
