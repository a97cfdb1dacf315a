"""The workload of Shockwave (Zheng et al., NSDI 2023, section 8.1) as Tesserae uses it (section 6): Poisson arrivals,
four sizes in GPU-hours, widths of 1 to 8 GPUs. The largest size has no published end; ours is 120 GPU-hours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slurmsched.traces.generating.drawing import HOUR, drawn, poisson, stream
from slurmsched.traces.generating.gavel import TYPES
from slurmsched.traces.trace import Trace, TraceJob

__all__ = ["SIZES", "WIDTHS", "shockwave"]

SIZES: Final[Mapping[tuple[float, float], float]] = {(0.2, 8): 0.72, (8, 16): 0.20, (16, 72): 0.05, (72, 120): 0.03}
"""GPU-hours from and to, and how many jobs have them: small, medium, large, extra large."""

WIDTHS: Final[Mapping[int, float]] = {1: 0.60, 2: 0.30, 4: 0.09, 8: 0.01}


def shockwave(jobs: int, seed: int, rate: float = 80.0) -> Trace:
    """So many jobs at `rate` per hour."""
    arrivals = poisson(jobs, rate, stream(seed, "arrivals"))
    sizes = drawn(SIZES, jobs, stream(seed, "sizes"))
    within = stream(seed, "durations").random(jobs)
    widths = drawn(WIDTHS, jobs, stream(seed, "widths"))
    types = drawn(dict.fromkeys(TYPES, 1.0), jobs, stream(seed, "models"))
    return Trace(
        name=f"shockwave-{rate:g}",
        source=f"generated: Shockwave, section 8.1, {rate:g} jobs/h, seed {seed}",
        jobs=tuple(
            TraceJob(
                id=str(number),
                arrival=float(arrival),
                gpus=width,
                duration=round(HOUR * (low + (high - low) * float(part)) / width, 3),
                model=model,
            )
            for number, (arrival, (low, high), part, width, model) in enumerate(
                zip(arrivals, sizes, within, widths, types, strict=True)
            )
        ),
    )
