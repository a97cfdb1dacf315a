"""Compares a live run on Slurm with the simulation of the same jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.scheduler import SchedulerContext
from slurmsched.fidelity.live_run import CHECKPOINT_LEAD, LiveJobResult, SleeperJobs, Submit, run_live
from slurmsched.model import Node, Resources, SynschedError
from slurmsched.settings.definition import GuardSettings, Settings
from slurmsched.simulation import PolicyChoice, Scenario, SimulationOptions
from slurmsched.simulation.engine import simulate
from slurmsched.traces import Trace
from slurmsched.traces.clusters import SPEC_PARTITION

TOLERANCE = 0.05
"""Maximum relative deviation of the simulated from the live metrics."""

LAUNCH_DELAY = 1.0
"""Seconds from a job's end until its resources are free, and also until a restarted job works again, as measured on a
small cluster with jobs that only sleep."""


class FidelityError(SynschedError):
    """No job ended, so there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Live and simulated metrics in seconds, and their ratios (simulated divided by live)."""

    jobs: int
    ended: int
    live_avg_jct_s: float
    simulated_avg_jct_s: float
    avg_jct_ratio: float
    live_makespan_s: float
    simulated_makespan_s: float
    makespan_ratio: float
    live_restarts: int
    simulated_restarts: int

    @property
    def ok(self) -> bool:
        """Whether all jobs ended and both ratios are within TOLERANCE of 1."""
        within = all(abs(ratio - 1) <= TOLERANCE for ratio in (self.avg_jct_ratio, self.makespan_ratio))
        return within and self.ended == self.jobs


def shorten_period(settings: Settings, period: float) -> Settings:
    """The settings with rounds every `period` seconds, and the other times shortened in proportion."""
    factor = period / settings.rounds.period
    return replace(
        settings,
        rounds=replace(settings.rounds, period=period, settle_interval=min(1.0, settings.rounds.settle_interval)),
        policy=replace(settings.policy, las_queues=tuple(bound * factor for bound in settings.policy.las_queues)),
        guards=replace(
            GuardSettings(),
            min_run_time=settings.guards.min_run_time * factor,
            restart_cost=settings.guards.restart_cost * factor,
            moves_per_round=settings.guards.moves_per_round,
            moves_per_job_day=1000,
        ),
    )


def measure_fidelity(
    trace: Trace, site: SchedulerContext, *, folder: Path, submit: Submit, clock: Clock, say: Callable[[str], None]
) -> Fidelity:
    """Run the trace on the cluster, then simulate it; returns the comparison.

    Raises BackendError, StoreError, AlreadyRunningError, FidelityError.
    """
    nodes = site.backend.observe().nodes_by_name
    live_jobs = run_live(trace, site, SleeperJobs(site.knowledge, nodes, folder, submit), clock, say)
    if not live_jobs:
        raise FidelityError("no job ended: see 'squeue' and 'synsched doctor'")
    return compare_with_simulation(trace, site, tuple(nodes.values()), live_jobs)


def compare_with_simulation(
    trace: Trace, site: SchedulerContext, nodes: tuple[Node, ...], live_jobs: Mapping[str, LiveJobResult]
) -> Fidelity:
    """Simulate the jobs that ended on the same nodes, with their real submit times, and compare the metrics."""
    jobs = tuple(
        replace(job, arrival=max(0.0, live_jobs[job.id].submitted)) for job in trace.jobs if job.id in live_jobs
    )
    empty = tuple(
        replace(
            node,
            used=Resources(),
            gpus=tuple(replace(gpu, used=0) for gpu in node.gpus),
            partitions=frozenset({SPEC_PARTITION}),
        )
        for node in nodes
    )
    policy = site.settings.policy
    run = simulate(
        Scenario(empty, replace(trace, jobs=jobs), site.knowledge),
        PolicyChoice(policy.system, policy.order, policy.las_queues),
        SimulationOptions(
            period=site.settings.rounds.period,
            overhead=LAUNCH_DELAY,
            lead=CHECKPOINT_LEAD,
            completing=LAUNCH_DELAY,
            skipping=False,
        ),
        site.settings,
    )
    live_jct = float(np.mean([job.ended - job.submitted for job in live_jobs.values()]))
    start = min(job.submitted for job in live_jobs.values())
    live_makespan = max(job.ended for job in live_jobs.values()) - start
    simulated_jct = float(np.mean([job.jct for job in run.jobs]))
    simulated_makespan = max(job.end or 0.0 for job in run.jobs) - start
    return Fidelity(
        jobs=len(trace.jobs),
        ended=len(live_jobs),
        live_avg_jct_s=live_jct,
        simulated_avg_jct_s=simulated_jct,
        avg_jct_ratio=simulated_jct / live_jct,
        live_makespan_s=live_makespan,
        simulated_makespan_s=simulated_makespan,
        makespan_ratio=simulated_makespan / live_makespan,
        live_restarts=sum(job.restarts for job in live_jobs.values()),
        simulated_restarts=sum(job.restarts for job in run.jobs),
    )
