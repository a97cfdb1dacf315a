"""Measures whole decisions, as the daemon's rounds call them."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, process_time

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.bench.workload import (
    THREE_TYPES,
    QueueShape,
    follow_decision,
    generate_knowledge,
    generate_snapshot,
    measured_rates,
)
from slurmsched.knowledge import Knowledge
from slurmsched.model import SchedulerState
from slurmsched.policies.policies import configured_policy
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings


@dataclass(frozen=True, slots=True)
class DecisionTime:
    """Wall seconds of one whole decision on a full cluster, the median CPU seconds, and the process's peak memory in
    MB.

    `running` and `starts`: the jobs that ran before it, and those that it starts.
    """

    policy: str
    gpus: int
    jobs: int
    nodes: int
    repeat: int
    median_s: float
    p95_s: float
    peak_rss_mb: float
    cpu_s: float
    running: int
    starts: int
    all_different: bool


def time_decision(
    settings: Settings,
    knowledge: Knowledge,
    *,
    gpus: int,
    jobs: int,
    nodes: int,
    repetitions: Iterable[int],
    shape: QueueShape = THREE_TYPES,
) -> DecisionTime:
    """Decides on an empty cluster, starts those jobs, then measures on the full one, once for each of `repetitions`.

    What is measured is `Policy.decide` of the situation that a round of the daemon makes, an hour after the first: all
    stages of the policy, and what it computes anew only at times (Gavel's time fractions). Observing, planning and
    applying are not in it.
    """
    decider = configured_policy(settings.policy)
    identity, known = Identity("bench", Privilege.SLURM_USER), generate_knowledge(knowledge, shape)
    empty = generate_snapshot(gpus, nodes, jobs, shape=shape)
    state = SchedulerState(measured=measured_rates(empty, shape))
    first_round = run_round(empty, state, settings, known, identity, policy_override=decider)
    warm, memory = follow_decision(first_round.snapshot, first_round.decision, shape=shape)
    second_round = run_round(warm, memory, settings, known, identity, policy_override=decider)
    wall: list[float] = []
    cpu: list[float] = []
    for _ in repetitions:
        began, spent = perf_counter(), process_time()
        decider.decide(second_round.situation)
        wall.append(perf_counter() - began)
        cpu.append(process_time() - spent)
    return DecisionTime(
        policy=settings.policy.system,
        gpus=gpus,
        jobs=jobs,
        nodes=nodes,
        repeat=len(wall),
        median_s=median(wall),
        p95_s=quantiles(wall, n=20, method="inclusive")[-1] if len(wall) > 1 else wall[0],
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        cpu_s=median(cpu),
        running=sum(bool(job.allocations) for job in warm.jobs),
        starts=len(second_round.starts),
        all_different=shape.all_different,
    )
