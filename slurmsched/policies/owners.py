"""What users are due and hold, and how much more or less the bids of their jobs count therefore, for `unified`.

`behind` is above 1 for users who hold less than they are due by their tickets, below 1 for users who hold more, over
about a day and the next hours. In these hours a job's owner is taken to hold the GPUs of those of the own jobs that bid
more, so that the first GPUs of every user count more than the last ones: all bids of a user would cross another's at
once, and all GPUs of both change hands, to and fro. What they hold counts by worth: GPUs of a type that is faster for
most jobs count as more, whatever a user runs on them. GPUs of jobs that are not managed count, and parts of GPUs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from math import log
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.knowledge.estimation import estimates_by_type
from slurmsched.model import Job, JobId, Snapshot
from slurmsched.policies.gandiva_fair.tickets import build_ticket_registry, build_ticket_tree, divide_by_tickets
from slurmsched.policies.stages import Situation
from slurmsched.policies.state import Account, TicketAccounts, decode_state

_HALF_LIFE: Final = 86400.0
"""Seconds after which what a user was due and held counts half."""

_LEAST_DUE: Final = 3600.0
"""Seconds of an equal part of all GPUs: who is due less than that is hardly behind or ahead yet."""

_MOST_BEHIND: Final = 0.9
"""Part of what is due."""

_AS_GOOD_AS_DUE: Final = 0.03
"""Part of what is due by which a user counts as neither behind nor ahead: jobs that hardly differ change no places."""

_AHEAD: Final = 4 * 3600.0
"""Seconds for which a user is taken to hold the GPUs of the own jobs that bid more, and to be due what is due now."""

_ALIKE: Final = 1.25
"""A user's jobs are taken in order of the powers of this that they bid, of equals first those that run: jobs that are
about as long change no places."""

FURTHEST: Final = 10.0
"""How much more or less a bid counts at most because of who its owner is, and how much more as it waits."""

_LONGEST_GAP: Final = 8.0
"""Periods that may pass between two rounds; after a longer time nobody is due anything for it."""


def evened(due: Floats, held: Floats, least: float, evenness: float) -> Floats:
    """Returns how much more bids count of users who are due and hold so many GPU-seconds, of which the first are taken
    for at least `least`: 1 for a user who holds about what is due; [any]."""
    missing = (due - held) / np.maximum(due, max(least, 1.0))
    powers = np.clip(-evenness * np.log(1.0 - np.minimum(missing, _MOST_BEHIND)), -log(FURTHEST), log(FURTHEST))
    return np.asarray(np.where(np.abs(missing) < _AS_GOOD_AS_DUE, 1.0, np.exp(powers)), dtype=np.float64)


class Owners:
    """How much more the bids of jobs count because of who owns them."""

    def __init__(self, situation: Situation, accounts: Accounts, evenness: float) -> None:
        self._situation, self._evenness = situation, evenness
        self._number = {user: at for at, user in enumerate(sorted({job.user for job in situation.snapshot.jobs}))}
        of_users = [accounts.users.get(user, Account()) for user in self._number]
        due = np.array([accounts.due.get(user, 0.0) for user in self._number])
        self._due = np.array([account.due for account in of_users]) + _AHEAD * due
        self._held = np.array([account.received for account in of_users])
        self._least = _LEAST_DUE * _worth_of_cluster(situation) / max(len({job.user for job in situation.jobs}), 1)

    def counts(self, names: Sequence[JobId], alone: Floats) -> Floats:
        """Returns by how much bids are multiplied that would be `alone` for a GPU but for their owners; both [jobs].

        Each user's jobs take GPUs one after another, by what they bid; a job counts by what its owner holds with those
        before it and half of its own. Where nobody else has jobs, all count the same.
        """
        jobs, worth = self._situation.snapshot.jobs_by_id, _type_worth(self._situation)
        queue = [jobs[name] for name in names]
        owner = np.array([self._number[job.user] for job in queue], dtype=np.int64)
        if not len(owner) or (owner == owner[0]).all():
            return np.ones(len(owner))
        takes = np.array([_worth_of(self._situation.snapshot, job, worth) for job in queue])
        rank = np.floor(np.log(alone) / np.log(_ALIKE))
        order = np.lexsort((np.array([not job.allocations for job in queue], dtype=bool), -rank, owner))
        with_own = np.cumsum(takes[order])
        firsts = np.flatnonzero(np.diff(owner[order], prepend=-1))
        before_owner = np.repeat((with_own - takes[order])[firsts], np.diff(firsts, append=len(queue)))
        ahead = np.empty(len(queue))
        ahead[order] = with_own - takes[order] / 2 - before_owner
        ahead += self._held_by_others(set(names), worth)[owner]
        return evened(self._due[owner], self._held[owner] + _AHEAD * ahead, self._least, self._evenness)

    def _held_by_others(self, queued: Set[JobId], worth: Mapping[str, float]) -> Floats:
        """Returns what each user's jobs hold that are not `queued`; [users]."""
        held = np.zeros(len(self._number))
        for job in self._situation.snapshot.jobs:
            if job.allocations and job.id not in queued:
                held[self._number[job.user]] += _worth_of(self._situation.snapshot, job, worth)
        return held


def _worth_of(snapshot: Snapshot, job: Job, worth: Mapping[str, float]) -> float:
    """Returns the worth of the GPUs that a job holds; of a waiting one the mean of what it asks for."""
    asked = job.original_request.gpu_type or ""
    if part := snapshot.part_of_gpu(job):
        return part * worth.get(job.gpu_type_held or asked, 1.0)
    if job.allocations:
        return sum(on_node.resources.gpus * worth.get(on_node.gpu_type, 1.0) for on_node in job.allocations)
    return job.gpus * worth.get(asked, 1.0)


@dataclass(frozen=True, slots=True)
class Accounts:
    """What users were due and held, and `due`: GPUs that each is due now."""

    users: Mapping[str, Account]
    due: Mapping[str, float]

    def in_words(self) -> Mapping[str, str]:
        """Returns by user what that one held, as a part of what was due: in steps of 5 %, else what is told of all
        jobs would change with each round."""
        return {
            user: f"{user} had about {5 * round(20 * account.received / account.due)}% of its due"
            for user, account in self.users.items()
            if account.due > 0
        }

    def to_keep(self) -> Mapping[str, Account]:
        """Returns the accounts as the next round is to find them, with what each user is due until then."""
        return {
            user: replace(self.users.get(user, Account()), holdings={"GPUs": round(gpus, 6)} if gpus else {})
            for user, gpus in sorted({**dict.fromkeys(self.users, 0.0), **self.due}.items())
        }


def accounts_of(situation: Situation) -> Accounts:
    """Returns the accounts with what was due and held since the last round, and what is due now."""
    before, now = decode_state(TicketAccounts, situation.state), situation.snapshot.time
    elapsed = 0.0 if before.time is None else max(0.0, now - before.time)
    kept = 0.5 ** (elapsed / _HALF_LIFE)
    counted = elapsed if elapsed <= _LONGEST_GAP * situation.period else 0.0
    held = _held_worth(situation, now - counted) if counted else {}
    due = {user: account.holdings.get("GPUs", 0.0) for user, account in before.accounts.items()}
    users = dict[str, Account]()
    for user in {*before.accounts, *held}:
        account = before.accounts.get(user, Account())
        owed = max(0.0, account.due) * kept + due.get(user, 0.0) * counted
        had = max(0.0, account.received) * kept + held.get(user, 0.0)
        if owed + had > 1.0:
            users[user] = Account(due=round(owed, 3), received=round(had, 3))
    return Accounts(users, _due_gpus(situation))


def _type_worth(situation: Situation) -> Mapping[str, float]:
    """Returns what a GPU of each type is worth, in such a unit that the mean GPU is worth 1."""
    counts = Counter(gpu.type for node in situation.snapshot.nodes for gpu in node.gpus)
    speeds = estimates_by_type(counts)
    mean = sum(counts[kind] * speeds[kind] for kind in counts) / max(counts.total(), 1)
    return {kind: speed / mean if mean > 0 else 1.0 for kind, speed in speeds.items()}


def _worth_of_cluster(situation: Situation) -> float:
    return float(sum(len(node.gpus) for node in situation.snapshot.nodes))


def _held_worth(situation: Situation, since: float) -> Mapping[str, float]:
    """Returns the GPU-seconds by worth that each user's jobs held since that time, managed or not, ended or not."""
    worth, held, now = _type_worth(situation), defaultdict[str, float](float), situation.snapshot.time
    for job in situation.snapshot.jobs:
        if not job.allocations:
            continue
        start = now - job.run_time if job.start_time is None else job.start_time
        until = now if job.end_time is None else min(now, job.end_time)
        seconds = max(0.0, until - max(start, since))
        held[job.user] += _worth_of(situation.snapshot, job, worth) * seconds
    return held


def _due_gpus(situation: Situation) -> Mapping[str, float]:
    """Returns the GPUs that each user is due now by tickets: no more than all of the user's jobs ask for or hold, those
    with parts of GPUs too, which are not in the situation."""
    snapshot, parts = situation.snapshot, situation.knowledge.parts_of_gpu
    decided = {job.id for job in situation.jobs}
    others = (job for job in snapshot.jobs if job.id not in decided and (job.allocations or job.id in parts))
    first, asked = dict[tuple[str, str], Job](), defaultdict[tuple[str, str], float](float)
    for job in chain(situation.jobs, others):
        owner = job.account, job.user
        first.setdefault(owner, job)
        asked[owner] += snapshot.part_of_gpu(job) or job.gpus
    jobs = [*first.values()]  # one for all that an owner has in an account: what they are due together is the same
    tree = build_ticket_tree(jobs, build_ticket_registry(situation.tickets, snapshot.associations))
    due = defaultdict[str, float](float)
    shares = divide_by_tickets(tree, _worth_of_cluster(situation), np.array([*asked.values()]))
    for job, gpus in zip(jobs, shares.tolist(), strict=True):
        due[job.user] += gpus
    return due
