"""Builds nodes, partitions and reservations from pyslurm's values.

pyslurm shows how many GPUs of a node are allocated, not which. The allocations of jobs tell which. If they give another
number (a job is hidden or completing), or if shards are allocated, that node is read by commands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from slurmsched.backends.slurm.cluster import parse_node_state
from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.gres import Gres, count_shards, parse_gpus
from slurmsched.backends.slurm.hostlist import expand_hostlist
from slurmsched.backends.slurm.pyslurm_poll import PyslurmValues
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.model import MILLI_PER_GPU, Gpu, Node, Partition, Reservation, Resources

_MINUTE: Final = 60
_SHARED_GRES: Final = ("gres/shard", "gres/mps")


def allocated_devices(records: Iterable[JobRecord]) -> dict[str, set[int]]:
    """The GPU indices allocated to jobs on each node, as far as pyslurm shows them."""
    by_node: defaultdict[str, set[int]] = defaultdict(set)
    for record in records:
        for allocation in record.allocations:
            with suppress(SlurmParseError):  # the job is set aside, and the node is read by commands
                devices = {index for entry in parse_gpus(allocation.gres) for index in entry.indices}
                for node in expand_hostlist(allocation.nodes) if devices else ():
                    by_node[node] |= devices
    return by_node


def build_node(values: PyslurmValues, allocated_gpus: Iterable[int], tracked_tres: Collection[str]) -> Node | None:
    """The node with these GPUs allocated; None if it must be read by commands.

    `tracked_tres` are the TRES that accounting counts: pyslurm shows no allocated amount of the others.
    """
    if values["unread"]:
        return None
    configured = _configured_gres(values)
    entries = parse_gpus(configured)
    types = [entry.type for entry in entries for _ in range(entry.count)]
    devices = {index for index in allocated_gpus if index < len(types)}
    allocated: Mapping[str, str | int] = values["allocated_tres"] or {}
    in_use = int(allocated.get("gres/gpu", 0))
    required = {"gres/gpu"} | {name for name in _SHARED_GRES if name.removeprefix("gres/") in configured}
    hidden = types and values["allocated_cpus"] and not required <= set(tracked_tres)
    if hidden or len(devices) != in_use or any(int(allocated.get(name, 0)) for name in _SHARED_GRES):
        return None
    shards_per_gpu = count_shards(configured) // len(types) if types else 0
    gpus = tuple(
        Gpu(index, kind, MILLI_PER_GPU * (index in devices), shards_per_gpu) for index, kind in enumerate(types)
    )
    return Node(
        name=values["name"],
        gpus=gpus,
        total=_total(values, entries),
        used=Resources(len(devices), values["allocated_cpus"] or 0, values["allocated_memory"] or 0),
        state=parse_node_state(values["state"] or "UNKNOWN"),
        state_text=values["state"] or "UNKNOWN",
        features=frozenset(values["active_features"] or ()),
        partitions=frozenset(values["partitions"] or ()),
        reason=values["reason"] or "",
        weight=values["weight"] or 0,
        reservation="",
    )


def node_totals(nodes: Iterable[PyslurmValues]) -> list[Resources]:
    """The total resources of each node; an empty list if one of them cannot be read."""
    known = tuple(nodes)
    if any(values["unread"] for values in known):
        return []
    try:
        return [_total(values, parse_gpus(_configured_gres(values))) for values in known]
    except (SlurmParseError, TypeError, AttributeError):
        return []


def _configured_gres(values: PyslurmValues) -> str:
    return ",".join(f"{name}:{count}" for name, count in (values["configured_gres"] or {}).items())


def _total(values: PyslurmValues, gpus: Iterable[Gres]) -> Resources:
    return Resources(
        sum(entry.count for entry in gpus),
        values["effective_cpus"] or values["total_cpus"] or 0,
        (values["real_memory"] or 0) - (values["memory_reserved_for_system"] or 0),
    )


def build_partition(values: PyslurmValues, preempt_exempt_time: int) -> Partition:
    """The partition, with times in seconds. Raises SlurmParseError."""
    _require_complete(values)
    limit = values["max_time"] or 0  # pyslurm returns None for 0, and a word for no limit
    return Partition(
        name=values["name"],
        nodes=frozenset(expand_hostlist(values["nodes"] or "")),
        up=values["state"] == "UP",
        max_time=limit * _MINUTE if isinstance(limit, int) else None,
        default=bool(values["is_default"]),
        priority_tier=values["priority_tier"] or 0,
        preempt_exempt_time=preempt_exempt_time,
    )


def build_reservation(values: PyslurmValues) -> Reservation:
    """The reservation, with times in unix seconds. Raises SlurmParseError."""
    _require_complete(values)
    return Reservation(
        name=values["name"],
        nodes=frozenset(expand_hostlist(values["nodes"] or "")),
        start=float(values["start_time"] or 0),
        end=float(values["end_time"] or "inf"),
        users=frozenset(filter(None, values["users"] or ())),
        accounts=frozenset(filter(None, values["accounts"] or ())),
    )


def _require_complete(values: PyslurmValues) -> None:
    if values["unread"]:
        raise SlurmParseError(f"pyslurm cannot read {', '.join(sorted(values['unread']))}")
