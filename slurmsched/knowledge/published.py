"""The rates of Gavel's authors (Narayanan et al., OSDI 2020), as `data/gavel/throughputs.json` holds them, as our own.

Mini-batches per second of a whole job: 26 models on three GPU types at 1, 2, 4 and 8 GPUs, on one node and apart, and
what two jobs of one GPU each make of the same GPU.

The profiles of Synergy's authors, as `data/synergy/profiles.json` holds them, as our own.

Profiles from a file, whosever form it has.
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
from slurmsched.knowledge.profiles import MIB_PER_GIB, ProfileError, load_profiles
from slurmsched.knowledge.speed import Scaling, SensitivityMatrix

GAVEL_REFERENCE_TYPE: Final = "v100"
"""The type whose seconds the durations of Gavel's traces are."""

_UNCONSOLIDATED: Final = "_unconsolidated"
_GAVEL_HEAD: Final = 4096
"""Characters by which the form is told."""


@dataclass(frozen=True, slots=True)
class _GavelJobType:
    name: str
    scale_factor: int


@dataclass(frozen=True, slots=True)
class _GavelTable:
    """`isolated`: by type, a rate for each job type. `pairs`: by type, two places of job types and the rate of each."""

    job_types: tuple[_GavelJobType, ...]
    isolated: Mapping[str, tuple[float | None, ...]]
    pairs: Mapping[str, Sequence[tuple[int, int, float, float]]]


def model_name(job_type: str) -> str:
    """A job type of Gavel's in the letters of a hint: `ResNet-50 (batch size 64)` is `resnet-50-batch-size-64`."""
    return "-".join(job_type.lower().replace("(", " ").replace(")", " ").split())


def is_gavel_file(path: str | Path) -> bool:
    """Whether the file has the form of Gavel's rates, as far as its first lines tell."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            start = file.read(_GAVEL_HEAD)
    except OSError:
        return False
    return start.lstrip().startswith("{") and '"worker_types"' in start


def load_gavel_rates(path: str | Path) -> Knowledge:
    """The rates as profiles that know no CPUs and no memory. Raises ProfileError."""
    try:
        table = Converter().structure(json.loads(Path(path).read_text(encoding="utf-8")), _GavelTable)
        models = _gavel_scaling(table)
        source = f"imported: {Path(path).name}"
        return Knowledge(
            models={model: Profile(model, "", {}, source, scaling) for model, scaling in models.items()},
            reference=GAVEL_REFERENCE_TYPE,
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, BaseValidationError) as error:
        raise ProfileError(f"{path}: expected Gavel's throughputs.json: {error!r}") from error


def _gavel_scaling(table: _GavelTable) -> Mapping[str, Mapping[str, Scaling]]:
    scaling = defaultdict[str, dict[str, Scaling]](dict)
    indices = defaultdict[str, dict[int, int]](dict)
    for place, job_type in enumerate(table.job_types):
        indices[model_name(job_type.name)][job_type.scale_factor] = place
    for gpu_type, rates in table.isolated.items():
        if gpu_type.endswith(_UNCONSOLIDATED):
            continue
        apart_rates = table.isolated.get(gpu_type + _UNCONSOLIDATED, ())
        beside = _shared_gpu_fractions(table, gpu_type)
        for model, of_width in indices.items():
            widths = tuple(sorted(width for width, place in of_width.items() if rates[place] is not None))
            scaling[model][gpu_type] = Scaling(
                gpus=widths,
                rate=tuple(rates[of_width[width]] or 0.0 for width in widths),
                apart=_apart_rates(apart_rates, [of_width[width] for width in widths]),
                beside=beside[model],
            )
    return scaling


def _apart_rates(rates: Sequence[float | None], indices: Sequence[int]) -> tuple[float, ...]:
    """None of them, unless all were measured."""
    known = [rate for place in indices if place < len(rates) and (rate := rates[place]) is not None]
    return tuple(known) if len(known) == len(indices) else ()


def _shared_gpu_fractions(table: _GavelTable, gpu_type: str) -> Mapping[str, dict[str, float]]:
    """What part of its rate alone each model keeps beside each other; 0.0 for both where they do not fit together.

    Of jobs with one GPU only: nothing was measured of wider ones.
    """
    fractions = defaultdict[str, dict[str, float]](dict)
    alone = table.isolated[gpu_type]
    for first, second, *both in table.pairs.get(gpu_type, ()):
        if table.job_types[first].scale_factor != 1:
            continue
        names = model_name(table.job_types[first].name), model_name(table.job_types[second].name)
        for model, index, rate, other in zip(names, (first, second), both, reversed(names), strict=True):
            if rate_alone := alone[index]:
                fractions[model][other] = rate / rate_alone
    return fractions


_CPUS_PER_GPU: Final = 3
"""Cores per GPU of the paper's servers; the other folders hold the same matrices, scaled."""
_SYNERGY_HEAD: Final = 4096
"""Characters by which the form is told."""

SYNERGY_MODEL_NAMES: Final[Mapping[str, str]] = {"res18": "resnet18", "res50": "resnet50"}
"""Names of the authors' that ours differ from."""


def load_synergy_profiles(path: str | Path) -> Knowledge:
    """The ten models of the paper's table 4: their one-GPU matrices, the only ones the authors' simulator reads.

    Raises ProfileError.
    """
    converter = Converter()
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        cpus = converter.structure(data["metadata"]["tput_rows"]["values"], tuple[float, ...])
        memory = converter.structure(data["metadata"]["tput_cols"]["values_for_5_columns"], tuple[float, ...])
        wanted = [
            profile
            for profile in data["profiles"]
            if profile["in_simulator_zoo"]
            and profile["read_by_simulator"]
            and profile["cpu_gpu_ratio"] == _CPUS_PER_GPU
        ]
        speeds = {p["model"]: converter.structure(p["tput"], tuple[tuple[float, ...], ...]) for p in wanted}
        tasks = {p["model"]: str(p["task"]) for p in wanted}
    except (OSError, ValueError, KeyError, TypeError, BaseValidationError) as error:
        raise ProfileError(f"{path}: expected Synergy's profiles.json: {error!r}") from error
    columns = tuple(gib * MIB_PER_GIB for gib in memory)
    return Knowledge(
        models={
            (name := SYNERGY_MODEL_NAMES.get(model, model)): Profile(
                name, tasks[model], {"": SensitivityMatrix(cpus, columns, speed)}, f"imported: {Path(path).name}"
            )
            for model, speed in speeds.items()
        }
    )


def is_synergy_file(path: str | Path) -> bool:
    """Whether the file has the form of the authors' profiles, as far as its first lines tell."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            start = file.read(_SYNERGY_HEAD)
    except OSError:
        return False
    return start.lstrip().startswith("{") and '"metadata"' in start and '"worker_types"' not in start


def iteration_seconds(path: str | Path) -> Mapping[str, float]:
    """What one iteration of each model takes at the GPU-proportional share, by the authors' names and by ours.

    Raises ProfileError.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        seconds_by_model = {
            str(profile["model"]): float(profile["iter_time"])
            for profile in data["profiles"]
            if profile["read_by_simulator"] and profile["cpu_gpu_ratio"] == _CPUS_PER_GPU
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path}: expected Synergy's profiles.json: {error!r}") from error
    return seconds_by_model | {
        SYNERGY_MODEL_NAMES[name]: seconds for name, seconds in seconds_by_model.items() if name in SYNERGY_MODEL_NAMES
    }


def load_knowledge(path: str | Path) -> Knowledge:
    """The profiles in a file of ours, of Synergy's authors or of Gavel's. Raises ProfileError."""
    if is_gavel_file(path):
        return load_gavel_rates(path)
    return load_synergy_profiles(path) if is_synergy_file(path) else load_profiles(path)
