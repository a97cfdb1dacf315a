"""Tells that nodes are reserved or out of service, where that is why a job cannot start."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from slurmsched.model import Job, NodeState, Reason, ReasonCode, Reservation, Snapshot
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.cluster.demand import ResourceDemand
from slurmsched.policies.cluster.eligibility import closed_nodes

_MOST_NAMED: Final = 3
"""Most nodes that are named."""


class ClosedNodes:
    """The answers for one snapshot, computed once for jobs that ask alike: where a whole cloud powers up, thousands of
    jobs wait for thousands of nodes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[Hashable, Reason | None] = {}

    def reason(self, job: Job, demand: ResourceDemand) -> Reason | None:
        """Return that nodes are reserved or out of service, if a job that fits the empty cluster may start on no node
        now or names a node that is."""
        request, fits = job.original_request, bool(demand.single_node)
        if fits and not request.pinned:
            return None
        closed = closed_nodes(job, self._snapshot, self._snapshot.time)
        key = (fits, request.pinned, request.gpu_type, frozenset(job.partitions), closed)
        if key not in self._known:
            reserved = None if fits else self._reserved(closed)
            self._known[key] = reserved or self._out_of_service(job, all_nodes=not (fits or request.pinned))
        return self._known[key]

    def _reserved(self, closed: frozenset[str]) -> Reason | None:
        """That there are reservations, if any is active or begins on one of the `closed` nodes before the job ends."""
        now = self._snapshot.time
        names = sorted(reservation.name for reservation in Reservation.active(self._snapshot.reservations, now))
        coming = sorted((r.start, r.name) for r in self._snapshot.reservations if r.start > now and r.nodes & closed)
        names += [f"{name} from {time_of_day(start, now)}" for start, name in coming]
        return Reason(ReasonCode.RESERVED, {"reservation": ", ".join(names)}) if names else None

    def _out_of_service(self, job: Job, *, all_nodes: bool) -> Reason | None:
        """That nodes are not up: of those that the job names, or of all in its partitions."""
        request, snapshot = job.original_request, self._snapshot
        known = snapshot.nodes_by_name
        nodes = snapshot.nodes if all_nodes else (known[name] for name in request.pinned if name in known)
        out = sorted(
            f"{node.name} is {node.state.value}"
            for node in nodes
            if node.state is not NodeState.UP
            and (not all_nodes or not node.partitions.isdisjoint(job.partitions))
            and request.gpu_type in (None, *node.gpu_types)
        )
        more = f" and {len(out) - _MOST_NAMED} more" if len(out) > _MOST_NAMED else ""
        return Reason(ReasonCode.NODES_CLOSED, {"nodes": ", ".join(out[:_MOST_NAMED]) + more}) if out else None
