"""`synsched free` on a screen."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.model import Fragments
from slurmsched.report.free import Free, Largest
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import count, duration, memory
from slurmsched.report.words import line

__all__ = ["free_view"]


def free_view(free: Free, now: float) -> RenderableType:
    """A line for each GPU type, then the nodes that have idle GPUs."""
    sums = Listing(
        (
            Column("TYPE"),
            Column("IDLE", right=True),
            Column("STRANDED", right=True),
            Column("LARGEST JOB THAT COULD START NOW"),
        ),
        [(kind.gpu_type, f"{kind.idle}/{kind.gpus}", str(kind.stranded), _largest(kind)) for kind in free.types],
    )
    nodes = Listing(
        (
            Column("NODE"),
            Column("TYPE"),
            Column("IDLE", right=True),
            Column("USABLE", right=True),
            Column("CPUS", right=True),
            Column("MEM", right=True),
            Column("WHY"),
        ),
        [
            (row.node, row.gpu_type, str(row.idle), str(row.usable), str(row.cpus), memory(row.memory), row.why)
            for row in free.nodes
            if row.idle
        ],
    )
    parts: list[RenderableType] = [sums]
    if any(row.idle for row in free.nodes):
        parts += ["", nodes]
    if free.fragments and free.fragments.sentence:
        parts += ["", line(free.fragments.sentence), "", _fragments(free.fragments)]
    parts += (Text(note, style="dim") for note in _notes(free, now))
    return Group(*parts)


def _fragments(found: Fragments) -> Listing:
    """By node, what of its idle GPUs the usual jobs could not use, in the mean: GPUs, by what is missing."""
    columns = (
        Column("NODE"),
        *(Column(heading, right=True) for heading in ("IDLE", "LOST", "NO GPU", "NO CPU", "NEITHER", "OTHER TYPE")),
    )
    rows = [("all nodes", found.all), *((own.node, own) for own in found.nodes if own.lost)]
    return Listing(columns, [(name, *(f"{part:.1f}" for part in own.parts)) for name, own in rows])


def _notes(free: Free, now: float) -> Iterator[str]:
    yield ""
    yield f"as of {duration(now - free.at)} ago"
    if free.waiting:
        yield f"{count(free.waiting, 'managed job')} waiting already: those come first"


def _largest(kind: Largest) -> str:
    if not kind.on_one_node:
        return "none"
    one = f"{kind.on_one_node} on one node"
    if kind.over_nodes == kind.on_one_node:
        return one
    return f"{one}, {kind.over_nodes} over {kind.nodes} nodes"
