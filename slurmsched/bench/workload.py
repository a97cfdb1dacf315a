"""Generates clusters of equal nodes and queues of typical jobs for measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurmsched.model import (
    MILLI_PER_GPU,
    Decision,
    Gpu,
    Job,
    JobState,
    Node,
    NodeAllocation,
    Partition,
    Request,
    Resources,
    SchedulerState,
    Snapshot,
    parse_hints,
)

NOW = 1_700_000_000.0
CPUS_PER_GPU, MEMORY_PER_GPU = 3, 64_000
"""The Synergy paper's servers: 24 cores and 500 GB for 8 GPUs (section 5.1)."""

_SIZES, _ODDS = (1, 2, 4, 8, 16), (0.6, 0.15, 0.15, 0.08, 0.02)
_MODELS = ("resnet50", "alexnet", "gnmt", "bert", "deepspeech")
_HOURS = (0.5, 100.0)


def generate_snapshot(gpus: int, nodes: int, jobs: int, seed: int = 0) -> Snapshot:
    """Returns `gpus` GPUs, a multiple of `nodes`, on equal nodes, and `jobs` waiting jobs of up to 16 GPUs."""
    random, gpus_per_node = np.random.default_rng(seed), gpus // nodes
    names = tuple(f"n{number:04}" for number in range(1, nodes + 1))
    gpu_type, total = "v100", Resources(gpus_per_node, gpus_per_node * CPUS_PER_GPU, gpus_per_node * MEMORY_PER_GPU)
    devices = tuple(Gpu(index, gpu_type) for index in range(gpus_per_node))
    hosts = tuple(Node(name, devices, total, Resources(), partitions=frozenset({"gpu"})) for name in names)
    sizes = random.choice(_SIZES, size=jobs, p=_ODDS)
    models = random.choice(_MODELS, size=jobs)
    hours = random.uniform(*_HOURS, size=jobs)
    queue = tuple(
        _job(number, min(int(size), gpus), gpus_per_node, str(model), float(length))
        for number, (size, model, length) in enumerate(zip(sizes, models, hours, strict=True), start=1)
    )
    return Snapshot(NOW, hosts, queue, (Partition("gpu", frozenset(names)),), cluster="generated")


def follow_decision(snapshot: Snapshot, decision: Decision, seed: int = 0) -> tuple[Snapshot, SchedulerState]:
    """Returns the cluster some hours after the decision was applied, with every target running."""
    random = np.random.default_rng(seed)
    gpus_taken: dict[str, int] = {}
    jobs = tuple(_started(job, decision, gpus_taken, float(random.uniform(*_HOURS)) * 3600) for job in snapshot.jobs)
    used: dict[str, Resources] = {}
    for allocation in (allocation for job in jobs for allocation in job.allocations):
        used[allocation.node] = used.get(allocation.node, Resources()) + allocation.resources
    nodes = tuple(_with_usage(node, used.get(node.name, Resources())) for node in snapshot.nodes)
    service = {job.id: job.gpus * job.run_time for job in jobs if job.allocations}
    return replace(snapshot, nodes=nodes, jobs=jobs), SchedulerState(service=service, policy_state=decision.state)


def _job(number: int, gpus: int, gpus_per_node: int, model: str, hours: float) -> Job:
    nodes = -(-gpus // gpus_per_node)
    request = Request(
        gpus=gpus,
        gpus_per_node=gpus_per_node if nodes > 1 else None,
        nodes=nodes,
        tasks=nodes,
        cpus=gpus * CPUS_PER_GPU,
        memory=gpus // nodes * MEMORY_PER_GPU,
    )
    comment = f"synsched:model={model},ckpt=usr1@60,duration={int(hours * 60)}m"
    return Job(
        id=str(number),
        user=f"user{number % 20}",
        original_request=request,
        current_request=request,
        partitions=("gpu",),
        submit_time=NOW - 1e6 + number,
        comment=comment,
        hints=parse_hints(comment),
    )


def _started(job: Job, decision: Decision, gpus_taken: dict[str, int], seconds: float) -> Job:
    target = decision.targets.get(job.id)
    if target is None:
        return job
    allocations = tuple(_with_indices(allocation, gpus_taken) for allocation in target.allocations)
    return replace(
        job,
        state=JobState.RUNNING,
        state_text="RUNNING",
        allocations=allocations,
        start_time=NOW - seconds,
        run_time=seconds,
    )


def _with_indices(allocation: NodeAllocation, gpus_taken: dict[str, int]) -> NodeAllocation:
    first = gpus_taken.get(allocation.node, 0)
    gpus_taken[allocation.node] = first + allocation.resources.gpus
    return replace(allocation, indices=tuple(range(first, gpus_taken[allocation.node])))


def _with_usage(node: Node, used: Resources) -> Node:
    gpus = tuple(replace(gpu, used=MILLI_PER_GPU if gpu.index < used.gpus else 0) for gpu in node.gpus)
    return replace(node, gpus=gpus, used=used)
