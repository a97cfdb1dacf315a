"""A measured matrix, put into a file of profiles beside what is there."""

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
    """What was measured of a model on one GPU type: steps per second of a job with `gpus` GPUs, over CPUs and memory
    (MiB) per GPU, and `rate`, that at the GPU-proportional share. `at` in unix seconds."""

    model: str
    task: str
    gpu_type: str
    gpus: int
    matrix: SensitivityMatrix
    rate: float
    source: str
    at: float


def save_profile(profile: MeasuredProfile, path: Path) -> None:
    """Write it into the JSON file, which is begun where there is none; other models and GPU types stay as they are.

    Raises ProfileError.
    """
    if path.suffix != ".json":
        raise ProfileError(f"{path}: measured profiles are written as JSON: name a file that ends with .json")
    data: dict[str, Any] = {}
    if path.exists():
        load_profiles(path)  # so that what is not ours is not written into
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
    """The GPU type's table: the new matrix, and the rate among those with other numbers of GPUs."""
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
    """To six digits, of which a short run knows three."""
    return float(f"{number:.6g}")
