"""A cluster and a queue made up for measuring: equal nodes, jobs of the usual sizes, as many as wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurmsched.model import (
    MILLI,
    Decision,
    Gpu,
    Job,
    JobState,
    Memory,
    Node,
    Partition,
    Request,
    Resources,
    Share,
    Snapshot,
    parse_hints,
)

__all__ = ["generated", "running"]

NOW = 1_700_000_000.0
CPUS_PER_GPU, MEMORY_PER_GPU = 3, 64_000
"""The Synergy paper's servers: 24 cores and 500 GB for 8 GPUs (section 5.1)."""

_SIZES, _ODDS = (1, 2, 4, 8, 16), (0.6, 0.15, 0.15, 0.08, 0.02)
_MODELS = ("resnet50", "alexnet", "gnmt", "bert", "deepspeech")
_HOURS = (0.5, 100.0)


def generated(gpus: int, nodes: int, jobs: int, seed: int = 0) -> Snapshot:
    """`gpus` GPUs on `nodes` equal nodes, and `jobs` waiting jobs of up to 16 GPUs. `gpus` is a multiple of `nodes`."""
    random, each = np.random.default_rng(seed), gpus // nodes
    names = tuple(f"n{number:04}" for number in range(1, nodes + 1))
    kind, total = "v100", Resources(each, each * CPUS_PER_GPU, each * MEMORY_PER_GPU)
    devices = tuple(Gpu(index, kind) for index in range(each))
    hosts = tuple(Node(name, devices, total, Resources(), partitions=frozenset({"gpu"})) for name in names)
    sizes = random.choice(_SIZES, size=jobs, p=_ODDS)
    models = random.choice(_MODELS, size=jobs)
    hours = random.uniform(*_HOURS, size=jobs)
    queue = tuple(
        _job(number, min(int(size), gpus), each, str(model), float(length))
        for number, (size, model, length) in enumerate(zip(sizes, models, hours, strict=True), start=1)
    )
    return Snapshot(NOW, hosts, queue, (Partition("gpu", frozenset(names)),), cluster="generated")


def running(snapshot: Snapshot, decision: Decision, seed: int = 0) -> tuple[Snapshot, Memory]:
    """The cluster after the decision was followed: every target runs, for some hours already."""
    random = np.random.default_rng(seed)
    taken: dict[str, int] = {}
    jobs = tuple(_started(job, decision, taken, float(random.uniform(*_HOURS)) * 3600) for job in snapshot.jobs)
    shares = [share for job in jobs for share in job.shares]
    used: dict[str, Resources] = {}
    for share in shares:
        used[share.node] = used.get(share.node, Resources()) + share.resources
    nodes = tuple(_used(node, used.get(node.name, Resources())) for node in snapshot.nodes)
    service = {job.id: job.gpus * job.run_time for job in jobs if job.shares}
    return replace(snapshot, nodes=nodes, jobs=jobs), Memory(service=service, policy_state=decision.state)


def _job(number: int, gpus: int, each: int, model: str, hours: float) -> Job:
    nodes = -(-gpus // each)
    request = Request(
        gpus=gpus,
        gpus_per_node=each if nodes > 1 else None,
        nodes=nodes,
        tasks=nodes,
        cpus=gpus * CPUS_PER_GPU,
        memory=gpus // nodes * MEMORY_PER_GPU,
    )
    comment = f"synsched:model={model},ckpt=usr1@60,duration={int(hours * 60)}m"
    return Job(
        id=str(number),
        user=f"user{number % 20}",
        request=request,
        standing=request,
        partitions=("gpu",),
        submit_time=NOW - 1e6 + number,
        comment=comment,
        hints=parse_hints(comment),
    )


def _started(job: Job, decision: Decision, taken: dict[str, int], seconds: float) -> Job:
    target = decision.targets.get(job.id)
    if target is None:
        return job
    shares = tuple(_seated(share, taken) for share in target.shares)
    return replace(
        job, state=JobState.RUNNING, state_text="RUNNING", shares=shares, start_time=NOW - seconds, run_time=seconds
    )


def _seated(share: Share, taken: dict[str, int]) -> Share:
    first = taken.get(share.node, 0)
    taken[share.node] = first + share.resources.gpus
    return replace(share, indices=tuple(range(first, taken[share.node])))


def _used(node: Node, used: Resources) -> Node:
    gpus = tuple(replace(gpu, used=MILLI if gpu.index < used.gpus else 0) for gpu in node.gpus)
    return replace(node, gpus=gpus, used=used)
