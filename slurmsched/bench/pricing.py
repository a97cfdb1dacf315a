"""How long Hadar's decision takes as the queue grows, and the cluster with it (Sultana et al., figure 5)."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Final

import numpy as np

from slurmsched.policies.hadar import Ask, Hadar, Servers, Speeds, timely

__all__ = ["PricingTime", "time_pricing"]

JOBS_PER_GPU: Final = 8
"""As Hadar's 480 jobs on 60 GPUs."""

PER_SERVER: Final = 4
_SPEED: Final = {"v100": 1.0, "p100": 0.6, "k80": 0.2}
_MODELS: Final = 26
"""As Gavel measured; jobs of one model and width are alike."""

_WIDTHS, _ODDS = (1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05)
_HOURS: Final = (0.5, 100.0)


@dataclass(frozen=True, slots=True)
class PricingTime:
    """Seconds for one whole decision, with `running` jobs of the last one, and the process's peak memory in MB."""

    policy: str
    jobs: int
    gpus: int
    running: int
    repeat: int
    median_s: float
    p95_s: float
    peak_rss_mb: float


def time_pricing(jobs: int, times: Iterable[int], seed: int = 0) -> PricingTime:
    """Decide on an empty cluster; then, with an eighth of what runs replaced by newcomers, once for each of `times`.

    Half of a decision keeps all leases, the other half finds out whether to start anew pays.
    """
    servers, random, hadar = _cluster(jobs), np.random.default_rng(seed), Hadar(valuing=timely)
    queue = _queue(jobs, servers, random)
    places = hadar.decide(queue, servers)
    ended = {job for job in places if random.random() < 1 / 8}
    newcomers = _queue(len(ended), servers, random, first=jobs)
    queue = [ask for ask in queue if ask.job not in ended] + newcomers
    running = {job: place for job, place in places.items() if job not in ended}
    spent: list[float] = []
    for _ in times:
        began = perf_counter()
        hadar.decide(queue, servers, running)
        spent.append(perf_counter() - began)
    slowest = quantiles(spent, n=20, method="inclusive")[-1] if len(spent) > 1 else spent[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total = int(servers.capacity.sum())
    return PricingTime("hadar", jobs, total, len(running), len(spent), median(spent), slowest, peak)


def _cluster(jobs: int) -> Servers:
    """A third of the GPUs of each type."""
    total = max(jobs // JOBS_PER_GPU, len(_SPEED))
    found: list[tuple[str, int]] = []
    for at, kind in enumerate(_SPEED):
        left = total // len(_SPEED) + (at < total % len(_SPEED))
        while left > 0:
            found.append((kind, min(left, PER_SERVER)))
            left -= PER_SERVER
    return Servers.alike(found)


def _queue(jobs: int, servers: Servers, random: np.random.Generator, first: int = 0) -> list[Ask]:
    models = np.random.default_rng(_MODELS).uniform(0.3, 1.0, (_MODELS, len(servers.types)))
    known: dict[Speeds, Speeds] = {}
    found: list[Ask] = []
    for number in range(first, first + jobs):
        width = min(int(random.choice(_WIDTHS, p=_ODDS)), int(servers.capacity.sum()))
        model = models[int(random.integers(_MODELS))].tolist()
        together = tuple(width * part * _SPEED[kind] for part, kind in zip(model, servers.types, strict=True))
        speeds = Speeds(width, together, tuple(0.8 * rate for rate in together))
        work = float(random.uniform(*_HOURS)) * 3600 * together[0]
        found.append(Ask(f"j{number}", known.setdefault(speeds, speeds), work, work))
    return found
