"""What is kept of a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from slurmsched.backends.simulated import Cluster, Interval
from slurmsched.model import MILLI, JobId, JobState
from slurmsched.policies.systems import OWN_ORDER
from slurmsched.simulation.run import Ran, Run, Sample
from slurmsched.simulation.world import START

if TYPE_CHECKING:
    from slurmsched.simulation.engine import Engine

__all__ = ["outcome", "sampled"]


def sampled(cluster: Cluster, at: float) -> Sample:
    """The cluster now."""
    running = [job for job in cluster.jobs.values() if job.state is JobState.RUNNING]
    waiting = [job for job in cluster.jobs.values() if job.state is JobState.PENDING]
    held = [share.resources for job in running for share in job.shares]
    gpus_of = {job.id: cluster.life.gpus_of(job) for job in running}
    idle = [len(machine.idle) for machine in cluster.machines.values()]
    widest = max((job.standing.gpus_per_node or job.standing.gpus for job in waiting), default=0)
    return Sample(
        time=at,
        running=len(running),
        waiting=len(waiting),
        gpus=float(sum(gpus_of.values())),
        cpus=float(sum(share.cpus for share in held)),
        memory=float(sum(share.memory for share in held)),
        speed=sum(
            job.work.run.rate * gpus_of[job.id]
            for job in running
            if job.work.run is not None and job.work.run.productive <= cluster.now
        ),
        stranded=float(sum(gpus for gpus in idle if gpus < widest)),
    )


def outcome(engine: Engine, wall_s: float, cpu_s: float) -> Run:
    """The run, seen at the clock's time: what still runs is counted up to then."""
    cluster, world, options = engine.cluster, engine.world, engine.options
    types = {node.name: node.gpus[0].type for node in world.nodes if node.gpus}
    runs: defaultdict[JobId, list[Interval]] = defaultdict(list)
    for interval in cluster.life.intervals:
        runs[interval.job].append(interval)
    for job in cluster.jobs.values():
        if job.state is JobState.RUNNING:
            runs[job.id].append(cluster.life.interval(job, cluster.now))
    total = sum(len(node.gpus) for node in world.nodes)
    return Run(
        policy=engine.policy.system,
        order="" if engine.policy.system in OWN_ORDER else engine.policy.order,
        trace=world.trace.name,
        seed=options.seed,
        jobs=tuple(_ran(engine, number, place, runs[number], types) for number, place in engine.ids.items()),
        samples=tuple(engine.samples),
        total_gpus=float(total),
        total_cpus=float(sum(node.total.cpus for node in world.nodes if node.gpus)),
        total_memory=float(sum(node.total.memory for node in world.nodes if node.gpus)),
        rounds=engine.rounds,
        decisions=tuple(engine.decisions),
        wall_s=wall_s,
        cpu_s=cpu_s,
        window=options.window,
    )


def _ran(engine: Engine, number: JobId, place: int, runs: list[Interval], types: Mapping[str, str]) -> Ran:
    job, ended = engine.jobs[place], engine.cluster.life.ended.get(number)
    by_type: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        by_type[types[run.nodes[0]]] += run.gpu_seconds
    moved = sum(before.nodes != after.nodes for before, after in pairwise(runs))
    end = None if ended is None or ended.end_time is None else ended.end_time - START
    return Ran(
        job=job.id,
        arrival=job.arrival,
        work=job.duration,
        gpus=job.gpus + job.milli_gpu / MILLI,
        user=job.user,
        account=job.account,
        model=job.model,
        start=runs[0].start - START if runs else None,
        end=end,
        state="UNFINISHED" if ended is None else ended.state_text,
        service=sum(run.gpu_seconds for run in runs),
        by_type=dict(by_type),
        useful=sum(run.gpus * run.kept for run in runs),
        cpu_service=sum(run.cpus * (run.end - run.start) for run in runs),
        restarts=max(0, len(runs) - 1),
        migrations=moved,
    )
