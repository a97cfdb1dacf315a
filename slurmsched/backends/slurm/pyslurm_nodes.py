"""Nodes, partitions and reservations as pyslurm's values, as the model has them.

pyslurm tells how many GPUs of a node are taken and not which. The layouts of the jobs on it say which; where these
account for another number (a job is hidden, or is completing), or where a GPU is cut into shards, the node alone is
read by commands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from slurmsched.backends.slurm.errors import NotUnderstoodError
from slurmsched.backends.slurm.gres import Gres, gpus_in, shards_in
from slurmsched.backends.slurm.hostlist import expand
from slurmsched.backends.slurm.nodes import node_state
from slurmsched.backends.slurm.pyslurm_poll import Values
from slurmsched.backends.slurm.records import JobRecord
from slurmsched.model import MILLI, Gpu, Node, Partition, Reservation, Resources

__all__ = ["devices_of", "node_of", "partition_of", "reservation_of", "totals_of"]

_MINUTE: Final = 60
_PARTS: Final = ("gres/shard", "gres/mps")


def devices_of(records: Iterable[JobRecord]) -> dict[str, set[int]]:
    """By node the GPUs that jobs have, as far as their layouts name them."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for record in records:
        for placement in record.placements:
            with suppress(NotUnderstoodError):  # the job is set aside, and the node's count is another
                devices = {index for entry in gpus_in(placement.gres) for index in entry.indices}
                for node in expand(placement.nodes) if devices else ():
                    found[node] |= devices
    return found


def node_of(values: Values, taken: Iterable[int], tracked: Collection[str]) -> Node | None:
    """The node, of which these GPUs are taken; None where it has to be read by commands.

    `tracked` are the TRES that accounting counts; a node in use may have any taken of those that it does not count.
    """
    if values["unread"]:
        return None
    configured = _configured(values)
    entries = gpus_in(configured)
    types = [entry.type for entry in entries for _ in range(entry.count)]
    devices = {index for index in taken if index < len(types)}
    allocated: Mapping[str, str | int] = values["allocated_tres"] or {}
    in_use = int(allocated.get("gres/gpu", 0))
    counted = {"gres/gpu"} | {part for part in _PARTS if part.removeprefix("gres/") in configured}
    hidden = types and values["allocated_cpus"] and not counted <= set(tracked)
    if hidden or len(devices) != in_use or any(int(allocated.get(part, 0)) for part in _PARTS):
        return None
    sharing = shards_in(configured) // len(types) if types else 0
    gpus = tuple(Gpu(index, kind, MILLI * (index in devices), sharing) for index, kind in enumerate(types))
    return Node(
        name=values["name"],
        gpus=gpus,
        total=_total(values, entries),
        used=Resources(len(devices), values["allocated_cpus"] or 0, values["allocated_memory"] or 0),
        state=node_state(values["state"] or "UNKNOWN"),
        state_text=values["state"] or "UNKNOWN",
        features=frozenset(values["active_features"] or ()),
        partitions=frozenset(values["partitions"] or ()),
        reason=values["reason"] or "",
        weight=values["weight"] or 0,
        reservation="",
    )


def totals_of(nodes: Iterable[Values]) -> list[Resources]:
    """What each of these nodes has, whichever of it is taken; none where one cannot be read."""
    known = tuple(nodes)
    if any(values["unread"] for values in known):
        return []
    try:
        return [_total(values, gpus_in(_configured(values))) for values in known]
    except (NotUnderstoodError, TypeError, AttributeError):
        return []


def _configured(values: Values) -> str:
    return ",".join(f"{name}:{count}" for name, count in (values["configured_gres"] or {}).items())


def _total(values: Values, gpus: Iterable[Gres]) -> Resources:
    return Resources(
        sum(entry.count for entry in gpus),
        values["effective_cpus"] or values["total_cpus"] or 0,
        (values["real_memory"] or 0) - (values["memory_reserved_for_system"] or 0),
    )


def partition_of(values: Values, preempt_exempt_time: int) -> Partition:
    """The partition; times in seconds. Raises NotUnderstoodError."""
    _whole(values)
    limit = values["max_time"] or 0  # 0 comes as None, and no limit as a word
    return Partition(
        name=values["name"],
        nodes=frozenset(expand(values["nodes"] or "")),
        up=values["state"] == "UP",
        max_time=limit * _MINUTE if isinstance(limit, int) else None,
        default=bool(values["is_default"]),
        priority_tier=values["priority_tier"] or 0,
        preempt_exempt_time=preempt_exempt_time,
    )


def reservation_of(values: Values) -> Reservation:
    """The reservation; times in unix seconds. Raises NotUnderstoodError."""
    _whole(values)
    return Reservation(
        name=values["name"],
        nodes=frozenset(expand(values["nodes"] or "")),
        start=float(values["start_time"] or 0),
        end=float(values["end_time"] or "inf"),
        users=frozenset(filter(None, values["users"] or ())),
        accounts=frozenset(filter(None, values["accounts"] or ())),
    )


def _whole(values: Values) -> None:
    if values["unread"]:
        raise NotUnderstoodError(f"pyslurm cannot read {', '.join(sorted(values['unread']))}")
