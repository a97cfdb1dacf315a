"""`unified`: one decision that knows GPU types, CPUs and memory, and what users are due.

Jobs bid for GPUs in Hadar's market (`policies.hadar`), which chooses who runs on which GPU types, and `Tune` of Synergy
sizes CPUs and memory. What a job bids is new: the part of it that is done in a second, times a power of its size, times
how far its user is behind.

    U = behind * size ** (1 - p) / ahead

`ahead` is the seconds to its end on these GPUs, `size` the GPU-seconds that it still needs at its best. With p = 1 the
sum of U is the number of jobs that end per second, so that the least GPU time comes first (Smith, "Various optimizers
for single-stage production", 1956): the mean completion time is shortest. With p = 0 it is the work that is done, as
in Hadar's paper (section III-A). In between long jobs wait for less long.

`behind` is above 1 for users who hold less than they are due by their tickets, and below 1 for users who hold more
(`policies.owners`). A job that has waited more than an hour for its first start counts more and more: how long it takes
is often not known before it has run, and a long one would wait for ever. So does one that takes so long that it would
end last (`last_to_end`): where nothing more comes, long jobs that end alone keep all other GPUs idle.

A GPU type costs what the last job bids that gets some of it: who waits is told that price, and what it would bid if it
were shorter. How all of this was chosen, and what each part is worth: docs/unified.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.speed import SensitivityMatrix
from slurmsched.model import Job, JobId, Reason, ReasonCode, Snapshot
from slurmsched.model.reasons import format_gpu_hours
from slurmsched.policies.admit.promise import KeptPromise
from slurmsched.policies.cluster.resources import Allocation, FreeResources, Pools, pools_of
from slurmsched.policies.finish.defragment import make_room
from slurmsched.policies.hadar.policy import HadarPrices
from slurmsched.policies.hadar.primal_dual import BEAM_WIDTH
from slurmsched.policies.hadar.problem import HadarJob, InverseTime, ServerPools, Utility
from slurmsched.policies.owners import FURTHEST, Accounts, Owners, accounts_of
from slurmsched.policies.session import Session
from slurmsched.policies.stages import Entitlement, Situation
from slurmsched.policies.state import TicketAccounts, encode_state

_POWER: Final = 0.75
"""p above. Of 1, 0.75 and 0.5 the one with the shortest mean and 99th percentile at once."""

_MIN_BENEFIT: Final = 12.0
"""What a restart of a running job saves, in costs of a restart: a fifth fewer than with 3, and nobody ends later."""

SHORTEST: Final = 360.0
"""Seconds. Shorter jobs count as this long, so that no job is infinitely urgent."""

_PATIENCE: Final = 3600.0
"""Seconds for which a job waits for its first start before it counts more."""

_BATCH: Final = 3600.0
"""Seconds within which jobs count as submitted at once: no batch as large is expected to come again."""

_MANY_JOBS: Final = 10_000
"""Jobs from which the market's search follows a single state: of so many none matters enough that others find
allocations of more utility, 0.03 % of it at most in 12 queues of 12,000, and a decision takes less time."""

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


def urged(waited: float) -> float:
    """Returns how much more a job counts that has waited so many seconds for its first start: twice after two hours."""
    return min(max(waited / _PATIENCE, 1.0), FURTHEST)


@dataclass(frozen=True, slots=True)
class UnifiedMarket:
    """The entitlement of `unified`; `evenness` 0 leaves out who the owners are."""

    evenness: float

    def __call__(self, situation: Situation) -> Entitlement:
        accounts = accounts_of(situation)
        counts = {job.id: urged(waited(job, situation)) for job in situation.jobs}
        kept = KeptPromise.of_state(situation.state).job
        promised = next((job for job in situation.jobs if job.id == kept), None)
        if promised is None:
            return self._entitled(situation, accounts, counts)
        return self._with_promised(situation, accounts, counts, promised)

    def _with_promised(
        self, situation: Situation, accounts: Accounts, counts: Mapping[JobId, float], promised: Job
    ) -> Entitlement:
        """Returns what is due where the bid of the job that is promised a start counts as often as its GPUs are to
        those of them that others still have.

        GPUs that are idle for it already cost nobody anything, and what it bids is for the rest: else a job that could
        move kept a gang's nodes idle until it ended. Where those who would lose GPUs have more than that rest, it
        counts as often as its GPUs are to theirs: else a gang displaced another one that bids as much, which was
        promised the next start, and so on, while the same GPUs stayed idle.
        """
        others = max(promised.gpus - _idle_for(promised, situation), 1)

        def counting(times: float) -> Entitlement:
            more = {**counts, promised.id: counts[promised.id] * times}
            return self._entitled(situation, accounts, more, promised.id)

        times = promised.gpus / others
        entitlement = counting(times)
        fewer = max(promised.gpus / max(_gpus_lost(situation, entitlement), 1), 1.0)
        return entitlement if times <= fewer else counting(fewer)

    def _entitled(
        self, situation: Situation, accounts: Accounts, counts: Mapping[JobId, float], promised: JobId = ""
    ) -> Entitlement:
        bids = _Bids(situation, counts, Owners(situation, accounts, self.evenness))
        width = 1 if len(situation.jobs) >= _MANY_JOBS else BEAM_WIDTH
        left = seconds_left(situation.snapshot)
        market = HadarPrices(bids.make_utility, "unified", width, bids.told_beside(accounts), left, promised)
        entitlement = market(situation)
        hadar_state = entitlement.next_state
        return replace(
            entitlement,
            min_benefit=_MIN_BENEFIT,
            why_wait=bids.why_wait,
            next_state=lambda victims, allocations: {
                **(hadar_state(victims, allocations) if hadar_state else {}),
                **encode_state(
                    MarketState(situation.snapshot.time, accounts.to_keep(), prices=bids.prices(allocations))
                ),
            },
        )


def waited(job: Job, situation: Situation) -> float:
    """Returns the seconds that a job has waited for its first start since it could; 0.0 once it had one."""
    if job.allocations or job.restarts or situation.knowledge.attained_gpu_seconds(job) > 0:
        return 0.0
    since = job.submit_time if job.eligible_time is None else job.eligible_time
    return max(situation.snapshot.time - since, 0.0)


def seconds_left(snapshot: Snapshot) -> Callable[[Knowledge, Job], float]:
    """Returns how much longer a job runs by what is known, its time limit and how long it has run."""
    of_gpus = (job for job in snapshot.jobs if job.original_request.gpus or job.original_request.shards)
    limits = Counter(job.time_limit for job in of_gpus)
    all_jobs = max(limits.total(), 1)
    return lambda knowledge, job: knowledge.likely_seconds(job, limits[job.time_limit] / all_jobs)


def _idle_for(job: Job, situation: Situation) -> int:
    """Returns the idle GPUs of the type that a job asks for, or of that with the most."""
    idle = FreeResources.of_snapshot(situation.snapshot).idle_by_type()
    asked = job.original_request.gpu_type
    return idle[asked] if asked is not None else max(idle.values(), default=0)


def _gpus_lost(situation: Situation, entitlement: Entitlement) -> int:
    """Returns the GPUs of the running jobs that are due none any more and may be preempted, now or in a while."""
    stay = situation.non_preemptible.keys() - situation.preemptible_from.keys()
    there = (job for job in situation.jobs if job.allocations and job.id not in stay)
    return sum(job.gpus for job in there if job.id not in entitlement.gpu_types)


def make_room_for_promised(session: Session) -> None:
    """Finish step: running jobs move to other nodes where the job that is promised a start can then start at once. The
    market counts the GPUs of a type, and not on which nodes they are: what is idle for the job stayed so for hours."""
    if (promise := session.promise) is not None:
        make_room(session, [session.jobs[promise.job]])


class _Bids:
    """What the jobs of a round bid, and what that makes of prices. `counts` is how much more a bid counts than by its
    size, but for its owner."""

    def __init__(self, situation: Situation, counts: Mapping[JobId, float], owners: Owners) -> None:
        self._situation, self._counts, self._owners = situation, counts, owners
        self._pools = pools_of(situation.snapshot)
        self._row_of: Mapping[JobId, int] = {}
        self._types: tuple[str, ...] = ()
        self._sizes: Sequence[float] = ()
        self._relative_rates: Floats = np.zeros((0, 0))
        """The part of its best rate that a job has on each type; 0 where it cannot run; [jobs, types]."""
        self._at_best: Floats = np.zeros(0)
        """What a job bids for a GPU at its best rate, but for who its owner is; [jobs]."""
        self._of_owner: Floats = np.zeros(0)
        """How much more it counts, because of its owner among others; [jobs]."""
        self._last: Floats = np.zeros(0)
        """The part of that which is because it would end last; [jobs]."""

    def make_utility(self, queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
        """Returns U of the jobs in the queue, for `HadarPrices`."""
        names, types = [job.job for job in queue], servers.types
        best = np.array(servers.best_rates([job.throughput for job in queue]), dtype=np.float64)
        self._row_of, self._types = {name: row for row, name in enumerate(names)}, types
        self._sizes = sizes = _sizes(queue, best)
        each = chain.from_iterable(job.throughput.consolidated for job in queue)
        rates = np.fromiter(each, dtype=np.float64).reshape(len(queue), len(types))
        runs = (rates > 0) & (best > 0)[:, None]
        self._relative_rates = np.where(runs, np.minimum(1.0, rates / np.where(best > 0, best, 1.0)[:, None]), 0.0)
        self._at_best = np.array([size**-_POWER for size in sizes])
        jobs, tells = self._situation.snapshot.jobs_by_id, self._situation.knowledge.tells_length
        gpus = float(servers.capacity.sum())
        self._last = last_to_end(queue, sizes, best, gpus, lambda name: tells(jobs[name]))
        counts = self._last * np.array([self._counts.get(name, 1.0) for name in names])
        self._of_owner = counts * self._owners.counts(names, counts * self._at_best)
        behind = self._of_owner.tolist()
        return InverseTime(
            {name: (bid(size, 1.0, count), 1.0) for name, size, count in zip(names, sizes, behind, strict=True)}
        )

    def told_beside(self, accounts: Accounts) -> Callable[[Job], str]:
        """Returns what tells of a job whether it counts more as the last to end, and what its user had."""
        of_users = accounts.in_words()

        def told(job: Job) -> str:
            row = self._row_of.get(job.id)
            last = "counts more, as it would end last" if row is not None and self._last[row] > 1 else ""
            return "; ".join(filter(None, (last, of_users.get(job.user))))

        return told

    def _per_gpu(self, rows: Ints, relative_rates: Floats) -> Floats:
        """Returns what these jobs bid for a GPU of a type on which they have so much of their best rates; [rows] or
        [rows, types]."""
        return np.asarray((self._of_owner[rows] * relative_rates.T * self._at_best[rows]).T, dtype=np.float64)

    def _waiting(self, allocations: Mapping[JobId, Allocation]) -> Ints:
        """Returns the rows of the jobs without an allocation."""
        return np.array([row for name, row in self._row_of.items() if name not in allocations], dtype=np.int64)

    def _type_prices(self, allocations: Mapping[JobId, Allocation]) -> Floats:
        """Returns the least that a job bids per GPU that has GPUs of a type; infinite where none has, and for types
        that no waiting job could use: another has to bid more."""
        number = {kind: at for at, kind in enumerate(self._types)}
        kind_of_pool = [number.get(kind, -1) for kind in self._pools.gpu_types]
        rows, columns, widths = list[int](), list[int](), list[int]()
        for name, allocation in allocations.items():
            if (row := self._row_of.get(name)) is not None:
                kinds = {kind_of_pool[pool] for pool in allocation.pools}
                rows.append(row)
                columns += kinds
                widths.append(len(kinds))
        prices = np.full(len(self._types), inf)
        if not rows:
            return prices
        of_job, kinds_held = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
        first = np.cumsum([0, *widths])[:-1]
        rates = self._relative_rates[np.repeat(of_job, widths), kinds_held]
        slowest = np.minimum.reduceat(np.where(kinds_held >= 0, rates, 0.0), first)
        offered = np.where(slowest > 0, self._per_gpu(of_job, slowest), inf)
        np.minimum.at(prices, kinds_held, np.repeat(offered, widths))
        wanted = (self._relative_rates[self._waiting(allocations)] > 0).any(axis=0)
        return np.where(wanted, prices, inf)

    def prices(self, allocations: Mapping[JobId, Allocation]) -> Mapping[str, float]:
        """Returns prices as people read them: those of types, and what one more CPU or GiB for each GPU of a job would
        be worth, by GPU, to the one that gains most by it."""
        of_types = zip(self._types, self._type_prices(allocations).tolist(), strict=True)
        extra, jobs = {"CPU": 0.0, "GiB": 0.0}, {job.id: job for job in self._situation.jobs}
        held = [(jobs[name], of, self._row_of[name]) for name, of in allocations.items() if name in self._row_of]
        bids = self._per_gpu(np.array([row for *_, row in held], dtype=np.int64), np.ones(len(held))).tolist()
        gains = _MarginalGains(self._pools, self._situation.knowledge)
        for (job, allocation, _), offered in zip(held, bids, strict=True):
            for what, gain in gains.of(job, allocation).items():
                extra[what] = max(extra[what], offered * gain)
        by_type = {kind: price for kind, price in sorted(of_types) if price < inf}
        return {what: round(price / _UNIT_BID, 6) for what, price in {**by_type, **extra}.items()}

    def why_wait(self, allocations: Mapping[JobId, Allocation]) -> Mapping[JobId, Reason]:
        """Returns the reasons of the jobs that are outbid on all types that they could use."""
        prices, rows, names = self._type_prices(allocations), self._waiting(allocations), [*self._row_of]
        rates = self._relative_rates[rows]
        bids, runs = self._per_gpu(rows, rates), rates > 0
        parts = np.where(runs, bids / prices, -inf)
        outbid = runs.any(axis=1) & ~(runs & np.isinf(prices)).any(axis=1) & (parts.max(axis=1, initial=-inf) < 1)
        reasons, nearest = dict[JobId, Reason](), parts[outbid].argmax(axis=1)
        each = np.arange(len(nearest))
        columns = rows[outbid], nearest, bids[outbid][each, nearest], prices[nearest], rates[outbid][each, nearest]
        for row, kind, offered, price, rate in zip(*(column.tolist() for column in columns), strict=True):
            size, name = self._sizes[row], names[row]
            most = largest_next(price, rate, float(self._of_owner[row] / self._last[row]))
            reasons[name] = Reason(
                ReasonCode.OUTBID,
                {
                    "kind": self._types[kind],
                    "bid": f"{offered / _UNIT_BID:.2g}",
                    "price": f"{price / _UNIT_BID:.2g}",
                    "has": format_gpu_hours(size),
                    "most": format_gpu_hours(most),
                },
            )
        return reasons


_GIB: Final = 1024


class _MarginalGains:
    """The parts by which jobs would be faster with one more CPU or GiB for each GPU: computed once for all that have
    the same matrix, CPUs and memory."""

    def __init__(self, pools: Pools, knowledge: Knowledge) -> None:
        self._pools, self._knowledge = pools, knowledge
        self._known: dict[tuple[int, float, float], Mapping[str, float]] = {}

    def of(self, job: Job, allocation: Allocation) -> Mapping[str, float]:
        """Returns the gains of a job with this allocation; empty if no profile tells."""
        profile, gpus = self._knowledge.profile(job), sum(allocation.gpus)
        matrix = profile.matrix(self._pools.gpu_types[allocation.pools[0]]) if profile is not None and gpus else None
        if matrix is None:
            return {}
        key = id(matrix), sum(allocation.cpus) / gpus, sum(allocation.memory) / gpus
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _marginal_gains(matrix, *key[1:])
        return known


def _marginal_gains(matrix: SensitivityMatrix, cpus: float, memory: float) -> Mapping[str, float]:
    """`cpus` and `memory` are those for each GPU."""
    now = matrix.speed_at(cpus, memory)
    if now <= 0:
        return {}
    return {
        "CPU": max(0.0, matrix.speed_at(cpus + 1, memory) / now - 1),
        "GiB": max(0.0, matrix.speed_at(cpus, memory + _GIB) / now - 1),
    }


def marginal_gains(job: Job, allocation: Allocation, pools: Pools, knowledge: Knowledge) -> Mapping[str, float]:
    """Returns the parts by which a job would be faster with one more CPU, and with one more GiB, for each of its GPUs;
    empty if no profile tells."""
    return _MarginalGains(pools, knowledge).of(job, allocation)


def _sizes(queue: Sequence[HadarJob], best_rates: Floats) -> Sequence[float]:
    """Returns the GPU-seconds that each job still needs at its best rate."""
    seconds = [job.remaining / best if best > 0 else 0.0 for job, best in zip(queue, best_rates.tolist(), strict=True)]
    return [job.workers * max(left, SHORTEST) for job, left in zip(queue, seconds, strict=True)]


def last_to_end(
    queue: Sequence[HadarJob],
    sizes: Sequence[float],
    best_rates: Floats,
    gpus: float,
    is_told: Callable[[JobId], bool],
) -> Floats:
    """Returns how much more bids count of jobs that would end last; [jobs], 1 to `FURTHEST`. `sizes` as of `_sizes`;
    `is_told` says whether a hint or earlier runs tell how long a job takes: others count 1.

    All work on all `gpus` takes T seconds, with what comes until a job could have ended. A job that takes more than
    half of T by itself counts more, in proportion to that and to the GPUs that it would leave idle: if it waits for all
    shorter ones, it ends alone. As much comes as came in that time before, of which the jobs tell that are still there,
    but for what came in the one hour in which most did: jobs that were submitted at once are no stream of jobs.
    """
    if not queue or gpus <= 0:
        return np.ones(len(queue))
    widths, size = np.array([job.workers for job in queue], dtype=np.float64), np.array(sizes)
    done = np.array([job.total - job.remaining for job in queue]) / np.where(best_rates > 0, best_rates, np.inf)
    ages = np.array([job.age for job in queue])
    by_age = np.argsort(ages, kind="stable")
    ages = ages[by_age]
    came = np.concatenate([[0.0], np.cumsum((size + widths * done)[by_age])])
    batches = came[1:] - came[np.searchsorted(ages, ages - _BATCH)]
    largest_batch = np.concatenate([[0.0], np.maximum.accumulate(batches)])
    alone = size / widths
    until = np.searchsorted(ages, alone, side="right")
    all_seconds = (size.sum() + came[until] - largest_batch[until]) / gpus
    idle_part = np.maximum(1 - widths / gpus, 0.0)
    counts = np.asarray(1 + idle_part * (np.clip(2 * alone / all_seconds, 1.0, FURTHEST) - 1), dtype=np.float64)
    counts[[row for row in np.flatnonzero(counts > 1).tolist() if not is_told(queue[row].job)]] = 1.0
    return counts
