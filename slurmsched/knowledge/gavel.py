"""The rates of Gavel's authors (Narayanan et al., OSDI 2020), as `data/gavel/throughputs.json` holds them, as our own.

Mini-batches per second of a whole job: 26 models on three GPU types at 1, 2, 4 and 8 GPUs, on one node and apart, and
what two jobs of one GPU each make of the same GPU.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cattrs import BaseValidationError, Converter

from slurmsched.knowledge.knowledge import Knowledge, Profile
from slurmsched.knowledge.profiles import ProfileError
from slurmsched.knowledge.scaling import Scaling

__all__ = ["REFERENCE", "is_gavel", "load_gavel_rates", "model_name"]

REFERENCE: Final = "v100"
"""The type whose seconds the durations of Gavel's traces are."""

_APART: Final = "_unconsolidated"
_START: Final = 4096
"""Characters by which the form is told."""


@dataclass(frozen=True, slots=True)
class _JobType:
    name: str
    scale_factor: int


@dataclass(frozen=True, slots=True)
class _Table:
    """`isolated`: by type, a rate for each job type. `pairs`: by type, two places of job types and the rate of each."""

    job_types: tuple[_JobType, ...]
    isolated: Mapping[str, tuple[float | None, ...]]
    pairs: Mapping[str, Sequence[tuple[int, int, float, float]]]


def model_name(job_type: str) -> str:
    """A job type of Gavel's in the letters of a hint: `ResNet-50 (batch size 64)` is `resnet-50-batch-size-64`."""
    return "-".join(job_type.lower().replace("(", " ").replace(")", " ").split())


def is_gavel(path: str | Path) -> bool:
    """Whether the file has the form of Gavel's rates, as far as its first lines tell."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            start = file.read(_START)
    except OSError:
        return False
    return start.lstrip().startswith("{") and '"worker_types"' in start


def load_gavel_rates(path: str | Path) -> Knowledge:
    """The rates as profiles that know no CPUs and no memory. Raises ProfileError."""
    try:
        table = Converter().structure(json.loads(Path(path).read_text(encoding="utf-8")), _Table)
        models = _models(table)
        source = f"imported: {Path(path).name}"
        return Knowledge(
            models={model: Profile(model, "", {}, source, scaling) for model, scaling in models.items()},
            reference=REFERENCE,
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, BaseValidationError) as error:
        raise ProfileError(f"{path}: expected Gavel's throughputs.json: {error!r}") from error


def _models(table: _Table) -> Mapping[str, Mapping[str, Scaling]]:
    found = defaultdict[str, dict[str, Scaling]](dict)
    places = defaultdict[str, dict[int, int]](dict)
    for place, own in enumerate(table.job_types):
        places[model_name(own.name)][own.scale_factor] = place
    for gpu_type, rates in table.isolated.items():
        if gpu_type.endswith(_APART):
            continue
        apart = table.isolated.get(gpu_type + _APART, ())
        beside = _beside(table, gpu_type)
        for model, of_width in places.items():
            widths = tuple(sorted(width for width, place in of_width.items() if rates[place] is not None))
            found[model][gpu_type] = Scaling(
                gpus=widths,
                rate=tuple(rates[of_width[width]] or 0.0 for width in widths),
                apart=_apart(apart, [of_width[width] for width in widths]),
                beside=beside[model],
            )
    return found


def _apart(rates: Sequence[float | None], places: Sequence[int]) -> tuple[float, ...]:
    """None of them, unless all were measured."""
    known = [rate for place in places if place < len(rates) and (rate := rates[place]) is not None]
    return tuple(known) if len(known) == len(places) else ()


def _beside(table: _Table, gpu_type: str) -> Mapping[str, dict[str, float]]:
    """What part of its rate alone each model keeps beside each other; 0.0 for both where they do not fit together.

    Of jobs with one GPU only: nothing was measured of wider ones.
    """
    kept = defaultdict[str, dict[str, float]](dict)
    alone = table.isolated[gpu_type]
    for first, second, *both in table.pairs.get(gpu_type, ()):
        if table.job_types[first].scale_factor != 1:
            continue
        names = model_name(table.job_types[first].name), model_name(table.job_types[second].name)
        for own, place, rate, other in zip(names, (first, second), both, reversed(names), strict=True):
            if whole := alone[place]:
                kept[own][other] = rate / whole
    return kept
