"""Measures whole decisions, as the daemon's rounds call them, and the forecasts of lengths that they use."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np

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
from slurmsched.knowledge.lengths import LengthHistory, lengths_of
from slurmsched.knowledge.work import FinishedRun, UnfinishedJob
from slurmsched.model import Decision, SchedulerState
from slurmsched.policies.policies import configured_policy
from slurmsched.policies.stages import Policy, Situation
from slurmsched.rounds.round import paused_collector, run_round
from slurmsched.settings.definition import Settings

_IDENTITY: Final = Identity("bench", Privilege.SLURM_USER)


@dataclass(frozen=True, slots=True)
class DecisionTime:
    """Wall seconds of one whole decision on a full cluster, or on an empty one, the median CPU seconds, and the
    process's peak memory in MB.

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
    sizes_differ: bool
    powering_up: bool
    empty: bool


def time_decision(
    settings: Settings,
    knowledge: Knowledge,
    *,
    gpus: int,
    jobs: int,
    nodes: int,
    repetitions: Iterable[int],
    shape: QueueShape = THREE_TYPES,
    empty: bool = False,
) -> DecisionTime:
    """Decides on an empty cluster, starts those jobs, then measures on the full one, once for each of `repetitions`, of
    which there is at least one; or measures on the `empty` one.

    What is measured is `Policy.decide` of the situation that a round of the daemon makes, an hour after the first: all
    stages of the policy, and what it computes anew only at times (Gavel's time fractions). Observing, planning and
    applying are not in it.
    """
    decider = configured_policy(settings.policy)
    known = generate_knowledge(knowledge, shape)
    warm = generate_snapshot(gpus, nodes, jobs, shape=shape)
    memory = SchedulerState(measured=measured_rates(warm, shape))
    if not empty:
        with paused_collector():
            first = run_round(warm, memory, settings, known, _IDENTITY, policy_override=decider)
            warm, memory = follow_decision(first.snapshot, first.decision, shape=shape)
            del first  # of which nothing else is kept, as in the daemon
    gc.collect()  # what the first round left
    timed, rounds = _Timed(decider), iter(repetitions)
    next(rounds)
    second_round = run_round(warm, memory, settings, known, _IDENTITY, policy_override=timed)
    for _ in rounds:
        with paused_collector():  # as in the round
            timed.decide(second_round.situation)
    wall, cpu = timed.wall, timed.cpu
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
        sizes_differ=shape.sizes_differ,
        powering_up=shape.powering_up,
        empty=empty,
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """A policy, and the wall and processor seconds of each of its decisions."""

    policy: Policy
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, situation: Situation) -> Decision:
        began, spent = perf_counter(), process_time()
        decision = self.policy.decide(situation)
        self.wall.append(perf_counter() - began)
        self.cpu.append(process_time() - spent)
        return decision


@dataclass(frozen=True, slots=True)
class LengthsTime:
    """Seconds to read the history of finished runs once, to add the runs that ended since the last round, and to
    forecast all jobs, medians of the rounds; and the CPU seconds of a round."""

    finished: int
    jobs: int
    ended_per_round: int
    read_s: float
    add_s: float
    forecast_s: float
    round_s: float
    cpu_s: float
    peak_rss_mb: float


_USERS: Final = 500
_WORKS_PER_USER: Final = 40
_ENDED_PER_ROUND: Final = 500


def time_lengths(finished: int, jobs: int, rounds: Iterable[int]) -> LengthsTime:
    """Forecasts the lengths of `jobs`, of which a tenth run, from `finished` runs of 500 users with 40 scripts each."""
    random = np.random.default_rng(0)
    began = perf_counter()
    history = LengthHistory.of(_drawn_runs(finished, 0, random))
    read = perf_counter() - began
    works = random.integers(0, _USERS * _WORKS_PER_USER, jobs).tolist()
    elapsed = random.uniform(60, 86400, jobs) * (np.arange(jobs) % 10 == 0)
    queue = [
        UnfinishedJob(**_work(work), id=str(number), elapsed=ran, time_limit=2 * 86400)
        for number, (work, ran) in enumerate(zip(works, elapsed.tolist(), strict=True))
    ]
    adding, forecasting, cpu = list[float](), list[float](), list[float]()
    for number in rounds:
        ended = _drawn_runs(_ENDED_PER_ROUND, finished + number * _ENDED_PER_ROUND, random)
        began, spent = perf_counter(), process_time()
        for run in ended:
            history.add(run)
        added = perf_counter()
        lengths_of(queue, history, ended[-1].ended_at)
        adding.append(added - began)
        forecasting.append(perf_counter() - added)
        cpu.append(process_time() - spent)
    together = [add + forecast for add, forecast in zip(adding, forecasting, strict=True)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    medians = (median(adding), median(forecasting), median(together), median(cpu))
    return LengthsTime(finished, jobs, _ENDED_PER_ROUND, read, *medians, peak)


def _drawn_runs(count: int, first: int, random: np.random.Generator) -> list[FinishedRun]:
    works = random.integers(0, _USERS * _WORKS_PER_USER, count).tolist()
    seconds = np.exp(random.normal(8, 1.5, count)).tolist()
    return [
        FinishedRun(**_work(work), seconds=took, ended_at=float(first + number), likely=(60.0, 86400.0))
        for number, (work, took) in enumerate(zip(works, seconds, strict=True))
    ]


def _work(number: int) -> dict[str, Any]:
    user, script = divmod(number, _WORKS_PER_USER)
    name, folder = f"train-{script % 20}", f"/home/user{user}"
    return {
        "owner": f"user{user}",
        "name": name,
        "script": f"{script:040x}",
        "folder": folder,
        "gpus": 2 ** (script % 4),
    }
