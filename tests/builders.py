"""Tiny clusters in few words. Memory is MiB, times are seconds, the default node is the Synergy paper's server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from slurmsched.knowledge import Knowledge, Profile, SensitivityMatrix, shipped_profiles
from slurmsched.model import (
    MILLI_PER_GPU,
    Gpu,
    Job,
    JobState,
    Node,
    NodeAllocation,
    NodeState,
    Partition,
    Request,
    Resources,
    Snapshot,
    parse_hints,
)
from slurmsched.policies.cluster.resources import FreeResources
from slurmsched.policies.stages import Situation

GIB = 1024
CPUS = 24
MEMORY = 500 * GIB


def node(
    name: str = "n1",
    gpus: int = 8,
    gpu_type: str = "v100",
    cpus: int = CPUS,
    memory: int = MEMORY,
    busy: Iterable[int] = (),
    used_cpus: int = 0,
    used_memory: int = 0,
    shards: int = 0,
    **other: Any,
) -> Node:
    """A node; `busy` are the indices of GPUs that somebody has, `shards` are there on each GPU."""
    taken = frozenset(busy)
    devices = tuple(Gpu(i, gpu_type, MILLI_PER_GPU if i in taken else 0, shards) for i in range(gpus))
    other.setdefault("partitions", frozenset({"gpu"}))
    other.setdefault("features", frozenset({gpu_type}))
    other.setdefault("state", NodeState.UP)
    return Node(name, devices, Resources(gpus, cpus, memory), Resources(len(taken), used_cpus, used_memory), **other)


def job(
    number: int | str,
    gpus: int = 1,
    cpus: int | None = None,
    memory: int = 0,
    hint: str = "",
    user: str = "alice",
    on: Iterable[NodeAllocation] = (),
    request: Request | None = None,
    **other: Any,
) -> Job:
    """A job; `hint` is what stands behind `synsched:` in its comment; with `on` it runs."""
    shares = tuple(on)
    wanted = request or Request(gpus=gpus, cpus=gpus if cpus is None else cpus, memory=memory)
    comment = other.pop("comment", f"synsched:{hint}" if hint else "")
    other.setdefault("state", JobState.RUNNING if shares else JobState.PENDING)
    other.setdefault("state_text", other["state"].name)
    other.setdefault("partitions", ("gpu",))
    other.setdefault("current_request", other.pop("standing", wanted))
    return Job(
        id=str(number),
        user=user,
        original_request=wanted,
        allocations=shares,
        comment=comment,
        hints=parse_hints(comment),
        **other,
    )


def share(
    where: str = "n1",
    gpus: int | Iterable[int] = 1,
    cpus: int = 3,
    memory: int = MEMORY // 8,
    gpu_type: str = "v100",
) -> NodeAllocation:
    """What a job has on one node; `gpus` as a number or as indices."""
    indices = tuple(range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    return NodeAllocation(where, Resources(len(indices), cpus, memory), gpu_type, indices)


def snapshot(nodes: Iterable[Node] = (), jobs: Iterable[Job] = (), time: float = 10_000.0, **other: Any) -> Snapshot:
    """The cluster; every node's use is what its running jobs have on top of what the node says itself."""
    jobs, nodes = tuple(jobs), tuple(with_jobs(n, jobs) for n in nodes)
    names = sorted({p for n in nodes for p in n.partitions})
    other.setdefault(
        "partitions", tuple(Partition(p, frozenset(n.name for n in nodes if p in n.partitions)) for p in names)
    )
    return Snapshot(time=time, nodes=nodes, jobs=jobs, **other)


def with_jobs(on: Node, jobs: Iterable[Job]) -> Node:
    """The node with the jobs' shares taken."""
    shares = [s for j in jobs for s in j.allocations if s.node == on.name and j.state is not JobState.FINISHED]
    taken = {index for s in shares for index in s.indices} | {g.index for g in on.gpus if not g.idle}
    used = sum((s.resources for s in shares), on.used)
    cut = {g.index: sum(s.shards for s in shares if g.index in s.indices) for g in on.gpus}
    devices = tuple(
        replace(
            g,
            used=MILLI_PER_GPU * cut[g.index] // g.shards if cut[g.index] else MILLI_PER_GPU if g.index in taken else 0,
        )
        for g in on.gpus
    )
    return replace(on, gpus=devices, used=Resources(len(taken), used.cpus, used.memory))


def situation(
    nodes: Iterable[Node],
    jobs: Iterable[Job],
    knowledge: Knowledge | None = None,
    service: Mapping[str, float] | None = None,
    time: float = 10_000.0,
    managed: Iterable[Job] | None = None,
    **other: Any,
) -> Situation:
    """What a policy is asked: every job is managed unless said otherwise, every node that is up may be started on."""
    seen = other.pop("seen", None) or snapshot(nodes, jobs, time)
    known = knowledge or shipped_profiles()
    up = {p.name: frozenset(n for n in p.nodes if seen.nodes_by_name[n].state is NodeState.UP) for p in seen.partitions}
    other.setdefault("open_nodes", up)
    ours = seen.jobs if managed is None else tuple(managed)
    return Situation(
        snapshot=seen,
        jobs=ours,
        knowledge=Knowledge(known.models, known.tasks, service or {}, known.reference),
        **other,
    )


def profile(name: str, cpus: Mapping[float, float], memory: Mapping[float, float] | None = None) -> Profile:
    """Speed by cores per GPU, and by GiB per GPU where that matters: the slower of the two decides."""
    columns = tuple(gib * GIB for gib in memory or {})
    rows = tuple(tuple(min(speed, cached) for cached in (memory or {0: speed}).values()) for speed in cpus.values())
    return Profile(name, "test", {"": SensitivityMatrix(tuple(cpus), columns, rows)}, "by hand")


class Server(NamedTuple):
    """A node with one GPU type: CPUs, MiB and milli-GPU of each device that are idle."""

    cpus: int
    memory: int
    milli: tuple[int, ...]
    gpu_type: str

    def node(self, name: str) -> Node:
        gpus = tuple(Gpu(index, self.gpu_type, MILLI_PER_GPU - idle) for index, idle in enumerate(self.milli))
        return Node(name, gpus, Resources(len(gpus), self.cpus, self.memory), Resources())


def free_resources(servers: Iterable[Server]) -> FreeResources:
    """What is idle on these nodes."""
    nodes = tuple(server.node(f"n{number}") for number, server in enumerate(servers))
    return FreeResources.of_snapshot(Snapshot(0.0, nodes, ()))
