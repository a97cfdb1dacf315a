"""Columns as Slurm prints them: no rules, one line for each row unless a column may wrap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from slurmsched.report.words import line

__all__ = ["Column", "Listing"]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and the side its cells lean to."""

    heading: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows under headings. Where all fits, nothing is padded to the screen's width: pipes get whole sentences.

    Where the screen ends the column at `giving` is cut, the last one without it, or goes on in the next line if it is
    `wrapped`.
    """

    columns: Sequence[Column]
    rows: Iterable[Sequence[RenderableType]]
    headings: bool = True
    wrapped: bool = False
    giving: int = -1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=self.headings, header_style="bold")
        giving = self.giving % len(self.columns)
        for position, column in enumerate(self.columns):
            wraps = self.wrapped and position == giving
            table.add_column(
                column.heading,
                justify="right" if column.right else "left",
                no_wrap=not wraps,
                overflow="fold" if wraps else "crop" if options.ascii_only else "ellipsis",
                ratio=1 if position == giving else None,
            )
        for row in self.rows:
            table.add_row(*(line(cell) if isinstance(cell, str) else cell for cell in row))
        unlimited = options.update(max_width=100_000)
        table.expand = Measurement.get(console, unlimited, table).maximum > options.max_width
        yield table
