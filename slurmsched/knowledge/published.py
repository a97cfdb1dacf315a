"""Loads published measurements as profiles: Gavel's rates and Synergy's sensitivity matrices.

`data/gavel/throughputs.json` (Gavel: Narayanan et al., OSDI 2020) has mini-batches per second of 26 models on three GPU
types with 1, 2, 4 and 8 GPUs, on one node and on several, and of pairs of one-GPU jobs that share a GPU.
`data/synergy/profiles.json` (Synergy: Mohan et al., OSDI 2022) has the ten models of table 4.
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
"""The GPU type that the durations of Gavel's traces refer to."""

GAVEL_MODEL_NAMES: Final[Mapping[str, str]] = {
    "resnet-18": "resnet-18-batch-size-128",
    "cyclegan": "cyclegan",
    "lstm": "lm-batch-size-80",
    "transformer": "transformer-batch-size-128",
    "resnet-50": "resnet-50-batch-size-64",
}
"""Models of Hadar's table II by name in Gavel's table, with batch sizes that run on all types with any number of
GPUs."""

_UNCONSOLIDATED: Final = "_unconsolidated"
_MAX_HEAD: Final = 4096
"""Characters from which the format is recognised."""


@dataclass(frozen=True, slots=True)
class _GavelJobType:
    name: str
    scale_factor: int


@dataclass(frozen=True, slots=True)
class _GavelTable:
    """By GPU type, `isolated` has a rate for each job type, `pairs` two indices of job types and their rates."""

    job_types: tuple[_GavelJobType, ...]
    isolated: Mapping[str, tuple[float | None, ...]]
    pairs: Mapping[str, Sequence[tuple[int, int, float, float]]]


def model_name(job_type: str) -> str:
    """Returns Gavel's job type as a model name: `ResNet-50 (batch size 64)` is `resnet-50-batch-size-64`."""
    return "-".join(job_type.lower().replace("(", " ").replace(")", " ").split())


def is_gavel_file(path: str | Path) -> bool:
    """Whether the file looks like Gavel's rates, by its first characters."""
    head = _head(path)
    return head.startswith("{") and '"worker_types"' in head


def _head(path: str | Path) -> str:
    """Returns the first characters of a file; empty if it cannot be read."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_HEAD).lstrip()
    except OSError:
        return ""


def load_gavel_rates(path: str | Path) -> Knowledge:
    """Returns the rates as profiles without sensitivity to CPUs and memory. Raises ProfileError."""
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
    for index, job_type in enumerate(table.job_types):
        indices[model_name(job_type.name)][job_type.scale_factor] = index
    for gpu_type, rates in table.isolated.items():
        if gpu_type.endswith(_UNCONSOLIDATED):
            continue
        apart_rates = table.isolated.get(gpu_type + _UNCONSOLIDATED, ())
        beside = _shared_gpu_fractions(table, gpu_type)
        for model, of_width in indices.items():
            widths = tuple(sorted(width for width, index in of_width.items() if rates[index] is not None))
            scaling[model][gpu_type] = Scaling(
                gpus=widths,
                rate=tuple(rates[of_width[width]] or 0.0 for width in widths),
                apart=_apart_rates(apart_rates, [of_width[width] for width in widths]),
                beside=beside[model],
            )
    return scaling


def _apart_rates(rates: Sequence[float | None], indices: Sequence[int]) -> tuple[float, ...]:
    """Returns the rates on several nodes; empty unless all of them were measured."""
    known = [rate for index in indices if index < len(rates) and (rate := rates[index]) is not None]
    return tuple(known) if len(known) == len(indices) else ()


def _shared_gpu_fractions(table: _GavelTable, gpu_type: str) -> Mapping[str, dict[str, float]]:
    """Returns the fraction of its rate that each model keeps beside each other model; 0.0 if they do not fit together.

    Only pairs of one-GPU jobs were measured.
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
"""Cores per GPU of the paper's nodes; the profiles with other ratios are the same matrices, scaled."""

SYNERGY_MODEL_NAMES: Final[Mapping[str, str]] = {"res18": "resnet18", "res50": "resnet50"}
"""Our model names where they differ from those of the authors."""


def load_synergy_profiles(path: str | Path) -> Knowledge:
    """Returns the one-GPU matrices of the ten models of table 4, the only ones that the authors' simulator reads.

    Raises ProfileError.
    """
    converter = Converter()
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        cpus = converter.structure(data["metadata"]["tput_rows"]["values"], tuple[float, ...])
        memory = converter.structure(data["metadata"]["tput_cols"]["values_for_5_columns"], tuple[float, ...])
        chosen = [
            profile
            for profile in data["profiles"]
            if profile["in_simulator_zoo"]
            and profile["read_by_simulator"]
            and profile["cpu_gpu_ratio"] == _CPUS_PER_GPU
        ]
        speeds = {p["model"]: converter.structure(p["tput"], tuple[tuple[float, ...], ...]) for p in chosen}
        tasks = {p["model"]: str(p["task"]) for p in chosen}
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
    """Whether the file looks like Synergy's profiles, by its first characters."""
    head = _head(path)
    return head.startswith("{") and '"metadata"' in head and '"worker_types"' not in head


def iteration_seconds(path: str | Path) -> Mapping[str, float]:
    """Returns the seconds of an iteration of each model at the GPU-proportional share, by the authors' names and ours.

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
    """Returns the profiles of a file in our format, Synergy's or Gavel's. Raises ProfileError."""
    if is_gavel_file(path):
        return load_gavel_rates(path)
    return load_synergy_profiles(path) if is_synergy_file(path) else load_profiles(path)
