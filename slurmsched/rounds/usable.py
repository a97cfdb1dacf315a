"""Where managed jobs may start now: nodes that are up, in a partition that is up, and promised to nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from slurmsched.model import Job, NodeState, Reservation, Snapshot

__all__ = ["avoiding_reservations", "open_to", "usable_nodes"]


def usable_nodes(snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """Per partition the nodes on which its jobs may start, those inside an active reservation left out."""
    up = {node.name for node in snapshot.nodes if node.state is NodeState.UP}
    active = Reservation.active(snapshot.reservations, snapshot.time)
    up -= {name for reservation in active for name in reservation.nodes}
    return {p.name: frozenset(p.nodes & up) if p.up else frozenset() for p in snapshot.partitions}


def open_to(job: Job, snapshot: Snapshot, usable: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The nodes on which this job may start: its partitions' usable ones, or those of the reservation it names.

    Left out are nodes of a reservation that begins before the job would end: Slurm starts nothing across it.
    """
    if job.reservation:
        return _reserved_for(job, snapshot)
    nodes = frozenset().union(*(usable.get(partition, frozenset()) for partition in job.partitions))
    return nodes - _reserved_before_it_ends(job, snapshot)


def avoiding_reservations(job: Job, snapshot: Snapshot) -> Job:
    """The job as a policy should see it: nodes that a coming reservation closes to it are among its excluded ones."""
    closed = frozenset() if job.reservation else _reserved_before_it_ends(job, snapshot)
    if closed <= job.request.excluded:
        return job
    return replace(job, request=replace(job.request, excluded=job.request.excluded | closed))


def _reserved_for(job: Job, snapshot: Snapshot) -> frozenset[str]:
    active = Reservation.active(snapshot.reservations, snapshot.time)
    nodes = frozenset().union(*(reservation.nodes for reservation in active if reservation.name == job.reservation))
    open_partitions = [p for p in snapshot.partitions if p.up and p.name in job.partitions]
    allowed = frozenset().union(*(partition.nodes for partition in open_partitions))
    return frozenset(
        name for name in nodes & allowed if name in snapshot.node and snapshot.node[name].state is NodeState.UP
    )


def _reserved_before_it_ends(job: Job, snapshot: Snapshot) -> frozenset[str]:
    end = inf if job.time_limit is None else snapshot.time + job.time_limit
    coming = (r for r in snapshot.reservations if snapshot.time < r.start < end)
    return frozenset().union(*(reservation.nodes for reservation in coming))
