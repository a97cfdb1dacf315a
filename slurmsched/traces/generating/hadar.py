"""Hadar's workload (section IV-A, table II): four classes of GPU-hours drawn evenly, all jobs there from the start.
Widths are the Philly trace's, which the paper takes its jobs from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slurmsched.traces.generating.drawing import HOUR, PHILLY_WIDTHS, drawn, stream
from slurmsched.traces.trace import Trace, TraceJob

__all__ = ["CLASSES", "hadar"]

CLASSES: Final[Mapping[str, tuple[float, float, tuple[str, ...]]]] = {
    "S": (0, 1, ("resnet-18",)),
    "M": (1, 10, ("cyclegan",)),
    "L": (10, 50, ("lstm", "transformer")),
    "XL": (60, 100, ("resnet-50",)),
}
"""GPU-hours from and to, and the models of the class."""


def hadar(jobs: int, seed: int) -> Trace:
    """So many jobs, all of which arrive at 0."""
    classes = drawn(dict.fromkeys(CLASSES, 1.0), jobs, stream(seed, "sizes"))
    within = stream(seed, "durations").random(jobs)
    spins = stream(seed, "models").random(jobs)
    widths = drawn(PHILLY_WIDTHS, jobs, stream(seed, "widths"))
    return Trace(
        name="hadar",
        source=f"generated: Hadar, section IV-A, seed {seed}",
        jobs=tuple(
            _job(number, *CLASSES[size], part=float(part), spin=float(spin), width=width)
            for number, (size, part, spin, width) in enumerate(zip(classes, within, spins, widths, strict=True))
        ),
    )


def _job(
    number: int, low: float, high: float, models: tuple[str, ...], *, part: float, spin: float, width: int
) -> TraceJob:
    seconds = max(1.0, HOUR * (low + (high - low) * part) / width)
    return TraceJob(
        id=str(number), arrival=0.0, gpus=width, duration=round(seconds, 3), model=models[int(spin * len(models))]
    )
