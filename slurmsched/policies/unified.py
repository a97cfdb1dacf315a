"""`unified`: one decision that knows GPU types, CPUs and memory, and what users are due.

Jobs bid for GPUs in Hadar's market (`policies.hadar`), which chooses who runs on which GPU types, and `Tune` of Synergy
sizes CPUs and memory. What a job bids is new: the part of it that is done in a second, times a power of its size, times
how far its user is behind.

    U = behind * size ** (1 - p) / ahead

`ahead` is the seconds to its end on these GPUs, `size` the GPU-seconds that it still needs at its best. With p = 1 the
sum of U is the number of jobs that end per second, so that the least GPU time comes first (Smith, "Various optimizers
for single-stage production", 1956): the mean completion time is shortest. With p = 0 it is the work that is done, as
in Hadar's paper (section III-A). In between long jobs wait for less long.

`behind` is above 1 for users who hold less than they are due by their tickets, below 1 for users who hold more, over
about a day. What they hold counts by worth: GPUs of a type that is faster for most jobs count as more, whatever a user
runs on them; and so do GPUs of jobs that are not managed.

A GPU type costs what the last job bids that gets some of it: who waits is told that price, and what it would bid if it
were shorter. How all of this was chosen, and what each part is worth: docs/unified.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import numpy as np

from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.estimation import estimates_by_type
from slurmsched.model import MILLI_PER_GPU, Job, JobId, RankedJob, Reason, ReasonCode
from slurmsched.model.reasons import format_gpu_hours
from slurmsched.policies.admit.promise import KeptPromise
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools
from slurmsched.policies.gandiva_fair.tickets import build_ticket_registry, build_ticket_tree, divide_by_tickets
from slurmsched.policies.hadar.policy import HadarPrices
from slurmsched.policies.hadar.problem import HadarJob, InverseTime, ServerPools, Utility
from slurmsched.policies.stages import Entitlement, Order, PreemptionRule, Situation
from slurmsched.policies.state import Account, TicketAccounts, decode_state, encode_state

_POWER: Final = 0.75
"""p above. Of 1, 0.75 and 0.5 the one with the shortest mean and 99th percentile at once."""

_MIN_BENEFIT: Final = 12.0
"""What a restart of a running job saves, in costs of a restart: a fifth fewer than with 3, and nobody ends later."""

_SHORTEST: Final = 360.0
"""Seconds. Shorter jobs count as this long, so that no job is infinitely urgent."""

_HALF_LIFE: Final = 86400.0
"""Seconds after which what a user was due and held counts half."""

_LEAST_DUE: Final = 3600.0
"""Seconds of an equal part of all GPUs: who is due less than that is hardly behind or ahead yet."""

_MOST_BEHIND: Final = 0.9
"""Part of what is due."""

_FURTHEST: Final = 10.0
"""How much more or less a bid counts at most because of who its owner is."""

_LONGEST_GAP: Final = 8.0
"""Periods that may pass between two rounds; after a longer time nobody is due anything for it."""

_UNIT_BID: Final = 3600.0**-_POWER
"""What a job with one GPU-hour to go bids for a GPU; people read bids and prices in it."""


@dataclass(frozen=True, slots=True)
class MarketState(TicketAccounts):
    """The accounts, and the prices of the last round: by GPU type those of a GPU, and as `CPU` and `GiB` what one more
    of these for a GPU is worth. 1 is what a job with one GPU-hour to go bids for a GPU."""

    prices: Mapping[str, float] = field(default_factory=dict)


def bid(size: float, ahead: float, behind: float = 1.0) -> float:
    """Returns U for a job of `size` GPU-seconds that ends after `ahead` seconds; 0.0 if it never does."""
    return behind * size ** (1 - _POWER) / ahead if 0 < ahead < inf else 0.0


def largest_next(price: float, relative_rate: float = 1.0, behind: float = 1.0) -> float:
    """Returns the GPU-seconds that a job may still need to bid this price for a GPU of a type on which it has so much
    of its best rate: the inverse of `bid`."""
    return float((behind * relative_rate / price) ** (1 / _POWER)) if price > 0 else inf


def evened(due: float, held: float, least: float, evenness: float) -> float:
    """Returns how much more a user's bids count who was due and held so many GPU-seconds, of which the first is taken
    for at least `least`: 1 for a user who held what was due."""
    missing = (due - held) / max(due, least, 1.0)
    factor = (1.0 - min(missing, _MOST_BEHIND)) ** -evenness
    return float(min(max(factor, 1 / _FURTHEST), _FURTHEST))


@dataclass(frozen=True, slots=True)
class UnifiedMarket:
    """The entitlement of `unified`; `evenness` 0 leaves out who the owners are."""

    evenness: float

    def __call__(self, situation: Situation) -> Entitlement:
        accounts = _accounts_of(situation)
        due, jobs = _due_gpus(situation), situation.jobs
        least = _LEAST_DUE * _worth_of_cluster(situation) / max(len({job.user for job in jobs}), 1)
        behind = {
            user: evened(account.due, account.received, least, self.evenness)
            for user, account in accounts.users.items()
        }
        counts = {job.id: behind.get(job.user, 1.0) for job in jobs}
        promised = KeptPromise.of_state(situation.state).job
        counts |= {job.id: counts[job.id] * _whole_over_rest(job, situation) for job in jobs if job.id == promised}
        bids = _Bids(situation, counts)
        entitlement = HadarPrices(bids.make_utility, "unified")(situation)
        hadar_state, shown = entitlement.next_state, replace(accounts, due=due)
        return replace(
            entitlement,
            order=entitlement.order and _ByShares(entitlement.order, shown.parts()),
            min_benefit=_MIN_BENEFIT,
            why_wait=bids.why_wait,
            next_state=lambda victims, allocations: {
                **(hadar_state(victims, allocations) if hadar_state else {}),
                **encode_state(shown.state(situation.snapshot.time, bids.prices(allocations))),
            },
        )


def _whole_over_rest(job: Job, situation: Situation) -> float:
    """Returns the GPUs of a job that is promised a start over those of them that others still have.

    Its bid counts so much more: GPUs that are idle for it already cost nobody anything, and what it bids is for the
    rest. Else a job that could move kept a gang's nodes idle until it ended.
    """
    idle, free = Counter[str](), FreeResources.of_snapshot(situation.snapshot)
    for kind, devices in zip(free.pools.gpu_types, free.milli, strict=True):
        idle[kind] += int(np.count_nonzero(devices == MILLI_PER_GPU))
    asked = job.original_request.gpu_type
    most = idle[asked] if asked is not None else max(idle.values(), default=0)
    return job.gpus / max(job.gpus - most, 1)


class _Bids:
    """What the jobs of a round bid, and what that makes of prices."""

    def __init__(self, situation: Situation, behind: Mapping[JobId, float]) -> None:
        self._situation, self._behind = situation, behind
        self._pools = FreeResources.of_snapshot(situation.snapshot).pools
        self._jobs: Mapping[JobId, HadarJob] = {}
        self._sizes: Mapping[JobId, float] = {}
        self._servers: ServerPools | None = None
        self._rates: dict[JobId, Mapping[str, float]] = {}
        self._best_bids: dict[JobId, float] = {}

    def make_utility(self, queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
        """Returns U of the jobs in the queue, for `HadarPrices`."""
        self._jobs, self._servers = {job.job: job for job in queue}, servers
        servers.best_rates([job.throughput for job in queue])  # of all at once: one by one takes ten times as long
        self._sizes = sizes = {job.job: _size(job, servers) for job in queue}
        at_one_second = {job.job: bid(sizes[job.job], 1.0, self._behind.get(job.job, 1.0)) for job in queue}
        return InverseTime({job: (offered, 1.0) for job, offered in at_one_second.items()})

    def _relative_rates(self, job: HadarJob) -> Mapping[str, float]:
        """Returns the part of its best rate that a job has on each type that it can run on."""
        known = self._rates.get(job.job)
        if known is None:
            known = self._rates[job.job] = self._find_relative_rates(job)
        return known

    def _find_relative_rates(self, job: HadarJob) -> Mapping[str, float]:
        if self._servers is None or not (best := self._servers.best_rate(job.throughput)):
            return {}
        kinds = zip(self._servers.types, job.throughput.consolidated, strict=True)
        return {kind: min(1.0, rate / best) for kind, rate in kinds if rate > 0}

    def _per_gpu(self, job: HadarJob, relative_rate: float) -> float:
        at_best = self._best_bids.get(job.job)
        if at_best is None:
            at_best = self._best_bids[job.job] = float(self._sizes[job.job] ** -_POWER)
        return self._behind.get(job.job, 1.0) * relative_rate * at_best

    def type_prices(self, allocations: Mapping[JobId, Allocation]) -> Mapping[str, float]:
        """Returns the least that a job bids per GPU that has GPUs of a type, for the types that a waiting job could
        use: another has to bid more."""
        wanted = set[str]().union(
            *(self._relative_rates(job) for name, job in self._jobs.items() if name not in allocations)
        )
        prices: dict[str, float] = {}
        for name, allocation in allocations.items():
            job = self._jobs.get(name)
            rates = self._relative_rates(job) if job is not None else {}
            kinds = {self._pools.gpu_types[pool] for pool in allocation.pools}
            if job is None or not kinds <= rates.keys():
                continue
            offered = self._per_gpu(job, min(rates[kind] for kind in kinds))
            for kind in kinds & wanted:
                prices[kind] = min(prices.get(kind, inf), offered)
        return dict(sorted(prices.items()))

    def prices(self, allocations: Mapping[JobId, Allocation]) -> Mapping[str, float]:
        """Returns prices as people read them: those of types, and what one more CPU or GiB for each GPU of a job would
        be worth, by GPU, to the one that gains most by it."""
        by_type = self.type_prices(allocations)
        extra = {"CPU": 0.0, "GiB": 0.0}
        known = self._situation.knowledge
        jobs = {job.id: job for job in self._situation.jobs}
        for name, allocation in allocations.items():
            if (job := self._jobs.get(name)) is None or name not in jobs:
                continue
            offered = self._per_gpu(job, 1.0)
            for what, gain in marginal_gains(jobs[name], allocation, self._pools, known).items():
                extra[what] = max(extra[what], offered * gain)
        return {what: round(price / _UNIT_BID, 6) for what, price in {**by_type, **extra}.items()}

    def why_wait(self, allocations: Mapping[JobId, Allocation]) -> Mapping[JobId, Reason]:
        """Returns the reasons of the jobs that are outbid on all types that they could use."""
        prices, reasons = self.type_prices(allocations), dict[JobId, Reason]()
        for name, job in self._jobs.items():
            rates = self._relative_rates(job) if name not in allocations else {}
            lacking = {kind: self._per_gpu(job, rate) / prices[kind] for kind, rate in rates.items() if kind in prices}
            if not lacking or len(lacking) < len(rates) or max(lacking.values()) >= 1:
                continue
            nearest = max(lacking, key=lacking.__getitem__)
            most = largest_next(prices[nearest], rates[nearest], self._behind.get(name, 1.0))
            reasons[name] = Reason(
                ReasonCode.OUTBID,
                {
                    "kind": nearest,
                    "bid": f"{self._per_gpu(job, rates[nearest]) / _UNIT_BID:.2g}",
                    "price": f"{prices[nearest] / _UNIT_BID:.2g}",
                    "has": format_gpu_hours(self._sizes[name]),
                    "most": format_gpu_hours(most),
                },
            )
        return reasons


_GIB: Final = 1024


def marginal_gains(job: Job, allocation: Allocation, pools: Pools, knowledge: Knowledge) -> Mapping[str, float]:
    """Returns the parts by which a job would be faster with one more CPU, and with one more GiB, for each of its GPUs;
    empty if no profile tells."""
    profile, gpus = knowledge.profile(job), sum(allocation.gpus)
    matrix = profile.matrix(pools.gpu_types[allocation.pools[0]]) if profile is not None and gpus else None
    if matrix is None:
        return {}
    cpus, memory = sum(allocation.cpus) / gpus, sum(allocation.memory) / gpus
    now = matrix.speed_at(cpus, memory)
    if now <= 0:
        return {}
    return {
        "CPU": max(0.0, matrix.speed_at(cpus + 1, memory) / now - 1),
        "GiB": max(0.0, matrix.speed_at(cpus, memory + _GIB) / now - 1),
    }


def _size(job: HadarJob, servers: ServerPools) -> float:
    """Returns the GPU-seconds that the job still needs at its best rate."""
    best = servers.best_rate(job.throughput)
    return job.workers * max(job.remaining / best if best > 0 else 0.0, _SHORTEST)


@dataclass(frozen=True, slots=True)
class _ByShares:
    """The order of the prices, which also says how much of what is due its owner holds: `parts`, by user."""

    order: Order
    parts: Mapping[str, float]

    @property
    def name(self) -> str:
        return "unified"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        users = {job.id: job.user for job in situation.jobs}
        return tuple(
            replace(ranked, key=f"{ranked.key}; {users[ranked.job]} had {self.parts[users[ranked.job]]:.0%} of its due")
            if users[ranked.job] in self.parts
            else ranked
            for ranked in self.order.rank(situation)
        )

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        return self.order.preemption_rule(situation)


@dataclass(frozen=True, slots=True)
class _Accounts:
    """What users were due and held, and `due`: GPUs that each is due now."""

    users: Mapping[str, Account]
    due: Mapping[str, float]

    def parts(self) -> Mapping[str, float]:
        """Returns what each user held, as a part of what was due."""
        return {user: account.received / account.due for user, account in self.users.items() if account.due > 0}

    def state(self, now: float, prices: Mapping[str, float]) -> MarketState:
        """Returns the policy's state after a round at this time."""
        users = {
            user: replace(self.users.get(user, Account()), holdings={"GPUs": round(gpus, 6)} if gpus else {})
            for user, gpus in sorted({**dict.fromkeys(self.users, 0.0), **self.due}.items())
        }
        return MarketState(now, users, prices=prices)


def _accounts_of(situation: Situation) -> _Accounts:
    """Returns the accounts with what was due and held since the last round."""
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
    return _Accounts(users, due)


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
        for part in job.allocations:
            held[job.user] += part.resources.gpus * worth.get(part.gpu_type, 1.0) * seconds
    return held


def _due_gpus(situation: Situation) -> Mapping[str, float]:
    """Returns the GPUs that each user is due now by tickets: no more than all of the user's jobs ask for or hold."""
    decided = {job.id for job in situation.jobs}
    others = (job for job in situation.snapshot.jobs if job.allocations and job.id not in decided)
    jobs = [*situation.jobs, *others]
    tree = build_ticket_tree(jobs, build_ticket_registry(situation.tickets, situation.snapshot.associations))
    caps = np.array([float(job.gpus) for job in jobs])
    due = defaultdict[str, float](float)
    shares = divide_by_tickets(tree, _worth_of_cluster(situation), caps)
    for job, gpus in zip(jobs, shares.tolist(), strict=True):
        due[job.user] += gpus
    return due
