"""What is kept of a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slurmsched.backends.simulated import Cluster, Interval, SimulatedJob
from slurmsched.model import MILLI, JobId, JobState
from slurmsched.policies.systems import OWN_ORDER
from slurmsched.simulation.run import Ran, Run, Sample
from slurmsched.simulation.world import START, Options, Policy, World
from slurmsched.traces import TraceJob

__all__ = ["Course", "outcome", "sampled"]


@dataclass(frozen=True, slots=True)
class Course:
    """A simulation from its start to where it was ended."""

    world: World
    policy: Policy
    options: Options
    cluster: Cluster
    jobs: Mapping[JobId, TraceJob]
    samples: Sequence[Sample]
    decisions: Sequence[float]
    """Seconds of each round that was decided."""


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


def outcome(course: Course, wall_s: float, cpu_s: float) -> Run:
    """The run, seen at the clock's time: what still runs is counted up to then."""
    cluster, world, options, policy = course.cluster, course.world, course.options, course.policy
    types = {node.name: node.gpus[0].type for node in world.nodes if node.gpus}
    runs: defaultdict[JobId, list[Interval]] = defaultdict(list)
    for interval in cluster.life.intervals:
        runs[interval.job].append(interval)
    for job in cluster.jobs.values():
        if job.state is JobState.RUNNING:
            runs[job.id].append(cluster.life.interval(job, cluster.now))
    ended = cluster.life.ended
    total = sum(len(node.gpus) for node in world.nodes)
    return Run(
        policy=policy.system,
        order="" if policy.system in OWN_ORDER else policy.order,
        trace=world.trace.name,
        seed=options.seed,
        jobs=tuple(_ran(job, ended.get(number), runs[number], types) for number, job in course.jobs.items()),
        samples=tuple(course.samples),
        total_gpus=float(total),
        total_cpus=float(sum(node.total.cpus for node in world.nodes if node.gpus)),
        total_memory=float(sum(node.total.memory for node in world.nodes if node.gpus)),
        rounds=len(course.decisions),
        decisions=tuple(course.decisions),
        wall_s=wall_s,
        cpu_s=cpu_s,
        window=options.window,
    )


def _ran(job: TraceJob, ended: SimulatedJob | None, runs: list[Interval], types: Mapping[str, str]) -> Ran:
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
