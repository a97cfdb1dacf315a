"""Restarts running jobs where that clearly pays: on the GPU type that they are due, or with more CPUs and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.cluster.eligibility import may_begin_again
from slurmsched.policies.finish.spare import extra_resources, largest_that_fits
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import PerTaskResources, size_upgrades

MIN_BENEFIT: Final = 3.0
"""A restart pays if it saves this many times its cost: estimates of remaining time are often wrong."""


@dataclass(frozen=True, slots=True)
class _Resize:
    """A running job, its larger placement, and the seconds that this saves."""

    job: Job
    larger: Placement
    saving: float


def resize_running(session: Session) -> None:
    """Restart the jobs that save most GPU-seconds, as many as may still be moved this round."""
    if not session.situation.snapshot.nodes or session.moves_left <= 0:
        return
    running = [session.jobs[job] for job in session.running]
    resizes = [resize for job in running if (resize := _worthwhile_resize(session, job)) is not None]
    for planned in sorted(
        resizes, key=lambda resize: (-resize.saving * resize.job.gpus, session.rank_of[resize.job.id])
    ):
        # computed again: earlier jobs may have taken the spare resources
        resize = _worthwhile_resize(session, planned.job) if session.moves_left > 0 else None
        if resize is not None:
            cost = session.situation.cost_of_restart(resize.job.id)
            detail = {"saving": format_duration(resize.saving), "cost": format_duration(cost)}
            session.restart_with(resize.job, resize.larger, Reason(ReasonCode.PAYS_FOR_RESTART, detail))


def _worthwhile_resize(session: Session, job: Job) -> _Resize | None:
    """Return the job's best resize on its GPUs; None where it is not clearly worth a restart."""
    remaining = session.situation.knowledge.remaining_seconds(job)
    may_restart = session.is_preemptible(job.id) and may_begin_again(job, session.situation.snapshot)
    current = _current_placement(session, job) if may_restart and not isinf(remaining) else None
    if current is None:
        return None
    kind = session.pools.kinds[current.kind]
    limit = largest_that_fits(session, job.id, current)
    steps = list(size_upgrades(session.sizing, current.gang, kind, current.per_task, limit))
    if not steps or session.delays_promise(job, current.allocation(session.pools)):
        return None
    per_task, faster = max(steps, key=lambda step: (step[1], -step[0].cpus, -step[0].memory))
    now = session.situation.knowledge.relative_speed(job, job.allocations, session.situation.snapshot.nodes_by_name)
    saving = _expected_run(session, job, remaining) * (1 - now / (now + faster))
    larger = replace(current, per_task=per_task)
    extra = extra_resources(larger.allocation(session.pools), current.allocation(session.pools))
    pays = saving > MIN_BENEFIT * session.situation.cost_of_restart(job.id) and session.free_at_minimum.fits(extra)
    return _Resize(job, larger, saving) if pays else None


def _expected_run(session: Session, job: Job, remaining: float) -> float:
    """Return for how long the job keeps what it is restarted with: until its end or, where it was restarted before, for
    as long as its runs have lasted on average."""
    executed = session.situation.knowledge.executed_seconds(job)
    return min(remaining, executed / job.restarts) if job.restarts else remaining


def _current_placement(session: Session, job: Job) -> Placement | None:
    """Return the allocation as a placement; None for uneven parts, an exclusive job, or one without a profile."""
    gang, allocation = session.demands.of(job).gang, session.running[job.id]
    kinds = {int(session.pools.kind_of[pool]) for pool in allocation.pools}
    if (
        gang.profile is None
        or not gang.gpus_per_part
        or gang.request.exclusive
        or len(kinds) != 1
        or any(n % gang.gpus_per_part for n in allocation.gpus)
    ):
        return None
    parts = tuple(gpus // gang.gpus_per_part for gpus in allocation.gpus)
    kind = kinds.pop()
    units = session.pools.kinds[kind].cpu_units(gang.request.threads_per_core)
    per_task = PerTaskResources(units.within(allocation.cpus[0]) // parts[0], max(allocation.memory) // max(parts))
    placed = Placement(gang, allocation.pools, parts, per_task, kind)
    return placed if placed.allocation(session.pools).by_pool() == allocation.by_pool() else None


def migrate_to_due_type(session: Session) -> None:
    """Move jobs in order, as many as may still move this round. No job is moved onto several types."""
    for ranked in session.ranking:
        job = session.jobs[ranked.job]
        if session.moves_left <= 0:
            return
        if job.id not in session.running or not session.is_preemptible(job.id):
            continue
        saving, restart_cost = _saved_seconds(session, job), session.situation.cost_of_restart(job.id)
        if saving <= MIN_BENEFIT * restart_cost:
            continue
        placement = session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum)
        if placement is not None:
            details = {"saving": format_duration(saving), "cost": format_duration(restart_cost)}
            session.restart_with(job, placement, Reason(ReasonCode.PAYS_FOR_RESTART, details))


def _saved_seconds(session: Session, job: Job) -> float:
    """Return by how many seconds the job would end sooner, by measured rates."""
    knowledge, rates = session.situation.knowledge, session.entitlement.rates
    due = session.entitlement.gpu_types.get(job.id, frozenset())
    if len(due) != 1:
        return 0.0
    (gpu_type,) = due
    held = [rates.get((job.id, on_node.gpu_type)) for on_node in job.allocations]
    now = min((rate for rate in held if rate is not None), default=0.0)
    then = rates.get((job.id, gpu_type), 0.0)
    if not held or None in held:
        return 0.0
    return remaining_or_executed(knowledge, job) * (1 - now / then) if then > now else 0.0


def remaining_or_executed(knowledge: Knowledge, job: Job) -> float:
    """Return the seconds that the job still needs. Without a duration estimate it is assumed half finished."""
    remaining = knowledge.remaining_seconds(job)
    return knowledge.executed_seconds(job) if isinf(remaining) else remaining
