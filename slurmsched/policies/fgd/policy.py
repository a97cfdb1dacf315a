"""Why a job fits nowhere now: what is not free, or what there is not at all.

What is settled before anything is placed: who runs on, and whose last run is not over.

A round of fragmentation gradient descent (Weng et al., ATC 2023, algorithm 1).

In order, each waiting job goes where it leaves the least of what is idle unusable for the usual jobs, those of the last
days. Jobs without GPUs are placed alike, which keeps them off nodes whose idle GPUs they would strand. Nobody is
displaced, unless defragmenting is asked for: then running jobs move to other nodes where that lets a waiting one start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurmsched.model import Decision, Job, JobId, JobState, RankedJob, Reason, ReasonCode, Request, Target
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.defragment import defragment, movable_jobs
from slurmsched.policies.fgd.placer import FgdCluster, FgdPlacer
from slurmsched.policies.stages import Order, Situation


def unschedulable_reason(job: Job, empty: FgdCluster) -> Reason:
    """`empty` is the cluster with nothing on it."""
    request = job.original_request
    if what := _too_much(job, empty):
        return Reason(ReasonCode.NEVER_FITS, {"what": what})
    if request.shards:
        return Reason(ReasonCode.NO_SHARDS, {"shards": -(-request.shards // max(request.nodes, 1))})
    if not request.gpus:
        return Reason(ReasonCode.NO_CPUS, {"cpus": request.cpus})
    return Reason(ReasonCode.NO_ROOM, {"gpus": request.gpus})


def _too_much(job: Job, empty: FgdCluster) -> str:
    """What is too much for the whole cluster, for people; empty where it would fit."""
    request = job.original_request
    try:
        grounds, homes = empty.eligible_nodes(job), list(empty.candidates(job))
    except PolicyError as error:
        return str(error)
    everywhere = np.arange(len(empty.nodes))
    for wanted, nodes in homes:
        widest = max((task for task, _ in wanted.tasks.kinds), key=lambda task: task.total_milli_gpu)
        if (empty.free.fits(widest, everywhere) & nodes).sum() >= len(wanted.tasks):
            return ""
    types = {node.gpus[0].type for node in empty.nodes if node.gpus}
    if request.gpu_type and request.gpu_type not in types:
        return f"GPUs of type {request.gpu_type}; there are {', '.join(sorted(types)) or 'none'}"
    if not grounds:
        return f"nodes in partition {','.join(job.partitions)} as it wants them; there are none"
    most = max(int(empty.shards_per_gpu[ground].max()) for ground in grounds)
    return _too_many_shards(request, most) or "this many GPUs, CPUs and this much memory together on its nodes"


def _too_many_shards(request: Request, most: int) -> str:
    each = -(-request.shards // max(request.nodes, 1))
    if each and not most:
        return "shards, and the GPUs it may use have none: see gres/shard in slurm.conf"
    return f"{each} shards of one GPU; the GPUs have {most}" if each > most else ""


def keeps_allocation(job: Job) -> bool:
    """Whether the job runs, and keeps what it has."""
    return bool(job.allocations) and job.state in (JobState.RUNNING, JobState.SUSPENDED)


def completing_reason(job: Job) -> Reason | None:
    """Why the job cannot be placed yet, where it has not left its last nodes."""
    if job.state is not JobState.COMPLETING:
        return None
    return Reason(ReasonCode.FREED_SOON, {"jobs": "its own last run", "nodes": ", ".join(job.nodes)})


@dataclass(frozen=True, slots=True)
class FragmentationDescent:
    """The whole system. Where a job does not fit, those behind it are still tried."""

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
            elif shares := placer.place(job):
                first = Reason(ReasonCode.FIRST_IN_ORDER, {"order": self.order.name})
                turn = Reason(ReasonCode.FILLS_IN) if waiting else first
                targets[job.id] = Target(job.id, shares, (turn, Reason(ReasonCode.FEWEST_FRAGMENTS)))
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
        """Which job moved for whom. Everything in the books is changed accordingly."""
        movable, moves_left, victims = movable_jobs(placer, situation), situation.max_moves, dict[JobId, JobId]()
        jobs = {job.id: job for job in situation.jobs}
        for ranked in ranking:
            wants = waiting.get(ranked.job)
            if wants is None or wants.code not in (ReasonCode.NO_ROOM, ReasonCode.NO_SHARDS) or not moves_left:
                continue
            found = defragment(placer, jobs[ranked.job], movable, moves_left)
            if found is None:
                continue
            gone = {tenant.job.id: shares for tenant, shares in found.moved}
            detail: dict[str, str | int | float] = {"jobs": ", ".join(sorted(gone)), "cost": round(found.cost)}
            del waiting[ranked.job]
            targets[ranked.job] = Target(ranked.job, found.allocations, (Reason(ReasonCode.ROOM_IS_MADE, detail),))
            for job, shares in gone.items():
                why = Reason(ReasonCode.MAKES_ROOM, {"job": ranked.job, "nodes": ", ".join(s.node for s in shares)})
                targets[job] = Target(job, shares, (why,))
                victims[job] = ranked.job
            movable = [mover for mover in movable if mover.job.id not in gone]
            moves_left -= len(gone)
        return victims
