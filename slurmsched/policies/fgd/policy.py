"""The policy `fgd`: fragmentation gradient descent.

Source: Weng et al., "Beware of Fragmentation", ATC 2023, algorithm 1.

In order, each waiting job is placed where it leaves the fewest idle GPUs unusable for the target workload, which is the
jobs of the last days. Jobs without GPUs are placed in the same way, which keeps them off nodes whose idle GPUs they
would strand. No job is preempted, unless `defragments` is set: then running jobs move to other nodes where that lets a
waiting job start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurmsched.model import Decision, Job, JobId, JobState, RankedJob, Reason, ReasonCode, Request, Target
from slurmsched.model.reasons import pluralise
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.defragment import defragment, movable_jobs
from slurmsched.policies.fgd.placer import FgdCluster, FgdPlacer
from slurmsched.policies.session import completing_reason
from slurmsched.policies.stages import Order, Situation


@dataclass(frozen=True, slots=True)
class FragmentationDescent:
    """The policy. If a job does not fit, those behind it are still tried."""

    order: Order
    defragments: bool = False
    name: str = "fgd"

    def decide(self, situation: Situation) -> Decision:
        ranking = self.order.rank(situation)
        jobs = {job.id: job for job in situation.jobs}
        placer = FgdPlacer.of_situation(situation)
        empty: FgdCluster | None = None
        targets, waiting = dict[JobId, Target](), dict[JobId, Reason]()
        for ranked in ranking:
            job = jobs[ranked.job]
            if keeps_allocation(job):
                targets[job.id] = Target(job.id, job.allocations, (Reason(ReasonCode.KEEPS_LEASE),))
            elif why := completing_reason(job):
                waiting[job.id] = why
            elif allocations := placer.place(job):
                first = Reason(ReasonCode.FIRST_IN_ORDER, {"order": self.order.name})
                turn = Reason(ReasonCode.FILLS_IN) if waiting else first
                targets[job.id] = Target(job.id, allocations, (turn, Reason(ReasonCode.FEWEST_FRAGMENTS)))
            else:
                empty = empty or placer.cluster.as_empty()
                waiting[job.id] = unschedulable_reason(job, empty)
        victims = self._defragment(situation, ranking, placer, targets, waiting) if self.defragments else {}
        return Decision(self.name, ranking, targets, waiting, victims, dict(situation.state))

    def _defragment(
        self,
        situation: Situation,
        ranking: Sequence[RankedJob],
        placer: FgdPlacer,
        targets: dict[JobId, Target],
        waiting: dict[JobId, Reason],
    ) -> dict[JobId, JobId]:
        """Move running jobs for waiting ones, in order; update all arguments. Return the victims, as in `Decision`."""
        movable, moves_left, victims = movable_jobs(placer, situation), situation.max_moves, dict[JobId, JobId]()
        jobs = {job.id: job for job in situation.jobs}
        for ranked in ranking:
            reason = waiting.get(ranked.job)
            if reason is None or reason.code not in (ReasonCode.NO_ROOM, ReasonCode.NO_SHARDS) or not moves_left:
                continue
            moves = defragment(placer, jobs[ranked.job], movable, moves_left)
            if moves is None:
                continue
            moved = {other.job.id: allocations for other, allocations in moves.moved}
            detail: dict[str, str | int | float] = {"jobs": ", ".join(sorted(moved)), "cost": round(moves.cost)}
            del waiting[ranked.job]
            targets[ranked.job] = Target(ranked.job, moves.allocations, (Reason(ReasonCode.ROOM_IS_MADE, detail),))
            for job, allocations in moved.items():
                nodes = ", ".join(on_node.node for on_node in allocations)
                targets[job] = Target(
                    job, allocations, (Reason(ReasonCode.MAKES_ROOM, {"job": ranked.job, "nodes": nodes}),)
                )
                victims[job] = ranked.job
            movable = [other for other in movable if other.job.id not in moved]
            moves_left -= len(moved)
        return victims


def unschedulable_reason(job: Job, empty: FgdCluster) -> Reason:
    """Return why the job cannot be placed now, or ever. `empty` is the cluster with nothing on it."""
    request = job.original_request
    if what := _too_much(job, empty):
        return Reason(ReasonCode.NEVER_FITS, {"what": what})
    if request.shards:
        return Reason(ReasonCode.NO_SHARDS, {"shards": -(-request.shards // max(request.nodes, 1))})
    if not request.gpus:
        return Reason(ReasonCode.NO_CPUS, {"cpus": request.cpus})
    return Reason(ReasonCode.NO_ROOM, {"gpus": request.gpus})


def _too_much(job: Job, empty: FgdCluster) -> str:
    """Return what the job requests beyond the empty cluster, for people; empty where it fits."""
    request = job.original_request
    try:
        eligible, candidates = empty.eligible_nodes(job), list(empty.candidates(job))
    except PolicyError as error:
        return str(error)
    all_nodes = np.arange(len(empty.nodes))
    for demands, nodes in candidates:
        largest = max((task for task, _ in demands.tasks.kinds), key=lambda task: task.total_milli_gpu)
        if (empty.free.fits(largest, all_nodes) & nodes).sum() >= len(demands.tasks):
            return ""
    types = {node.gpus[0].type for node in empty.nodes if node.gpus}
    if request.gpu_type and request.gpu_type not in types:
        return f"GPUs of type {request.gpu_type}; there are {', '.join(sorted(types)) or 'none'}"
    if not eligible:
        return f"nodes in partition {','.join(job.partitions)} that match its request; there are none"
    most = max(int(empty.shards_per_gpu[nodes].max()) for nodes in eligible)
    return _too_many_shards(request, most) or "this combination of GPUs, CPUs and memory on its nodes"


def _too_many_shards(request: Request, most: int) -> str:
    each = -(-request.shards // max(request.nodes, 1))
    if each and not most:
        return "shards, but the GPUs it may use have none: see gres/shard in slurm.conf"
    return f"{pluralise(each, 'shard')} of one GPU; the GPUs have {most}" if each > most else ""


def keeps_allocation(job: Job) -> bool:
    """Whether the job runs and keeps its allocation."""
    return bool(job.allocations) and job.state in (JobState.RUNNING, JobState.SUSPENDED)
