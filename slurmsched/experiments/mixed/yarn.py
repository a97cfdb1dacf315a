"""YARN's capacity scheduler in the replay, as Hadar compares with it (section V of its paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmsched.experiments.mixed.rounds import Grant, Question

__all__ = ["YarnCapacity"]


@dataclass(frozen=True, slots=True)
class YarnCapacity:
    """One queue, first in first out: who runs, runs to its end, and nobody passes the first that waits.

    Containers know no GPU types: a gang takes what is free, on several types too, the emptiest servers first.
    Types on which the job cannot run at all are left out.
    """

    name: str = "yarn-cs"

    def decide(self, question: Question) -> Sequence[Grant]:
        grants = [one.grant for one in question.last if one.grant.jobs[0] in question.jobs]
        running = {grant.jobs[0] for grant in grants}
        taken = {worker for grant in grants for worker in grant.workers}
        free = [worker for worker in range(len(question.workers)) if worker not in taken]
        for name, job in question.jobs.items():
            if name in running:
                continue
            usable = [at for at in free if job.work.rates.get(question.workers.types[at], 0.0) > 0]
            if len(usable) < job.work.width:
                break
            place = _roomiest(usable, question.workers.servers)[: job.work.width]
            grants.append(Grant((name,), tuple(sorted(place))))
            free = [worker for worker in free if worker not in place]
        return grants


def _roomiest(free: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Those of the server with the most of them first."""
    count = [servers[worker] for worker in free]
    return sorted(free, key=lambda worker: (-count.count(servers[worker]), worker))
