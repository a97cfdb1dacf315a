"""What a round of turns means, in the words of the model: targets, and why the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.model import Code, Job, JobId, JobState, Ranked, Reason, Reservation, Share, Target
from slurmsched.model.wording import span
from slurmsched.policies.gandiva_fair.contenders import Arena, Contender
from slurmsched.policies.gandiva_fair.turns import Turns
from slurmsched.policies.placing import Placement

__all__ = ["Said", "ranking", "targets_of", "waiting_for"]

_AWAITS: Final = ("count", "node", "due", "ahead")
"""What the sentence of who waits for a turn needs."""


@dataclass(frozen=True, slots=True)
class Said:
    """How far a job is ahead of the last in its own pool, and the GPUs that its tickets stand for, for people."""

    ahead: str
    due: str

    @classmethod
    def of(cls, one: Contender, reached: Mapping[int, float]) -> Said:
        return cls(span(max(0.0, one.passed - reached[one.home])), f"{one.tickets:.2f}")


def ranking(queue: Iterable[Contender], said: Mapping[JobId, Said]) -> tuple[Ranked, ...]:
    """In order of pass."""
    keys = ((one.job.id, said[one.job.id]) for one in queue)
    return tuple(Ranked(job, f"{own.ahead} ahead on {own.due} GPUs due") for job, own in keys)


def targets_of(
    arena: Arena, turns: Turns, filled: Mapping[JobId, Placement], said: Mapping[JobId, Said]
) -> dict[JobId, Target]:
    """Everybody who runs next."""
    found: dict[JobId, Target] = {}
    for one in turns.kept.values():
        found[one.job.id] = _target(arena, one.job, one.job.shares, (Reason(Code.KEEPS_LEASE),))
    for one, placement in turns.started.values():
        own = said[one.job.id]
        why = Reason(Code.TURN, {"ahead": own.ahead, "due": own.due})
        found[one.job.id] = _started(arena, one.job, placement, why)
    for job, placement in filled.items():
        found[job] = _started(arena, arena.situation.snapshot.job[job], placement, Reason(Code.FILLS_IN))
    return found


def waiting_for(
    arena: Arena,
    queue: Iterable[Contender],
    turns: Turns,
    targets: Mapping[JobId, Target],
    said: Mapping[JobId, Said],
) -> dict[JobId, Reason]:
    """Why everybody else does not."""
    before, found = Counter[int](), dict[JobId, Reason]()
    names = [arena.pools.node(pool).name for pool in range(len(arena.pools))]
    for one in queue:
        job, own = one.job, said[one.job.id]
        if job.id in turns.left:
            newcomer = turns.left[job.id][1].job
            found[job.id] = _ended(job, own, newcomer, said[newcomer.id])
        elif job.id in turns.blocked and job.id not in targets:
            found[job.id] = Reason(Code.MOVES_SPENT, {"limit": arena.situation.moves})
        elif one.home < 0 and job.id not in targets:
            found[job.id] = _has_no_home(arena, one)
        elif job.id not in targets:
            place = (before[one.home], names[one.home], own.due, own.ahead)
            found[job.id] = Reason(Code.AWAITS_TURN, dict(zip(_AWAITS, place, strict=True)))
        before[one.home] += 1
    for job in arena.situation.jobs:
        if job.state is JobState.COMPLETING:
            found[job.id] = Reason(Code.FREED_SOON, {"jobs": "its own last run", "nodes": ", ".join(job.nodes)})
    return found


def _ended(job: Job, own: Said, newcomer: Job, other: Said) -> Reason:
    said = {
        "run": span(job.run_time),
        "ahead": own.ahead,
        "due": own.due,
        "newcomer": f"job {newcomer.id} of {newcomer.user}",
        "behind": other.ahead,
    }
    return Reason(Code.SLICE_ENDED, said)


def _has_no_home(arena: Arena, one: Contender) -> Reason:
    """It is too wide for one node, or fits nowhere."""
    if what := arena.empty.lacks(one.job):
        return Reason(Code.NEVER_FITS, {"what": what})
    if not one.wish.options:
        snapshot = arena.situation.snapshot
        names = sorted(r.name for r in Reservation.active(snapshot.reservations, snapshot.time))
        if names:
            return Reason(Code.RESERVED, {"reservation": ", ".join(names)})
    return Reason(Code.NO_ROOM, {"gpus": one.job.request.gpus})


def _started(arena: Arena, job: Job, placement: Placement, why: Reason) -> Target:
    shares = placement.shares(arena.pools)
    cpus = sum(share.resources.cpus for share in shares)
    return _target(arena, job, shares, (why, Reason(Code.PROPORTIONAL, {"cpus": cpus})))


def _target(arena: Arena, job: Job, shares: tuple[Share, ...], reasons: tuple[Reason, ...]) -> Target:
    situation = arena.situation
    return Target(job.id, shares, reasons, situation.knowledge.relative_speed(job, shares, situation.snapshot.node))
