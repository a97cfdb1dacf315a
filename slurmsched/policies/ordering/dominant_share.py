"""Dominant resource fairness (Ghodsi et al., NSDI 2011, section 4; compared with in Synergy, section 5.7)."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from slurmsched.model import Job, Ranked, Resources
from slurmsched.policies.ordering.sorting import nobody, ranked
from slurmsched.policies.protocol import Outranks, Situation

__all__ = ["DominantShare"]


@dataclass(frozen=True, slots=True)
class DominantShare:
    """By progressive filling: next is always a job of the user whose largest part of any resource is the smallest,
    counting what runs and what was ranked before; a user's own jobs go by submission. Nobody is displaced."""

    name: str = "drf"

    def rank(self, situation: Situation) -> tuple[Ranked, ...]:
        whole = sum((node.total for node in situation.snapshot.nodes if node.gpus), Resources())
        in_order = ranked(situation, lambda job: (not job.shares,), lambda _: "")
        jobs = {job.id: job for job in situation.jobs}
        waiting: defaultdict[str, deque[Job]] = defaultdict(deque)
        has: defaultdict[str, Resources] = defaultdict(Resources)
        found: list[Ranked] = []
        for place in in_order:
            job = jobs[place.job]
            if job.shares:
                has[job.user] += job.allocated
                found.append(Ranked(job.id, "runs"))
            else:
                waiting[job.user].append(job)
        users = [(_dominant(has[user], whole), user) for user in waiting]
        heapify(users)
        while users:
            share, user = heappop(users)
            job = waiting[user].popleft()
            found.append(Ranked(job.id, f"{user} has {share:.0%} of what is scarcest"))
            has[user] += _asked(job)
            if waiting[user]:
                heappush(users, (_dominant(has[user], whole), user))
        return tuple(found)

    def outranks(self, situation: Situation) -> Outranks:  # noqa: ARG002 as the protocol has it
        return nobody


def _asked(job: Job) -> Resources:
    return Resources(job.request.gpus, job.request.cpus, job.request.memory * max(job.request.nodes, 1))


def _dominant(has: Resources, whole: Resources) -> float:
    return max(has.gpus / max(whole.gpus, 1), has.cpus / max(whole.cpus, 1), has.memory / max(whole.memory, 1))
