"""Workloads of the replays: Gavel's static trace, Hadar's 480 jobs, and HadarE's mixes and clusters.

Hadar's jobs have four sizes in GPU-hours and Gavel's rates (section IV-A, table II). They are drawn from the public
Philly trace, so that a job's size is that of the trace, or evenly over the sizes. HadarE's mixes (sections VI-A and
VI-B, table III) use the estimates of equation 10; the real rate of a model on a node differs from its estimate by a
random factor, which Gavel and Hadar know from profiling and HadarE learns as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from slurmsched.experiments.experiment import ExperimentError, ExperimentSetup
from slurmsched.knowledge import Knowledge, ProfileError, load_gavel_rates
from slurmsched.knowledge.estimation import GpuSpec, ModelSpec, estimate_throughput
from slurmsched.knowledge.published import GAVEL_MODEL_NAMES
from slurmsched.policies.policies import policy
from slurmsched.simulation.kernel import replay
from slurmsched.simulation.live_policy import LivePolicy, SubmissionForm, knowledge_of, nodes_of, submissions
from slurmsched.simulation.replay import GpuWorkers, ReplayError, ReplayJob, ReplayResult, RoundSemantics
from slurmsched.traces import TraceJob
from slurmsched.traces.formats.published import read_gavel
from slurmsched.traces.generators import HADAR_SIZE_CLASSES, HOUR, hadar_workload, random_stream
from slurmsched.traces.tables import csv_rows, read_text
from slurmsched.traces.trace import ImportContext

GPU_TYPES: Final = ("v100", "p100", "k80")
"""GPU types in the order in which Gavel's rounds visit them."""

CLUSTER_OF_60: Final = GpuWorkers.from_gpu_counts(dict.fromkeys(GPU_TYPES, 20), per_server=4)
"""The cluster of Hadar's simulations: 15 servers, 20 GPUs of each type."""


def authors_rounds(restart_seconds: float = 0.0, period: float = 360.0) -> RoundSemantics:
    """Returns the rounds of Gavel's and Hadar's simulators: whole steps, and a round ends with its busiest job."""
    return RoundSemantics(period, restart_seconds=restart_seconds, ends_with_busiest=True)


LIVE_NOTE: Final = (
    "As the daemon decides, and therefore not held: its policy of that name with default settings and guards, on"
    " leases, in rounds of fixed length, of which only the end of a forked job begins one sooner. GPUs that become idle"
    " within a round stay so until the next. "
)


def replay_live(
    name: str,
    jobs: Sequence[ReplayJob],
    workers: GpuWorkers,
    rounds: RoundSemantics,
    known: Sequence[ReplayJob] = (),
    *,
    copies: int = 0,
) -> ReplayResult:
    """Replays the daemon's policy of this name. It knows the rates of `known`, the same jobs, else the real ones.

    With `copies` every job is forked. Durations are hinted in seconds on the first GPU type.
    """
    reference = workers.gpu_types[0]
    submitted = submissions(jobs, lambda job: job.steps / job.rates[reference], SubmissionForm(copies))
    live = LivePolicy(policy(name), nodes_of(workers), submitted, knowledge_of(known or jobs, reference))
    return replay(jobs, workers, live, replace(rounds, ends_with_copies=copies > 0))


def replay_job(job: TraceJob, rates: Knowledge) -> ReplayJob:
    """Returns the job with the rates of its model and number of GPUs. Raises ProfileError for an unknown model.

    Only one-GPU jobs can share GPUs, because no wider pairs were measured.
    """
    profile, width = rates.models.get(job.model), job.gpus
    if profile is None or job.iterations is None:
        raise ProfileError(f"job {job.id}: model '{job.model}' has no rates, or the job has no steps")
    scaling = profile.scaling
    return ReplayJob(
        id=job.id,
        gpus=width,
        steps=job.iterations,
        rates={kind: scaling[kind].rate_at(width) for kind in GPU_TYPES if kind in scaling},
        arrival=job.arrival,
        model=job.model,
        colocated_fractions={kind: scaling[kind].beside for kind in scaling} if width == 1 else {},
    )


def static_trace_jobs(setup: ExperimentSetup) -> tuple[ReplayJob, ...]:
    """Returns the jobs of `static_480.csv`, which arrive at once. Raises ExperimentError, TraceError, ProfileError."""
    rates = load_gavel_rates(setup.data_file("gavel", "throughputs.json"))
    path = setup.data_file("gavel", "static_480.csv")
    jobs = read_gavel(read_text(path), path.name, ImportContext()).trace.jobs
    return tuple(replay_job(job, rates) for job in jobs)


SIZE_GPU_TYPE: Final = "k80"
"""The GPU type in whose hours evenly drawn sizes are measured. The paper does not say which. In K80 hours the work
takes the paper's 40 to 68 hours; in V100 hours it would take 340, with the same ratios."""

TRACE_GPU_TYPE: Final = "p100"
"""The GPU type on which durations of the Philly trace are taken, one of those of Philly's servers."""
BUSIEST_HOURS: Final = range(3, 10)
"""Hours of the day from whose arrivals the paper draws its jobs."""
_TRACE_WIDTHS: Final = (1, 2, 4, 8)
"""Numbers of GPUs for which Gavel has rates. Wider jobs, 0.4 % of the trace's, cannot be drawn."""

_WIDTH_BY_MODEL: Final[Mapping[str, int]] = {"resnet-18": 1, "cyclegan": 2, "lstm": 4, "transformer": 4, "resnet-50": 8}
WIDTH_VARIANTS: Final[Mapping[str, Callable[[TraceJob], int]]] = {
    "gangs of 4": lambda _job: 4,
    "gangs of 1, 2, 4 and 8 by size": lambda job: _WIDTH_BY_MODEL[job.model],
    "gangs of 8": lambda _job: 8,
}
"""Other numbers of GPUs per job for the same GPU-hours. They change how many of a type's 20 GPUs stay idle."""


def drawn_width(job: TraceJob) -> int:
    """Returns the job's own number of GPUs."""
    return job.gpus


def sized_jobs(
    count: int, seed: int, rates: Knowledge, width: Callable[[TraceJob], int] = drawn_width
) -> tuple[ReplayJob, ...]:
    """Returns the jobs of `hadar_workload` with Gavel's rates, and with `width` GPUs for the same GPU-hours.

    Raises ExperimentError.
    """
    drawn = ((job, width(job)) for job in hadar_workload(count, seed).jobs)
    return tuple(
        _sized_job(job.id, GAVEL_MODEL_NAMES[job.model], gpus, job.duration * job.gpus / gpus, rates)
        for job, gpus in drawn
    )


def _sized_job(
    job: str, model: str, width: int, seconds: float, rates: Knowledge, *, gpu_type: str = SIZE_GPU_TYPE
) -> ReplayJob:
    profile = rates.models.get(model)
    if profile is None or gpu_type not in profile.scaling:
        raise ExperimentError(f"throughputs.json lacks rates of {model} on {gpu_type}: use the data set's file")
    rates_by_type = {kind: profile.scaling[kind].rate_at(width) for kind in GPU_TYPES if kind in profile.scaling}
    return ReplayJob(job, width, max(width, round(seconds * rates_by_type[gpu_type])), rates_by_type, model=model)


def read_busiest_hours(path: Path) -> tuple[tuple[int, float], ...]:
    """Returns GPUs and seconds of the Philly trace's jobs of the busiest hours that belong to a size of table II.

    Raises TraceError.
    """
    bounds = [(low, high) for low, high, _ in HADAR_SIZE_CLASSES.values()]
    jobs = list[tuple[int, float]]()
    for row in csv_rows(read_text(path), path.name, ("timestamp", "duration", "num_gpus")):
        hour = row.text("timestamp")[11:13]
        if not hour.isdigit():
            raise row.error("timestamp", "a time as in 2017-10-09 07:01:55")
        gpus, seconds = row.integer("num_gpus"), row.number("duration")
        sized = any(low < gpus * seconds / HOUR <= high for low, high in bounds)
        if int(hour) in BUSIEST_HOURS and gpus in _TRACE_WIDTHS and sized:
            jobs.append((gpus, seconds))
    return tuple(jobs)


def philly_jobs(trace: Sequence[tuple[int, float]], count: int, seed: int, rates: Knowledge) -> tuple[ReplayJob, ...]:
    """Draws `count` jobs of `read_busiest_hours`, each with a model of its size. Raises ExperimentError."""
    if len(trace) < count:
        raise ExperimentError(f"the trace has {len(trace)} jobs that belong to a size of table II, fewer than {count}")
    random = random_stream(seed, "philly")
    drawn = [trace[index] for index in random.choice(len(trace), count, replace=False).tolist()]
    spins = random.random(count).tolist()
    jobs = list[ReplayJob]()
    for number, ((gpus, seconds), spin) in enumerate(zip(drawn, spins, strict=True)):
        hours = gpus * seconds / HOUR
        models = next(models for low, high, models in HADAR_SIZE_CLASSES.values() if low < hours <= high)
        model = GAVEL_MODEL_NAMES[models[int(spin * len(models))]]
        jobs.append(_sized_job(str(number), model, gpus, seconds, rates, gpu_type=TRACE_GPU_TYPE))
    return tuple(jobs)


_PCIE3_SCALING: Final = 0.5
"""PCIe 3.0 relative to PCIe 4.0: half the bandwidth per lane."""

NODE_GPU_SPECS: Final[Mapping[str, GpuSpec]] = {
    "v100": GpuSpec(15.7, 16),
    "k80": GpuSpec(4.1, 12),
    "t4": GpuSpec(8.1, 16),
    "titan-rtx": GpuSpec(16.3, 24),
    "t4-old": GpuSpec(8.1, 16, _PCIE3_SCALING),
    "t400": GpuSpec(1.1, 4, _PCIE3_SCALING),
    "rtx-3090": GpuSpec(35.6, 24),
    "rtx-a2000": GpuSpec(8.0, 6, _PCIE3_SCALING),
}
"""Single-precision teraflops and memory in GB by the makers' data sheets; of a K80 one of its two GPUs."""

CLUSTER_NODES: Final[Mapping[str, tuple[str, ...]]] = {
    "aws": ("v100", "t4", "t4", "k80", "k80"),
    "lab": ("rtx-3090", "titan-rtx", "rtx-a2000", "t4-old", "t400"),
}
"""Five nodes with one GPU each, the fastest first, as Gavel's code visits V100, P100 and K80. Three of the lab's nodes
have PCIe 3.0; the paper does not say which."""

NODES_AS_LISTED: Final[Mapping[str, tuple[str, ...]]] = {
    "aws": ("v100", "k80", "k80", "t4", "t4"),
    "lab": ("titan-rtx", "t4-old", "t400", "rtx-3090", "rtx-a2000"),
}
"""The same nodes in the paper's order."""

_MIX_MODELS: Final[Mapping[str, tuple[ModelSpec, int]]] = {
    "IC": (ModelSpec(1, 1, 128), 20_000),
    "LM": (ModelSpec(2, 3, 128), 8_000),
    "LT": (ModelSpec(3, 3, 128), 8_000),
    "RS": (ModelSpec(2, 4, 128), 9_000),
    "MM": (ModelSpec(3, 2, 128), 9_000),
}
"""Table III's models: weight and data set on scales of 1 to 4, and steps. The paper gives only S to XL; the steps are
ours, and `_STEPS_PER_UNIT` is such that M-5 takes 4,200 s under Gavel on the AWS cluster, as in the paper."""

MIX_MODELS_BY_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    "M-1": ("MM",),
    "M-3": ("LT", "MM", "MM"),
    "M-4": ("IC", "LM", "LT", "MM"),
    "M-5": ("IC", "LM", "LT", "RS", "MM"),
    "M-8": ("IC", "LM", "LT", "RS", *["MM"] * 4),
    "M-10": ("IC", "LM", "LT", "RS", *["MM"] * 6),
    "M-12": ("IC", "LM", "LT", "RS", *["MM"] * 8),
}


class IndexReading(StrEnum):
    """Readings of equation 10's index: "the ratio of TFLOPS and VRAM in a square root fashion"."""

    OVER_ROOT = "TFLOPS over the root of memory"
    ROOT_OF_RATIO = "root of TFLOPS over memory"


_STEPS_PER_UNIT: Final[Mapping[IndexReading, float]] = {
    IndexReading.OVER_ROOT: 0.0574,
    IndexReading.ROOT_OF_RATIO: 0.1785,
}
"""Steps per second of one unit of equation 10."""

_ESTIMATE_ERROR: Final = 0.2
"""Standard deviation of the logarithm of an estimate's error factor."""


def one_gpu_nodes(nodes: tuple[str, ...]) -> GpuWorkers:
    """Returns one worker on each of these nodes."""
    return GpuWorkers(nodes, tuple(range(len(nodes))))


def mix_jobs(
    name: str, nodes: tuple[str, ...], seed: int, reading: IndexReading = IndexReading.OVER_ROOT
) -> tuple[ReplayJob, ...]:
    """Returns the jobs of a mix with their rates on these nodes. All arrive at the start."""
    error_factors = np.random.default_rng(seed).lognormal(0.0, _ESTIMATE_ERROR, (len(_MIX_MODELS), len(NODE_GPU_SPECS)))
    jobs: list[ReplayJob] = []
    for position, model in enumerate(MIX_MODELS_BY_NAME[name], start=1):
        factors = dict(zip(NODE_GPU_SPECS, error_factors[list(_MIX_MODELS).index(model)].tolist(), strict=True))
        rates = {
            node: _STEPS_PER_UNIT[reading] * factors[node] * rate
            for node, rate in estimated_throughputs(model, nodes, reading).items()
        }
        jobs.append(ReplayJob(f"{model}-{position}", 1, _MIX_MODELS[model][1], rates, model=model))
    return tuple(jobs)


def estimated_throughputs(
    model: str, nodes: tuple[str, ...], reading: IndexReading = IndexReading.OVER_ROOT
) -> dict[str, float]:
    """Returns the estimates by GPU type, in the unit of equation 10."""
    specs = {node: NODE_GPU_SPECS[node] for node in nodes}
    if reading is IndexReading.ROOT_OF_RATIO:
        specs = {node: replace(spec, tflops=sqrt(spec.tflops)) for node, spec in specs.items()}
    return {node: estimate_throughput(_MIX_MODELS[model][0], spec) for node, spec in specs.items()}


def makespan_lower_bound(jobs: Sequence[ReplayJob], gpus_by_type: Mapping[str, int]) -> float:
    """Returns a lower bound of every schedule's makespan, in seconds.

    All jobs are there at once, restarts are free, and a job has any copies. It is a linear program
    over the GPU-seconds of each type for each job. Raises ReplayError if a job can run nowhere.
    """
    gpu_types, job_count = tuple(gpus_by_type), len(jobs)
    variable = np.arange(job_count * len(gpu_types)).reshape(job_count, len(gpu_types))
    rates = np.array([[job.rates.get(kind, 0.0) / job.gpus for kind in gpu_types] for job in jobs])
    done = csr_array(
        (-rates.ravel(), (np.repeat(np.arange(job_count), len(gpu_types)), variable.ravel())),
        (job_count, variable.size + 1),
    )
    last = np.full(len(gpu_types), variable.size)
    spent = csr_array(
        (
            np.concatenate([np.ones(variable.size), [-float(gpus_by_type[kind]) for kind in gpu_types]]),
            (
                np.concatenate([np.tile(np.arange(len(gpu_types)), job_count), np.arange(len(gpu_types))]),
                [*variable.ravel(), *last],
            ),
        ),
        (len(gpu_types), variable.size + 1),
    )
    cost = np.concatenate([np.zeros(variable.size), [1.0]])
    limits = np.concatenate([[-float(job.steps) for job in jobs], np.zeros(len(gpu_types))])
    answer = milp(cost, constraints=LinearConstraint(vstack([done, spent]), -np.inf, limits))
    if answer.fun is None:
        raise ReplayError(f"these jobs can never all end: {answer.message}")
    return float(answer.fun)
