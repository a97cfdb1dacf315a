"""A round's decision in the making."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from slurmsched.model import Code, Job, JobId, JobState, Reason
from slurmsched.policies.allocating import Allocating
from slurmsched.policies.ledger import Ledger
from slurmsched.policies.placing import Choosing, Grounds, Level, Placement, Wish, Wishes, place
from slurmsched.policies.pools import Claim
from slurmsched.policies.protocol import Ordering, Situation

__all__ = ["Draft", "Unanswered"]


class Unanswered:
    """Questions that had no answer. Room only shrinks until a running job leaves, so none has one before that."""

    def __init__(self) -> None:
        self._questions: set[Hashable] = set()
        self._as_of = 0

    def known(self, question: Hashable, as_of: int) -> bool:
        """Whether it was asked since the last job left; `as_of` counts those."""
        if as_of != self._as_of:
            self._questions.clear()
            self._as_of = as_of
        return question in self._questions

    def remember(self, question: Hashable) -> None:
        self._questions.add(question)


class Draft:
    """Who has which place so far.

    Two ledgers tell what is free: in `wide` every job placed this round has what it was placed with, in `tight` the
    least it accepts. What lies between is given back freely, for these jobs have not started: so no step shrinks a
    peer, and what is spare in the end is handed out once (`growing`). No two jobs of those that are `apart` for the
    same reason, by name, are put on one node.
    """

    def __init__(
        self,
        situation: Situation,
        ordering: Ordering,
        allocating: Allocating,
        choosing: Choosing,
        *,
        mixed: Mapping[JobId, frozenset[str]] | None = None,
        apart: Mapping[JobId, JobId] | None = None,
    ) -> None:
        self.situation = situation
        self.order = order = ordering.rank(situation)
        self.outranks = ordering.outranks(situation)
        self.position = {ranked.job: at for at, ranked in enumerate(order)}
        self.key = {ranked.job: ranked.key for ranked in order}
        self.jobs = {job.id: job for job in situation.jobs}
        self.allocating = allocating
        self.tight = Ledger.free(situation.snapshot)
        self.wide = self.tight.copy()
        self.pools = self.tight.pools
        grounds = Grounds(self.pools, situation.snapshot, situation.usable)
        self.mixed = mixed or {}
        self._apart = apart or {}
        self._homes: dict[JobId, dict[JobId, tuple[int, ...]]] = {whose: {} for whose in self._apart.values()}
        """By those names the nodes of each job that has or had a place in this round, by position."""
        self.wishes = Wishes(
            self.pools, grounds, situation.knowledge, allocating, mixed=self.mixed, closed=self._beside_others
        )
        self.leases: dict[JobId, Claim] = {
            job.id: self.pools.claim(job.shares, alone=job.request.exclusive)
            for job in situation.jobs
            if job.shares and job.state in (JobState.RUNNING, JobState.SUSPENDED)
        }
        for job_id, claim in self.leases.items():
            self._settle(job_id, claim)
        self.restarted: dict[JobId, Claim] = {}
        """What running jobs will have that start again on less."""
        self.placed: dict[JobId, Placement] = {}
        self.victims: dict[JobId, JobId] = {}
        self.notes: dict[JobId, Reason] = {}
        """Why a job waits, or why a running one starts anew, where more is known than its place in the order."""
        self.moves = situation.moves
        self.given_back = 0
        """How often something that ran was given back."""
        self._choosing = choosing

    def find(self, wish: Wish, level: Level, ledger: Ledger) -> Placement | None:
        """A place in this ledger, nothing claimed."""
        return place(wish, level, ledger, self._choosing)

    def wants_a_place(self, job: Job) -> bool:
        """Whether it neither runs on, nor was given a place already, nor is still ending."""
        if job.state is JobState.COMPLETING:
            said = {"jobs": "its own last run", "nodes": ", ".join(job.nodes)}
            self.notes[job.id] = Reason(Code.FREED_SOON, said)
            return False
        return job.id not in self.leases and job.id not in self.placed

    def held(self, job: JobId) -> Claim:
        """What a running job has, or will have once restarted."""
        return self.leases.get(job) or self.restarted[job]

    def note(self, job: Job, why: Reason) -> None:
        """Why a newcomer waits; that it was displaced says more."""
        if job.id not in self.victims:
            self.notes[job.id] = why

    def may_leave(self, job: JobId) -> bool:
        """Whether a job with a lease may be displaced or restarted."""
        return job not in self.situation.fixed and self.jobs[job].state is JobState.RUNNING

    def least(self, wish: Wish, placement: Placement) -> Placement:
        """The same place with the least the job accepts there."""
        return replace(placement, portion=wish.terms[placement.kind].least)

    def seat(self, job: Job, placement: Placement) -> None:
        """Give a job this place: for good on its least terms, meanwhile on those it was found with."""
        least = self.least(self.wishes.of(job), placement)
        self.placed[job.id] = least
        self._settle(job.id, least.claim(self.pools))
        self.tight.claim(least.claim(self.pools))
        self.wide.claim(placement.claim(self.pools))
        if job.id not in self.victims:
            self.notes.pop(job.id, None)

    def reserve(self, placement: Placement) -> None:
        """Keep a place free, even of what is not free yet."""
        claim = placement.claim(self.pools)
        self.tight.claim(claim)
        self.wide.claim(claim)

    def displace(self, victim: JobId, newcomer: Job) -> None:
        """Take from the victim all it has, or was to have again; it is a newcomer when its turn comes."""
        self._end_lease(victim, newcomer)
        against = f"{self.key[newcomer.id]} against {self.key[victim]}"
        self.notes[victim] = Reason(Code.NEWCOMER_FIRST, {"newcomer": newcomer.id, "why": against})

    def restart(self, victim: JobId, leaner: Placement, newcomer: Job, why: Reason) -> None:
        """Have a running job start again at once on less."""
        self._end_lease(victim, newcomer)
        self.seat(self.jobs[victim], leaner)
        self.restarted[victim] = leaner.claim(self.pools)
        self.notes[victim] = why

    def enlarge(self, job: Job, larger: Placement, why: Reason) -> None:
        """Have a running job start again at once on more, which must be free, on the GPUs it has."""
        self._end_lease(job.id, job)
        self.placed[job.id] = larger
        self._settle(job.id, larger.claim(self.pools))
        for ledger in (self.tight, self.wide):
            ledger.claim(larger.claim(self.pools))
        self.notes[job.id] = why

    def spare_the_unchanged(self) -> None:
        """Let victims that ended up with just what they had keep it: there is nothing to restart for."""
        for victim in [job for job in self.victims if job in self.placed]:
            had = self.pools.claim(self.jobs[victim].shares, alone=self.jobs[victim].request.exclusive)
            if self.placed[victim].claim(self.pools).by_pool() == had.by_pool():
                self.leases[victim] = had
                del self.placed[victim], self.victims[victim], self.notes[victim]

    def _settle(self, job: JobId, claim: Claim) -> None:
        """Keep those away that it is to be apart from: also from where it is displaced, for it may have to stay."""
        if job in self._apart:
            nodes = tuple(int(self.pools.node_of[pool]) for pool in claim.pools)
            homes = self._homes[self._apart[job]]
            homes[job] = (*homes.get(job, ()), *nodes)

    def _beside_others(self, job: Job) -> frozenset[str]:
        """The nodes of those that it is to be apart from."""
        homes = self._homes.get(self._apart.get(job.id, ""), {})
        return frozenset(self.pools.nodes[at].name for other, nodes in homes.items() if other != job.id for at in nodes)

    def _end_lease(self, victim: JobId, newcomer: Job) -> None:
        self.moves -= victim not in self.victims
        held = self.held(victim)
        self.tight.refund(held)
        self.wide.refund(held)
        for books in (self.leases, self.restarted, self.placed):
            books.pop(victim, None)
        self.victims[victim] = newcomer.id
        self.given_back += 1
