"""Profiles for people, and how fast jobs say they are beside what was profiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.knowledge import Knowledge, Profile
from slurmsched.knowledge.optimistic_profiling import ProfilingAccuracy
from slurmsched.knowledge.refinement import expected_rate
from slurmsched.model import MeasuredRate
from slurmsched.report.quantities import duration, memory
from slurmsched.report.tables import Column, Listing
from slurmsched.store.rows import RateRow


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
            cells += [f"{known.rate_at(gpus):.3g}", f"{known.rate_at(gpus, 2):.3g}" if known.apart else "-"]
        rows.append(tuple(cells))
    yield Text("\nwork per second by GPUs of a job:")
    yield Listing(columns, rows)
    beside = {model: part for kind in kinds for model, part in profile.scaling[kind].beside.items()}
    if beside:
        mean = sum(beside.values()) / len(beside)
        yield Text(
            f"\nbeside one of {len(beside)} models on the same GPU it keeps {mean:.0%} of its speed in the mean."
        )


def profiling_errors_view(checked: Mapping[str, ProfilingAccuracy]) -> RenderableType:
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


@dataclass(frozen=True, slots=True)
class ProfileDrift:
    """A job's rate with one allocation: `profiled` is what its model's profile promises, None where that says nothing
    in steps per second; `age` in seconds."""

    job: str
    owner: str
    model: str
    measured: MeasuredRate
    profiled: float | None
    age: float

    @property
    def relative(self) -> float | None:
        """By what part it is faster than profiled; below zero, slower."""
        return self.measured.rate / self.profiled - 1 if self.profiled else None


def profile_drifts(rows: Iterable[RateRow], knowledge: Knowledge, now: float) -> tuple[ProfileDrift, ...]:
    """Each row beside the profile that its job's hints name."""
    drifts = []
    for row in rows:
        profile = knowledge.models.get(row.model) or knowledge.tasks.get(row.task)
        promised = expected_rate(profile, row.point) if profile else None
        drifts.append(ProfileDrift(row.job, row.owner, row.model, row.point, promised, now - row.point.at))
    return tuple(drifts)


def drift_view(drifts: Iterable[ProfileDrift]) -> RenderableType:
    """A line for each job and allocation."""
    columns = (
        Column("JOBID"),
        Column("USER"),
        Column("MODEL"),
        Column("GPUS"),
        Column("CPU/GPU", right=True),
        Column("STEPS/S", right=True),
        Column("PROFILE", right=True),
        Column("DRIFT", right=True),
        Column("AGE", right=True),
    )
    return Listing(columns, [_row(drift) for drift in drifts])


def _row(drift: ProfileDrift) -> tuple[str, ...]:
    point = drift.measured
    return (
        drift.job,
        drift.owner,
        drift.model or "-",
        f"{point.gpus} {point.gpu_type}".strip(),
        f"{point.cpus:.3g}",
        f"{point.rate:.3g}",
        "-" if drift.profiled is None else f"{drift.profiled:.3g}",
        "-" if drift.relative is None else f"{drift.relative:+.0%}",
        duration(drift.age),
    )
