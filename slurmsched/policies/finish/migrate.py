"""Moves running jobs to the GPU type that they are due, where it is free and repays a restart."""

from __future__ import annotations

from math import isinf

from slurmsched.model import Job, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.finish.resize import MIN_BENEFIT
from slurmsched.policies.session import Session


def migrate_to_due_type(session: Session) -> None:
    """Move jobs in order, as many as may still move this round. No job is moved onto several types."""
    restart_cost = session.situation.restart_cost
    for ranked in session.ranking:
        job = session.jobs[ranked.job]
        if session.moves_left <= 0:
            return
        if job.id not in session.running or not session.is_preemptible(job.id):
            continue
        saving = _saved_seconds(session, job)
        if saving <= MIN_BENEFIT * restart_cost:
            continue
        placement = session.find_placement(session.demands.of(job), DemandLevel.MINIMUM, session.free_at_minimum)
        if placement is not None:
            details = {"saving": format_duration(saving), "cost": format_duration(restart_cost)}
            session.restart_with(job, placement, Reason(ReasonCode.PAYS_FOR_RESTART, details))


def _saved_seconds(session: Session, job: Job) -> float:
    """Return by how many seconds the job would end sooner. Without a duration estimate it is assumed half finished."""
    knowledge, rates = session.situation.knowledge, session.entitlement.rates
    due = session.entitlement.gpu_types.get(job.id, frozenset())
    if len(due) != 1:
        return 0.0
    (gpu_type,) = due
    now = min((rates.get((job.id, on_node.gpu_type), 0.0) for on_node in job.allocations), default=0.0)
    then = rates[job.id, gpu_type]
    remaining = knowledge.remaining_seconds(job)
    if isinf(remaining):
        remaining = knowledge.executed_seconds(job)
    return remaining * (1 - now / then) if then > now else 0.0
