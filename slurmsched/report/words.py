"""Text from elsewhere, made safe to print: job names, node reasons and Slurm's own words are other people's."""

from __future__ import annotations

from rich.text import Text

__all__ = ["line", "printable"]


def printable(text: str) -> str:
    """The text in one line, without anything a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def line(text: str, style: str = "") -> Text:
    """A line for the screen; nothing in it counts as markup."""
    return Text(printable(text), style=style)
