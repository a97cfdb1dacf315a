"""Why each job runs as it does, or waits."""

from __future__ import annotations

from slurmsched.model import Code, Job, JobId, Reason, Reservation, Resources, Share, Target
from slurmsched.policies.draft import Draft
from slurmsched.policies.fitting import EmptyCluster

__all__ = ["explained"]


def explained(draft: Draft, order: str) -> tuple[dict[JobId, Target], dict[JobId, Reason]]:
    """The targets and the waiting jobs of a finished draft, each with its reasons."""
    targets, waits, passed_over = dict[JobId, Target](), list[Job](), False
    for ranked in draft.order:
        job = draft.jobs[ranked.job]
        if job.id in draft.leases:
            targets[job.id] = _target(draft, job, job.shares, (Reason(Code.KEEPS_LEASE),))
        elif job.id in draft.placed:
            shares = draft.placed[job.id].shares(draft.pools)
            first = Reason(Code.FILLS_IN) if passed_over else Reason(Code.FIRST_IN_ORDER, {"order": order})
            reasons = (draft.notes.get(job.id, first), _amounts(draft, job, shares))
            targets[job.id] = _target(draft, job, shares, reasons)
        else:
            waits.append(job)
            passed_over = True
    last = next((ranked.job for ranked in reversed(draft.order) if ranked.job in targets), None)
    situation = draft.situation
    empty = EmptyCluster(draft.pools, situation.snapshot, situation.knowledge, draft.allocating, draft.mixed)
    return targets, {job.id: draft.notes.get(job.id) or _waits(draft, job, order, last, empty) for job in waits}


def _target(draft: Draft, job: Job, shares: tuple[Share, ...], reasons: tuple[Reason, ...]) -> Target:
    situation = draft.situation
    return Target(job.id, shares, reasons, situation.knowledge.relative_speed(job, shares, situation.snapshot.node))


def _amounts(draft: Draft, job: Job, shares: tuple[Share, ...]) -> Reason:
    """How its CPUs compare with its GPU share."""
    nodes, profile = draft.situation.snapshot.node, draft.situation.knowledge.profile(job)
    has = sum((share.resources for share in shares), Resources()).cpus
    share = sum((nodes[share.node].proportional(share.resources.gpus) for share in shares), Resources()).cpus
    gain = draft.situation.knowledge.relative_speed(job, shares, nodes) - 1
    if profile is not None and ((has < share and gain >= 0) or (has > share and gain > 0)):
        code = Code.TUNED_DOWN if has < share else Code.TUNED_UP
        return Reason(code, {"cpus": has, "share": share, "model": profile.name, "gain": f"{gain:.0%}"})
    asked = has != share and 0 <= has - job.request.cpus < job.request.gpus  # rounded up for each part of a gang
    return Reason(Code.AS_REQUESTED if asked else Code.PROPORTIONAL, {"cpus": has})


def _waits(draft: Draft, job: Job, order: str, last: JobId | None, empty: EmptyCluster) -> Reason:
    if what := empty.lacks(job):
        return Reason(Code.NEVER_FITS, {"what": what})
    wish = draft.wishes.of(job)
    if not wish.options:
        snapshot = draft.situation.snapshot
        names = sorted(r.name for r in Reservation.active(snapshot.reservations, snapshot.time))
        if names:
            return Reason(Code.RESERVED, {"reservation": ", ".join(names)})
    idle = max((int(draft.tight.gpus[option.mask].clip(min=0).sum()) for option in wish.options), default=0)
    if idle >= job.request.gpus or last is None or not draft.position[job.id]:
        return Reason(Code.NO_ROOM, {"gpus": job.request.gpus})
    return Reason(Code.BEHIND, {"count": draft.position[job.id], "order": order, "last": last})
