"""Which pools a job may lie in at all, room aside."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurmsched.model import Job, NodeState, Request, Reservation, Snapshot
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.placing.features import constraint
from slurmsched.policies.pools import Mask, Pools

__all__ = ["Grounds"]


class Grounds:
    """The pools open to each job. `open_nodes` are the nodes that jobs of each partition may start on."""

    def __init__(self, pools: Pools, snapshot: Snapshot, open_nodes: Mapping[str, frozenset[str]]) -> None:
        self._pools = pools
        self._snapshot = snapshot
        self._open = open_nodes
        self._known: dict[tuple[object, ...], Mask] = {}

    def of(self, job: Job) -> tuple[Mask, ...]:
        """One mask of pools for each partition the job may run in: it lies in one of them, never across two.

        Empty where its constraint cannot be read: then it waits, with the reason NEVER_FITS.
        """
        try:
            wanted = self._asked(job.request)
        except PolicyError:
            return ()
        masks = [wanted & self._partition(partition, job.reservation) for partition in job.partitions]
        return tuple({mask.tobytes(): mask for mask in masks}.values())

    def _asked(self, request: Request) -> Mask:
        key = (request.gpu_type, request.features, request.excluded)
        if key not in self._known:
            accepts = constraint(request.features)
            pools = self._pools
            self._known[key] = np.array(
                [
                    request.gpu_type in (None, gpu_type)
                    and pools.node(pool).name not in request.excluded
                    and accepts(pools.node(pool).features)
                    for pool, gpu_type in enumerate(pools.types)
                ],
                dtype=np.bool_,
            )
        return self._known[key]

    def _partition(self, partition: str, reservation: str) -> Mask:
        key = (partition, reservation)
        if key not in self._known:
            nodes = self._reserved(partition, reservation) if reservation else self._open.get(partition, frozenset())
            pools = self._pools
            self._known[key] = np.array([pools.node(pool).name in nodes for pool in range(len(pools))], dtype=np.bool_)
        return self._known[key]

    def _reserved(self, partition: str, reservation: str) -> frozenset[str]:
        """Nodes of a reservation that holds now: only its own jobs may use them, so nobody's list has them open."""
        active = Reservation.active(self._snapshot.reservations, self._snapshot.time)
        named = frozenset().union(*(r.nodes for r in active if r.name == reservation))
        up = {n.name for n in self._snapshot.nodes if n.state is NodeState.UP and partition in n.partitions}
        return named & up
