"""Explains one job: why it runs where it does or waits, which jobs are ahead of it, and what would change that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from slurmsched.model import (
    Explanation,
    Job,
    JobId,
    JobState,
    NodeAllocation,
    Reason,
    ReasonCode,
    SynschedError,
    Target,
)
from slurmsched.model.reasons import pluralise, time_of_day
from slurmsched.rounds.round import RoundResult

_MAX_NAMED: Final = 3
"""Most jobs ahead that are named."""

_LACKS_RESOURCES: Final = frozenset(
    {ReasonCode.BEHIND, ReasonCode.NO_ROOM, ReasonCode.MOVES_SPENT, ReasonCode.FREED_SOON, ReasonCode.AWAITS_TURN}
)
"""Reasons for waiting that a smaller request or the end of another job would change."""


class UnknownJobError(SynschedError):
    """A job that the round did not see."""


def explain(result: RoundResult, job_id: JobId) -> Explanation:
    """Return the explanation of this job in the round. Raises UnknownJobError."""
    job = result.snapshot.jobs_by_id.get(job_id)
    if job is None:
        raise UnknownJobError(f"job {job_id} is not in the queue: 'synsched history {job_id}' shows what became of it")
    ahead, waits = tuple(_ahead(result, job_id)), job.state is JobState.PENDING
    return Explanation(
        job=job_id,
        headline=f"job {job_id} {reason_of(result, job).sentence}",
        ordered_behind=ahead if waits else (),
        what_would_change=tuple(_changes(result, job)),
        facts=dict(_facts(result, job)),
    )


def reason_of(result: RoundResult, job: Job) -> Reason:
    """Why the job waits, runs or is requeued; names the job it gives way to or the jobs it waits for."""
    known = result.unmanaged.get(job.id) or result.ineligible.get(job.id) or result.plan.deferred.get(job.id)
    if known is not None:
        return known
    if job.id in result.requeues:
        return result.requeues[job.id].reason
    target = result.decision.targets.get(job.id)
    if target is not None:
        return _target_reason(result, job, target)
    if job.state is JobState.RUNNING:
        return result.situation.non_preemptible.get(job.id) or Reason(ReasonCode.KEEPS_LEASE)
    return result.decision.waiting.get(job.id) or Reason(ReasonCode.NO_ROOM, {"gpus": job.gpus})


def _target_reason(result: RoundResult, job: Job, target: Target) -> Reason:
    start = result.starts.get(job.id)
    others = [other for other in start.gone if other != job.id] if start else []
    if others:
        return Reason(ReasonCode.FREED_SOON, {"jobs": _joined("job", others), "nodes": ",".join(sorted(target.nodes))})
    return target.reasons[0] if target.reasons else Reason(ReasonCode.KEEPS_LEASE)


def _ahead(result: RoundResult, job_id: JobId) -> Iterator[str]:
    """Describe the nearest jobs ahead of it in the order that have, or get, GPUs."""
    order = result.decision.order
    before = (order[index] for index in range(result.ranks.get(job_id, 1) - 2, -1, -1))
    holders = (ranked for ranked in before if ranked.job in result.decision.targets)
    for ranked in islice(holders, _MAX_NAMED):
        job = result.snapshot.jobs_by_id[ranked.job]
        yield f"job {job.id} of {job.user}, {pluralise(job.gpus, 'GPU')}: {ranked.key}"


def _changes(result: RoundResult, job: Job) -> Iterator[str]:
    managed = job.id not in result.unmanaged
    if managed and job.state is JobState.PENDING and reason_of(result, job).code in _LACKS_RESOURCES:
        smaller = result.forecast.max_gpus_now(job)
        if 0 < smaller < job.original_request.gpus:
            yield f"fewer GPUs: a {smaller}-GPU job would fit now"
        freed = result.forecast.last_needed_end(job)
        if freed is not None:
            last, end = freed
            at = time_of_day(end, result.snapshot.time)
            yield f"job {last} ends at {at} at the latest; then there are enough GPUs"
    if managed and job.hints.checkpoint_signal is None:
        yield "submit with ckpt=usr1 (or the signal that makes it save): then it can be moved to better nodes"
    if managed and result.situation.knowledge.profile(job) is None:
        yield "submit with model=NAME or task=image, language or speech: then it gets the CPUs its speed needs"
    yield from (f"correct its hint: {problem}" for problem in job.hints.problems)


def _facts(result: RoundResult, job: Job) -> Iterator[tuple[str, str]]:
    yield "user", job.user
    yield "asks for", _request_text(job)
    if job.allocations:
        yield "has", "; ".join(map(_allocation_text, job.allocations))
    target = result.decision.targets.get(job.id)
    if target is not None:
        yield "shall have", "; ".join(map(_allocation_text, target.allocations))
        yield "speed", f"{target.speed:.2f} times that with its GPU-proportional share"
        yield from (("steps", why.sentence) for why in target.reasons if why.code is ReasonCode.DISPATCHED)
    rank = result.ranks.get(job.id)
    if rank is not None:
        yield "rank", f"{rank} of {len(result.ranks)}: {result.decision.order[rank - 1].key}"
    if job.id in result.situation.non_preemptible:
        yield "stays", result.situation.non_preemptible[job.id].sentence


def _request_text(job: Job) -> str:
    request = job.original_request
    gpus = pluralise(request.gpus, f"{request.gpu_type} GPU" if request.gpu_type else "GPU")
    memory = f", {request.memory} MiB per node" if request.memory else ""
    return f"{gpus}, {pluralise(request.cpus, 'CPU')}{memory}" + (
        f" on {request.nodes} nodes" if request.nodes > 1 else ""
    )


def _allocation_text(allocation: NodeAllocation) -> str:
    amounts = allocation.resources
    return (
        f"{allocation.node}: {pluralise(amounts.gpus, 'GPU')}, {pluralise(amounts.cpus, 'CPU')}, {amounts.memory} MiB"
    )


def _joined(thing: str, names: list[str]) -> str:
    return f"{thing}{'s' if len(names) > 1 else ''} {', '.join(names)}"
