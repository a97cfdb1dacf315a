"""Adds a measured profile to a file of profiles."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmsched.jobside.atomic_files import write_atomically
from slurmsched.knowledge import ProfileError, SensitivityMatrix, load_profiles
from slurmsched.knowledge.profiles import MIB_PER_GIB


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile measured for a model on one GPU type.

    `matrix` has the steps per second of a job with `gpus` GPUs, over CPUs and memory (MiB) per GPU; `rate` is that at
    the GPU-proportional share. `at` is in unix seconds.
    """

    model: str
    task: str
    gpu_type: str
    gpus: int
    matrix: SensitivityMatrix
    rate: float
    source: str
    at: float


def save_profile(profile: MeasuredProfile, path: Path) -> None:
    """Writes the profile into the JSON file, which is created if missing; other models and GPU types do not change.

    Raises ProfileError.
    """
    if path.suffix != ".json":
        raise ProfileError(f"{path}: measured profiles are saved as JSON: name a file that ends with .json")
    data: dict[str, Any] = {}
    if path.exists():
        load_profiles(path)  # so that no other kind of file is overwritten
        data = json.loads(path.read_text(encoding="utf-8"))
    model = data.setdefault("models", {}).setdefault(profile.model, {})
    model |= {"source": profile.source, "measured": round(profile.at)}
    if profile.task:
        model["task"] = profile.task
    types = model.setdefault("gpu", {})
    types[profile.gpu_type] = _gpu_type_table(profile, types.get(profile.gpu_type, {}))
    try:
        write_atomically(path, (json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error.strerror}") from error
    load_profiles(path)


def _gpu_type_table(profile: MeasuredProfile, previous: dict[str, Any]) -> dict[str, Any]:
    """Returns the table of the GPU type: the new matrix, and the rate added to those with other numbers of GPUs."""
    matrix = profile.matrix
    speed = [[_rounded(number) for number in row] for row in matrix.speed]
    entry: dict[str, Any] = {"cpus": list(matrix.cpus)}
    if matrix.knows_memory:
        entry["memory"] = [size / MIB_PER_GIB for size in matrix.memory]
    entry["speed"] = speed if matrix.knows_memory else [row[0] for row in speed]
    rates = dict(zip(previous.get("gpus", [1]), previous.get("rate", []), strict=False)) | {
        profile.gpus: _rounded(profile.rate)
    }
    entry["gpus"], entry["rate"] = [list(each) for each in zip(*sorted(rates.items()), strict=True)]
    if "beside" in previous:
        entry["beside"] = previous["beside"]
    return entry


def _rounded(number: float) -> float:
    """Returns the number with six digits; a short run determines about three."""
    return float(f"{number:.6g}")
