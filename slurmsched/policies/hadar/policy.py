"""Hadar as a policy (Sultana et al., 2025): rounds by primal-dual prices on a live cluster.

Hadar chooses which jobs run on which GPU types. The pipeline that all policies share chooses nodes, CPUs and memory and
limits moves. A gang on several types is submitted to Slurm as a job that is pinned to several nodes, with GPUs of no
type; so it must not ask for a type, and must accept several nodes. Other jobs stay on one type, and their reason says
so where that makes them wait.

A job that preempted others is not itself preempted in the next round: its start cost a restart, which has to pay off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Final

import numpy as np

from slurmsched.arrays import Mask
from slurmsched.knowledge import Knowledge, Profile
from slurmsched.knowledge.estimation import estimates_by_type
from slurmsched.model import Job, JobId, JobState, RankedJob, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.cluster.eligibility import Eligibility
from slurmsched.policies.cluster.gang import gang_of, why_single_type
from slurmsched.policies.cluster.resources import Allocation, Pools
from slurmsched.policies.empty_cluster import EmptyCluster
from slurmsched.policies.hadar.places import FreeGpus, undominated
from slurmsched.policies.hadar.primal_dual import BEAM_WIDTH, HadarScheduler, PricedRound
from slurmsched.policies.hadar.problem import (
    GangThroughput,
    HadarJob,
    ServerPools,
    TaskAllocation,
    UtilityFactory,
    slack_aware,
)
from slurmsched.policies.hadar.servers import GangShapes
from slurmsched.policies.orders import rank_by
from slurmsched.policies.reasons import format_type_mix
from slurmsched.policies.sizes import Proportional
from slurmsched.policies.stages import Entitlement, PreemptionRule, RoundResources, Situation

DEFAULT_REMAINING: Final = 24 * 3600.0
"""Remaining seconds of a job without a duration estimate."""


@dataclass(frozen=True, slots=True)
class HadarProblem:
    """The input of `HadarScheduler.decide`. Pools are numbered as in `policies.cluster.resources.Pools`.

    Non-preemptible jobs and their GPUs are left out.
    """

    queue: tuple[HadarJob, ...]
    servers: ServerPools
    running: Mapping[JobId, TaskAllocation]


SecondsLeft = Callable[[Knowledge, Job], float]
"""How much longer a job runs; infinite where that is not known."""


def build_problem(
    situation: Situation,
    leaving: Iterable[Job] = (),
    resources: RoundResources | None = None,
    seconds_left: SecondsLeft = Knowledge.remaining_seconds,
) -> HadarProblem:
    """Returns the schedulable jobs in submission order, and the GPUs that they have or could have on open nodes, with
    those of the running jobs in `leaving`, which are not in the situation. `resources` are those of the situation."""
    resources = resources or RoundResources.of(situation, Proportional())
    free, eligibility = resources.free, resources.eligibility
    pools, types = free.pools, free.pools.known_types
    in_order = [*filter(_is_schedulable, situation.by_submission())]
    classes = resources.demands.classes
    asks = [job.id if job.reservation else classes.of(job) for job in in_order]
    of_asks = dict(zip(asks, in_order, strict=True))
    empty_cluster = EmptyCluster(
        pools,
        situation.snapshot,
        situation.knowledge,
        Proportional(),
        gpu_types=_mixable_types(of_asks.values(), types),
        classes=classes,
    )
    never_fits = {alike for alike, job in of_asks.items() if empty_cluster.unmet_demand(job)}
    jobs, usable = _HadarJobs(situation, eligibility, pools, seconds_left), np.zeros(len(pools), dtype=np.bool_)
    schedulable = [
        (job, jobs.request_of(job, alike))
        for alike, job in zip(asks, in_order, strict=True)
        if job.id not in situation.non_preemptible and alike not in never_fits
    ]
    for mask in jobs.masks():
        usable |= mask
    capacity = np.where(usable, free.gpus.clip(min=0), 0)
    running: dict[JobId, TaskAllocation] = {}
    for job, _ in schedulable:
        if job.allocations:
            allocation = resources.running.get(job.id) or pools.allocation(job.allocations)
            running[job.id] = task_allocation(allocation)
    held = chain.from_iterable(running.values())
    by_pool = np.fromiter(chain.from_iterable(held), dtype=np.int64).reshape(-1, 2)
    np.add.at(capacity, by_pool[:, 0], by_pool[:, 1])
    for job in leaving:
        allocation = pools.allocation(job.allocations)
        capacity[list(allocation.pools)] += np.where(usable[list(allocation.pools)], allocation.gpus, 0)
    type_of = np.array([types.index(kind) if kind else 0 for kind in pools.gpu_types], dtype=np.int64)
    servers = ServerPools(types, type_of, pools.node_of, np.asarray(capacity, dtype=np.int64))
    copies = Counter([forked for job in in_order if (forked := job.copy_of)])
    queue = tuple([_divide_work(jobs.of(job, request), copies.get(job.copy_of, 1)) for job, request in schedulable])
    return HadarProblem(queue, servers, running)


def _mixable_types(jobs: Iterable[Job], types: tuple[str, ...]) -> dict[JobId, frozenset[str]]:
    every = frozenset(types)
    return {job.id: every for job in jobs if not why_single_type(job.original_request)}


def _is_schedulable(job: Job) -> bool:
    return job.original_request.gpus > 0 and job.state in (JobState.PENDING, JobState.RUNNING)


def task_allocation(allocation: Allocation) -> TaskAllocation:
    """Returns the GPUs of an allocation by pool."""
    if len(allocation.pools) == 1:
        return ((allocation.pools[0], allocation.gpus[0]),)
    return tuple(sorted(zip(allocation.pools, allocation.gpus, strict=True)))


@dataclass(frozen=True, eq=False, slots=True)
class _GangRequest:
    """What jobs that ask alike have in common: the GPUs, the types on which they may start, and the numbers of servers
    and whether they mix types, as in `GangThroughput`. There is one object for each."""

    gpus: int
    gpu_type: str | None
    eligible: frozenset[str]
    spread: tuple[int, int, bool]


class _HadarJobs:
    """The jobs for Hadar. An iteration is a second on the reference type with proportional CPUs and memory. Jobs that
    are equally fast share the object that tells it."""

    def __init__(self, situation: Situation, eligibility: Eligibility, pools: Pools, seconds_left: SecondsLeft) -> None:
        self._now, self._knowledge, self._seconds_left = situation.snapshot.time, situation.knowledge, seconds_left
        self._eligibility, self._pools = eligibility, pools
        self._estimates = estimates_by_type(pools.known_types)
        self._types: dict[int, tuple[tuple[Mask, ...], frozenset[str]]] = {}
        self._of_asks: dict[tuple[Hashable, frozenset[str]], _GangRequest] = {}
        self._requests: dict[tuple[int, str | None, frozenset[str], tuple[int, int, bool]], _GangRequest] = {}
        self._throughputs: dict[tuple[object, ...], GangThroughput] = {}

    def masks(self) -> Iterator[Mask]:
        """Yields the pools on which jobs may start that were asked for."""
        for masks, _ in self._types.values():
            yield from masks

    def request_of(self, job: Job, alike: Hashable) -> _GangRequest:
        """Returns what the job asks for; `alike` is equal for jobs that ask alike but for their time limits."""
        key = alike, self._eligibility.closed_nodes(job)
        known = self._of_asks.get(key)
        if known is None:
            request, masks = job.original_request, self._eligibility.pool_masks(job)
            gang = gang_of(request, None, memory_tunable=False)
            spread = gang.min_nodes, gang.max_nodes, not why_single_type(request)
            asked = request.gpus, request.gpu_type, self._types_in(masks), spread
            known = self._of_asks[key] = self._requests.setdefault(asked, _GangRequest(*asked))
        return known

    def _types_in(self, masks: tuple[Mask, ...]) -> frozenset[str]:
        """Returns the GPU types of these pools."""
        if id(masks) not in self._types:
            pools = self._pools
            kinds = {int(kind) for mask in masks for kind in np.unique(pools.kind_of[mask])}
            self._types[id(masks)] = masks, frozenset(pools.kinds[kind].gpu_type for kind in kinds)
        return self._types[id(masks)][1]

    def of(self, job: Job, request: _GangRequest) -> HadarJob:
        knowledge, held = self._knowledge, frozenset([share.gpu_type for share in job.allocations])
        profile = knowledge.rate_profile(job)
        key = id(profile), request, held
        throughput = self._throughputs.get(key)
        if throughput is None:
            together, apart = _rates(job, profile, self._estimates, request.eligible | held, knowledge)
            throughput = self._throughputs[key] = GangThroughput(request.gpus, together, apart, *request.spread)
        remaining = self._seconds_left(knowledge, job)
        remaining = DEFAULT_REMAINING if remaining == inf else remaining
        total, age = remaining + knowledge.done_seconds(job), max(0.0, self._now - job.submit_time)
        return HadarJob(job.id, throughput, remaining, total, age)


def _divide_work(job: HadarJob, copies: int) -> HadarJob:
    """Returns the job with the work of one of `copies` copies."""
    if copies == 1:
        return job
    return replace(job, remaining=job.remaining / copies, total=job.total / copies, copies=copies)


def _rates(
    job: Job,
    profile: Profile | None,
    estimates: Mapping[str, float],
    reachable: Container[str],
    knowledge: Knowledge,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the speed on each type of `estimates`, those of equation 10, on one node and on several; 0.0 on types out
    of reach. `profile` is that with the job's rates.

    A running job is no faster on a type than where it runs, unless its rates on both were measured: it is not restarted
    for an estimate. A waiting one without any rate counts as equally fast on all types, so that it outbids nobody.
    """
    gpus, held = job.original_request.gpus, [one.gpu_type for one in job.allocations if one.gpu_type in estimates]
    known = _known_rates(profile, job.original_request.gpu_type or knowledge.reference, gpus)
    by_nodes = [known] if known and estimates.keys() <= known.keys() else []
    if not by_nodes:
        full = knowledge.reference_rate(profile, job.original_request.gpu_type, gpus)
        slowest = min((estimates[kind] for kind in held), default=inf)
        differ = profile is not None and any(scaling.apart for scaling in profile.scaling.values())
        for nodes in (1, 2) if differ else (1,):
            rates = knowledge.rates_by_type(job, estimates, gpus, nodes) if full else {}
            by_type = {kind: rate / full for kind, rate in rates.items()}
            unknown = {kind: estimate / slowest if held else 1.0 for kind, estimate in estimates.items()}
            by_nodes.append(by_type or unknown)
    if held:
        measured = knowledge.measured_types(job)
        can_move = measured if measured.issuperset(held) else frozenset[str]()
        by_nodes = [_no_faster(rates, min(rates[kind] for kind in held), can_move) for rates in by_nodes]
    speeds = [tuple([rates[kind] if kind in reachable else 0.0 for kind in estimates]) for rates in by_nodes]
    return speeds[0], speeds[-1]


def _no_faster(rates: Mapping[str, float], most: float, but_for: Container[str]) -> Mapping[str, float]:
    """Returns the rates, none but on these types above `most`."""
    return {kind: rate if kind in but_for else min(rate, most) for kind, rate in rates.items()}


def _known_rates(profile: Profile | None, named: str, gpus: int) -> Mapping[str, float]:
    """Returns the rates of a profile, as parts of that on the named type; empty where that is not known, or several
    nodes make a difference."""
    scaling = profile.scaling if profile is not None else {}
    rates: dict[str, float] = {}
    for kind, of in scaling.items():
        if of.apart:
            return {}
        rates[kind] = of.rate_at(gpus)
    full = rates.get(named, 0.0)
    return {kind: rate / full for kind, rate in rates.items()} if full > 0 else {}


def _on_faster_idle_types(
    problem: HadarProblem, allocations: Mapping[JobId, TaskAllocation], estimates: Mapping[JobId, GangThroughput]
) -> Mapping[JobId, TaskAllocation]:
    """Returns the round with those new jobs that have `estimates` on the GPUs that these say are fastest, out of their
    own and those that nobody else gets: an estimate chooses among idle GPUs, and outbids nobody."""
    if not estimates:
        return allocations
    chosen, servers, shapes = dict(allocations), problem.servers, GangShapes()
    no_price = np.zeros(len(servers.capacity))
    free = FreeGpus.of(servers, servers.free_after(chosen.values()), no_price, lambda *_: 0.0)
    for job in problem.queue:
        throughput, held = estimates.get(job.job), chosen.get(job.job)
        if throughput is None or held is None:
            continue
        now, with_own = throughput.rate(*servers.offer(held)), free.with_released(held)
        best = next(iter(undominated(throughput, with_own.places(shapes.of(throughput)))), None)
        if best is not None and best[1] > now:
            chosen[job.job], free = best[2].allocation, with_own.without(best[2])
    return chosen


def _estimated_throughputs(
    problem: HadarProblem, situation: Situation, allocations: Container[JobId]
) -> Mapping[JobId, GangThroughput]:
    """Returns those jobs that get their first allocation and whose rates are known on one type or none, with the rates
    of equation 10."""
    estimates, knowledge = estimates_by_type(problem.servers.types), situation.knowledge
    new = (job for job in situation.jobs if job.id in allocations and not job.allocations)
    unmeasured = {job.id for job in new if not knowledge.compares_types(job)}

    def estimated(rates: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(estimates[kind] if rate > 0 else 0.0 for kind, rate in zip(estimates, rates, strict=True))

    return {
        job.job: replace(
            job.throughput, consolidated=estimated(job.throughput.consolidated), spread=estimated(job.throughput.spread)
        )
        for job in problem.queue
        if job.job in unmeasured
    }


_STATE_KEY: Final = "came"


def protected_preemptors(situation: Situation) -> dict[JobId, Reason]:
    """Returns the running jobs that preempted others in the last round.

    State of another policy, or invalid state, is ignored.
    """
    raw = situation.state.get(_STATE_KEY)
    preemptors = {job for job in raw if isinstance(job, str)} if isinstance(raw, list | tuple) else set[str]()
    return {
        job.id: Reason(
            ReasonCode.MIN_RUN_TIME,
            {"run": format_duration(job.run_time), "minimum": format_duration(situation.period)},
        )
        for job in situation.jobs
        if job.id in preemptors and job.allocations and job.state is JobState.RUNNING
    }


def _nothing(_: Job) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class HadarPrices:
    """Entitlement by prices: each job gets the GPU types that pay it most."""

    make_utility: UtilityFactory = slack_aware
    name: str = "hadar"
    beam_width: int = BEAM_WIDTH
    """As of `HadarScheduler`."""
    told_beside: Callable[[Job], str] = _nothing
    """What is told of a job beside why it ranks where it does; empty for nothing."""
    seconds_left: SecondsLeft = Knowledge.remaining_seconds
    makes_room_for: JobId = ""
    """As of `HadarScheduler`."""

    def __call__(
        self,
        situation: Situation,
        postponed: Mapping[JobId, Reason] | None = None,
        leaving: Mapping[JobId, Job] | None = None,
        kept: Mapping[JobId, Reason] | None = None,
    ) -> Entitlement:
        """The jobs in `postponed`, `leaving` and `kept` are not in the situation. Those in `leaving` run, and whoever
        has a use for their GPUs gets them; those in `kept` run and stay."""
        resources = RoundResources.of(situation, Proportional())
        problem = build_problem(situation, (leaving or {}).values(), resources, self.seconds_left)
        scheduler = HadarScheduler(
            self.make_utility,
            situation.restart_cost,
            situation.period,
            beam_width=self.beam_width,
            makes_room_for=self.makes_room_for,
        )
        # Prices cover all jobs, protected ones too: else utilities of rounds are not comparable and rounds alternate.
        priced_round = PricedRound(scheduler, problem.queue, problem.servers)
        allocations = priced_round.decide(problem.running)
        estimates = _estimated_throughputs(problem, situation, allocations)
        types = _types_by_job(problem, _on_faster_idle_types(problem, allocations, estimates))
        running = {job.id: job for job in situation.jobs if job.id in problem.running}
        measured = {job_id: situation.knowledge.measured_types(job) for job_id, job in running.items()}
        protected = {**protected_preemptors(situation), **(kept or {})}
        room = {pool for pool, _ in allocations.get(self.makes_room_for, ())}
        giving_way = {
            job
            for job, held in problem.running.items()
            if allocations.get(job, held) != held and not room.isdisjoint(pool for pool, _ in held)
        }
        schedulable = {job.job for job in problem.queue}

        def total_utility(allocations: Mapping[JobId, Allocation]) -> float:
            """CPUs or memory may lead to other nodes than the prices chose; no job is preempted for a lower utility."""
            tasks = {job: task_allocation(allocation) for job, allocation in allocations.items() if job in schedulable}
            return priced_round.total_utility(tasks, problem.running)

        return Entitlement(
            order=_PayoffOrder(
                types,
                frozenset(protected),
                frozenset(postponed or {}),
                frozenset(leaving or {}),
                frozenset(kept or {}),
                frozenset(giving_way),
                self.name,
                self.told_beside,
            ),
            gpu_types=_due_types(types),
            rates={
                (job.job, kind): rate
                for job in problem.queue
                if job.job in measured
                for kind, rate in zip(problem.servers.types, job.throughput.consolidated, strict=True)
                if kind in measured[job.job]
            },
            protected=protected,
            postponed=postponed or {},
            mixes_types=True,
            utility=total_utility,
            next_state=lambda victims, _: {_STATE_KEY: sorted(set(victims.values()))},
            resources=resources,
        )


@dataclass(frozen=True, slots=True)
class _PayoffOrder:
    """First jobs with an allocation that wait or already run on its types, then jobs that are to change types, then
    the others; each group in submission order."""

    types: Mapping[JobId, Mapping[str, int]]
    protected: frozenset[JobId]
    postponed: frozenset[JobId]
    leaving: frozenset[JobId]
    kept: frozenset[JobId]
    giving_way: frozenset[JobId]
    name: str
    told_beside: Callable[[Job], str]
    _keeping: dict[JobId, bool] = field(default_factory=dict)
    _texts: dict[tuple[tuple[str, int], ...], str] = field(default_factory=dict)
    """What explains GPUs of each type."""

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        return rank_by(
            situation,
            lambda job: (
                job.id in self.postponed,
                job.id in self.leaving,
                not self._keeps_types(job),
                job.id not in self.types,
            ),
            lambda job: f"{self._explain(job)}; {beside}" if (beside := self.told_beside(job)) else self._explain(job),
        )

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        fixed = situation.non_preemptible.keys() | self.protected
        return lambda newcomer, running: (
            self._keeps_types(newcomer) and not self._keeps_types(running) and running.id not in fixed
        )

    def _keeps_types(self, job: Job) -> bool:
        """Returns whether it has an allocation, does not run on other types, and gives way to nobody."""
        known = self._keeping.get(job.id)
        if known is None:
            kinds = self.types.get(job.id)
            known = kinds is not None and (
                not job.allocations or (job.id not in self.giving_way and _held_by_type(job) == kinds)
            )
            self._keeping[job.id] = known
        return known

    def _explain(self, job: Job) -> str:
        if job.id in self.postponed or job.id in self.leaving:
            return "no steps left for it"
        if job.id in self.kept:
            return "ends in this round"
        kinds = self.types.get(job.id)
        if not kinds:
            return "no GPUs at these prices"
        if job.id in self.giving_way:
            return "makes room, as it can run elsewhere"
        mix = tuple(kinds.items())
        return self._texts.get(mix) or self._texts.setdefault(mix, f"pays for {format_type_mix(kinds)}")


def _types_by_job(
    problem: HadarProblem, allocations: Mapping[JobId, tuple[tuple[int, int], ...]]
) -> dict[JobId, dict[str, int]]:
    """Returns the GPUs of each type by job."""
    servers = problem.servers
    return {
        job: {servers.types[kind]: gpus for kind, gpus in servers.gpus_by_type(allocation).items()}
        for job, allocation in allocations.items()
    }


def _due_types(types: Mapping[JobId, Mapping[str, int]]) -> dict[JobId, frozenset[str]]:
    """Returns the types of each job; the same object for the same ones."""
    known = dict[tuple[str, ...], frozenset[str]]()
    keys = {job: tuple(kinds) for job, kinds in types.items()}
    return {job: known.setdefault(key, frozenset(key)) for job, key in keys.items()}


def _held_by_type(job: Job) -> Mapping[str, int]:
    held: dict[str, int] = {}
    for share in job.allocations:
        if share.resources.gpus:
            held[share.gpu_type] = held.get(share.gpu_type, 0) + share.resources.gpus
    return held
