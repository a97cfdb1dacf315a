"""Gavel's workload (Narayanan et al., OSDI 2020, section 7.1): Poisson arrivals, durations of 10^x minutes, 26 types of
job drawn evenly."""

from __future__ import annotations

from typing import Final

from slurmsched.traces.generating.drawing import PHILLY_WIDTHS, drawn, gavel_durations, poisson, stream
from slurmsched.traces.trace import Trace, TraceJob

__all__ = ["TYPES", "gavel"]

_BATCHES: Final = {
    "resnet-18": (16, 32, 64, 128, 256),
    "resnet-50": (16, 32, 64, 128),
    "transformer": (16, 32, 64, 128, 256),
    "lm": (5, 10, 20, 40, 80),
    "recommendation": (512, 1024, 2048, 4096, 8192),
}
TYPES: Final = (
    "a3c",
    "cyclegan",
    *(f"{model}-batch-size-{batch}" for model, batches in _BATCHES.items() for batch in batches),
)
"""Models and batch sizes (Gavel, table 2)."""


def gavel(jobs: int, seed: int, rate: float) -> Trace:
    """So many jobs at `rate` per hour."""
    arrivals = poisson(jobs, rate, stream(seed, "arrivals"))
    durations = gavel_durations(jobs, stream(seed, "durations"))
    types = drawn(dict.fromkeys(TYPES, 1.0), jobs, stream(seed, "models"))
    widths = drawn(PHILLY_WIDTHS, jobs, stream(seed, "widths"))
    return Trace(
        name=f"gavel-{rate:g}",
        source=f"generated: Gavel, section 7.1, {rate:g} jobs/h, seed {seed}",
        jobs=tuple(
            TraceJob(id=str(number), arrival=float(arrival), gpus=width, duration=float(duration), model=model)
            for number, (arrival, duration, model, width) in enumerate(
                zip(arrivals, durations, types, widths, strict=True)
            )
        ),
    )
