"""Generates clusters of equal nodes and queues of typical jobs for measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.model import (
    MILLI_PER_GPU,
    Decision,
    Gpu,
    Job,
    JobId,
    JobState,
    MeasuredRate,
    Node,
    NodeState,
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
_SPEEDS: Final = (1.0, 0.6, 0.2)
_SPREAD: Final = (0.75, 1.25)
"""Rates on the types of `QueueShape`, and the factor by which those of models and of jobs differ."""
_KEPT_BESIDE: Final = (0.4, 0.95)
_STEP: Final = 3600.0
"""Seconds from a decision to the next one: longer than any policy keeps what it computed."""


@dataclass(frozen=True, slots=True)
class QueueShape:
    """What a generated cluster and queue are like: GPU types, each of the same number of nodes if it can be, users and
    the accounts that they are divided among.

    `all_different`: each job has measured rates of its own on every type; else jobs of the same model have the same.
    `sizes_differ`: jobs ask for any number of CPUs up to their share, so that hardly two ask alike.
    `powering_up`: once the first jobs have started, no node takes others, as where all of a cloud power up.
    `shards_per_gpu`: jobs of one GPU ask for half of a GPU of so many shards instead; 0 for none.
    """

    gpu_types: tuple[str, ...] = ("v100",)
    users: int = 20
    accounts: int = 0
    all_different: bool = False
    sizes_differ: bool = False
    powering_up: bool = False
    shards_per_gpu: int = 0


THREE_TYPES: Final = QueueShape(("v100", "p100", "k80"), users=500, accounts=20)


def generate_snapshot(
    gpus: int,
    nodes: int,
    jobs: int,
    seed: int = 0,
    shape: QueueShape = QueueShape(),
) -> Snapshot:
    """Returns `gpus` GPUs, a multiple of `nodes`, on equal nodes, and `jobs` waiting jobs of up to 16 GPUs."""
    random, gpus_per_node = np.random.default_rng(seed), gpus // nodes
    names = tuple(f"n{number:04}" for number in range(1, nodes + 1))
    total = Resources(gpus_per_node, gpus_per_node * CPUS_PER_GPU, gpus_per_node * MEMORY_PER_GPU)
    hosts = tuple(
        Node(
            name,
            tuple(
                Gpu(index, shape.gpu_types[number * len(shape.gpu_types) // nodes], shards=shape.shards_per_gpu)
                for index in range(gpus_per_node)
            ),
            total,
            Resources(),
            partitions=frozenset({"gpu"}),
        )
        for number, name in enumerate(names)
    )
    sizes = random.choice(_SIZES, size=jobs, p=_ODDS)
    models = random.choice(_MODELS, size=jobs)
    hours = random.uniform(*_HOURS, size=jobs)
    shares = random.uniform(0.0, 1.0, size=jobs) if shape.sizes_differ else np.ones(jobs)
    queue = tuple(
        _job(number, min(int(size), gpus), gpus_per_node, shape, (str(model), float(length), float(share)))
        for number, (size, model, length, share) in enumerate(zip(sizes, models, hours, shares, strict=True), start=1)
    )
    return Snapshot(NOW, hosts, queue, (Partition("gpu", frozenset(names)),), cluster="generated")


def generate_knowledge(known: Knowledge, shape: QueueShape, seed: int = 0) -> Knowledge:
    """Returns the knowledge with rates of the jobs' models on every type, and of each beside each other one."""
    random, models = np.random.default_rng(seed), dict(known.models)
    for model in _MODELS:
        beside = {other: float(random.uniform(*_KEPT_BESIDE)) for other in _MODELS}
        scaling = {
            gpu_type: Scaling((1,), (speed * float(random.uniform(*_SPREAD)),), beside=beside)
            for gpu_type, speed in zip(shape.gpu_types, _SPEEDS, strict=False)
        }
        models[model] = replace(models.get(model, Profile(model, "", {}, "generated")), scaling=scaling)
    return replace(known, models=models, reference=shape.gpu_types[0])


def measured_rates(snapshot: Snapshot, shape: QueueShape, seed: int = 0) -> Mapping[JobId, tuple[MeasuredRate, ...]]:
    """Returns what the jobs have reported: nothing, or if all are different rates of each on every type."""
    if not shape.all_different:
        return {}
    random = np.random.default_rng(seed)
    share = float(CPUS_PER_GPU), float(MEMORY_PER_GPU)
    rates: dict[JobId, tuple[MeasuredRate, ...]] = {}
    for job in snapshot.jobs:
        steps = float(random.uniform(1.0, 100.0)) * max(job.gpus, 1)
        rates[job.id] = tuple(
            MeasuredRate(gpu_type, max(job.gpus, 1), 1, *share, *share, steps * speed * spread, NOW)
            for gpu_type, speed, spread in zip(
                shape.gpu_types, _SPEEDS, random.uniform(*_SPREAD, len(shape.gpu_types)).tolist(), strict=False
            )
        )
    return rates


def follow_decision(
    snapshot: Snapshot,
    decision: Decision,
    seed: int = 0,
    shape: QueueShape = QueueShape(),
) -> tuple[Snapshot, SchedulerState]:
    """Returns the cluster an hour after the decision was applied, with every target running, many since earlier."""
    random, now = np.random.default_rng(seed), snapshot.time + _STEP
    free = {node.name: list(range(len(node.gpus))) for node in snapshot.nodes}
    for share in (share for target in decision.targets.values() for share in target.allocations if share.shards):
        for index in set(share.indices) & set(free[share.node]):
            free[share.node].remove(index)
    jobs = tuple(_started(job, decision, free, now, float(random.uniform(*_HOURS)) * 3600) for job in snapshot.jobs)
    used: dict[str, Resources] = {}
    milli: dict[tuple[str, int], int] = {}
    for allocation in (allocation for job in jobs for allocation in job.allocations):
        used[allocation.node] = used.get(allocation.node, Resources()) + replace(allocation.resources, gpus=0)
        for index in allocation.indices:
            part = MILLI_PER_GPU * allocation.shards // shape.shards_per_gpu if allocation.shards else MILLI_PER_GPU
            milli[allocation.node, index] = milli.get((allocation.node, index), 0) + part
    nodes = tuple(_with_usage(node, used.get(node.name, Resources()), milli) for node in snapshot.nodes)
    if shape.powering_up:
        nodes = tuple(replace(node, state=NodeState.DOWN, state_text="IDLE+CLOUD+POWERING_UP") for node in nodes)
    service = {job.id: job.gpus * job.run_time for job in jobs if job.allocations}
    state = SchedulerState(service=service, policy_state=decision.state, measured=measured_rates(snapshot, shape))
    return replace(snapshot, time=now, nodes=nodes, jobs=jobs), state


def _job(number: int, gpus: int, gpus_per_node: int, shape: QueueShape, drawn: tuple[str, float, float]) -> Job:
    """`drawn` are its model, its hours, and the part of its share of the CPUs that it asks for."""
    model, hours, share = drawn
    nodes = -(-gpus // gpus_per_node)
    request = Request(
        gpus=gpus,
        gpus_per_node=gpus_per_node if nodes > 1 else None,
        nodes=nodes,
        tasks=nodes,
        cpus=max(nodes, round(gpus * CPUS_PER_GPU * share)),
        memory=gpus // nodes * MEMORY_PER_GPU,
    )
    if gpus == 1 and shape.shards_per_gpu:
        request = Request(shards=shape.shards_per_gpu // 2, cpus=CPUS_PER_GPU // 2, memory=MEMORY_PER_GPU // 2)
    comment = f"synsched:model={model},ckpt=usr1@60,duration={int(hours * 60)}m"
    user = number % shape.users
    return Job(
        id=str(number),
        user=f"user{user}",
        account=f"account{user % shape.accounts}" if shape.accounts else "",
        original_request=request,
        current_request=request,
        partitions=("gpu",),
        submit_time=NOW - 1e6 + number,
        comment=comment,
        hints=parse_hints(comment),
    )


def _started(job: Job, decision: Decision, free: dict[str, list[int]], now: float, seconds: float) -> Job:
    """`free` are the GPUs of each node that nobody has yet."""
    target = decision.targets.get(job.id)
    if target is None:
        return job
    allocations = tuple(
        share if share.shards else replace(share, indices=_take(free[share.node], share.resources.gpus))
        for share in target.allocations
    )
    return replace(
        job,
        state=JobState.RUNNING,
        state_text="RUNNING",
        allocations=allocations,
        start_time=now - seconds,
        run_time=seconds,
    )


def _take(free: list[int], count: int) -> tuple[int, ...]:
    taken = tuple(free[:count])
    del free[:count]
    return taken


def _with_usage(node: Node, used: Resources, milli: Mapping[tuple[str, int], int]) -> Node:
    gpus = tuple(replace(gpu, used=milli.get((node.name, gpu.index), 0)) for gpu in node.gpus)
    return replace(node, gpus=gpus, used=replace(used, gpus=sum(not gpu.idle for gpu in gpus)))
