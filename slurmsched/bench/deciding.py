"""How long one decision takes, and how much memory."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.bench.generated import generated, running
from slurmsched.knowledge import Knowledge
from slurmsched.model import Memory
from slurmsched.policies.systems import system
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings

__all__ = ["DecisionTime", "time_decision"]


@dataclass(frozen=True, slots=True)
class DecisionTime:
    """Seconds for one whole decision from a warm start, and the process's peak memory in MB."""

    policy: str
    gpus: int
    jobs: int
    nodes: int
    repeat: int
    median_s: float
    p95_s: float
    peak_rss_mb: float


def time_decision(
    settings: Settings, knowledge: Knowledge, *, gpus: int, jobs: int, nodes: int, times: Iterable[int]
) -> DecisionTime:
    """Decide once on an empty cluster, follow that, then measure on the full one, once for each of `times`."""
    policy = system(settings.policy.system, settings.policy.order, settings.policy.las_queues)
    identity = Identity("bench", Privilege.SLURM_USER)
    empty = generated(gpus, nodes, jobs)
    first = run_round(empty, Memory(), settings, knowledge, identity, deciding=policy)
    warm, memory = running(first.snapshot, first.decision)
    situation = run_round(warm, memory, settings, knowledge, identity, deciding=policy).situation
    spent: list[float] = []
    for _ in times:
        began = perf_counter()
        policy.decide(situation)
        spent.append(perf_counter() - began)
    slowest = quantiles(spent, n=20, method="inclusive")[-1] if len(spent) > 1 else spent[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = settings.policy.system
    return DecisionTime(name, gpus, jobs, nodes, len(spent), median(spent), slowest, peak)
