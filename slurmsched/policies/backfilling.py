"""Slurm's own way, to compare with: priority, first fit, EASY backfill (Lifka, JSSPP 1995), nobody displaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from slurmsched.model import Decision, Job
from slurmsched.policies.allocating import Allocating, AsRequested
from slurmsched.policies.draft import Draft, Unanswered
from slurmsched.policies.explaining import explained
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.ordering import SlurmPriority
from slurmsched.policies.placing import FIRST_FIT, Choosing, Level, Wish
from slurmsched.policies.pools import Claim
from slurmsched.policies.protocol import Ordering, Situation

__all__ = ["Backfilling"]


@dataclass(frozen=True, slots=True)
class _Promise:
    """When the first job that does not fit starts at the latest, and what is free then beside it."""

    at: float
    beside: Ledger


@dataclass(frozen=True, slots=True)
class Backfilling:
    """In order, as requested, on the first nodes that fit. The first job that does not fit is promised a start by the
    time limits of those that run; later ones start only where that promise stands."""

    name: str = "slurm"
    ordering: Ordering = field(default_factory=SlurmPriority)
    allocating: Allocating = field(default_factory=AsRequested)
    choosing: Choosing = FIRST_FIT

    def decide(self, situation: Situation) -> Decision:
        draft, promise, full = Draft(situation, self.ordering, self.allocating, self.choosing), None, Unanswered()
        for ranked in draft.order:
            job = draft.jobs[ranked.job]
            if not draft.wants_a_place(job):
                continue
            wish = draft.wishes.of(job)
            beyond = promise is not None and situation.snapshot.time + _limit(job) > promise.at
            if full.known((wish, beyond), draft.given_back):
                continue
            ledger = draft.tight.meet(promise.beside) if promise and beyond else draft.tight
            placement = draft.find(wish, Level.BEST, ledger)
            if placement is None:
                full.remember((wish, beyond))
                promise = promise or _promised(draft, wish)
                continue
            draft.seat(job, placement)
            if promise and beyond:
                promise.beside.claim(placement.claim(draft.pools))
        targets, waiting = explained(draft, self.ordering.name)
        return Decision(self.name, draft.order, targets, waiting, draft.victims, dict(situation.state))


def _promised(draft: Draft, wish: Wish) -> _Promise | None:
    """Let jobs end one after the other until the gang fits; None where it never does."""
    ledger = draft.tight.copy()
    for at, claim in sorted(_endings(draft), key=lambda ending: ending[0]):
        ledger.refund(claim)
        placement = draft.find(wish, Level.BEST, ledger)
        if placement is not None:
            ledger.claim(placement.claim(draft.pools))
            return _Promise(at, ledger)
    return None


def _endings(draft: Draft) -> Iterator[tuple[float, Claim]]:
    """When everything that has resources, or was given some just now, gives them back at the latest."""
    for job in draft.situation.snapshot.jobs:
        if job.shares:
            end = job.end_time if job.end_time is not None else (job.start_time or 0.0) + _limit(job)
            yield end, draft.pools.claim(job.shares, alone=job.request.exclusive)
    for job_id, placement in draft.placed.items():
        yield draft.situation.snapshot.time + _limit(draft.jobs[job_id]), placement.claim(draft.pools)


def _limit(job: Job) -> float:
    return inf if job.time_limit is None else job.time_limit
