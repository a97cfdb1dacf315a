"""Runs the same jobs on two equal simulated clusters, one with Slurm's own scheduler, one with rounds of synsched.

The rounds run the daemon's code, with a store in memory, on the simulated cluster and its virtual clock.
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
from slurmsched.model.reasons import pluralise
from slurmsched.settings.definition import HookSettings, ManageSettings, Mode, Settings
from slurmsched.store.store import Store


@dataclass(frozen=True, slots=True)
class ClusterScore:
    """Metrics of a cluster. Times are in seconds, NaN if no job has finished; JCT (job completion time) is from
    submission to the end.

    `makespan` is from the first submission to the last end. `useful` is the fraction of all GPU time in it spent on
    work that was kept: not idle, restarting, completing or lost. `work` is the work done, in GPU-seconds at the
    GPU-proportional share, per GPU-second of the makespan; it exceeds `useful` if more CPUs or memory made jobs faster.
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
    """The metrics of a cluster on which no job is left; `rounds` is the number of rounds that it had."""
    jobs = list(cluster.lifecycle.ended.values())
    done = [job for job in jobs if job.state_text == "COMPLETED" and job.end_time is not None]
    times = np.array([job.end_time - job.submit_time for job in done if job.end_time is not None])
    ends = [job.end_time for job in jobs if job.end_time is not None]
    makespan = max(ends) - min(job.submit_time for job in jobs) if jobs else float("nan")
    available = makespan * sum(len(node.configured.gpus) for node in cluster.nodes.values())
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
"""Where the virtual clocks start (unix seconds)."""


class RaceError(SynschedError):
    """The race cannot end: jobs are pending that can never start."""


@dataclass(frozen=True, slots=True)
class RaceFrame:
    """Both clusters at the end of a round. `elapsed` is in virtual seconds; `plain` is the cluster without rounds."""

    elapsed: float
    report: RoundReport
    plain: Snapshot


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The metrics of both clusters: `plain` without rounds, `rounds` with them."""

    plain: ClusterScore
    rounds: ClusterScore


@dataclass(slots=True)
class _ClusterWithClock:
    """A simulated cluster and its clock."""

    cluster: VirtualCluster
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START_TIME))


def demo_settings(settings: Settings | None = None) -> Settings:
    """The settings in mode enforce for all jobs of the demo's partition, whatever disable file this host has."""
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
    """Run both clusters until every job has ended; `on_round` is called after each round.

    `knowledge`, by default the shipped profiles, is what the rounds use and also determines the simulated jobs' real
    speeds. Raises RaceError if jobs are pending that can never start.
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
    """Run a round every period until no job is left; returns the number of rounds."""
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
    jobs = pluralise(len(waiting), "job")
    return RaceError(f"{jobs} can never run on this cluster (first: {waiting[0]}): submit smaller jobs")
