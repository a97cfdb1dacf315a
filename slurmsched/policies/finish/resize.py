"""Restarting running jobs on more, where it pays: what is spare once everybody has a place is worth a checkpoint.

In the paper every round places all jobs anew (Synergy, section 4.2), so none is held to what was free when it started.
Here leases last and a restart costs, so a job is only restarted for a gain that is clearly worth it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf
from typing import Final

from slurmsched.model import Job, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.cluster.pools import Allocation
from slurmsched.policies.finish.spare import extra_resources, largest_that_fits
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import PerTaskResources

MIN_BENEFIT: Final = 3.0
"""A restart pays when it saves this many times what it costs: what is expected of a job is often wrong."""


@dataclass(frozen=True, slots=True)
class _Resize:
    """A running job, what it would have, and the seconds that saves."""

    job: Job
    larger: Placement
    saving: float


def resize_running(session: Session) -> None:
    """Restart the jobs that gain most, as many as may still be moved this round."""
    if not session.situation.snapshot.nodes or session.moves_left <= 0:
        return
    resizes = [gain for job in session.running if (gain := _worthwhile_resize(session, session.jobs[job])) is not None]
    for gain in sorted(resizes, key=lambda gain: (-gain.saving * gain.job.gpus, session.rank_of[gain.job.id])):
        again = (
            _worthwhile_resize(session, gain.job) if session.moves_left > 0 else None
        )  # those before may have taken the room
        if again is not None:
            detail = {"saving": format_duration(again.saving), "cost": format_duration(session.situation.restart_cost)}
            session.restart_with(again.job, again.larger, Reason(ReasonCode.PAYS_FOR_RESTART, detail))


def _worthwhile_resize(session: Session, job: Job) -> _Resize | None:
    """What the job would gain on the same GPUs; None where that is not clearly worth a restart."""
    remaining = session.situation.knowledge.remaining_seconds(job)
    current = _current_placement(session, job) if session.is_preemptible(job.id) and not isinf(remaining) else None
    if current is None:
        return None
    kind = session.pools.kinds[current.kind]
    steps = list(session.sizing.upgrades(current.gang, kind, current.per_task, largest_that_fits(session, current)))
    if not steps:
        return None
    per_task, faster = max(steps, key=lambda step: (step[1], -step[0].cpus, -step[0].memory))
    now = session.situation.knowledge.relative_speed(job, job.allocations, session.situation.snapshot.nodes_by_name)
    saving = remaining * (1 - now / (now + faster))
    larger = Placement(current.gang, current.pools, current.parts, per_task, current.kind)
    extra = extra_resources(larger.allocation(session.pools), current.allocation(session.pools))
    pays = saving > MIN_BENEFIT * session.situation.restart_cost and session.free_at_minimum.fits(extra)
    return _Resize(job, larger, saving) if pays else None


def _current_placement(session: Session, job: Job) -> Placement | None:
    """The lease as a place on even parts; None for one that is uneven, or of a job nothing is known of."""
    gang, allocation = session.demands.of(job).gang, session.running[job.id]
    kinds = {int(session.pools.kind_of[pool]) for pool in allocation.pools}
    if (
        gang.profile is None
        or gang.request.exclusive
        or len(kinds) != 1
        or any(n % gang.gpus_per_part for n in allocation.gpus)
    ):
        return None
    parts = tuple(gpus // gang.gpus_per_part for gpus in allocation.gpus)
    per_task = _per_task(allocation, parts)
    placed = Placement(gang, allocation.pools, parts, per_task, kinds.pop())
    return placed if placed.allocation(session.pools).by_pool() == allocation.by_pool() else None


def _per_task(allocation: Allocation, parts: tuple[int, ...]) -> PerTaskResources:
    return PerTaskResources(allocation.cpus[0] // parts[0], max(allocation.memory) // max(parts))
