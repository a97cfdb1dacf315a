"""Tables as Slurm prints them, bars of GPUs, and escaping of untrusted text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from slurmsched.model import MILLI_PER_GPU, GpuUsage


def printable(text: str) -> str:
    """The text in one line; control characters, which a terminal would obey, become `?`."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def safe_line(text: str, style: str = "") -> Text:
    """A printable line; nothing in it counts as markup."""
    return Text(printable(text), style=style)


@dataclass(frozen=True, slots=True)
class Hanging:
    """A text behind a short head; what does not fit the line is continued below the text's first word."""

    head: Text
    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self.head.cell_len
        for number, line in enumerate(self.text.wrap(console, max(options.max_width - indent, 1), overflow="fold")):
            line.rstrip()
            yield Text.assemble(self.head if number == 0 else " " * indent, line)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        whole = self.head.cell_len + Measurement.get(console, options, self.text).maximum
        return Measurement(min(self.head.cell_len + 1, options.max_width), min(whole, options.max_width))


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and alignment."""

    heading: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows under headings, not padded to the width of the terminal: pipes get whole sentences.

    Where the rows are wider than the terminal, the column at index `shrinking` is cut, or wrapped if `wrapped`.
    """

    columns: Sequence[Column]
    rows: Iterable[Sequence[RenderableType]]
    headings: bool = True
    wrapped: bool = False
    shrinking: int = -1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=self.headings, header_style="bold")
        shrinking = self.shrinking % len(self.columns)
        for index, column in enumerate(self.columns):
            wraps = self.wrapped and index == shrinking
            table.add_column(
                column.heading,
                justify="right" if column.right else "left",
                no_wrap=not wraps,
                overflow="fold" if wraps else "crop" if options.ascii_only else "ellipsis",
                ratio=1 if index == shrinking else None,
            )
        for row in self.rows:
            table.add_row(*(safe_line(cell) if isinstance(cell, str) else cell for cell in row))
        unlimited = options.update(max_width=100_000)
        table.expand = Measurement.get(console, unlimited, table).maximum > options.max_width
        yield table


_TAKEN: Final = ("█", "#")
_PARTLY: Final = ("▒", "+")
_IDLE: Final = ("·", ".")


@dataclass(frozen=True, slots=True)
class GpuBar:
    """A node's GPUs by index, one sign each: allocated, partly allocated (shards) or idle. ASCII where needed."""

    gpus: tuple[GpuUsage, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("").join(_styled(_sign(gpu.used), options.ascii_only) for gpu in self.gpus)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(len(self.gpus), len(self.gpus))


@dataclass(frozen=True, slots=True)
class LoadBar:
    """`used` of `total` as a bar of `width` characters; anything above zero fills at least one."""

    used: float
    total: float
    width: int = 20

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fraction = min(max(self.used / self.total, 0.0), 1.0) if self.total else 0.0
        filled = max(int(fraction * self.width), 1 if fraction > 0 else 0)
        signs = [_TAKEN] * filled + [_IDLE] * (self.width - filled)
        yield Text("").join(_styled(sign, options.ascii_only) for sign in signs)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


def _sign(used: int) -> tuple[str, str]:
    if used == 0:
        return _IDLE
    return _TAKEN if used >= MILLI_PER_GPU else _PARTLY


def _styled(sign: tuple[str, str], ascii_only: bool) -> Text:
    styles = {_TAKEN: "green", _PARTLY: "yellow", _IDLE: "dim"}
    return Text(sign[ascii_only], style=styles[sign])
