"""Where a request fits: how Slurm splits a job over nodes and picks its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from slurmsched.backends.simulated.machine import Machine
from slurmsched.model import Request, Resources, Share

__all__ = ["fit"]


def fit(request: Request, machines: Sequence[Machine]) -> tuple[Share, ...] | None:
    """The shares this request would get now, or None. `machines` are usable and stand in order of preference.

    The fewest nodes are tried first; an even split before an uneven one, which only a request without `gpus_per_node`
    may have. Pinned nodes are always part; with as many of them as nodes are wanted there are no others. A request
    that says nothing of memory gets the GPU-proportional part, as with DefMemPerGPU.
    """
    offered = [m for m in machines if m.name not in request.excluded and _has(m, request.features)]
    if request.exclusive:
        offered = [m for m in offered if not m.claims]
    if request.pinned:
        offered.sort(key=lambda m: m.name not in request.pinned)
        if not request.pinned <= {m.name for m in offered}:
            return None
    for count in _node_counts(request):
        machines_now = offered[: len(request.pinned)] if len(request.pinned) >= count else offered
        shares = _evenly(request, machines_now, count) or _unevenly(request, machines_now, count)
        if shares:
            return shares
    return None


def _has(machine: Machine, features: str) -> bool:
    """`a&b|c`, as --constraint has it."""
    return not features or any(
        all(feature in machine.facts.features for feature in choice.split("&")) for choice in features.split("|")
    )


def _node_counts(request: Request) -> range:
    if request.gpus_per_node:
        least = -(-request.gpus // request.gpus_per_node)
        return range(least, least + 1)
    least = max(request.nodes, len(request.pinned), 1)
    return range(least, max(least, request.max_nodes or 0) + 1)


def _evenly(request: Request, machines: Sequence[Machine], count: int) -> tuple[Share, ...] | None:
    if request.gpus % count:
        return None
    shares: list[Share] = []
    for machine in machines:
        share = _share(request, machine, request.gpus // count, -(-request.cpus // count))
        if share is not None:
            shares.append(share)
            if len(shares) == count:
                return tuple(shares)
        elif machine.name in request.pinned:
            return None
    return None


def _unevenly(request: Request, machines: Sequence[Machine], count: int) -> tuple[Share, ...] | None:
    """Most free GPUs first; each of `count` nodes gives at least one."""
    if request.gpus_per_node or count == 1 or request.gpus < count:
        return None
    per_gpu = request.cpus / request.gpus
    room = [(machine, _most(request, machine, per_gpu)) for machine in machines]
    room = sorted((r for r in room if r[1]), key=lambda r: (r[0].name not in request.pinned, -r[1]))[:count]
    if len(room) < count or not request.pinned <= {machine.name for machine, _ in room}:
        return None
    left, shares = request.gpus, list[Share]()
    for place, (machine, most) in enumerate(room):
        gpus = min(most, left - (count - place - 1))
        share = _share(request, machine, gpus, -(-request.cpus * gpus // request.gpus))
        if share is None:
            return None
        shares.append(share)
        left -= gpus
    return tuple(shares) if not left else None


def _most(request: Request, machine: Machine, cpus_per_gpu: float) -> int:
    idle = max((len(devices) for devices in machine.idle_by_type(request.gpu_type).values()), default=0)
    return min(idle, int(machine.cpus / cpus_per_gpu)) if request.memory <= machine.memory else 0


def _share(request: Request, machine: Machine, gpus: int, cpus: int) -> Share | None:
    if request.exclusive:
        cpus = machine.facts.total.cpus
    memory = request.memory or machine.facts.proportional(gpus).memory
    if cpus > machine.cpus or memory > machine.memory or gpus > len(machine.idle):
        return None
    if request.shards:
        return _part(request, machine, Resources(0, cpus, memory))
    if not gpus:
        return Share(machine.name, Resources(0, cpus, memory))
    for gpu_type, devices in machine.idle_by_type(request.gpu_type).items():
        if len(devices) >= gpus:
            return Share(machine.name, Resources(gpus, cpus, memory), gpu_type, tuple(devices[:gpus]))
    return None


def _part(request: Request, machine: Machine, size: Resources) -> Share | None:
    """Every node gives as many shards, from the first device of its own that has enough of them left (measured on
    22.05, 24.11 and 26.05)."""
    shards = -(-request.shards // max(request.nodes, 1))
    for gpu in machine.facts.gpus:
        if gpu.shards and request.gpu_type in (None, gpu.type):
            share = Share(machine.name, size, gpu.type, (gpu.index,), shards)
            if machine.holds(share):
                return share
    return None
