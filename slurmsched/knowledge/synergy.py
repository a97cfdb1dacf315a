"""The profiles of Synergy's authors, as `data/synergy/profiles.json` holds them, as our own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cattrs import BaseValidationError, Converter

from slurmsched.knowledge.knowledge import Knowledge, Profile
from slurmsched.knowledge.profiles import MIB_PER_GIB, ProfileError
from slurmsched.knowledge.sensitivity import SensitivityMatrix

__all__ = ["LONG_NAMES", "is_synergy", "iteration_seconds", "load_synergy_profiles"]

_RATIO: Final = 3
"""Cores per GPU of the paper's servers; the other folders hold the same matrices, scaled."""
_START: Final = 4096
"""Characters by which the form is told."""

LONG_NAMES: Final[Mapping[str, str]] = {"res18": "resnet18", "res50": "resnet50"}
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
            if profile["in_simulator_zoo"] and profile["read_by_simulator"] and profile["cpu_gpu_ratio"] == _RATIO
        ]
        speeds = {p["model"]: converter.structure(p["tput"], tuple[tuple[float, ...], ...]) for p in wanted}
        tasks = {p["model"]: str(p["task"]) for p in wanted}
    except (OSError, ValueError, KeyError, TypeError, BaseValidationError) as error:
        raise ProfileError(f"{path}: expected Synergy's profiles.json: {error!r}") from error
    columns = tuple(gib * MIB_PER_GIB for gib in memory)
    return Knowledge(
        models={
            (name := LONG_NAMES.get(model, model)): Profile(
                name, tasks[model], {"": SensitivityMatrix(cpus, columns, speed)}, f"imported: {Path(path).name}"
            )
            for model, speed in speeds.items()
        }
    )


def is_synergy(path: str | Path) -> bool:
    """Whether the file has the form of the authors' profiles, as far as its first lines tell."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            start = file.read(_START)
    except OSError:
        return False
    return start.lstrip().startswith("{") and '"metadata"' in start and '"worker_types"' not in start


def iteration_seconds(path: str | Path) -> Mapping[str, float]:
    """What one iteration of each model takes at the GPU-proportional share, by the authors' names and by ours.

    Raises ProfileError.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        found = {
            str(profile["model"]): float(profile["iter_time"])
            for profile in data["profiles"]
            if profile["read_by_simulator"] and profile["cpu_gpu_ratio"] == _RATIO
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path}: expected Synergy's profiles.json: {error!r}") from error
    return found | {LONG_NAMES[name]: seconds for name, seconds in found.items() if name in LONG_NAMES}
