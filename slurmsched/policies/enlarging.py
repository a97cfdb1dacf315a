"""Restarting running jobs on more, where it pays: what is spare once everybody has a place is worth a checkpoint.

In the paper every round places all jobs anew (Synergy, section 4.2), so none is held to what was free when it started.
Here leases last and a restart costs, so a job is only restarted for a gain that is clearly worth it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf
from typing import Final

from slurmsched.model import Code, Job, Reason
from slurmsched.model.wording import span
from slurmsched.policies.allocating import Portion
from slurmsched.policies.draft import Draft
from slurmsched.policies.growing import difference, most_there_is_room_for
from slurmsched.policies.placing import Placement
from slurmsched.policies.pools import Claim

__all__ = ["enlarge"]

CLEARLY: Final = 3.0
"""A restart pays when it saves this many times what it costs: what is expected of a job is often wrong."""


@dataclass(frozen=True, slots=True)
class _Gain:
    """A running job, what it would have, and the seconds that saves."""

    job: Job
    larger: Placement
    saving: float


def enlarge(draft: Draft) -> None:
    """Restart the jobs that gain most, as many as may still be moved this round."""
    if not draft.situation.snapshot.nodes or draft.moves <= 0:
        return
    gains = [gain for job in draft.leases if (gain := _gain(draft, draft.jobs[job])) is not None]
    for gain in sorted(gains, key=lambda gain: (-gain.saving * gain.job.gpus, draft.position[gain.job.id])):
        again = _gain(draft, gain.job) if draft.moves > 0 else None  # those before may have taken the room
        if again is not None:
            said = {"saving": span(again.saving), "cost": span(draft.situation.restart_cost)}
            draft.enlarge(again.job, again.larger, Reason(Code.PAYS_FOR_RESTART, said))


def _gain(draft: Draft, job: Job) -> _Gain | None:
    """What the job would gain on the same GPUs; None where that is not clearly worth a restart."""
    remaining = draft.situation.knowledge.remaining(job)
    have = _as_placed(draft, job) if draft.may_leave(job.id) and not isinf(remaining) else None
    if have is None:
        return None
    kind = draft.pools.kinds[have.kind]
    steps = list(draft.allocating.larger(have.gang, kind, have.portion, most_there_is_room_for(draft, have)))
    if not steps:
        return None
    portion, faster = max(steps, key=lambda step: (step[1], -step[0].cpus, -step[0].memory))
    now = draft.situation.knowledge.relative_speed(job, job.shares, draft.situation.snapshot.node)
    saving = remaining * (1 - now / (now + faster))
    larger = Placement(have.gang, have.pools, have.parts, portion, have.kind)
    extra = difference(larger.claim(draft.pools), have.claim(draft.pools))
    pays = saving > CLEARLY * draft.situation.restart_cost and draft.tight.holds(extra)
    return _Gain(job, larger, saving) if pays else None


def _as_placed(draft: Draft, job: Job) -> Placement | None:
    """The lease as a place on even parts; None for one that is uneven, or of a job nothing is known of."""
    gang, lease = draft.wishes.of(job).gang, draft.leases[job.id]
    kinds = {int(draft.pools.kind_of[pool]) for pool in lease.pools}
    if gang.profile is None or gang.request.exclusive or len(kinds) != 1 or any(n % gang.gpus for n in lease.gpus):
        return None
    parts = tuple(gpus // gang.gpus for gpus in lease.gpus)
    portion = _portion(lease, parts)
    placed = Placement(gang, lease.pools, parts, portion, kinds.pop())
    return placed if placed.claim(draft.pools).by_pool() == lease.by_pool() else None


def _portion(lease: Claim, parts: tuple[int, ...]) -> Portion:
    return Portion(lease.cpus[0] // parts[0], max(lease.memory) // max(parts))
