"""How long Gavel's policies take for their shares, on jobs as its authors draw them."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter, process_time
from typing import Final

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.gavel import POLICIES, Problem

__all__ = ["BENCHED", "ShareTime", "time_shares"]

BENCHED: Final[Mapping[str, str]] = {
    "las": "max_min_fairness_perf",
    "ftf": "finish_time_fairness_perf",
    "makespan": "min_total_duration_perf",
    "throughput": "max_sum_throughput_perf",
    "packed": "max_min_fairness_packed",
}
"""The policies by short names."""

_TYPES: Final = ("v100", "p100", "k80")
_GPUS: Final = (86, 85, 85)
_WIDTHS: Final = (1, 2, 4, 8)
_ODDS: Final = (0.7, 0.1, 0.15, 0.05)
_LONG: Final = 0.2
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ShareTime:
    """Seconds of wall and of CPU for the shares of all jobs, medians; the objective's value; peak memory in MB."""

    policy: str
    jobs: int
    gpus: int
    repeat: int
    median_s: float
    cpu_s: float
    level: float
    peak_rss_mb: float


def time_shares(rates: Knowledge, policy: str, jobs: int, times: Iterable[int], seed: int = 2) -> ShareTime:
    """256 GPUs of three types; widths 1 to 8, of one GPU only where jobs are packed, as in the authors' measurement.
    Jobs are under way, so that no two are alike to finish-time fairness. Raises PolicyError without Gavel's rates."""
    chosen = POLICIES[BENCHED[policy]]
    problem = _drawn(rates, jobs, np.random.default_rng(seed), packed=chosen.packed)
    wall: list[float] = []
    cpu: list[float] = []
    level = 0.0
    for _ in times:
        began, spent = perf_counter(), process_time()
        level = chosen.shares(problem, _TYPES).level
        wall.append(perf_counter() - began)
        cpu.append(process_time() - spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return ShareTime(policy, jobs, sum(_GPUS), len(wall), median(wall), median(cpu), level, peak)


def _drawn(rates: Knowledge, jobs: int, random: np.random.Generator, *, packed: bool) -> Problem:
    models = [model for model, profile in rates.models.items() if profile.scaling.keys() >= {*_TYPES}]
    if not models:
        raise PolicyError("no rates on v100, p100 and k80 are known: name Gavel's throughputs.json with --profiles")
    scaling = [rates.models[model].scaling for model in models]
    wide = [at for at, known in enumerate(scaling) if known["v100"].gpus[-1] > 1]
    widths = random.choice(_WIDTHS, size=jobs, p=_ODDS) if wide and not packed else np.ones(jobs, dtype=np.int64)
    kinds = np.where(widths > 1, random.choice(wide or [0], size=jobs), random.integers(len(models), size=jobs))
    minutes = 10 ** np.where(random.random(jobs) < _LONG, random.uniform(3, 4, jobs), random.uniform(1.5, 3, jobs))
    found = Problem.of(
        np.array(_GPUS, dtype=np.float64),
        np.array(
            [[scaling[kind][w].at(int(width)) for w in _TYPES] for kind, width in zip(kinds, widths, strict=True)]
        ),
        widths.astype(np.float64),
    )
    found = replace(
        found,
        remaining=minutes * 60 * found.rates[:, 0],
        elapsed=random.uniform(0, 10 * _HOUR, jobs),
        alone=random.uniform(0, _HOUR, jobs),
        kinds=kinds.astype(np.int64),
    )
    if not packed:
        return found
    beside = [[[own[w].at(1) * own[w].beside.get(other, 0.0) for w in _TYPES] for other in models] for own in scaling]
    return replace(found, beside=np.array(beside))
