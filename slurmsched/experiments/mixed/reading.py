"""Jobs of a replay from a trace of Gavel's generator and its authors' rates."""

from __future__ import annotations

from typing import Final

from slurmsched.experiments.experiment import Task
from slurmsched.experiments.mixed.work import Work
from slurmsched.experiments.mixed.workers import Workers
from slurmsched.knowledge import Knowledge, ProfileError, load_gavel_rates
from slurmsched.traces import TraceJob
from slurmsched.traces.imported import Sources
from slurmsched.traces.importing import read_gavel
from slurmsched.traces.lines import read_text

__all__ = ["SIXTY", "TYPES", "static_work", "work_of"]

TYPES: Final = ("v100", "p100", "k80")
"""As Gavel's rounds go through them."""

SIXTY: Final = Workers.of(dict.fromkeys(TYPES, 20), per_server=4)
"""The cluster of Hadar's simulations: 15 servers, 20 GPUs of each type."""


def work_of(job: TraceJob, rates: Knowledge) -> Work:
    """The job with the rates of its model and width. Raises ProfileError for a model that has none.

    Only jobs of one GPU share: nothing was measured of wider ones.
    """
    profile, width = rates.models.get(job.model), job.gpus
    if profile is None or job.iterations is None:
        raise ProfileError(f"job {job.id}: there are no rates, or no steps, of '{job.model}'")
    scaling = profile.scaling
    return Work(
        id=job.id,
        width=width,
        steps=job.iterations,
        rates={kind: scaling[kind].at(width) for kind in TYPES if kind in scaling},
        arrival=job.arrival,
        model=job.model,
        beside={kind: scaling[kind].beside for kind in scaling} if width == 1 else {},
    )


def static_work(task: Task) -> tuple[Work, ...]:
    """The 480 jobs of `static_480.csv`, all there at once. Raises ExperimentError, TraceError, ProfileError."""
    rates = load_gavel_rates(task.file("gavel", "throughputs.json"))
    path = task.file("gavel", "static_480.csv")
    jobs = read_gavel(read_text(path), path.name, Sources()).trace.jobs
    return tuple(work_of(job, rates) for job in jobs)
