"""The demo's simulated cluster and its generated workload of deep-learning jobs.

Jobs follow Synergy (Mohan et al., OSDI 2022), section 5.1: Poisson arrivals; durations of 10^x minutes with x uniform
in [1.5, 3] for 80 % of the jobs and in [3, 4] for the others; a split over image, language and speech models. The
sizes, up to 16 GPUs, are our choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurmsched.backends.simulated import Submission
from slurmsched.model import Gpu, Node, Request, Resources, SynschedError
from slurmsched.model.reasons import pluralise

GIB: Final = 1024
MINUTE: Final = 60.0
_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": ("alexnet", "resnet18", "shufflenet", "mobilenet", "resnet50"),
    "language": ("gnmt", "transformer", "lstm", "bert"),
    "speech": ("m5", "deepspeech"),
}


class WorkloadError(SynschedError):
    """An invalid cluster or workload; the message says what to write instead."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class WorkloadParameters:
    """Parameters of the workload. Weights are relative and need not add up to anything.

    `load` is the arriving work as a multiple of what all GPUs do at the GPU-proportional share. `scale` multiplies the
    paper's durations, so that a demo of some days fits into a minute. A time limit is the duration times a factor
    uniform between the two `limit_factors`. Jobs checkpoint every `checkpoint_every` seconds by themselves; a
    checkpoint takes `checkpoint_time` seconds.
    """

    task_weights: Mapping[str, float] = field(default_factory=lambda: {"image": 50, "language": 30, "speech": 20})
    size_weights: Mapping[int, float] = field(default_factory=lambda: {1: 60, 2: 15, 4: 13, 8: 9, 16: 3})
    users: tuple[str, ...] = ("alice", "bob", "carol")
    load: float = 1.1
    scale: float = 0.1
    limit_factors: tuple[float, float] = (1.2, 3.0)
    checkpoint_every: float = 1800.0
    checkpoint_time: float = 20.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A submission and its time, in seconds after the start."""

    at: float
    submission: Submission


def cluster_nodes(spec: str, cpus: int = 24, memory: int = 500 * GIB) -> tuple[Node, ...]:
    """The nodes of `TYPE:NODESxGPUS,...`, such as `v100:2x8,p100:1x8`, all in partition `gpu`.

    Each node has `cpus` CPUs and `memory` MiB. Raises WorkloadError.
    """
    nodes: list[Node] = []
    for part in spec.split(","):
        gpu_type, _, size = part.strip().partition(":")
        count, _, gpus = size.partition("x")
        if not (gpu_type and count.isdecimal() and gpus.isdecimal() and int(count) and int(gpus)):
            raise WorkloadError(f"cluster '{part}': write TYPE:NODESxGPUS, as in v100:2x8,k80:1x8")
        nodes += (_node(f"{gpu_type}-{i}", gpu_type, int(gpus), cpus, memory) for i in range(1, int(count) + 1))
    if len({node.name for node in nodes}) < len(nodes):
        raise WorkloadError(f"cluster '{spec}': name each GPU type once")
    return tuple(nodes)


def _node(name: str, gpu_type: str, gpus: int, cpus: int, memory: int) -> Node:
    devices = tuple(Gpu(index, gpu_type) for index in range(gpus))
    total = Resources(gpus, cpus, memory)
    return Node(name, devices, total, Resources(), features=frozenset({gpu_type}), partitions=frozenset({"gpu"}))


def generate_arrivals(
    random: np.random.Generator, nodes: tuple[Node, ...], jobs: int, parameters: WorkloadParameters | None = None
) -> tuple[Arrival, ...]:
    """Generate `jobs` jobs in order of arrival, each requesting the GPU-proportional CPUs and memory, as by the usual
    defaults of sites. Equal generators give equal workloads. Raises WorkloadError."""
    parameters = parameters or WorkloadParameters()
    sizes = random.choice(list(parameters.size_weights), size=jobs, p=_normalised(parameters.size_weights.values()))
    durations = _durations(random, jobs) * parameters.scale
    rate = parameters.load * sum(len(node.gpus) for node in nodes) / float(np.mean(sizes * durations))
    times = np.cumsum(random.exponential(1 / rate, size=jobs)) if jobs else np.zeros(0)
    return tuple(
        Arrival(round(float(at), 3), _submission(random, nodes, int(gpus), round(float(duration), 3), parameters))
        for at, gpus, duration in zip(times, sizes, durations, strict=True)
    )


def _durations(random: np.random.Generator, jobs: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Durations at the GPU-proportional share in seconds, before `scale`."""
    long = random.random(jobs) >= 0.8  # noqa: PLR2004  # the paper's figures, as in the module's docstring
    exponent = np.where(long, random.uniform(3, 4, jobs), random.uniform(1.5, 3, jobs))
    return MINUTE * np.power(10.0, exponent)


def _submission(
    random: np.random.Generator, nodes: tuple[Node, ...], gpus: int, duration: float, parameters: WorkloadParameters
) -> Submission:
    gpu_type, per_node = _gpu_type_and_split(random, nodes, gpus)
    count = gpus // per_node
    node = next(node for node in nodes if gpu_type in node.gpu_types)
    share = node.proportional_share(per_node)
    task = str(random.choice(list(parameters.task_weights), p=_normalised(parameters.task_weights.values())))
    model = str(random.choice(_MODELS[task]))
    limit = duration * float(random.uniform(*parameters.limit_factors))
    return Submission(
        user=str(random.choice(parameters.users)),
        name=f"{model}-{gpus}",
        request=Request(
            gpus=gpus,
            gpu_type=gpu_type,
            gpus_per_node=per_node,
            nodes=count,
            tasks=count,
            cpus=share.cpus * count,
            memory=share.memory,
        ),
        work=duration,
        time_limit=int(-(-limit // 600) * 600) + 600,
        comment=f"synsched:model={model},task={task},ckpt=usr1@60",
        checkpoint_time=parameters.checkpoint_time,
        checkpoint_every=parameters.checkpoint_every,
    )


def _gpu_type_and_split(random: np.random.Generator, nodes: tuple[Node, ...], gpus: int) -> tuple[str, int]:
    """A random GPU type that fits `gpus` GPUs, weighted by its number of GPUs, and the GPUs per node."""
    fitting: dict[str, tuple[int, int]] = {}
    for gpu_type in sorted({gpu_type for node in nodes for gpu_type in node.gpu_types}):
        sizes = [len(node.gpus) for node in nodes if gpu_type in node.gpu_types]
        per_node = min(gpus, max(sizes))
        if gpus % per_node == 0 and sum(size >= per_node for size in sizes) >= gpus // per_node:
            fitting[gpu_type] = (sum(sizes), per_node)
    if not fitting:
        raise WorkloadError(f"no GPU type has {pluralise(gpus, 'GPU')}: write a larger cluster, or smaller jobs")
    chosen = str(random.choice(list(fitting), p=_normalised(size for size, _ in fitting.values())))
    return chosen, fitting[chosen][1]


def _normalised(weights: Iterable[float]) -> list[float]:
    weights = list(weights)
    return [weight / sum(weights) for weight in weights]
