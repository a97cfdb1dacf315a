"""Submissions of a trace's jobs, as users would submit them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf
from typing import Final

from slurmsched.backends.simulated import Submission
from slurmsched.knowledge import Knowledge
from slurmsched.model import MILLI_PER_GPU, Node, Request, parse_hints
from slurmsched.model.reasons import pluralise
from slurmsched.simulation.inputs import SimulationOptions
from slurmsched.traces import Trace, TraceJob
from slurmsched.traces.clusters import SPEC_PARTITION

SHARDS_PER_GPU: Final = 100
"""Shards of each simulated GPU."""


def impossible_reason(job: TraceJob, nodes: Sequence[Node]) -> str:
    """Why the job could never run on these nodes; empty if it could."""
    if job.gpus < 1 and not job.milli_gpu:
        return "it asks for no GPU"
    eligible = list(_eligible_nodes(job, nodes))
    if not eligible:
        return f"no node has GPUs of type {job.gpu_type}"
    if job.milli_gpu:
        return _impossible_part_reason(job, eligible)
    each = _gpus_per_node(job, eligible)
    if each is None or (job.fork and each < job.gpus):
        return _impossible_width_reason(job, eligible)
    count, large_enough = job.gpus // each, sum(len(node.gpus) >= each for node in eligible)
    if large_enough < count:
        return f"it asks for {pluralise(count, 'node')} with {pluralise(each, 'GPU')}, and there are {large_enough}"
    cpus, memory = ceil((job.cpus or 1) / count), ceil((job.memory or 0) / count)
    fitting = sum(
        len(node.gpus) >= each and node.total.cpus >= cpus and node.total.memory >= memory for node in eligible
    )
    amounts = f"{pluralise(each, 'GPU')}, {pluralise(cpus, 'CPU')} and {memory} MiB of memory"
    return "" if fitting >= count else f"it asks for {pluralise(count, 'node')} with {amounts}, and there are {fitting}"


def request_key(job: TraceJob) -> tuple[object, ...]:
    """What nodes and amounts of a job depend on: jobs that have it in common can run on the same nodes."""
    return job.gpus, job.milli_gpu, job.gpu_type, job.gpus_per_node, job.cpus, job.memory, job.fork


def impossible_reasons(jobs: Iterable[TraceJob], nodes: Sequence[Node]) -> Iterator[str]:
    """Why each of the jobs could never run on these nodes, as `impossible_reason`, once for all that ask the same."""
    known = dict[tuple[object, ...], str]()
    for job in jobs:
        key = request_key(job)
        if key not in known:
            known[key] = impossible_reason(job, nodes)
        yield known[key]


def _impossible_width_reason(job: TraceJob, eligible: Sequence[Node]) -> str:
    total = sum(len(node.gpus) for node in eligible)
    if job.fork:
        return f"its copies ask for {pluralise(job.gpus, 'GPU')}, and a copy runs on one node"
    return "" if total >= job.gpus else f"it asks for {pluralise(job.gpus, 'GPU')}, and there are {total}"


def _impossible_part_reason(job: TraceJob, eligible: Sequence[Node]) -> str:
    cpus, memory = job.cpus or 1, job.memory or 0
    fits = any(node.total.cpus >= cpus and node.total.memory >= memory for node in eligible)
    return "" if fits else f"no node with such a GPU has {pluralise(cpus, 'CPU')} and {memory} MiB of memory"


def with_shards(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with each GPU in `SHARDS_PER_GPU` shards, for jobs that request a part of one."""
    return tuple(replace(node, gpus=tuple(replace(gpu, shards=SHARDS_PER_GPU) for gpu in node.gpus)) for node in nodes)


_NOTHING_KNOWN: Final = Knowledge()
_MAX_STEPS: Final = 10**12 - 1
"""The most that the hint `fork` can say."""


def forked_steps(job: TraceJob, knowledge: Knowledge) -> int:
    """The steps of a forked job: its iterations if the trace has them, else its duration times the rate of its model.

    The rate is that of the profile on the GPU type that the duration refers to, whatever its unit; one step per second
    without a profile. There are at least as many steps as copies.
    """
    if job.iterations:
        return min(_MAX_STEPS, max(job.fork, job.iterations))
    profile = knowledge.models.get(_hint_name(job.model)) or knowledge.tasks.get(_hint_name(job.task))
    rate = knowledge.reference_rate(profile, _single_type(job), job.gpus) or 1.0
    return min(_MAX_STEPS, max(job.fork, round(job.duration * rate)))


def unknown_models(trace: Trace, knowledge: Knowledge) -> str:
    """Names the models in the trace that the profiles do not know, in one sentence; empty if they know all.

    Of profiles with rates by GPU type every model has to have rates, or its task.
    """
    with_rates = any(profile.scaling for profile in knowledge.models.values())
    unknown = Counter[str]()
    for job in trace.jobs:
        profile = knowledge.models.get(_hint_name(job.model)) or knowledge.tasks.get(_hint_name(job.task))
        if job.model and (profile is None or (with_rates and not profile.scaling)):
            unknown[job.model] += 1
    if not unknown:
        return ""
    named = ", ".join(f"{model} ({pluralise(count, 'job')})" for model, count in unknown.most_common(_MAX_NAMED))
    more = f" and {pluralise(len(unknown) - _MAX_NAMED, 'other model')}" if len(unknown) > _MAX_NAMED else ""
    effect = "they run equally fast on every GPU type" if with_rates else "CPUs and memory make no difference to them"
    return f"the profiles do not know {named}{more}: {effect}"


_MAX_NAMED: Final = 8
"""Unknown models that are named, those of most jobs first."""


def build_submission(
    job: TraceJob, nodes: Sequence[Node], options: SimulationOptions, knowledge: Knowledge = _NOTHING_KNOWN
) -> Submission:
    """The submission of a trace's job, of each task of the array if it is forked.

    CPUs and memory that the trace lacks are the GPU-proportional share, as with sites' defaults; without the memory
    both may be tuned, as the papers assume. A job without a time limit gets its duration as a hint, a forked job also
    its steps.
    """
    eligible = list(_eligible_nodes(job, nodes))
    per_node = _gpus_per_node(job, eligible) if job.gpus else 1
    count = (
        1
        if job.milli_gpu
        else job.gpus // per_node
        if per_node
        else ceil(job.gpus / max(len(node.gpus) for node in eligible))
    )
    proportional = min(
        (node for node in eligible if len(node.gpus) >= (per_node or 1)), key=_memory_per_gpu
    ).proportional_share(per_node or ceil(job.gpus / count))
    work, fails = job.duration, job.fails_after is not None
    if job.fails_after is not None:
        work = min(work, job.fails_after)
    limit = job.time_limit if options.limits else None
    steps = forked_steps(job, knowledge) if job.fork else 0
    return Submission(
        user=job.user or "user",
        account=job.account,
        name=job.id,
        partitions=(SPEC_PARTITION,),
        request=Request(
            gpus=job.gpus,
            gpu_type=_single_type(job) or None,
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
        comment=_hint_comment(job, options, steps, with_duration=limit is None),
        checkpoint_time=0.0,
        fails=fails,
        steps=ceil(steps * work / job.duration) if steps and job.duration else steps,
    )


def _single_type(job: TraceJob) -> str:
    return "" if "|" in job.gpu_type else job.gpu_type


@lru_cache(maxsize=4096)
def _hint_name(text: str) -> str:
    """A model or task as a hint can name it, in lower case; empty if it cannot, so that the other hints still count."""
    name = text.lower()
    return name if parse_hints(f"synsched:model={name}").model == name else ""


def _hint_comment(job: TraceJob, options: SimulationOptions, steps: int, *, with_duration: bool) -> str:
    hints = {
        "model": _hint_name(job.model),
        "task": _hint_name(job.task),
        "ckpt": f"usr1@{options.lead}",
        "duration": str(max(1, ceil(job.duration))) if with_duration else "",
        "mem": "tune" if job.memory is None else "",
        "cpus": "tune" if job.memory is None else "",
        "fork": str(steps or ""),
    }
    return "synsched:" + ",".join(f"{key}={value}" for key, value in hints.items() if value)


def _eligible_nodes(job: TraceJob, nodes: Sequence[Node]) -> Iterable[Node]:
    types = set(job.gpu_type.split("|")) - {""}
    return (node for node in nodes if node.gpus and (not types or types & node.gpu_types))


def _gpus_per_node(job: TraceJob, eligible: Sequence[Node]) -> int | None:
    """The trace's GPUs per node; else all on one node if one is large enough, else whole nodes, else None."""
    if job.gpus_per_node is not None and job.gpus % job.gpus_per_node == 0:
        return job.gpus_per_node
    largest = max(len(node.gpus) for node in eligible)
    if job.gpus <= largest:
        return job.gpus
    return largest if job.gpus % largest == 0 else None


def _memory_per_gpu(node: Node) -> float:
    return node.total.memory / len(node.gpus) if node.gpus else inf
