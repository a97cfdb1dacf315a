"""Explains one job: why it runs where it does or waits, which jobs are ahead of it, and what would change that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from slurmsched.model import (
    Explanation,
    Job,
    JobId,
    JobState,
    NodeAllocation,
    Reason,
    ReasonCode,
    Resources,
    SchedulerState,
    Snapshot,
    SynschedError,
    Target,
)
from slurmsched.model.reasons import format_duration, pluralise, time_of_day
from slurmsched.rounds.partitions import jobs_left_to_slurm
from slurmsched.rounds.round import RoundResult
from slurmsched.rounds.scope import ineligible_reason, partition_totals, unmanaged_reason
from slurmsched.settings.definition import Settings

_MAX_NAMED: Final = 3
"""Most jobs ahead that are named."""

_LACKS_RESOURCES: Final = frozenset(
    {
        ReasonCode.BEHIND,
        ReasonCode.NO_ROOM,
        ReasonCode.BESIDE_GPUS,
        ReasonCode.MOVES_SPENT,
        ReasonCode.MOVES_SAVED,
        ReasonCode.FREED_SOON,
        ReasonCode.AWAITS_TURN,
        ReasonCode.SHARE_HELD,
        ReasonCode.BEHIND_PROMISE,
        ReasonCode.BEHIND_DRAIN,
        ReasonCode.RESERVED_FROM,
    }
)
"""Reasons for waiting that a smaller request or the end of another job would change."""


class UnknownJobError(SynschedError):
    """A job that the round did not see."""


def explain(result: RoundResult, job_id: JobId) -> Explanation:
    """Return the explanation of this job in the round. Raises UnknownJobError."""
    job = result.snapshot.jobs_by_id.get(job_id)
    if job is None:
        raise UnknownJobError(f"job {job_id} is not in the queue: 'synsched history {job_id}' shows what became of it")
    why = reason_of(result, job)
    ahead = tuple(_ahead(result, job_id)) if job.state is JobState.PENDING else ()
    return Explanation.of_reason(job_id, why, ahead, tuple(_changes(result, job, why.code)), dict(_facts(result, job)))


def explain_unseen(
    snapshot: Snapshot, job: JobId, settings: Settings, ended: float | None = None
) -> tuple[Explanation, ...]:
    """Why no round has decided about this job, or about the tasks of this array, as Slurm shows them now; none if Slurm
    does not show it to this user. `ended` is when the last round ended (unix seconds)."""
    seen = [record for record in snapshot.jobs if job in (record.id, record.array_job, record.id.partition("+")[0])]
    if not seen:
        return ()
    totals = partition_totals(snapshot)
    left = jobs_left_to_slurm(snapshot, totals)
    return tuple(
        Explanation(record.id, f"job {record.id} {_unseen(record, snapshot, settings, ended)}")
        if why is None
        else Explanation.of_reason(record.id, why)
        for record in seen
        for why in [_unseen_reason(record, snapshot, unmanaged_reason(record, settings, totals) or left.get(record.id))]
    )


def _unseen_reason(job: Job, snapshot: Snapshot, unmanaged: Reason | None) -> Reason | None:
    """Why it is not managed, if there is a reason; else why it is not eligible, if it waits."""
    if unmanaged is None and job.state is JobState.PENDING:
        return ineligible_reason(job, SchedulerState(), snapshot)
    return unmanaged


def _unseen(job: Job, snapshot: Snapshot, settings: Settings, ended: float | None) -> str:
    """When a round will see it."""
    does = "waits for its first round" if job.state is JobState.PENDING else "runs, and no round has seen it yet"
    age = snapshot.time - ended if ended is not None else 0.0
    if age > 2 * settings.rounds.period:
        return (
            f"{does}: the last one ended {format_duration(age)} ago; 'synsched status' tells whether anybody schedules"
        )
    return f"{does}: one comes at least every {format_duration(settings.rounds.period)}"


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
    if target.reasons and target.reasons[0].code is ReasonCode.ROOM_IS_MADE:
        return target.reasons[0]  # which names them
    if others:
        return Reason(ReasonCode.FREED_SOON, {"jobs": _joined("job", others), "nodes": ",".join(sorted(target.nodes))})
    return target.reasons[0] if target.reasons else Reason(ReasonCode.KEEPS_LEASE)


def _ahead(result: RoundResult, job_id: JobId) -> Iterator[str]:
    """Describe the nearest jobs ahead of it in the order that have, or get, resources that it could use."""
    waits, index = result.snapshot.jobs_by_id[job_id], result.ranks.get(job_id, 1) - 1
    for ranked in result.queue_ahead.nearest(waits, index, _MAX_NAMED):
        job = result.snapshot.jobs_by_id[ranked.job]
        yield f"job {job.id} of {job.user}, {pluralise(job.gpus, 'GPU')}: {ranked.key}"


def _changes(result: RoundResult, job: Job, why: ReasonCode) -> Iterator[str]:
    managed = job.id not in result.unmanaged
    if managed and job.state is JobState.PENDING and why in _LACKS_RESOURCES:
        smaller = 0 if _is_promised(result, job) else result.forecast.max_gpus_now(job)
        if 0 < smaller < job.original_request.gpus:
            yield f"fewer GPUs: a {smaller}-GPU job would fit now"
        freed = result.forecast.last_needed_end(job)
        if freed is not None and not _is_promised(result, job):
            last, end = freed
            at = time_of_day(end, result.snapshot.time)
            yield f"job {last} ends at {at} at the latest; then there are enough GPUs"
    runs = job.state is JobState.RUNNING
    if managed and runs and not job.requeue:
        yield "submit with --requeue and a checkpoint signal (ckpt=usr1): then it can be moved to better nodes"
    elif managed and runs and job.hints.checkpoint_signal is None:
        yield "submit with ckpt=usr1 (or the signal that makes it save): then it can be moved to better nodes"
    sized = job.original_request.gpus and (runs or why is ReasonCode.BESIDE_GPUS)
    if managed and sized and result.situation.knowledge.profile(job) is None:
        yield _model_advice(job)
    yield from (f"correct its hint: {problem}" for problem in job.hints.problems)


def _model_advice(job: Job) -> str:
    then = "then it gets the CPUs its speed needs"
    if job.hints.model or job.hints.task:
        return f"submit with a model that is known ('synsched profile show' lists them): {then}"
    return f"submit with model=NAME or task=image, language or speech: {then}"


def _is_promised(result: RoundResult, job: Job) -> bool:
    """Whether the job is promised a start: its reason says when."""
    return result.decision.promise is not None and result.decision.promise.job == job.id


def _facts(result: RoundResult, job: Job) -> Iterator[tuple[str, str]]:
    yield "user", job.user
    yield "asks for", _request_text(job)
    if job.allocations:
        yield "has", "; ".join(map(_allocation_text, job.allocations))
    target = result.decision.targets.get(job.id)
    if target is not None:
        yield "shall have", "; ".join(map(_allocation_text, target.allocations))
        yield "speed", _speed_text(result, job, target)
        yield from (("steps", why.sentence) for why in target.reasons if why.code is ReasonCode.DISPATCHED)
    given = job.allocations or (target.allocations if target is not None else ())
    if job.id not in result.unmanaged and (accounted := _accounted_text(job, given)):
        yield "accounted", accounted
    rank = result.ranks.get(job.id)
    if rank is not None:
        yield "rank", f"{rank} of {len(result.ranks)}: {result.decision.order[rank - 1].key}"
    if job.id in result.situation.non_preemptible:
        yield "stays", result.situation.non_preemptible[job.id].sentence


def _speed_text(result: RoundResult, job: Job, target: Target) -> str:
    profile = result.situation.knowledge.profile(job)
    if profile is None:
        return "not known: nothing is known of its model"
    if profile.probes:
        return "not known: it is a probe (cpus=probe), by which that is measured"
    source = profile.source
    if profile.last_run is not None:
        source += f", the last {format_duration(max(result.snapshot.time - profile.last_run, 0.0))} ago"
    return f"{target.speed:.2f} times that with its GPU-proportional share ({source})"


def _request_text(job: Job) -> str:
    request = job.original_request
    gpus = pluralise(request.gpus, f"{request.gpu_type} GPU" if request.gpu_type else "GPU")
    if request.shards and not request.gpus:
        gpus = pluralise(request.shards, f"{request.gpu_type} shard" if request.gpu_type else "shard")
    memory = f", {request.memory} MiB per node" if request.memory else ""
    return f"{gpus}, {pluralise(request.cpus, 'CPU')}{memory}" + (
        f" on {request.nodes} nodes" if request.nodes > 1 else ""
    )


def _accounted_text(job: Job, given: tuple[NodeAllocation, ...]) -> str:
    """What Slurm's accounts, and with them fair share and what is billed, count instead of what was asked; empty if
    it is the same."""
    request = job.original_request
    if not given or request.exclusive:
        return ""
    has = sum((allocation.resources for allocation in given), Resources())
    each = request.memory_per_gpu * request.gpus or request.memory_per_cpu * request.cpus
    asked = Resources(has.gpus, request.cpus, 0 if request.whole_memory else each or request.memory * len(given))
    if not asked.memory or request.memory_unscheduled:
        asked = replace(asked, memory=has.memory)
    if has == asked:
        return ""
    amounts = [
        f"{pluralise(has.cpus, 'CPU')} instead of {pluralise(asked.cpus, 'CPU')}" if has.cpus != asked.cpus else "",
        f"{has.memory} MiB instead of {asked.memory} MiB" if has.memory != asked.memory else "",
    ]
    return f"{', '.join(filter(None, amounts))}: what it has is billed"


def _allocation_text(allocation: NodeAllocation) -> str:
    amounts = allocation.resources
    memory = f", {amounts.memory} MiB" if amounts.memory else ""
    return f"{allocation.node}: {pluralise(amounts.gpus, 'GPU')}, {pluralise(amounts.cpus, 'CPU')}{memory}"


def _joined(thing: str, names: list[str]) -> str:
    return f"{thing}{'s' if len(names) > 1 else ''} {', '.join(names)}"
