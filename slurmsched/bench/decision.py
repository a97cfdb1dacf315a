"""Measures the time and memory of one decision."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.bench.workload import follow_decision, generate_snapshot
from slurmsched.knowledge import Knowledge
from slurmsched.model import SchedulerState
from slurmsched.policies.policies import policy
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings


@dataclass(frozen=True, slots=True)
class DecisionTime:
    """Seconds of one whole decision on a full cluster, and the process's peak memory in MB."""

    policy: str
    gpus: int
    jobs: int
    nodes: int
    repeat: int
    median_s: float
    p95_s: float
    peak_rss_mb: float


def time_decision(
    settings: Settings, knowledge: Knowledge, *, gpus: int, jobs: int, nodes: int, repetitions: Iterable[int]
) -> DecisionTime:
    """Decides on an empty cluster, starts those jobs, then measures on the full one, once for each of `repetitions`."""
    decider = policy(settings.policy.system, settings.policy.order, settings.policy.las_queues)
    identity = Identity("bench", Privilege.SLURM_USER)
    empty = generate_snapshot(gpus, nodes, jobs)
    first_round = run_round(empty, SchedulerState(), settings, knowledge, identity, policy_override=decider)
    warm, memory = follow_decision(first_round.snapshot, first_round.decision)
    situation = run_round(warm, memory, settings, knowledge, identity, policy_override=decider).situation
    seconds: list[float] = []
    for _ in repetitions:
        began = perf_counter()
        decider.decide(situation)
        seconds.append(perf_counter() - began)
    slowest = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = settings.policy.system
    return DecisionTime(name, gpus, jobs, nodes, len(seconds), median(seconds), slowest, peak)
