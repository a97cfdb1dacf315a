"""GPU trading: users exchange fast GPUs for slow ones where both gain (Gandiva_fair, EuroSys 2020, slides 11 and 12).

GPUs of each type are exchanged for those of every slower one. On the slide the user with the highest speed-up buys from
the one with the lowest, at the second highest speed-up, as in a Vickrey auction. Here all users above the price buy
from all below it, until one side has nothing left; the longer side trades the same part of what it offers. The price is
the speed-up at a rank that no report decides, and who sets it does not trade, so no user's own report moves the price
at which that user trades. Of three users it is the slide's second price. The speed-up of the listed models, if there
are any, counts as a report of nobody; where it is the price, all users trade. What users hold is divided over the types
that it may be exchanged for by what types are worth, which no report changes: against the slowest type first.

No rule that is truthful, individually rational and budget balanced realises every gain (Myerson and Satterthwaite,
1983). To trade on from the new holdings would realise more, but who has a low speed-up would then gain by a high one:
it buys at the first price, and sells at the next, which is higher.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Final

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.estimation import type_speeds
from slurmsched.model import Job
from slurmsched.policies.gandiva_fair.problem import MIN_TICKETS, StrideProblem
from slurmsched.policies.gandiva_fair.tickets import (
    build_ticket_registry,
    build_ticket_tree,
    compose_types,
    entitled_gpus,
    water_filling,
)
from slurmsched.policies.state import Trade

_EPSILON: Final = 1e-9

_SLIDE_TRADERS: Final = 3
"""Users of the example on slide 12: with them the second price leaves one buyer, one seller and who sets it."""

_OFFERED: Final = 1.5
"""What is offered over what can be paid for, by the listed models: more than 1, since who sets the price does not sell.
Chosen when the parts of the possible gain were known, which change little from 1.25 to 2."""


@dataclass(frozen=True, slots=True)
class Trader:
    """A user who may trade. `holdings` are the GPUs of each type that the user is entitled to now.

    `speedups` are the GPUs of the slowest type that one GPU of each type is worth; a missing type is not traded.
    `spare_demand` is how many GPUs more than now the user's jobs could use, `max_usable` the most of each type, where
    that is known to be limited.
    """

    user: str
    holdings: Mapping[str, float]
    speedups: Mapping[str, float]
    spare_demand: float = float("inf")
    max_usable: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """All holdings in GPUs of the slowest type, by this user's speed-ups."""
        return sum(gpus * self.speedups.get(gpu_type, 1.0) for gpu_type, gpus in self.holdings.items())


def trade(
    traders: Iterable[Trader],
    currency_weights: Mapping[str, float],
    reference_speedups: Mapping[str, float] | None = None,
) -> tuple[tuple[Trader, ...], tuple[Trade, ...]]:
    """Returns the traders with their holdings after trading, in the order given, and the trades.

    `currency_weights` are what the traders' GPUs of each faster type are worth, the fastest first; the one type without
    a weight is the slowest. `reference_speedups` are those of the listed models, which no trader reports.
    """
    initial = {trader.user: trader for trader in traders}
    slowest = {gpu_type for trader in initial.values() for gpu_type in trader.holdings} - currency_weights.keys()
    if len(slowest) != 1:
        return tuple(initial.values()), ()
    slow = slowest.pop()
    weights = {**currency_weights, slow: sum(trader.holdings.get(slow, 0.0) for trader in initial.values())}
    traders_by_user, trades = dict(initial), list[Trade]()
    for market in _markets(weights, {**(reference_speedups or {}), slow: 1.0}):
        for deal in market.clear(tuple(initial.values())):
            trades.append(deal)
            traders_by_user[deal.seller] = _with_change(
                traders_by_user[deal.seller], {deal.fast: -deal.gpus, deal.slow: deal.gpus * deal.price}
            )
            traders_by_user[deal.buyer] = _with_change(
                traders_by_user[deal.buyer], {deal.fast: deal.gpus, deal.slow: -deal.gpus * deal.price}
            )
    return tuple(traders_by_user.values()), tuple(trades)


@dataclass(frozen=True, slots=True)
class _Market:
    """Where GPUs of one type are exchanged for those of a slower one: each a fixed part of what users held at first, so
    that what a user says of one market changes nothing in the others.

    `goods` and `currency` are these parts of the two types, `part` that of the GPUs that users could use besides.
    `reference` is the speed-up between both by the listed models, 0 if none tells.
    """

    fast: str
    slow: str
    goods: float
    currency: float
    part: float
    reference: float
    is_slowest: bool
    """Whether speed-ups are over the slower type."""

    def clear(self, traders: Sequence[Trader]) -> list[Trade]:
        """Return the trades of those who report how fast they are on both types."""
        speedups = {trader.user: self._speedup(trader) for trader in traders}
        ranked = sorted(
            (trader for trader in traders if speedups[trader.user] > 0),
            key=lambda trader: (-speedups[trader.user], trader.user),
        )
        price = self._price([speedups[trader.user] for trader in ranked], ranked)
        if price < 1:  # nobody is to have more GPUs for giving up slow ones
            return []
        bids = {trader.user: self._demanded(trader, price) for trader in ranked if speedups[trader.user] > price}
        offers = {trader.user: self._offered(trader, price) for trader in ranked if speedups[trader.user] < price}
        demanded, offered = sum(bids.values()), sum(offers.values())
        sold = min(demanded, offered)
        if sold <= _EPSILON:
            return []
        wanted = {user: sold * gpus / demanded for user, gpus in bids.items()}
        for_sale = {user: sold * gpus / offered for user, gpus in offers.items()}
        return [
            Trade(seller, buyer, self.fast, self.slow, gpus, price) for seller, buyer, gpus in _deals(for_sale, wanted)
        ]

    def _speedup(self, trader: Trader) -> float:
        slow = trader.speedups.get(self.slow, 1.0 if self.is_slowest else 0.0)
        return trader.speedups.get(self.fast, 0.0) / slow if slow > 0 else 0.0

    def _price(self, reports: Sequence[float], traders: Sequence[Trader]) -> float:
        """Return the price of one GPU in GPUs of the slower type, 0 if there is none. Of two users no report can be
        the price of the other's trade."""
        if self.reference > 0:
            reports = [*reports, self.reference]
        if len(reports) < _SLIDE_TRADERS:
            return 0.0
        fast_gpus = self.goods * sum(trader.holdings.get(self.fast, 0.0) for trader in traders)
        currency = self.currency * sum(trader.holdings.get(self.slow, 0.0) for trader in traders)
        # so many buy that their currency pays for the others' GPUs; one user at least is on each side of who sets it
        worth, buyers = fast_gpus * (self.reference or 1.0), 1
        if len(traders) > _SLIDE_TRADERS and worth + currency > 0:
            buyers = min(max(round(len(traders) * worth / (worth + currency)), 2), len(traders) - 2)
        return sorted(reports, reverse=True)[buyers]

    def _demanded(self, trader: Trader, price: float) -> float:
        """Return how many GPUs the buyer can pay for and use."""
        usable = trader.max_usable.get(self.fast, float("inf")) - trader.holdings.get(self.fast, 0.0)
        return min(trader.holdings.get(self.slow, 0.0) * self.currency / price, max(0.0, usable) * self.goods)

    def _offered(self, trader: Trader, price: float) -> float:
        """Return how many GPUs the seller offers: no more than it can use the GPUs received in exchange."""
        held = trader.holdings.get(self.fast, 0.0) * self.goods
        return min(held, trader.spare_demand * self.part / (price - 1)) if price > 1 else held


def _markets(worth: Mapping[str, float], reference_speedups: Mapping[str, float]) -> Iterator[_Market]:
    """Yield a market for every two types. `worth` is by type what all its GPUs are worth, the fastest type first.

    Users differ most in how much faster they are than on the slowest type, so its GPUs pay first: for all faster types
    by what these are worth, of which no more is offered than `_OFFERED` times what it can pay for. What is left then
    goes to the markets of the next slower type; of the fastest type nothing is left in the end.
    """
    whole, slowest = sum(worth.values()), [*worth][-1]
    types = [gpu_type for gpu_type, value in worth.items() if value > _EPSILON * whole]
    left, offers = {gpu_type: worth[gpu_type] for gpu_type in types}, list[tuple[str, str, float, float]]()
    for index in range(len(types) - 1, 0, -1):
        slow, faster = types[index], types[:index]
        for_sale = sum(left[fast] for fast in faster)
        if for_sale <= _EPSILON * whole:
            break
        part = min(1.0, _OFFERED * left[slow] / for_sale) if index > 1 else 1.0
        for fast in faster:
            offers.append((fast, slow, left[fast] * part, left[slow] * left[fast] / for_sale))
            left[fast] *= 1 - part
    volume = sum(min(goods, currency) for _, _, goods, currency in offers)
    for fast, slow, goods, currency in offers:
        known = reference_speedups.get(fast, 0.0), reference_speedups.get(slow, 0.0)
        yield _Market(
            fast,
            slow,
            goods=goods / worth[fast],
            currency=currency / worth[slow],
            part=min(goods, currency) / volume,
            reference=known[0] / known[1] if all(known) else 0.0,
            is_slowest=slow == slowest,
        )


def _deals(for_sale: Mapping[str, float], wanted: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """Yields seller, buyer and GPUs: as few deals as it takes. Both mappings have the same sum."""
    buyers = iter(wanted.items())
    buyer, room = next(buyers)
    for seller, gpus in for_sale.items():
        left = gpus
        while left > _EPSILON:
            while room <= _EPSILON:
                buyer, room = next(buyers, (buyer, left))
            sold = min(left, room)
            yield seller, buyer, sold
            left, room = left - sold, room - sold


def _with_change(trader: Trader, change: Mapping[str, float]) -> Trader:
    holdings = {
        gpu_type: trader.holdings.get(gpu_type, 0.0) + change.get(gpu_type, 0.0)
        for gpu_type in {**trader.holdings, **change}
    }
    return replace(trader, holdings=holdings)


_SLOWDOWN_RATIO: Final = 0.8
"""A rate below this fraction of the model's best rate counts as fallen."""


def _faster_types(speeds: Mapping[str, float]) -> Sequence[frozenset[str]]:
    """Returns the sets of types that are faster than all others, by `type_speeds`, the smallest first."""
    levels = sorted({*speeds.values()}, reverse=True)[:-1]
    return [frozenset(gpu_type for gpu_type in speeds if speeds[gpu_type] >= level) for level in levels]


def user_speedups(
    jobs: Sequence[Job], tickets: Sequence[float], knowledge: Knowledge, types: Sequence[str], slowest: str
) -> Mapping[str, Mapping[str, float]]:
    """Returns by user and type the speed-up over the slowest type, averaged over the user's jobs by their `tickets`:
    what a job has of each type is in proportion to these, however many GPUs it asks for.

    A type without known speed-ups is missing, so the user does not trade it. Measurements take precedence over
    profiles.
    """
    sums, weights = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
    alike: dict[tuple[str | None, str | None, int], Mapping[str, float]] = {}
    for job, entitled in zip(jobs, tickets, strict=True):
        key, weight = (job.hints.model, job.hints.task, job.original_request.gpus), max(entitled, MIN_TICKETS)
        measured = knowledge.measured.get(job.id)
        known = _relative_to_slowest(measured, types, slowest) if measured else alike.get(key)
        if known is None:
            known = alike[key] = _profiled_speedups(job, knowledge, types, slowest)
        for gpu_type, speedup in known.items():
            sums[job.user, gpu_type] += speedup * weight
            weights[job.user, gpu_type] += weight
    means = defaultdict[str, dict[str, float]](dict)
    for (user, gpu_type), total in sums.items():
        # rounded, since users with the same model are to be equal whatever their tickets
        means[user][gpu_type] = round(total / weights[user, gpu_type], 9)
    return means


def _profiled_speedups(job: Job, knowledge: Knowledge, types: Sequence[str], slowest: str) -> Mapping[str, float]:
    profile = knowledge.profile(job)
    scaling = profile.scaling if profile else {}
    rates = {
        gpu_type: scaling[gpu_type].rate_at(max(job.original_request.gpus, 1))
        for gpu_type in types
        if gpu_type in scaling
    }
    return _relative_to_slowest(rates, types, slowest)


def _relative_to_slowest(rates: Mapping[str, float], types: Iterable[str], slowest: str) -> Mapping[str, float]:
    base = rates.get(slowest, 0.0)
    return {gpu_type: rates[gpu_type] / base for gpu_type in types if base > 0 and rates.get(gpu_type, 0.0) > 0}


def listed_speedups(knowledge: Knowledge, types: Sequence[str], slowest: str) -> Mapping[str, float]:
    """Returns by type the geometric mean of the speed-ups of all profiled models, which no trader reports."""
    by_type: dict[str, list[float]] = defaultdict(list)
    for profile in knowledge.models.values():
        rates = {gpu_type: known.rate_at(1) for gpu_type, known in profile.scaling.items()}
        for gpu_type, speedup in _relative_to_slowest(rates, types, slowest).items():
            by_type[gpu_type].append(speedup)
    return {gpu_type: geometric_mean(speedups) for gpu_type, speedups in by_type.items()}


def suspected_users(
    best_rates: Mapping[str, float], now: Mapping[str, Mapping[str, float]], slowest: str, jobs: Mapping[str, Job]
) -> frozenset[str]:
    """Returns the users whose jobs report a fallen rate on the slowest type but not on a faster one (slide 12).

    Such reports would raise the user's speed-up in trading. `best_rates` are the best rates so far by `model type`,
    `now` the rates of each job by type.
    """
    users: set[str] = set()
    for job_id, rates in now.items():
        job = jobs.get(job_id)
        if job is None or job.hints.model is None:
            continue
        fell = {
            gpu_type
            for gpu_type, rate in rates.items()
            if rate < _SLOWDOWN_RATIO * best_rates.get(f"{job.hints.model} {gpu_type}", 0.0)
        }
        if slowest in fell and rates.keys() - fell:
            users.add(job.user)
    return frozenset(users)


_GpusByUserAndType = Mapping[str, Mapping[str, float]]
"""GPUs by user and type."""


@dataclass(frozen=True, slots=True)
class Entitlements:
    """What jobs and users are entitled to in a round.

    `tickets` are GPUs by job, in the order of `StrideProblem.runnable_jobs`; `holdings` are GPUs by user and type of
    the jobs that may run on every type, after trading.
    """

    types: tuple[str, ...]
    """All GPU types, the fastest first."""
    tickets: Floats
    runs_anywhere: Sequence[bool]
    """Whether each job may run on every type."""
    holdings: Mapping[str, Mapping[str, float]]
    confined_holdings: Mapping[str, Mapping[str, float]]
    """GPUs by user and type of the jobs that are confined to some types; not traded."""
    fair_parts: Mapping[str, float] = field(default_factory=dict)
    """By user the part of its entitlement that tickets stand for: less than 1 where it holds more than that and it
    cannot be taken, more where others do; a missing user has 1."""
    held_gpus: Mapping[str, float] = field(default_factory=dict)
    """GPUs by user that cannot be taken: of running jobs that may never be preempted or are not scheduled."""
    user_gpus: Mapping[str, float] = field(default_factory=dict)
    """GPUs by user that tickets stand for."""
    contended: bool = False
    """Whether jobs could use more GPUs than there are."""
    speedups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    trades: tuple[Trade, ...] = ()
    suspected_users: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _JobColumns:
    """Columns over the runnable jobs, then over those that hold GPUs and are not scheduled, and the GPUs of each type
    in `capacity`. `caps` are GPUs, 0 for a job that can never run; `floors` are those that cannot be taken from it."""

    jobs: Sequence[Job]
    caps: Floats
    floors: Floats
    allowed_types: Sequence[frozenset[str]]
    runs_anywhere: Sequence[bool]
    capacity: Mapping[str, float]
    runnable: int
    """Number of runnable jobs."""

    @classmethod
    def of(cls, problem: StrideProblem) -> _JobColumns:
        capacity, others = dict(problem.gpus_by_type()), problem.held_by_others()
        for _, gpu_type, gpus in others:
            capacity[gpu_type] = capacity.get(gpu_type, 0.0) + gpus
        unmovable, runnables = problem.situation.unmovable, problem.runnable_jobs
        allowed = [problem.types_of(runnable) for runnable in runnables]
        held = [float(gpus) for _, _, gpus in others]
        caps = [float(runnable.size if kinds else 0) for runnable, kinds in zip(runnables, allowed, strict=True)]
        floors = [
            cap if runnable.allocation is not None and runnable.job.id in unmovable else 0.0
            for runnable, cap in zip(runnables, caps, strict=True)
        ]
        return cls(
            [*(runnable.job for runnable in runnables), *(job for job, _, _ in others)],
            np.array([*caps, *held], dtype=np.float64),
            np.array([*floors, *held], dtype=np.float64),
            [*allowed, *(frozenset({gpu_type}) for _, gpu_type, _ in others)],
            [
                *(kinds >= {gpu_type for gpu_type, gpus in capacity.items() if gpus} for kinds in allowed),
                *(False for _ in others),
            ],
            capacity,
            len(runnables),
        )

    def by_user(self, amounts: Floats) -> Mapping[str, float]:
        """Return the sums over the jobs of each user."""
        sums = defaultdict[str, float](float)
        for job, amount in zip(self.jobs, amounts.tolist(), strict=True):
            sums[job.user] += amount
        return sums


def compute_entitlements(problem: StrideProblem, best_rates: Mapping[str, float]) -> Entitlements:
    """Returns the entitlements of one round. `best_rates` are the highest rates measured so far, by `model type`."""
    situation, columns = problem.situation, _JobColumns.of(problem)
    profiled = (profile.scaling for profile in situation.knowledge.models.values())
    speeds = type_speeds(profiled, columns.capacity)
    types, faster, users = tuple(speeds), _faster_types(speeds), [job.user for job in columns.jobs]
    tree = build_ticket_tree(columns.jobs, build_ticket_registry(situation.tickets, situation.snapshot.associations))
    amounts = (tree, columns.caps, columns.allowed_types, columns.capacity)
    fair = tickets = entitled_gpus(*amounts, users=users, faster=faster)
    if columns.floors.any():
        tickets = entitled_gpus(*amounts, floors=columns.floors, users=users, faster=faster)
    traded = tuple(gpu_type for gpu_type in types if columns.capacity[gpu_type])
    entitlements = Entitlements(
        types,
        tickets[: columns.runnable],
        columns.runs_anywhere[: columns.runnable],
        *_initial_holdings(columns, tickets, traded),
        fair_parts=_fair_parts(columns, fair, tickets) if columns.floors.any() else {},
        held_gpus=columns.by_user(columns.floors),
        user_gpus=columns.by_user(fair),
        contended=float(columns.caps.sum()) > sum(columns.capacity.values()),
    )
    if not traded:
        return entitlements
    rows = np.flatnonzero(columns.runs_anywhere).tolist()
    free, own = [columns.jobs[row] for row in rows], tickets[rows].tolist()
    entitlements = replace(entitlements, speedups=user_speedups(free, own, situation.knowledge, traded, traded[-1]))
    if not situation.tickets.trading or len(traded) == 1:
        return entitlements
    jobs = {job.id: job for job in columns.jobs}
    suspects = suspected_users(best_rates, situation.knowledge.measured, traded[-1], jobs)
    return _after_trading(replace(entitlements, suspected_users=suspects), columns, traded, situation.knowledge)


def _fair_parts(columns: _JobColumns, fair: Floats, tickets: Floats) -> Mapping[str, float]:
    """Returns `Entitlements.fair_parts`: what jobs have that are not scheduled counts as had."""
    unscheduled = np.where(np.arange(len(fair)) < columns.runnable, 0.0, columns.floors)
    due, entitled = columns.by_user(fair - unscheduled), columns.by_user(tickets - unscheduled)
    return {user: max(0.0, gpus) / max(entitled[user], _EPSILON) for user, gpus in due.items()}


def _initial_holdings(
    columns: _JobColumns, tickets: Floats, types: Sequence[str]
) -> tuple[_GpusByUserAndType, _GpusByUserAndType]:
    """Returns the holdings and the confined holdings of users before trading.

    Confined jobs are served first. All users hold the same mix of the rest, the fastest types where not all is needed.
    """
    whole, confined = defaultdict[str, float](float), defaultdict[str, dict[str, float]](dict)
    left, capacity = dict(columns.capacity), columns.capacity
    for index, (job, share, anywhere, kinds) in enumerate(
        zip(columns.jobs, tickets.tolist(), columns.runs_anywhere, columns.allowed_types, strict=True)
    ):
        if anywhere:
            whole[job.user] += share
            continue
        usable = sum(capacity[gpu_type] for gpu_type in kinds)
        for gpu_type in sorted(kinds) if usable else ():  # the same order, and so the same sums, in every process
            part = share * capacity[gpu_type] / usable
            left[gpu_type] -= part
            if index < columns.runnable:
                confined[job.user][gpu_type] = confined[job.user].get(gpu_type, 0.0) + part
    amount = sum(whole.values())
    made_of = compose_types(amount, left, types)
    holdings = {
        user: {gpu_type: share * gpus / amount if amount else 0.0 for gpu_type, gpus in made_of.items()}
        for user, share in whole.items()
    }
    return holdings, confined


def _after_trading(
    entitlements: Entitlements, columns: _JobColumns, types: Sequence[str], knowledge: Knowledge
) -> Entitlements:
    caps, rows_by_user = columns.caps, defaultdict[str, list[int]](list)
    for index, (job, anywhere) in enumerate(zip(columns.jobs, columns.runs_anywhere, strict=True)):
        if anywhere:
            rows_by_user[job.user].append(index)
    traders = [
        Trader(
            user,
            held,
            entitlements.speedups[user],
            spare_demand=float(caps[rows_by_user[user]].sum()) - sum(held.values()),
        )
        for user, held in entitlements.holdings.items()
        if user in entitlements.speedups and user not in entitlements.suspected_users
    ]
    reference_speedups = listed_speedups(knowledge, types, types[-1])
    currency_weights = {
        gpu_type: reference_speedups.get(gpu_type, 1.0) * sum(one.holdings.get(gpu_type, 0.0) for one in traders)
        for gpu_type in types[:-1]
    }
    after, trades = trade(traders, currency_weights, reference_speedups)
    holdings, tickets = dict(entitlements.holdings), entitlements.tickets.copy()
    for trader in after if trades else ():
        holdings[trader.user] = trader.holdings
        rows = rows_by_user[trader.user]
        tickets[rows] = water_filling(
            sum(trader.holdings.values()), np.ones(len(rows)), caps[rows], columns.floors[rows]
        )
    return replace(entitlements, holdings=holdings, tickets=tickets, trades=trades)
