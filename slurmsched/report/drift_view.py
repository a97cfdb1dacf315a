"""How fast jobs say they are, beside what was profiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import RenderableType

from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.drifting import expected
from slurmsched.model import Measured
from slurmsched.report.listing import Column, Listing
from slurmsched.report.quantities import duration
from slurmsched.store.rows import MeasuredRow

__all__ = ["Drift", "drift_view", "drifts"]


@dataclass(frozen=True, slots=True)
class Drift:
    """A job's rate with one allocation: `profiled` is what its model's profile promises, None where that says nothing
    in steps per second; `age` in seconds."""

    job: str
    owner: str
    model: str
    measured: Measured
    profiled: float | None
    age: float

    @property
    def part(self) -> float | None:
        """By what part it is faster than profiled; below zero, slower."""
        return self.measured.rate / self.profiled - 1 if self.profiled else None


def drifts(rows: Iterable[MeasuredRow], knowledge: Knowledge, now: float) -> tuple[Drift, ...]:
    """Each row beside the profile that its job's hints name."""
    found = []
    for row in rows:
        profile = knowledge.models.get(row.model) or knowledge.tasks.get(row.task)
        promised = expected(profile, row.point) if profile else None
        found.append(Drift(row.job, row.owner, row.model, row.point, promised, now - row.point.at))
    return tuple(found)


def drift_view(found: Iterable[Drift]) -> RenderableType:
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
    return Listing(columns, [_row(drift) for drift in found])


def _row(drift: Drift) -> tuple[str, ...]:
    point = drift.measured
    return (
        drift.job,
        drift.owner,
        drift.model or "-",
        f"{point.gpus} {point.gpu_type}".strip(),
        f"{point.cpus:.3g}",
        f"{point.rate:.3g}",
        "-" if drift.profiled is None else f"{drift.profiled:.3g}",
        "-" if drift.part is None else f"{drift.part:+.0%}",
        duration(drift.age),
    )
