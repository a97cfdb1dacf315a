"""`synsched plan` on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurmsched.model import Operation, Shape
from slurmsched.report.listing import Column, Listing
from slurmsched.report.planned import Planned, PlannedRound
from slurmsched.report.quantities import count, duration
from slurmsched.report.words import line

__all__ = ["plan_view"]

_EFFECT: Final = {
    "observe": "nothing is changed in mode observe; this is what mode enforce would do",
    "advise": "in mode advise only notes are written",
    "prioritize": "in mode prioritize only the order of waiting jobs is changed",
}


def plan_view(plan: PlannedRound, with_commands: bool = False) -> RenderableType:
    """The operations with reason and undo; then who starts and who waits."""
    queue = f"{len(plan.keeps)} stay, {len(plan.starts)} start, {len(plan.waits)} wait"
    header = f"{plan.system}, {plan.ordering} order, mode {plan.mode}: {queue}"
    parts: list[RenderableType] = [line(header, "bold")]
    if plan.operations:
        parts += [Text(""), _operations(plan, with_commands)]
    else:
        parts.append(line("nothing has to change"))
    if plan.dispatched:
        steps = [(job, why.sentence) for job, why in sorted(plan.dispatched.items())]
        parts += [Text(""), Listing((Column("COPY"), Column("STEPS")), steps)]
    if plan.waits:
        waits = [(job, plan.waits[job].sentence) for job in _in_order(plan)]
        parts += [Text(""), Listing((Column("WAITING"), Column("WHY")), waits)]
    if plan.operations and (effect := _EFFECT.get(plan.mode)):
        parts += [Text(""), line(effect, "dim")]
    if plan.unmanaged:
        parts.append(line(f"{count(plan.unmanaged, 'other job')} not managed, left alone", "dim"))
    return Group(*parts)


def _in_order(plan: PlannedRound) -> list[str]:
    ranks = {job: place for place, job in enumerate(plan.order)}
    return sorted(plan.waits, key=lambda job: (ranks.get(job, len(ranks)), job))


def _operations(plan: PlannedRound, with_commands: bool) -> RenderableType:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right")
    table.add_column()
    table.add_column(overflow="fold")
    for number, planned in enumerate(plan.operations, start=1):
        table.add_row(str(number), planned.verb.value, line(planned.sentence))
        table.add_row("", "", line("; ".join(_conditions(planned)), "dim"))
        for command in planned.commands if with_commands else ():
            table.add_row("", "", line(f"$ {command}", "cyan"))
    return table


def _conditions(planned: Planned) -> Iterator[str]:
    if not planned.permitted:
        yield "not permitted: see 'synsched doctor'"
    if planned.lead:
        yield f"{duration(planned.lead)} after the signal"
    if planned.gone:
        yield f"when {', '.join(planned.gone)} left"
    yield _undo(planned)


def _undo(planned: Planned) -> str:
    return "cannot be undone" if planned.undo is None else f"undo: {_worded(planned.undo)}"


def _worded(undo: Operation) -> str:
    match undo.after:
        case Shape() as shape:
            where = ",".join(shape.nodes) or count(shape.node_count, "node")
            return f"{undo.verb.value} to {shape.gpus} GPUs, {shape.cpus} CPUs a node on {where}"
        case int() as number:
            return f"{undo.verb.value} {number}"
        case _:
            return undo.verb.value
