"""`synsched plan` on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
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
        parts += [Text(""), *(_operation(number, one, with_commands) for number, one in _numbered(plan))]
    else:
        parts.append(line("nothing has to change"))
    if plan.waits:
        waits = [(job, plan.waits[job].sentence) for job in _in_order(plan)]
        parts += [Text(""), Listing((Column("WAITING"), Column("WHY")), waits)]
    if plan.operations and (effect := _EFFECT.get(plan.mode)):
        parts += [Text(""), line(effect, "dim")]
    if plan.unmanaged:
        parts.append(line(f"{count(plan.unmanaged, 'other job')} not managed, left alone", "dim"))
    return Group(*parts)


def _numbered(plan: PlannedRound) -> Iterator[tuple[int, Planned]]:
    return enumerate(plan.operations, start=1)


def _in_order(plan: PlannedRound) -> list[str]:
    ranks = {job: place for place, job in enumerate(plan.order)}
    return sorted(plan.waits, key=lambda job: (ranks.get(job, len(ranks)), job))


def _operation(number: int, planned: Planned, with_commands: bool) -> RenderableType:
    said = [line(f"{number:>3}  {planned.verb.value:<10} {planned.sentence}")]
    notes = [f"when {', '.join(planned.gone)} left" if planned.gone else "", _undo(planned)]
    if planned.lead:
        notes.insert(0, f"{duration(planned.lead)} after the signal")
    if not planned.permitted:
        notes.insert(0, "not permitted: see 'synsched doctor'")
    said.append(line("; ".join(filter(None, notes)), "dim"))
    if with_commands:
        said += (line(f"$ {command}", "cyan") for command in planned.commands)
    return Group(said[0], *(Padding(one, (0, 0, 0, 5), expand=False) for one in said[1:]))


def _undo(planned: Planned) -> str:
    return "cannot be undone" if planned.undo is None else f"undo: {_worded(planned.undo)}"


def _worded(undo: Operation) -> str:
    match undo.after:
        case None:
            return undo.verb.value
        case Shape() as shape:
            where = ",".join(shape.nodes) or count(shape.node_count, "node")
            return f"{undo.verb.value} to {shape.gpus} GPUs, {shape.cpus} CPUs a node on {where}"
        case value:
            return f"{undo.verb.value} {value}" if len(str(value)) <= 40 else undo.verb.value  # noqa: PLR2004 half a line
