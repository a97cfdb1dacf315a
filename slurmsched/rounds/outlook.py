"""What would help a job that waits: a smaller request now, or the end of those who run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest

from slurmsched.model import Job, JobId, JobState, Node, Request, Resources, Share, Snapshot
from slurmsched.rounds.usable import open_to

__all__ = ["Outlook"]


@dataclass(frozen=True)
class Outlook:
    """The cluster after this round's starts. `usable` nodes by partition; `promised` are the shares of jobs that are
    about to start and do not run yet.

    Many jobs ask for the same: answers are kept, so one outlook can be asked about every job of a round.
    """

    snapshot: Snapshot
    usable: Mapping[str, frozenset[str]]
    promised: tuple[Share, ...] = ()

    def fits_now(self, job: Job) -> int:
        """The most GPUs that one node still has for it, with their share of CPUs and memory; 0 where no node has any.

        Of one node only: so many would start as a single-node job, whatever waits ahead of it aside.
        """
        wish = self._wish(job)
        if wish not in self._fitting:
            self._fitting[wish] = max((self._seats(self.snapshot.node[name], job) for name in wish.nodes), default=0)
        return self._fitting[wish]

    def freed_by(self, job: Job) -> tuple[JobId, float] | None:
        """The running job whose time limit, as the last of those needed, frees enough GPUs; and when (unix seconds).

        None where there are enough now, or no time limit promises them. GPUs are counted, not CPUs or memory.
        """
        wish = self._wish(job)
        if wish not in self._freeing:
            self._freeing[wish] = self._last_needed(job, wish.nodes)
        return self._freeing[wish]

    def _last_needed(self, job: Job, nodes: frozenset[str]) -> tuple[JobId, float] | None:
        idle = Counter({name: max(0, self._left(self.snapshot.node[name], job).gpus) for name in nodes})
        if _enough(idle, job.request):
            return None
        for end, other in self._endings:
            freed = {s.node: s.resources.gpus for s in other.shares if s.node in idle and _suits(s.gpu_type, job)}
            idle.update(freed)
            # on one node only what has just grown can have become enough
            grown = {name: idle[name] for name in freed} if _most_nodes(job.request) == 1 else idle
            if freed and _enough(grown, job.request):
                return other.id, end
        return None

    def _wish(self, job: Job) -> _Wish:
        return _Wish(job.request, open_to(job, self.snapshot, self.usable) - job.request.excluded)

    def _left(self, node: Node, job: Job) -> Resources:
        """What the node has for this job once the promised shares are taken; GPUs of a type it can use."""
        free, idle = self._free[node.name]
        gpus = sum(count for gpu_type, count in idle.items() if _suits(gpu_type, job))
        return Resources(gpus, free.cpus, free.memory) - self._taken.get(node.name, Resources())

    def _seats(self, node: Node, job: Job) -> int:
        left = self._left(node, job)
        return next((n for n in range(max(0, left.gpus), 0, -1) if node.proportional(n).fits_in(left)), 0)

    @cached_property
    def _free(self) -> dict[str, tuple[Resources, Counter[str]]]:
        """Per node what is free, and its idle GPUs by type."""
        return {node.name: (node.free, Counter(g.type for g in node.gpus if g.idle)) for node in self.snapshot.nodes}

    @cached_property
    def _taken(self) -> dict[str, Resources]:
        taken: dict[str, Resources] = {}
        for share in self.promised:
            taken[share.node] = taken.get(share.node, Resources()) + share.resources
        return taken

    @cached_property
    def _endings(self) -> Sequence[tuple[float, Job]]:
        """Running jobs with the latest moment they end at, soonest first."""
        running = ((_latest_end(job, self.snapshot), job) for job in self.snapshot.in_state(JobState.RUNNING))
        return sorted(((end, job) for end, job in running if end is not None), key=lambda entry: entry[0])

    @cached_property
    def _fitting(self) -> dict[_Wish, int]:
        return {}

    @cached_property
    def _freeing(self) -> dict[_Wish, tuple[JobId, float] | None]:
        return {}


@dataclass(frozen=True, slots=True)
class _Wish:
    """What two jobs must have in common to get the same answer."""

    request: Request
    nodes: frozenset[str]


def _suits(gpu_type: str, job: Job) -> bool:
    return job.request.gpu_type in (None, gpu_type) or not gpu_type


def _enough(idle: Mapping[str, int], asked: Request) -> bool:
    """Whether so many idle GPUs by node would do: on as many nodes as it wants."""
    if asked.gpus_per_node:
        return sum(count >= asked.gpus_per_node for count in idle.values()) >= _most_nodes(asked)
    return sum(nlargest(_most_nodes(asked), idle.values())) >= asked.gpus


def _most_nodes(asked: Request) -> int:
    if asked.gpus_per_node:
        return asked.gpus // asked.gpus_per_node
    return max(asked.nodes, asked.max_nodes or 1)


def _latest_end(job: Job, snapshot: Snapshot) -> float | None:
    if job.time_limit is not None:
        return snapshot.time + max(0.0, job.time_limit - job.run_time)
    return job.end_time
