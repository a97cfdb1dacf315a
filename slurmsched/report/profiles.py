"""Terminal views of profiles, and of jobs' measured rates against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from slurmsched.knowledge import Knowledge, Profile
from slurmsched.knowledge.optimistic_profiling import ProfilingAccuracy
from slurmsched.knowledge.refinement import expected_rate
from slurmsched.model import MeasuredRate
from slurmsched.model.reasons import pluralise
from slurmsched.report.quantities import duration, fixed, memory, percent, signed_percent, significant
from slurmsched.report.tables import Column, Listing
from slurmsched.store.rows import RateRow


def profiles_view(knowledge: Knowledge) -> RenderableType:
    """One line per task and model: its GPU types and the source of its profile."""
    columns = (Column("NAME"), Column("TASK"), Column("GPU TYPES"), Column("SOURCE"))
    known = [*knowledge.tasks.values(), *knowledge.models.values()]
    rows = [
        (p.name, p.task, ",".join(sorted({t or "any" for t in (*p.matrices, *p.scaling)})), p.source) for p in known
    ]
    return Listing(columns, rows)


def profile_view(profile: Profile) -> RenderableType:
    """The profile's speed matrix for each GPU type: rows are CPUs per GPU, columns memory per GPU."""
    parts: list[RenderableType] = [Text(f"{profile.name} ({profile.source})")]
    for gpu_type, matrix in sorted(profile.matrices.items()):
        sizes = [memory(round(size)) for size in matrix.memory] or ["ANY MEMORY"]
        columns = [Column("CPUS", right=True), *(Column(size, right=True) for size in sizes)]
        rows = [
            (significant(cpus), *(significant(speed) for speed in row))
            for cpus, row in zip(matrix.cpus, matrix.speed, strict=True)
        ]
        parts += [Text(f"\n{gpu_type or 'any GPU'}, speed by CPUs and memory per GPU:"), Listing(columns, rows)]
    return Group(*parts, *_rates(profile))


def _rates(profile: Profile) -> Iterator[RenderableType]:
    """Rates by number of GPUs (rows) and GPU type (columns), on one node and spread over nodes (APART)."""
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
            cells += [significant(known.rate_at(gpus)), significant(known.rate_at(gpus, 2)) if known.apart else "-"]
        rows.append(tuple(cells))
    yield Text("\nwork per second by number of GPUs:")
    yield Listing(columns, rows)
    colocated = {model: speed for kind in kinds for model, speed in profile.scaling[kind].beside.items()}
    if colocated:
        mean = sum(colocated.values()) / len(colocated)
        yield Text(
            f"\nsharing a GPU with another model it keeps {percent(mean)} of its speed"
            f" (mean over {pluralise(len(colocated), 'model')})."
        )


def profiling_errors_view(checked: Mapping[str, ProfilingAccuracy]) -> RenderableType:
    """Runs and relative errors of optimistic profiling per model, and their means."""
    columns = (
        Column("MODEL"),
        Column("RUNS", right=True),
        Column("OF", right=True),
        Column("MEAN ERROR", right=True),
        Column("LARGEST", right=True),
    )
    rows = [
        (c.model, str(c.runs), str(c.combinations), percent(c.mean_error), percent(c.max_error))
        for c in checked.values()
    ]
    count = len(checked)
    runs, error = (sum(c.runs for c in checked.values()), sum(c.mean_error for c in checked.values()))
    return Group(
        Listing(columns, rows),
        Text(f"\nOn average {fixed(runs / count)} runs and an error of {percent(error / count)}."),
    )


@dataclass(frozen=True, slots=True)
class ProfileDrift:
    """A job's measured rate with one allocation against `profiled`, the rate that its profile predicts (None where the
    profile has no steps per second). `age` of the measurement is in seconds."""

    job: str
    owner: str
    model: str
    measured: MeasuredRate
    profiled: float | None
    age: float

    @property
    def relative(self) -> float | None:
        """Relative deviation from the profile; negative if slower, None without a profiled rate."""
        return self.measured.rate / self.profiled - 1 if self.profiled else None


def profile_drifts(rows: Iterable[RateRow], knowledge: Knowledge, now: float) -> tuple[ProfileDrift, ...]:
    """The drift of each row from the profile that its job's hints name."""
    drifts = []
    for row in rows:
        profile = knowledge.models.get(row.model) or knowledge.tasks.get(row.task)
        expected = expected_rate(profile, row.point) if profile else None
        drifts.append(ProfileDrift(row.job, row.owner, row.model, row.point, expected, now - row.point.at))
    return tuple(drifts)


def drift_view(drifts: Iterable[ProfileDrift]) -> RenderableType:
    """One line per job and allocation."""
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
        significant(point.cpus),
        significant(point.rate),
        "-" if drift.profiled is None else significant(drift.profiled),
        "-" if drift.relative is None else signed_percent(drift.relative),
        duration(drift.age),
    )
