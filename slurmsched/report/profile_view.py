"""Profiles for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.knowledge import Knowledge, Profile
from slurmsched.knowledge.checking import Checked
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import memory

__all__ = ["checked_view", "profile_view", "profiles_view"]


def profiles_view(knowledge: Knowledge) -> RenderableType:
    """Every model and task, and where its numbers come from."""
    columns = (Column("NAME"), Column("TASK"), Column("GPU TYPES"), Column("SOURCE"))
    known = [*knowledge.tasks.values(), *knowledge.models.values()]
    rows = [
        (p.name, p.task, ",".join(sorted({t or "any" for t in (*p.matrices, *p.scaling)})), p.source) for p in known
    ]
    return Listing(columns, rows)


def profile_view(profile: Profile) -> RenderableType:
    """Its matrix for each GPU type: a line for CPUs per GPU, a column for memory per GPU."""
    parts: list[RenderableType] = [Text(f"{profile.name} ({profile.source})")]
    for gpu_type, matrix in sorted(profile.matrices.items()):
        sizes = [memory(round(size)) for size in matrix.memory] or ["ANY MEMORY"]
        columns = [Column("CPUS", right=True), *(Column(size, right=True) for size in sizes)]
        rows = [
            (f"{cpus:g}", *(f"{speed:.3g}" for speed in row))
            for cpus, row in zip(matrix.cpus, matrix.speed, strict=True)
        ]
        parts += [Text(f"\n{gpu_type or 'any GPU'}, speed by what each GPU has beside it:"), Listing(columns, rows)]
    return Group(*parts, *_rates(profile))


def _rates(profile: Profile) -> Iterator[RenderableType]:
    """A line for each number of GPUs, a column for each type, on one node and apart."""
    kinds = sorted(profile.scaling)
    if not kinds:
        return
    columns = [Column("GPUS", right=True)]
    for kind in kinds:
        columns += [Column(kind.upper(), right=True), Column("APART", right=True)]
    rows = []
    for gpus in sorted({gpus for known in profile.scaling.values() for gpus in known.gpus}):
        cells = [str(gpus)]
        for kind in kinds:
            known = profile.scaling[kind]
            cells += [f"{known.at(gpus):.3g}", f"{known.at(gpus, 2):.3g}" if known.apart else "-"]
        rows.append(tuple(cells))
    yield Text("\nwork per second by GPUs of a job:")
    yield Listing(columns, rows)
    beside = {model: part for kind in kinds for model, part in profile.scaling[kind].beside.items()}
    if beside:
        mean = sum(beside.values()) / len(beside)
        yield Text(
            f"\nbeside one of {len(beside)} models on the same GPU it keeps {mean:.0%} of its speed in the mean."
        )


def checked_view(checked: Mapping[str, Checked]) -> RenderableType:
    """Runs and errors of optimistic profiling, model by model, and in the mean."""
    columns = (
        Column("MODEL"),
        Column("RUNS", right=True),
        Column("OF", right=True),
        Column("MEAN ERROR", right=True),
        Column("LARGEST", right=True),
    )
    rows = [
        (c.model, str(c.runs), str(c.combinations), f"{c.mean_error:.1%}", f"{c.max_error:.1%}")
        for c in checked.values()
    ]
    count = len(checked)
    runs, error = (sum(c.runs for c in checked.values()), sum(c.mean_error for c in checked.values()))
    return Group(
        Listing(columns, rows), Text(f"\nIn the mean {runs / count:.1f} runs and an error of {error / count:.1%}.")
    )
