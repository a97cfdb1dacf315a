"""Why one job runs where it does, or waits, what it is ordered behind, and what would change that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from slurmsched.model import (
    Code,
    Job,
    JobId,
    JobState,
    Reason,
    Share,
    SynschedError,
    Target,
)
from slurmsched.model.wording import counted
from slurmsched.rounds.explanation import Explanation
from slurmsched.rounds.guards import checkpoint_signal
from slurmsched.rounds.round import RoundResult
from slurmsched.rounds.wording import moment

__all__ = ["UnknownJobError", "explain", "reason_of"]

_NAMED: Final = 3
"""How many of the jobs ahead are named."""

_TOO_MUCH: Final = frozenset({Code.BEHIND, Code.NO_ROOM, Code.MOVES_SPENT, Code.FREED_SOON, Code.AWAITS_TURN})
"""Reasons for waiting that a smaller request, or somebody's end, would change."""


class UnknownJobError(SynschedError):
    """A job that the round did not see."""


def explain(result: RoundResult, job_id: JobId) -> Explanation:
    """What the round says of this job, in plain words. Raises UnknownJobError."""
    job = result.snapshot.job.get(job_id)
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
    """Why the job waits, runs or leaves; for one that gives way it says for whom, for one that is placed after whom."""
    known = result.unmanaged.get(job.id) or result.stopped.get(job.id) or result.plan.deferred.get(job.id)
    if known is not None:
        return known
    if job.id in result.displacement:
        return result.displacement[job.id].reason
    target = result.decision.targets.get(job.id)
    if target is not None:
        return _of_target(result, job, target)
    if job.state is JobState.RUNNING:
        return result.situation.fixed.get(job.id) or Reason(Code.KEEPS_LEASE)
    return result.decision.waiting.get(job.id) or Reason(Code.NO_ROOM, {"gpus": job.gpus})


def _of_target(result: RoundResult, job: Job, target: Target) -> Reason:
    start = result.start.get(job.id)
    others = [other for other in start.gone if other != job.id] if start else []
    if others:
        return Reason(Code.FREED_SOON, {"jobs": _list("job", others), "nodes": ",".join(sorted(target.nodes))})
    return target.reasons[0] if target.reasons else Reason(Code.KEEPS_LEASE)


def _ahead(result: RoundResult, job_id: JobId) -> Iterator[str]:
    """The nearest jobs ahead of it in the order that have, or get, GPUs."""
    order = result.decision.order
    before = (order[place] for place in range(result.rank.get(job_id, 1) - 2, -1, -1))
    holders = (ranked for ranked in before if ranked.job in result.decision.targets)
    for ranked in islice(holders, _NAMED):
        job = result.snapshot.job[ranked.job]
        yield f"job {job.id} of {job.user}, {counted(job.gpus, 'GPU')}: {ranked.key}"


def _changes(result: RoundResult, job: Job) -> Iterator[str]:
    managed = job.id not in result.unmanaged
    if managed and job.state is JobState.PENDING and reason_of(result, job).code in _TOO_MUCH:
        smaller = result.outlook.fits_now(job)
        if 0 < smaller < job.request.gpus:
            yield f"fewer GPUs: a {smaller}-GPU job would fit now"
        freed = result.outlook.freed_by(job)
        if freed is not None:
            last, end = freed
            yield f"job {last} ends at {moment(end, result.snapshot.time)} at the latest; then there are enough GPUs"
    if managed and checkpoint_signal(job) is None:
        yield "submit with ckpt=usr1 (or the signal that makes it save): then it can be moved to a better place"
    if managed and result.situation.knowledge.profile(job) is None:
        yield "submit with model=NAME or task=image, language or speech: then it gets the CPUs its speed needs"
    yield from (f"mend its hint: {problem}" for problem in job.hints.problems)


def _facts(result: RoundResult, job: Job) -> Iterator[tuple[str, str]]:
    yield "user", job.user
    yield "asks for", _request(job)
    if job.shares:
        yield "has", "; ".join(_share(share) for share in job.shares)
    target = result.decision.targets.get(job.id)
    if target is not None:
        yield "shall have", "; ".join(_share(share) for share in target.shares)
        yield "speed", f"{target.speed:.2f} of its GPU share's"
        yield from (("steps", why.sentence) for why in target.reasons if why.code is Code.DISPATCHED)
    rank = result.rank.get(job.id)
    if rank is not None:
        yield "rank", f"{rank} of {len(result.rank)}: {result.decision.order[rank - 1].key}"
    if job.id in result.situation.fixed:
        yield "stays", result.situation.fixed[job.id].sentence


def _request(job: Job) -> str:
    asked = job.request
    gpus = counted(asked.gpus, f"{asked.gpu_type} GPU" if asked.gpu_type else "GPU")
    memory = f", {asked.memory} MiB a node" if asked.memory else ""
    return f"{gpus}, {counted(asked.cpus, 'CPU')}{memory}" + (f" on {asked.nodes} nodes" if asked.nodes > 1 else "")


def _share(share: Share) -> str:
    amounts = share.resources
    return f"{share.node}: {counted(amounts.gpus, 'GPU')}, {counted(amounts.cpus, 'CPU')}, {amounts.memory} MiB"


def _list(thing: str, names: list[str]) -> str:
    return f"{thing}{'s' if len(names) > 1 else ''} {', '.join(names)}"
