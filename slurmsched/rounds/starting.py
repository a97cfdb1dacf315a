"""What earlier rounds promised to jobs that are about to start: it is given to no other job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from slurmsched.model import (
    MILLI_PER_GPU,
    Gpu,
    JobId,
    JobState,
    Node,
    NodeAllocation,
    OpenStart,
    Reason,
    ReasonCode,
    Resources,
    Snapshot,
)


def promise_starts(snapshot: Snapshot, starting: Mapping[JobId, OpenStart]) -> Snapshot:
    """The snapshot with all that jobs about to start are promised counted as used, as far as it is free yet.

    What the jobs that leave for them still have is counted already. Slurm chooses the GPUs: the first idle ones count,
    and for shards the first one with enough of them left.
    """
    promised, leaving = dict[str, Resources](), leaving_jobs(starting)
    shards = dict[str, list[NodeAllocation]]()
    for share in (share for start in starting.values() for share in start.allocations):
        promised[share.node] = promised.get(share.node, Resources()) + share.resources
        if share.shards:
            shards.setdefault(share.node, []).append(share)
    for share in (
        share for job in leaving if job in snapshot.jobs_by_id for share in snapshot.jobs_by_id[job].allocations
    ):
        promised[share.node] = promised.get(share.node, Resources()) - share.resources
        claims = shards.get(share.node, [])
        claims[:1] = [] if claims and claims[0].shards <= share.shards else claims[:1]
    if not promised:
        return snapshot
    return replace(
        snapshot,
        nodes=tuple(
            _charge_shards(_charge(node, promised.get(node.name, Resources())), shards.get(node.name, ()))
            for node in snapshot.nodes
        ),
    )


def unattributed_usage(snapshot: Snapshot) -> tuple[NodeAllocation, ...]:
    """What nodes show as used and no job has: nodes are read before jobs, and one ended in between. None where jobs are
    set aside, which may have it. A job with devices of other kinds has CPUs too, so that usage without CPUs does not
    count."""
    if snapshot.set_aside:
        return ()
    held, devices = dict[str, Resources](), set[tuple[str, int]]()
    for job in snapshot.jobs:
        for share in job.allocations if job.state is not JobState.FINISHED else ():
            held[share.node] = held.get(share.node, Resources()) + share.resources
            devices |= {(share.node, index) for index in share.indices}
    return tuple(
        share
        for node in snapshot.nodes
        for share in _unattributed(node, node.used - held.get(node.name, Resources()), devices)
    )


def _unattributed(node: Node, rest: Resources, devices: Collection[tuple[str, int]]) -> Iterator[NodeAllocation]:
    """Yield this rest of the node's usage by GPU type."""
    if rest.cpus <= 0:
        return
    gpus = [gpu for gpu in node.gpus if gpu.used == MILLI_PER_GPU and (node.name, gpu.index) not in devices]
    gpus, cpus, memory = gpus[: max(rest.gpus, 0)], rest.cpus, max(rest.memory, 0)
    for kind in dict.fromkeys(gpu.type for gpu in gpus) or ("",):
        indices = tuple(gpu.index for gpu in gpus if gpu.type == kind)
        yield NodeAllocation(node.name, Resources(len(indices), cpus, memory), kind, indices)
        cpus = memory = 0


def leaving_jobs(starting: Mapping[JobId, OpenStart]) -> dict[JobId, Reason]:
    """The jobs that leave for those about to start, each with its reason: they are preempted for no other job."""
    newcomers: dict[JobId, list[JobId]] = {}
    for job, start in starting.items():
        for other in start.gone:
            newcomers.setdefault(other, []).append(job)
    return {job: Reason(ReasonCode.GIVES_WAY, {"newcomers": ", ".join(them)}) for job, them in newcomers.items()}


def freeing_nodes(starting: Mapping[JobId, OpenStart]) -> frozenset[str]:
    """The nodes on which jobs leave, or have left, for those about to start."""
    return frozenset(share.node for start in starting.values() if start.gone for share in start.allocations)


def _charge(node: Node, promised: Resources) -> Node:
    gpus, left = list[Gpu](), promised.gpus
    for gpu in node.gpus:
        taken = gpu.idle and left > 0
        left -= taken
        gpus.append(replace(gpu, used=MILLI_PER_GPU) if taken else gpu)
    more = Resources(max(promised.gpus - left, 0), max(promised.cpus, 0), max(promised.memory, 0))
    return replace(node, gpus=tuple(gpus), used=node.used + more)


def _charge_shards(node: Node, claims: Sequence[NodeAllocation]) -> Node:
    gpus = list(node.gpus)
    for claim in claims:
        for at, gpu in enumerate(gpus):
            part = MILLI_PER_GPU * claim.shards // gpu.shards if gpu.shards else MILLI_PER_GPU + 1
            if claim.gpu_type in ("", gpu.type) and gpu.used + part <= MILLI_PER_GPU:
                gpus[at] = replace(gpu, used=gpu.used + part)
                break
    more = sum(not after.idle for after in gpus) - sum(not before.idle for before in node.gpus)
    return replace(node, gpus=tuple(gpus), used=node.used + Resources(more)) if claims else node


def starting_jobs(
    snapshot: Snapshot, starting: Mapping[JobId, OpenStart], jobs: Collection[JobId]
) -> dict[JobId, Reason]:
    """The pending ones among these jobs that are about to start, with the reason: nothing is decided about them."""
    return {
        job: Reason(ReasonCode.STARTING, {"nodes": ", ".join(sorted(share.node for share in start.allocations))})
        for job, start in starting.items()
        if job in jobs and snapshot.jobs_by_id[job].state is JobState.PENDING
    }
