"""What a cluster made of its jobs, in figures.

The same jobs on two equal simulated clusters: one left to Slurm's own scheduler, one with rounds.

The rounds are the daemon's own: same code, same store (in memory), with the simulated cluster and its clock underneath.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from slurmsched.backends.simulated import JobSubmitHook, SimulatedBackend, VirtualClock, VirtualCluster, profiled_speed
from slurmsched.daemon.scheduler import RoundReport, SchedulerContext, schedule_round
from slurmsched.demo.workload import Arrival
from slurmsched.knowledge import Knowledge, shipped_profiles
from slurmsched.model import Node, Snapshot, SynschedError
from slurmsched.settings.definition import HookSettings, ManageSettings, Mode, Settings
from slurmsched.store.store import Store


@dataclass(frozen=True, slots=True)
class ClusterScore:
    """Times in seconds, NaN where no job has finished. JCT, job completion time, is from submission to the end.

    `makespan` is from the first submission to the last end. `useful` is the part of all GPU time in it that went into
    work that was kept: neither idle, restarting, completing nor lost. `work` is what was done, in GPU-seconds at the
    proportional share, per GPU-second of the makespan: above `useful` where CPUs and memory made jobs faster.
    """

    jobs: int
    finished: int
    mean_jct: float
    median_jct: float
    p99_jct: float
    makespan: float
    useful: float
    work: float
    restarts: int
    rounds: int


def score_cluster(cluster: VirtualCluster, rounds: int = 0) -> ClusterScore:
    """The figures of a cluster on which no job is left; `rounds` is how many it had."""
    jobs = list(cluster.lifecycle.ended.values())
    done = [job for job in jobs if job.state_text == "COMPLETED" and job.end_time is not None]
    times = np.array([job.end_time - job.submit_time for job in done if job.end_time is not None])
    ends = [job.end_time for job in jobs if job.end_time is not None]
    makespan = max(ends) - min(job.submit_time for job in jobs) if jobs else float("nan")
    available = makespan * sum(len(machine.configured.gpus) for machine in cluster.nodes.values())
    return ClusterScore(
        jobs=len(jobs),
        finished=len(done),
        mean_jct=float(np.mean(times)) if done else float("nan"),
        median_jct=float(np.median(times)) if done else float("nan"),
        p99_jct=float(np.percentile(times, 99)) if done else float("nan"),
        makespan=makespan,
        useful=sum(interval.gpus * interval.useful_seconds for interval in cluster.lifecycle.usage_intervals)
        / available,
        work=sum(job.submission.request.gpus * job.work.checkpointed for job in jobs) / available,
        restarts=sum(job.restarts for job in jobs),
        rounds=rounds,
    )


START_TIME: Final = 1_800_000_000.0
"""The virtual clock's first moment."""


class RaceError(SynschedError):
    """The race cannot end: jobs wait for what will never come."""


@dataclass(frozen=True, slots=True)
class RaceFrame:
    """Both clusters at the end of a round. `elapsed` in virtual seconds; `plain` is Slurm without rounds."""

    elapsed: float
    report: RoundReport
    plain: Snapshot


@dataclass(frozen=True, slots=True)
class RaceResult:
    """How the two came through, all of it simulated."""

    plain: ClusterScore
    rounds: ClusterScore


@dataclass(slots=True)
class _ClusterWithClock:
    """One of the clusters with its clock."""

    cluster: VirtualCluster
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START_TIME))


def demo_settings(settings: Settings | None = None) -> Settings:
    """These settings with rounds that act, on all jobs of the demo's partition, whatever files this machine has."""
    settings = settings or Settings()
    return replace(
        settings,
        rounds=replace(settings.rounds, mode=Mode.ENFORCE),
        manage=ManageSettings(partitions=("gpu",)),
        hook=HookSettings(disable_file="/dev/null/none"),
    )


def run_race(
    nodes: Sequence[Node],
    arrivals: Sequence[Arrival],
    settings: Settings | None = None,
    knowledge: Knowledge | None = None,
    *,
    on_round: Callable[[RaceFrame], None] = lambda _frame: None,
) -> RaceResult:
    """Run both until every job has ended; `on_round` is called after each round.

    `knowledge` is what the rounds know and also how fast the simulated jobs really run; the shipped profiles by
    default. Raises RaceError when nothing more can happen while jobs still wait.
    """
    settings = demo_settings(settings)
    knowledge = knowledge or shipped_profiles()
    speed = profiled_speed(knowledge, nodes)
    hook = JobSubmitHook(settings.manage, is_heartbeat_fresh=lambda _now: True)
    plain = _ClusterWithClock(VirtualCluster(nodes, start=START_TIME, speed=speed))
    scheduled = _ClusterWithClock(VirtualCluster(nodes, start=START_TIME, speed=speed, hook=hook))
    for arrival in arrivals:
        plain.cluster.submit(arrival.submission, START_TIME + arrival.at)
        scheduled.cluster.submit(arrival.submission, START_TIME + arrival.at)
    site = SchedulerContext(settings, SimulatedBackend(scheduled.cluster, scheduled.clock), knowledge)
    store = Store.in_memory(START_TIME)
    try:
        rounds = _run_rounds(site, store, scheduled, plain.cluster, on_round)
    finally:
        store.close()
    while plain.cluster.unfinished:
        _advance_to_next_event(plain.cluster)
    return RaceResult(score_cluster(plain.cluster), score_cluster(scheduled.cluster, rounds))


def _run_rounds(
    site: SchedulerContext,
    store: Store,
    scheduled: _ClusterWithClock,
    plain: VirtualCluster,
    on_round: Callable[[RaceFrame], None],
) -> int:
    """Rounds, a period apart from start to start, until no job is left; how many."""
    count = 0
    while scheduled.cluster.unfinished:
        due = scheduled.clock.now() + site.settings.rounds.period
        report = schedule_round(site, store, scheduled.clock)
        count += 1
        plain.advance(scheduled.clock.now())
        on_round(RaceFrame(scheduled.clock.now() - START_TIME, report, plain.snapshot()))
        if scheduled.cluster.events.next_time is None and not report.outcomes:
            raise _stuck_error(scheduled.cluster)
        scheduled.clock.advance_to(max(scheduled.clock.now(), due))
        scheduled.cluster.advance(scheduled.clock.now())
    return count


def _advance_to_next_event(cluster: VirtualCluster) -> None:
    if cluster.events.next_time is None:
        raise _stuck_error(cluster)
    cluster.advance(cluster.events.next_time)


def _stuck_error(cluster: VirtualCluster) -> RaceError:
    waiting = [job.id for job in cluster.snapshot().jobs]
    return RaceError(f"{len(waiting)} jobs can never run on this cluster (first: {waiting[0]}): submit smaller ones")
