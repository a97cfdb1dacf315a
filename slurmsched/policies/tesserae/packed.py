"""A round of Tesserae on GPUs that Slurm cuts into shards (sections 3.2 and 4.2, algorithms 1 and 4).

In order, each waiting job gets GPUs of its own, where the fewest idle ones become unusable; then those for whom there
are none are matched with jobs that have some. Nobody is displaced, so the migration of section 4.1 has nothing to name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmsched.model import Code, Decision, Job, JobId, Ranked, Reason, Share, Target
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd import Seats, ending, has_a_lease, wanting
from slurmsched.policies.protocol import Ordering, Situation
from slurmsched.policies.tesserae.company import Company, shared_gpu
from slurmsched.policies.tesserae.devices import Devices
from slurmsched.policies.tesserae.halves import Guest, Halves

__all__ = ["Packed"]


@dataclass(frozen=True, slots=True)
class Packed:
    """The whole system, over any order."""

    ordering: Ordering
    name: str = "tesserae-packed"

    def decide(self, situation: Situation) -> Decision:
        order = self.ordering.rank(situation)
        draft = _Round(situation, order)
        turn = Reason(Code.FIRST_IN_ORDER, {"order": self.ordering.name})
        for job in draft.jobs.values():
            draft.place(job, turn)
        draft.pack()
        return Decision(self.name, order, draft.targets, draft.waiting(), {}, dict(situation.state))


class _Round:
    """Who has which place so far. `jobs` are in order."""

    def __init__(self, situation: Situation, order: Sequence[Ranked]) -> None:
        known = {job.id: job for job in situation.jobs}
        self.jobs = {ranked.job: known[ranked.job] for ranked in order}
        self.targets = dict[JobId, Target]()
        self._knowledge = situation.knowledge
        self._ending = dict[JobId, Reason]()
        self._pending = list[Job]()
        self._seats = Seats.of(situation)
        self._devices = Devices(self._seats.cluster)
        self._company = Company(situation.snapshot, situation.knowledge, frozenset(known))

    def place(self, job: Job, turn: Reason) -> None:
        """The place it has, or GPUs of its own."""
        if has_a_lease(job):
            self.targets[job.id] = self._company.lease(job)
        elif why := ending(job):
            self._ending[job.id] = why
        elif shares := self._alone(job) if job.request.shards else self._seats.place(job):
            first = Reason(Code.FILLS_IN) if self._pending else turn
            self.targets[job.id] = Target(job.id, shares, (first, Reason(Code.FEWEST_FRAGMENTS)))
        else:
            self._pending.append(job)

    def _alone(self, job: Job) -> tuple[Share, ...]:
        """A device that nobody else comes to on each of its nodes; nothing where there is none."""
        try:
            homes = list(self._seats.cluster.homes(job))
        except PolicyError:
            return ()
        for wanted, nodes in homes:
            if shares := self._seats.gang(wanted, nodes & self._devices.alone(wanted.tasks[0])):
                self._devices.start(shares)
                return shares
        return ()

    def pack(self) -> None:
        """Send those who found no GPUs of their own to those they do most with."""
        placed = [self.jobs[job] for job in self.jobs if job in self.targets]
        for guest in self._halves().matched(placed, self._pending, self._knowledge):
            self._share(guest)
        self._pending = [job for job in self._pending if job.id not in self.targets]

    def _halves(self) -> Halves:
        places = {job: target.shares for job, target in self.targets.items()}
        return Halves(self._seats.cluster, self._devices, places)

    def _share(self, guest: Guest) -> None:
        pair, host = guest.pair, self.targets[guest.pair.host]
        shares = []
        for share, task in zip(host.shares, guest.wanted.tasks, strict=True):
            node = self._devices.number[share.node]
            self._seats.cluster.idle.take(node, task, share.indices)
            shares.append(self._seats.share(guest.wanted.shards, node, task, share.indices))
        self._devices.start(shares)
        first, second = shared_gpu(shares, pair.guest, pair.kept), shared_gpu(shares, pair.host, pair.kept)
        others = tuple(why for why in host.reasons if why.code is not Code.KEEPS_LEASE)
        self.targets[pair.host] = Target(pair.host, host.shares, (first, *others), pair.kept[0], (pair.guest,))
        self.targets[pair.guest] = Target(pair.guest, tuple(shares), (second,), pair.kept[1], (pair.host,))

    def waiting(self) -> dict[JobId, Reason]:
        """Why the others wait."""
        if not self._pending:
            return self._ending
        empty, halves = self._seats.cluster.emptied(), self._halves()
        why = {job.id: self._in_the_way(job, halves) or wanting(job, empty) for job in self._pending}
        return self._ending | why

    def _in_the_way(self, job: Job, halves: Halves) -> Reason | None:
        """That there is room, but not for it alone."""
        nodes = self._seats.cluster.nodes
        for wanted, room in halves.with_room(job) if job.request.shards else ():
            if (node := self._devices.taking_turns(room)) is not None:
                return Reason(Code.ONE_A_ROUND, {"node": nodes[node].name})
            if found := self._devices.in_the_way(wanted.tasks[0], room):
                node, gpu = found
                jobs = self._company.on(nodes[node].name, gpu)
                return Reason(Code.BESIDE_ANOTHER, {"node": nodes[node].name, "gpu": gpu, "jobs": jobs})
        return None
