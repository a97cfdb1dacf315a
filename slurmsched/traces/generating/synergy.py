"""Synergy's workload (Mohan et al., OSDI 2022, section 5.1): Poisson arrivals, the durations of Gavel, and a split over
image, language and speech models. Widths, where not all are one GPU, are those of the authors' simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slurmsched.traces.generating.drawing import PHILLY_WIDTHS, drawn, gavel_durations, poisson, stream
from slurmsched.traces.trace import Trace, TraceJob

__all__ = ["MODELS", "Split", "synergy"]

Split = tuple[float, float, float]
"""Parts of image, language and speech jobs."""

MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": ("alexnet", "resnet18", "resnet50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
"""Table 4."""

DEFAULT_SPLIT: Final[Split] = (20, 70, 10)


def synergy(jobs: int, seed: int, rate: float, split: Split = DEFAULT_SPLIT, *, multi: bool = False) -> Trace:
    """So many jobs at `rate` per hour; `multi` has jobs of up to 8 GPUs among them."""
    arrivals = poisson(jobs, rate, stream(seed, "arrivals"))
    durations = gavel_durations(jobs, stream(seed, "durations"))
    tasks = drawn(dict(zip(MODELS, split, strict=True)), jobs, stream(seed, "tasks"))
    spins = stream(seed, "models").random(jobs)
    widths = drawn(PHILLY_WIDTHS if multi else {1: 1.0}, jobs, stream(seed, "widths"))
    return Trace(
        name=f"synergy-{rate:g}",
        source=f"generated: Synergy, section 5.1, {rate:g} jobs/h, split {split}, seed {seed}",
        jobs=tuple(
            TraceJob(
                id=str(number),
                arrival=float(arrival),
                gpus=width,
                duration=float(duration),
                model=MODELS[task][int(spin * len(MODELS[task]))],
                task=task,
            )
            for number, (arrival, duration, task, spin, width) in enumerate(
                zip(arrivals, durations, tasks, spins, widths, strict=True)
            )
        ),
    )
