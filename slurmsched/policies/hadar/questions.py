"""A round on a live cluster as Hadar's question: jobs with their speeds, pools with what can be had of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, JobState, Request
from slurmsched.policies.allocating import Proportional
from slurmsched.policies.fitting import EmptyCluster
from slurmsched.policies.gang import gang_of
from slurmsched.policies.hadar.asking import Allocation, Ask, Speeds
from slurmsched.policies.hadar.servers import Servers
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.placing import Grounds
from slurmsched.policies.protocol import Situation

__all__ = ["Question", "question_of", "why_unmixed"]

UNSAID: Final = 24 * 3600.0
"""Seconds that a job is taken to need of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Question:
    """What `Hadar.decide` is asked. Pools are numbered as in `policies.pools`; jobs that must stay are not in it, nor
    what they hold."""

    queue: tuple[Ask, ...]
    servers: Servers
    running: Mapping[JobId, Allocation]


def question_of(situation: Situation) -> Question:
    """The jobs that may be given a place, by submission, and the GPUs that they have or could have on open nodes."""
    ledger = Ledger.free(situation.snapshot)
    pools, types = ledger.pools, tuple(dict.fromkeys(ledger.pools.types))
    grounds = Grounds(pools, situation.snapshot, situation.usable)
    open_to = {job.id: grounds.of(job) for job in situation.jobs}
    in_order = sorted(situation.jobs, key=lambda job: (job.submit_time, job.id))
    empty = EmptyCluster(pools, situation.snapshot, situation.knowledge, Proportional(), _mixtures(in_order, types))
    asked = [job for job in in_order if job.id not in situation.fixed and _asks(job) and not empty.lacks(job)]
    usable = np.zeros(len(pools), dtype=np.bool_)
    for job in asked:
        for mask in open_to[job.id]:
            usable |= mask
    capacity = np.where(usable, ledger.gpus.clip(min=0), 0)
    running: dict[JobId, Allocation] = {}
    for job in asked:
        if job.shares:
            claim = pools.claim(job.shares)
            running[job.id] = tuple(sorted(zip(claim.pools, claim.gpus, strict=True)))
            for pool, gpus in running[job.id]:
                capacity[pool] += gpus
    type_of = np.array([types.index(kind) for kind in pools.types], dtype=np.int64)
    servers = Servers(types, type_of, pools.node_of, np.asarray(capacity, dtype=np.int64))
    reachable = {
        job.id: {pools.types[pool] for mask in open_to[job.id] for pool in np.flatnonzero(mask)}
        | {share.gpu_type for share in job.shares}
        for job in asked
    }
    copies = Counter(job.copy_of or job.id for job in asked)
    parts = {job.id: copies[job.copy_of or job.id] for job in asked}
    queue = tuple(_part(_ask(job, situation, types, reachable[job.id]), parts[job.id]) for job in asked)
    return Question(queue, servers, running)


def why_unmixed(request: Request) -> str:
    """Why Slurm could not be told to spread this job over GPU types; empty where it could."""
    gang = gang_of(request, None, memory_tunable=False)
    if request.gpu_type is not None:
        return f"it asks for {request.gpu_type}"
    return "it asks for one node, and a node has one type" if gang.most == 1 else ""


def _mixtures(jobs: Iterable[Job], types: tuple[str, ...]) -> dict[JobId, frozenset[str]]:
    return {job.id: frozenset(types) for job in jobs if not why_unmixed(job.request)}


def _asks(job: Job) -> bool:
    return job.request.gpus > 0 and job.state in (JobState.PENDING, JobState.RUNNING)


def _ask(job: Job, situation: Situation, types: tuple[str, ...], reachable: set[str]) -> Ask:
    """Iterations are seconds on the reference type at the proportional share."""
    knowledge, gang = situation.knowledge, gang_of(job.request, None, memory_tunable=False)
    together = tuple(_speed(job, kind, knowledge, 1) if kind in reachable else 0.0 for kind in types)
    apart = tuple(_speed(job, kind, knowledge, 2) if kind in reachable else 0.0 for kind in types)
    speeds = Speeds(job.request.gpus, together, apart, gang.fewest, gang.most, not why_unmixed(job.request))
    left = knowledge.remaining(job)
    left = UNSAID if left == inf else left
    age = max(0.0, situation.snapshot.time - job.submit_time)
    return Ask(job.id, speeds, left, left + knowledge.executed(job), age)


def _part(ask: Ask, copies: int) -> Ask:
    """What one of so many copies has to do of it."""
    return replace(ask, left=ask.left / copies, total=ask.total / copies)


def _speed(job: Job, kind: str, knowledge: Knowledge, nodes: int) -> float:
    return knowledge.type_speed(job, {kind: job.request.gpus}, nodes)
