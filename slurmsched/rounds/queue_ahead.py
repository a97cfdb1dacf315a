"""Finds the jobs ahead of a waiting one that have, or get, what it could use.

With thousands of waiting jobs a walk along the order for each of them takes the square of their number. Jobs that may
use the same nodes and GPU types have the same holders before them, so these are listed once, by rank.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from slurmsched.model import Decision, Job, RankedJob, Snapshot, Target
from slurmsched.rounds.scope import EligibleNodeCache


class QueueAhead:
    """The jobs with targets by their place in the decision's order; `usable` are nodes by partition."""

    def __init__(self, snapshot: Snapshot, decision: Decision, usable: Mapping[str, frozenset[str]]) -> None:
        self._decision = decision
        self._eligible_nodes = EligibleNodeCache(snapshot, usable)
        self._holders: dict[tuple[frozenset[str], str | None], Sequence[int]] = {}

    def nearest(self, job: Job, index: int, most: int) -> Iterator[RankedJob]:
        """The last `most` jobs before `index` in the order that have something which the job could use, nearest
        first."""
        holders = self._holders_on(self._eligible_nodes.of(job), job.original_request.gpu_type)
        for place in range(bisect_left(holders, index) - 1, -1, -1)[:most]:
            yield self._decision.order[holders[place]]

    def _holders_on(self, nodes: frozenset[str], wanted: str | None) -> Sequence[int]:
        key = nodes, wanted
        if key not in self._holders:
            self._holders[key] = [index for index, target in self._targets if _holds(target, nodes, wanted)]
        return self._holders[key]

    @cached_property
    def _targets(self) -> Sequence[tuple[int, Target]]:
        """The targets by index in the order."""
        targets = self._decision.targets
        return [(i, targets[ranked.job]) for i, ranked in enumerate(self._decision.order) if ranked.job in targets]


def _holds(target: Target, nodes: frozenset[str], wanted: str | None) -> bool:
    """Whether a job with this target has something on these nodes that a job which asks for this GPU type could use."""
    return any(
        allocation.node in nodes and (not wanted or allocation.gpu_type in ("", wanted))
        for allocation in target.allocations
    )
