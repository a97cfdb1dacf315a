"""What is known of a live cluster as a problem: how fast each job is on each GPU type, and how many GPUs there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job
from slurmsched.policies.allocating import Proportional
from slurmsched.policies.fitting import EmptyCluster
from slurmsched.policies.gavel.problem import Floats
from slurmsched.policies.pools import Pools
from slurmsched.policies.protocol import Situation

__all__ = ["managed_gpus", "on_type", "rate_matrix"]


def rate_matrix(situation: Situation, types: Sequence[str]) -> Floats:
    """Steps per second, or any other unit that a job's types share; [jobs, types].

    0 where the job asks for another type, is too wide for the nodes of this one, or is known not to run there. A job of
    which nothing is known is as fast on every type.
    """
    snapshot, knowledge = situation.snapshot, situation.knowledge
    empty = EmptyCluster(Pools(snapshot.nodes), snapshot, knowledge, Proportional())
    alike: dict[tuple[object, ...], list[float]] = {}
    found = np.zeros((len(situation.jobs), len(types)))
    for row, job in enumerate(situation.jobs):
        asked = job.request, job.partitions, id(knowledge.profile(job)), job.hints.memory_tunable
        if asked not in alike:
            alike[asked] = [
                rate if (rate := _rate(job, kind, knowledge)) > 0 and not empty.lacks(on_type(job, kind)) else 0.0
                for kind in types
            ]
        found[row] = alike[asked]
    return found


def on_type(job: Job, kind: str) -> Job:
    """The job as if it asked for this type; itself where it asks for one already."""
    return job if job.request.gpu_type else replace(job, request=replace(job.request, gpu_type=kind))


def managed_gpus(situation: Situation, types: Sequence[str]) -> dict[str, int]:
    """GPUs of each type that are idle on nodes jobs may start on, or that managed jobs have."""
    usable = frozenset[str]().union(*situation.usable.values())
    found = dict.fromkeys(types, 0)
    for node in situation.snapshot.nodes:
        for gpu in node.gpus if node.name in usable else ():
            found[gpu.type] += gpu.idle
    for job in situation.jobs:
        for share in job.shares:
            if share.gpu_type in found:
                found[share.gpu_type] += share.resources.gpus
    return found


def _rate(job: Job, kind: str, knowledge: Knowledge) -> float:
    if job.request.gpu_type not in (None, kind):
        return 0.0
    profile = knowledge.profile(job)
    scaling = profile.scaling if profile else {}
    if not scaling:
        return float(max(job.request.gpus, 1))
    return scaling[kind].at(max(job.request.gpus, 1)) if kind in scaling else 0.0
