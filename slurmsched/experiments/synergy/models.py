"""The authors' measured models: what the experiments' jobs are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cattrs import BaseValidationError, Converter

from slurmsched.knowledge import ProfileError, SensitivityMatrix
from slurmsched.knowledge.synergy import LONG_NAMES

__all__ = ["Model", "load_models"]


@dataclass(frozen=True, slots=True)
class Model:
    """One model on one GPU, as measured for servers of one CPU to GPU ratio. CPUs and memory (GB) are per GPU.

    `cpus`, `memory`: the best-case demand. `speedup`: how much faster the model runs with it than with the
    GPU-proportional share, where an iteration takes `seconds`.
    """

    name: str
    task: str
    cpus: float
    memory: float
    speedup: float
    seconds: float
    matrix: SensitivityMatrix


_NEEDED: Final = ("model", "cpus", "mem", "speedup", "iter_time", "tput", "cpu_gpu_ratio")


def load_models(path: Path, cpus_per_gpu: int = 3) -> Mapping[str, Model]:
    """The models by the authors' names and by ours, measured on one GPU for this ratio. Raises ProfileError."""
    converter = Converter()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot read the models {path}: {error}") from error
    try:
        points = converter.structure(data["metadata"]["tput_rows"]["values"], tuple[float, ...])
        sizes = converter.structure(data["metadata"]["tput_cols"]["values_for_5_columns"], tuple[float, ...])
        entries = list(data["profiles"])
    except (KeyError, TypeError, ValueError, BaseValidationError) as error:
        raise ProfileError(f"{path}: expected metadata with the axes and a list of profiles: {error!r}") from error
    found: dict[str, Model] = {}
    for number, entry in enumerate(entries, start=1):
        place = f"{path}: profile {number}"
        if not isinstance(entry, dict) or (missing := [key for key in _NEEDED if key not in entry]):
            raise ProfileError(f"{place}: expected a table with {', '.join(_NEEDED)}, {missing[0]} is missing")
        if entry["cpu_gpu_ratio"] == cpus_per_gpu and entry.get("read_by_simulator", True):
            model = _model(entry, place, points, sizes, converter)
            found[model.name] = found[LONG_NAMES.get(model.name, model.name)] = model
    if not found:
        raise ProfileError(f"{path}: no profile has cpu_gpu_ratio {cpus_per_gpu}")
    return found


def _model(
    entry: Mapping[str, object], place: str, points: tuple[float, ...], sizes: tuple[float, ...], converter: Converter
) -> Model:
    amounts: dict[str, float] = {}
    for key in ("cpus", "mem", "speedup", "iter_time"):
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ProfileError(f"{place}: {key}: expected a number above 0, not {value!r}")
        amounts[key] = float(value)
    try:
        speed = converter.structure(entry["tput"], tuple[tuple[float, ...], ...])
    except (BaseValidationError, TypeError, ValueError) as error:
        raise ProfileError(f"{place}: tput: expected rows of numbers: {error!r}") from error
    if len(speed) != len(points) or any(len(row) != len(sizes) for row in speed):
        raise ProfileError(f"{place}: tput: expected {len(points)} rows of {len(sizes)} numbers")
    return Model(
        name=str(entry["model"]),
        task=str(entry.get("task") or ""),
        cpus=amounts["cpus"],
        memory=amounts["mem"],
        speedup=amounts["speedup"],
        seconds=amounts["iter_time"],
        matrix=SensitivityMatrix(points, sizes, speed),
    )
