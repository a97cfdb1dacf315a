"""Small cases of Gavel's policies, as `data/gavel/policy_vectors.json` holds them. The file is not trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final

from cattrs import BaseValidationError, Converter

from slurmsched.experiments.experiment import ExperimentError

__all__ = ["Case", "Inputs", "Theirs", "read_cases"]

_NAMES = re.compile(r"[^\s(),\[\]'\"]+")
_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class Inputs:
    """`throughputs`: steps per second by job and GPU type. A key that names two jobs, as `(0, 1)`, is a pair of them,
    with the rate of each beside the other. `cluster`: GPUs by type. `steps_remaining`, `seconds_since_start` and
    `scale_factors` (GPUs) by job. `priority_weights` may be words instead, which say that all are 1."""

    throughputs: Mapping[str, Mapping[str, object]]
    scale_factors: Mapping[str, int]
    cluster: Mapping[str, int]
    steps_remaining: Mapping[str, float]
    seconds_since_start: Mapping[str, float]
    priority_weights: object = "all 1"

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(key for key in self.throughputs if len(_NAMES.findall(key)) < _PAIR)

    @property
    def pairs(self) -> dict[tuple[str, str], Mapping[str, object]]:
        """By the two jobs, as the key names them."""
        found = {key: tuple(_NAMES.findall(key)) for key in self.throughputs}
        return {(names[0], names[1]): self.throughputs[key] for key, names in found.items() if len(names) == _PAIR}

    def weight(self, job: str) -> float:
        """Its priority weight."""
        return _number(self.priority_weights.get(job, 1.0)) if isinstance(self.priority_weights, Mapping) else 1.0

    def rate(self, job: str, kind: str) -> float:
        return _number(self.throughputs[job].get(kind, 0.0))

    def rates_beside(self, pair: tuple[str, str], kind: str) -> tuple[float, float]:
        """Of the first and the second on this type, 0 for both where there are none."""
        both = self.pairs[pair].get(kind, (0.0, 0.0))
        if not isinstance(both, list | tuple) or len(both) != _PAIR:
            raise ValueError(f"expected two rates for {pair}")
        return _number(both[0]), _number(both[1])


@dataclass(frozen=True, slots=True)
class Theirs:
    """What Gavel's policy gave: the objective's value, the least makespan in seconds where its search stops short of
    it, or the shares themselves, by job and type, where nothing is optimised."""

    objective: float | None = None
    exact_min_makespan_s: float | None = None
    allocation_exact: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One case, and Gavel's answers by policy."""

    name: str
    inputs: Inputs
    gavel: Mapping[str, Theirs]


@dataclass(frozen=True, slots=True)
class _File:
    cases: tuple[Case, ...]


def read_cases(path: Path) -> tuple[Case, ...]:
    """All cases of the file. Raises ExperimentError."""
    try:
        cases = _converter().structure(json.loads(path.read_text(encoding="utf-8")), _File).cases
        for case in cases:
            _check(case.inputs)
    except (OSError, ValueError, KeyError, BaseValidationError) as error:
        raise ExperimentError(f"{path}: expected cases of Gavel's policies: {error!r}") from error
    return cases


def _converter() -> Converter:
    """One that leaves values of any type as they are, to be looked at when they are used."""
    converter = Converter()
    converter.register_structure_hook_func(lambda wanted: wanted is object, lambda value, _: value)
    return converter


def _check(inputs: Inputs) -> None:
    """Raises ValueError for numbers that cannot be, KeyError for a job of which something is missing."""
    jobs, types = inputs.jobs, tuple(inputs.cluster)
    if not jobs or min(inputs.cluster.values(), default=0) < 1:
        raise ValueError("there are no jobs, or no GPUs")
    for job in jobs:
        if inputs.scale_factors[job] < 1 or _number(inputs.steps_remaining[job]) <= 0 or inputs.weight(job) <= 0:
            raise ValueError(f"job {job} has no width, no steps or no weight")
        if max(inputs.rate(job, kind) for kind in types) <= 0:
            raise ValueError(f"job {job} can run nowhere")
        _number(inputs.seconds_since_start[job])
    for pair in inputs.pairs:
        if not {*pair} <= {*jobs}:
            raise ValueError(f"a pair of other jobs: {pair}")
        for kind in types:
            inputs.rates_beside(pair, kind)


def _number(said: object) -> float:
    """Raises ValueError unless it is a finite number of 0 or more."""
    if isinstance(said, int | float) and isfinite(said) and said >= 0:
        return float(said)
    raise ValueError(f"expected a number of 0 or more, not {said!r}")
