"""Why a job fits nowhere now: what is not free, or what there is not at all."""

from __future__ import annotations

import numpy as np

from slurmsched.model import Code, Job, Reason, Request
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.cluster import FragmentedCluster

__all__ = ["wanting"]


def wanting(job: Job, empty: FragmentedCluster) -> Reason:
    """`empty` is the cluster with nothing on it."""
    request = job.request
    if what := _too_much(job, empty):
        return Reason(Code.NEVER_FITS, {"what": what})
    if request.shards:
        return Reason(Code.NO_SHARDS, {"shards": -(-request.shards // max(request.nodes, 1))})
    if not request.gpus:
        return Reason(Code.NO_CPUS, {"cpus": request.cpus})
    return Reason(Code.NO_ROOM, {"gpus": request.gpus})


def _too_much(job: Job, empty: FragmentedCluster) -> str:
    """What is too much for the whole cluster, for people; empty where it would fit."""
    request = job.request
    try:
        grounds, homes = empty.open_to(job), list(empty.homes(job))
    except PolicyError as error:
        return str(error)
    everywhere = np.arange(len(empty.nodes))
    for wanted, nodes in homes:
        widest = max((task for task, _ in wanted.tasks.kinds), key=lambda task: task.demand)
        if (empty.idle.fits(widest, everywhere) & nodes).sum() >= len(wanted.tasks):
            return ""
    types = {node.gpus[0].type for node in empty.nodes if node.gpus}
    if request.gpu_type and request.gpu_type not in types:
        return f"GPUs of type {request.gpu_type}; there are {', '.join(sorted(types)) or 'none'}"
    if not grounds:
        return f"nodes in partition {','.join(job.partitions)} as it wants them; there are none"
    most = max(int(empty.shards[ground].max()) for ground in grounds)
    return _too_many_shards(request, most) or "this many GPUs, CPUs and this much memory together on its nodes"


def _too_many_shards(request: Request, most: int) -> str:
    each = -(-request.shards // max(request.nodes, 1))
    if each and not most:
        return "shards, and the GPUs it may use have none: see gres/shard in slurm.conf"
    return f"{each} shards of one GPU; the GPUs have {most}" if each > most else ""
