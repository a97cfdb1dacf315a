"""A trace's jobs as a user would submit them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Final

from slurmsched.backends.simulated import Submission
from slurmsched.model import MILLI_PER_GPU, Node, Request
from slurmsched.simulation.inputs import SimulationOptions
from slurmsched.traces import TraceJob
from slurmsched.traces.clusters import SPEC_PARTITION

SHARDS_PER_GPU: Final = 100
"""Parts of a simulated GPU that jobs can take."""


def impossible_reason(job: TraceJob, nodes: Sequence[Node]) -> str:
    """Why the job could never run on these nodes; empty where it could."""
    if job.gpus < 1 and not job.milli_gpu:
        return "it asks for no GPU"
    able = list(_eligible_nodes(job, nodes))
    if not able:
        return f"no node has GPUs of type {job.gpu_type}"
    if job.milli_gpu:
        return _impossible_part_reason(job, able)
    each = _gpus_per_node(job, able)
    if each is None:
        room = sum(len(node.gpus) for node in able)
        return "" if room >= job.gpus else f"it asks for {job.gpus} GPUs, and there are {room}"
    count, parts = job.gpus // each, sum(len(node.gpus) >= each for node in able)
    if parts < count:
        return f"it asks for {count} nodes with {each} GPUs, and there are {parts}"
    cpus, memory = ceil((job.cpus or 1) / count), ceil((job.memory or 0) / count)
    wide = sum(len(node.gpus) >= each and node.total.cpus >= cpus and node.total.memory >= memory for node in able)
    return "" if wide >= count else f"no {count} nodes have {cpus} CPUs and {memory} MiB beside {each} GPUs"


def _impossible_part_reason(job: TraceJob, able: Sequence[Node]) -> str:
    cpus, memory = job.cpus or 1, job.memory or 0
    wide = any(node.total.cpus >= cpus and node.total.memory >= memory for node in able)
    return "" if wide else f"no node has {cpus} CPUs and {memory} MiB beside a part of a GPU"


def with_shards(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with each GPU in shards of a hundredth, for jobs that take parts of one."""
    return tuple(replace(node, gpus=tuple(replace(gpu, shards=SHARDS_PER_GPU) for gpu in node.gpus)) for node in nodes)


def build_submission(job: TraceJob, nodes: Sequence[Node], options: SimulationOptions) -> Submission:
    """Where the trace says nothing it asks for the GPU-proportional share, as sites' defaults have it, and then lets
    its memory be tuned. The expected duration is said where there is no time limit to tell it."""
    able = list(_eligible_nodes(job, nodes))
    per_node = _gpus_per_node(job, able) if job.gpus else 1
    count = (
        1
        if job.milli_gpu
        else job.gpus // per_node
        if per_node
        else ceil(job.gpus / max(len(node.gpus) for node in able))
    )
    proportional = min(
        (node for node in able if len(node.gpus) >= (per_node or 1)), key=_memory_per_gpu
    ).proportional_share(per_node or ceil(job.gpus / count))
    work, fails = job.duration, job.fails_after is not None
    if job.fails_after is not None:
        work = min(work, job.fails_after)
    limit = job.time_limit if options.limits else None
    return Submission(
        user=job.user or "user",
        account=job.account,
        name=job.id,
        partitions=(SPEC_PARTITION,),
        request=Request(
            gpus=job.gpus,
            gpu_type=job.gpu_type if job.gpu_type and "|" not in job.gpu_type else None,
            gpus_per_node=per_node if job.gpus else None,
            nodes=count,
            tasks=count,
            cpus=job.cpus if job.cpus is not None else max(1, proportional.cpus) * count,
            memory=proportional.memory if job.memory is None else ceil(job.memory / count),
            shards=ceil(job.milli_gpu * SHARDS_PER_GPU / MILLI_PER_GPU),
            features=job.gpu_type if "|" in job.gpu_type else "",
        ),
        work=max(work, 1e-3),
        time_limit=None if limit is None else ceil(limit),
        comment=_hint_comment(job, options, tells_duration=limit is None),
        checkpoint_time=0.0,
        fails=fails,
    )


def _hint_comment(job: TraceJob, options: SimulationOptions, *, tells_duration: bool) -> str:
    hints = {
        "model": job.model,
        "task": job.task,
        "ckpt": f"usr1@{options.lead}",
        "duration": str(max(1, ceil(job.duration))) if tells_duration else "",
        "mem": "tune" if job.memory is None else "",
    }
    return "synsched:" + ",".join(f"{key}={value}" for key, value in hints.items() if value)


def _eligible_nodes(job: TraceJob, nodes: Sequence[Node]) -> Iterable[Node]:
    types = set(job.gpu_type.split("|")) - {""}
    return (node for node in nodes if node.gpus and (not types or types & node.gpu_types))


def _gpus_per_node(job: TraceJob, able: Sequence[Node]) -> int | None:
    """What the trace says; else all on one node where one is large enough, else whole nodes, else any split."""
    if job.gpus_per_node is not None and job.gpus % job.gpus_per_node == 0:
        return job.gpus_per_node
    largest = max(len(node.gpus) for node in able)
    if job.gpus <= largest:
        return job.gpus
    return largest if job.gpus % largest == 0 else None


def _memory_per_gpu(node: Node) -> float:
    return node.total.memory / len(node.gpus) if node.gpus else inf
