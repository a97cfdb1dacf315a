"""Loads profiles from a TOML or JSON file.

source = "measured on our V100s, 2024"      # optional

[tasks.image]
cpus = [1, 3, 6, 12]                        # cores per GPU, ascending
speed = [0.4, 1.0, 1.7, 2.2]                # one for each of cpus, in any unit

[models.resnet50]
task = "image"                              # if there is nothing else: as fast as its task
source = "measured on v100"                 # optional, of this model
measured = 1790000000                       # optional, unix seconds: speeds and rates are then steps per second
cpus = [1, 3, 6]
memory = [20, 60, 120]                      # GiB per GPU, ascending; leave out if not measured
speed = [[0.2, 0.3, 0.3], [0.6, 1, 1.1], [0.6, 1.4, 1.9]]   # a row for each of cpus, a column for each of memory

[models.resnet50.gpu.a100]                  # the same three, for one GPU type
cpus = [1, 6, 12]
speed = [0.4, 2.1, 3.0]
gpus = [1, 2, 4]                            # GPUs of one job, ascending
rate = [310, 600, 1100]                     # its work per second with each, in a unit that all types share
apart = [310, 560, 900]                     # the same on more than one node; leave out if not measured
beside = { gnmt = 0.8 }                     # fraction of its speed while that model uses the same GPU

reference = "v100", before all tables, is the GPU type that the durations of jobs refer to.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Final

from slurmsched.knowledge.knowledge import Knowledge, Profile
from slurmsched.knowledge.speed import Scaling, SensitivityMatrix
from slurmsched.model import SynschedError

MIB_PER_GIB: Final = 1024
_SHIPPED: Final = "profiles.toml"
_SPEEDUPS: Final = "speedups.toml"
_MATRIX: Final = frozenset({"cpus", "memory", "speed"})
_SCALING: Final = frozenset({"gpus", "rate", "apart", "beside"})


class ProfileError(SynschedError):
    """An invalid profile file; the message names file, entry, field and what was expected."""


def load_profiles(path: str | Path) -> Knowledge:
    """Returns the profiles of a file: JSON if it ends with `.json`, else TOML. Raises ProfileError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot read the profiles {path}: {error}") from error
    return _parse(text, str(path))


def shipped_profiles() -> Knowledge:
    """Returns the profiles that come with the package: rules of thumb, written by hand."""
    return _parse((files("slurmsched.knowledge") / _SHIPPED).read_text(encoding="utf-8"), _SHIPPED)


def sample_speedups() -> Knowledge:
    """Returns seven models on four GPU types as measured by the authors of Gandiva_fair: sample data for trading."""
    return _parse((files("slurmsched.knowledge") / _SPEEDUPS).read_text(encoding="utf-8"), _SPEEDUPS)


def _parse(text: str, name: str) -> Knowledge:
    try:
        data: object = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
    except ValueError as error:  # both parsers' errors are ValueErrors
        raise ProfileError(f"{name}: {error}") from error
    whole = _ProfileTable(name, data)
    whole.allow_only({"source", "reference", "tasks", "models"})
    source = whole.text("source") or f"imported: {name}"
    tasks = {key: _profile(entry, key, key, source, {}) for key, entry in whole.tables("tasks")}
    models = {key: _profile(entry, key, entry.text("task"), source, tasks) for key, entry in whole.tables("models")}
    return Knowledge(models=models, tasks=tasks, reference=whole.text("reference"))


def _profile(entry: _ProfileTable, name: str, task: str, source: str, tasks: Mapping[str, Profile]) -> Profile:
    entry.allow_only(_MATRIX | {"task", "gpu", "source", "measured"})
    matrices, scaling = dict[str, SensitivityMatrix](), dict[str, Scaling]()
    for gpu_type, gpu_entry in entry.tables("gpu"):
        gpu_entry.allow_only(_MATRIX | _SCALING)
        if gpu_entry.has("cpus"):
            matrices[gpu_type] = _matrix(gpu_entry)
        if gpu_entry.has("rate"):
            scaling[gpu_type] = _scaling(gpu_entry)
    if entry.has("cpus"):
        matrices[""] = _matrix(entry)
    elif task in tasks:
        matrices = {**tasks[task].matrices, **matrices}
    if not matrices and not scaling:
        raise entry.error("task" if task else "cpus", "the name of a task in this file, or cpus and speed")
    measured = entry.numbers("measured", [entry.data["measured"]])[0] if entry.has("measured") else None
    return Profile(name, task, matrices, entry.text("source") or source, scaling, measured)


def _scaling(entry: _ProfileTable) -> Scaling:
    gpus = entry.ascending("gpus", entry.data.get("gpus", [1]))
    if any(number != int(number) for number in gpus):
        raise entry.error("gpus", "whole numbers")
    rates = {key: entry.numbers(key, entry.data[key], zero=True) for key in ("rate", "apart") if entry.has(key)}
    for key, values in rates.items():
        if len(values) != len(gpus):
            raise entry.error(key, f"one number for each of gpus, that is {len(gpus)}")
    beside = _ProfileTable(f"{entry.location}: beside", entry.data.get("beside", {}))
    parts = {model: beside.numbers(model, [part], zero=True)[0] for model, part in beside.data.items()}
    return Scaling(tuple(int(number) for number in gpus), rates["rate"], rates.get("apart", ()), parts)


def _matrix(entry: _ProfileTable) -> SensitivityMatrix:
    cpus = entry.ascending("cpus", entry.data.get("cpus"))
    memory = entry.ascending("memory", entry.data["memory"]) if entry.has("memory") else ()
    rows = entry.data.get("speed")
    if not isinstance(rows, list) or len(rows) != len(cpus):
        raise entry.error("speed", f"one entry for each of cpus, that is {len(cpus)}")
    speed = tuple(entry.numbers("speed", row if memory else [row]) for row in rows)
    if any(len(row) != (len(memory) or 1) for row in speed):
        raise entry.error("speed", f"rows with one number for each of memory, that is {len(memory)}")
    return SensitivityMatrix(cpus, tuple(m * MIB_PER_GIB for m in memory), speed)


class _ProfileTable:
    """A table of the file with its location, for error messages."""

    def __init__(self, location: str, data: object) -> None:
        self.location = location
        if not isinstance(data, dict):
            raise ProfileError(f"{location}: expected a table")
        self.data: Mapping[str, object] = data

    def error(self, key: str, expected: str) -> ProfileError:
        return ProfileError(f"{self.location}: {key}: expected {expected}")

    def allow_only(self, keys: set[str] | frozenset[str]) -> None:
        unknown = sorted(set(self.data) - keys)
        if unknown:
            raise self.error(unknown[0], f"one of {', '.join(sorted(keys))} instead")

    def has(self, key: str) -> bool:
        return key in self.data

    def text(self, key: str) -> str:
        value = self.data.get(key, "")
        if not isinstance(value, str):
            raise self.error(key, "a text")
        return value

    def tables(self, key: str) -> list[tuple[str, _ProfileTable]]:
        table = _ProfileTable(f"{self.location}: {key}", self.data.get(key, {}))
        return [(name, _ProfileTable(f"{table.location}.{name}", value)) for name, value in table.data.items()]

    def numbers(self, key: str, value: object, *, zero: bool = False) -> tuple[float, ...]:
        if not isinstance(value, list) or not value:
            raise self.error(key, "a list of numbers")
        for number in value:
            known = isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < float("inf")
            if not known or (not number and not zero):
                raise self.error(key, f"numbers {'of 0 or more' if zero else 'above 0'}, not {number!r}")
        return tuple(float(number) for number in value)

    def ascending(self, key: str, value: object) -> tuple[float, ...]:
        numbers = self.numbers(key, value)
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise self.error(key, "numbers in ascending order")
        return numbers
