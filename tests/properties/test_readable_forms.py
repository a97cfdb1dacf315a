"""What is computed once, or a little at a time, so that large clusters are decided in seconds, gives the decisions of
the form that a person reads: whole rounds on random clusters, each decided in both forms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import floor, inf, log
from typing import Any

import numpy as np
import pytest

from slurmsched.arrays import Floats, Mask
from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.bench.workload import (
    QueueShape,
    follow_decision,
    generate_knowledge,
    generate_snapshot,
    measured_rates,
)
from slurmsched.knowledge import shipped_profiles
from slurmsched.model import Decision, Job, JobId, NodeAllocation, RankedJob, Reason, ReasonCode, SchedulerState
from slurmsched.policies import owners, pipeline, reasons, unified
from slurmsched.policies.admit import promise
from slurmsched.policies.admit.preempt import Preempt, VictimQueue
from slurmsched.policies.cluster.demand import ResourceDemand
from slurmsched.policies.cluster.intersections import Intersections
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.gandiva_fair import tickets
from slurmsched.policies.gandiva_fair.balancing import LoadBalancer
from slurmsched.policies.gandiva_fair.problem import RunnableJob
from slurmsched.policies.hadar import places
from slurmsched.policies.hadar import policy as hadar
from slurmsched.policies.hadar.places import FreeGpus, Offer, Place, undominated
from slurmsched.policies.hadar.problem import GangThroughput, HadarJob, ServerPools, Utility
from slurmsched.policies.hadar.servers import GangShape
from slurmsched.policies.orders import TetrisAlignment, _demand_per_node, rank_by
from slurmsched.policies.policies import configured_policy
from slurmsched.policies.session import Session
from slurmsched.policies.stages import Situation
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings

ROUNDS = 3
SEEDS = range(4)


def _decisions(policy: str, seed: int) -> list[Decision]:
    """Of a few rounds on a random cluster: three GPU types, some jobs of which name one, many users. Between rounds
    everything decided begins, and some jobs end."""
    random = np.random.default_rng(seed)
    shape = QueueShape(
        ("v100", "p100", "k80"),
        users=int(random.integers(2, 30)),
        accounts=int(random.integers(0, 4)),
        all_different=bool(seed % 2),
        sizes_differ=bool(random.integers(2)),
    )
    settings = Settings()
    settings = replace(settings, policy=replace(settings.policy, system=policy))
    known, identity = generate_knowledge(shipped_profiles(), shape, seed), Identity("test", Privilege.SLURM_USER)
    nodes = int(random.integers(6, 18))
    seen = generate_snapshot(4 * nodes, nodes, int(random.integers(30, 90)), seed, shape)
    jobs = [_naming_a_type(job, str(random.choice(["", "", "v100", "k80"]))) for job in seen.jobs]
    seen = replace(seen, jobs=tuple(jobs))
    state, found = SchedulerState(measured=measured_rates(seen, shape, seed)), list[Decision]()
    decider = configured_policy(settings.policy)
    for number in range(ROUNDS):
        result = run_round(seen, state, settings, known, identity, policy_override=decider)
        found.append(result.decision)
        running = {job.id for job in seen.jobs if job.allocations}
        ended = {job for job in running - result.decision.victims.keys() if random.random() < 1 / 4}
        gone = frozenset(job for job in ended if job in result.decision.targets)
        left = tuple(job for job in result.snapshot.jobs if job.id not in gone)
        idle = tuple(
            replace(node, used=type(node.used)(), gpus=tuple(replace(gpu, used=0) for gpu in node.gpus))
            for node in result.snapshot.nodes
        )
        waiting = tuple(replace(job, allocations=()) if job.id in result.decision.victims else job for job in left)
        seen, state = follow_decision(
            replace(result.snapshot, jobs=waiting, nodes=idle), result.decision, seed + number, shape
        )
    return found


def _naming_a_type(job: Job, gpu_type: str) -> Job:
    request = replace(job.original_request, gpu_type=gpu_type or None)
    return replace(job, original_request=request, current_request=request)


def _largest_gap_first(self: Any, waiting: Sequence[RunnableJob], most: int) -> None:
    """`LoadBalancer._rebalance_types`, all gaps of all users anew for each move."""
    queues, types = defaultdict[tuple[str, str], list[RunnableJob]](list), self._problem.pools.gpu_types
    for job in sorted(waiting, key=lambda one: one.pass_value):
        if job.job.id in self._unconfined:
            queues[job.job.user, types[job.assigned_pool]].append(job)
    users = {user for user, _ in queues}
    while self._migrations < most and users:
        gaps = [(self._type_gap(user, queues), user) for user in sorted(users)]
        (gap, source, target), user = max(gaps, key=lambda entry: entry[0][0])
        movable = [job for job in queues[user, source] if self._may_move(job, target, gap)]
        if not movable:
            users.discard(user)
            continue
        queues[user, source].remove(movable[0])
        self._reassign(movable[0], self._least_loaded(movable[0], target))
        self._migrations += 1


def _user_by_user(parts: Floats, caps: Floats, floors: Floats, inside: Mask, users: Sequence[str]) -> Floats:
    """`tickets._within_parts`, each user's jobs looked for among all."""
    caps = caps.copy()
    for user in sorted({name for name, confined in zip(users, inside.tolist(), strict=True) if confined}):
        of_user = np.array([name == user for name in users], dtype=np.bool_)
        rows = np.flatnonzero(inside & of_user)
        part = float(np.bincount(of_user.astype(np.int64), weights=parts, minlength=2)[1])
        caps[rows] = tickets.water_filling(part, np.ones(len(rows)), caps[rows], floors[rows])
    return caps


def _shortage_of_each(self: Any, job: Job, demand: ResourceDemand, order_name: str) -> Reason:
    """`reasons._Shortage.reason`, counted anew for each job."""
    if why := self._beside_gpus(job, demand):
        return why  # type: ignore[no-any-return]
    session = self._session
    usable = [pool for pool in range(len(session.pools)) if any(option.mask[pool] for option in demand.single_node)]
    if 0 < len(demand.required_nodes) >= demand.gang.max_nodes:
        usable = [pool for pool in usable if session.pools.node_of[pool] in demand.required_nodes]
    held = session.allocations()
    before = [ranked.job for ranked in session.ranking[: session.rank_of[job.id]]]
    ahead = [
        one for one in before if one in held and any(held[one].gpus) and not set(usable).isdisjoint(held[one].pools)
    ]
    idle = sum(max(0, int(session.free_at_minimum.gpus[pool])) for pool in usable)
    if idle >= job.original_request.gpus or not ahead:
        return Reason(ReasonCode.NO_ROOM, {"gpus": job.original_request.gpus})
    return Reason(ReasonCode.BEHIND, {"count": len(ahead), "order": order_name, "last": ahead[-1]})


def _alignment_of_each(self: TetrisAlignment, situation: Situation) -> tuple[RankedJob, ...]:
    """`TetrisAlignment.rank`, node by node for each job."""
    nodes = [node for node in situation.snapshot.nodes if node.gpus]

    def alignment(job: Job) -> float:
        asked, best = _demand_per_node(job), 0.0
        for node in nodes:
            free, whole = node.free, (node.total.gpus, node.total.cpus, max(node.total.memory, 1))
            left = free.gpus, free.cpus, free.memory
            if all(wanted <= has for wanted, has in zip(asked, left, strict=True)):
                products = [
                    wanted * (1 / all_) * (has / all_) for wanted, has, all_ in zip(asked, left, whole, strict=True)
                ]
                best = max(best, float(np.array([products]).sum(axis=1)[0]))
        return best

    score = {job.id: alignment(job) for job in situation.jobs}
    return rank_by(
        situation,
        lambda job: (not job.allocations, -score[job.id]),
        lambda job: "runs" if job.allocations else f"alignment {score[job.id]:.2f}",
    )


def _on_whole_cluster(session: Session) -> bool:
    """`promise.promise_holds`, by the ends of all jobs on all nodes."""
    kept = session.promise
    if kept is None or not kept.binding or kept.job in session.placements:
        return True
    free = session.free_at_minimum.copy()
    for end in promise._ends(session, session.jobs[kept.job], by_slices=True):
        if end.job in kept.ended if end.at == inf else end.at <= kept.start:
            free.release(end.allocation)
    return free.fits(kept.placement.allocation(session.pools))


def _ends_anew(self: Any, job: Job, *, preempts_now: bool = True) -> Sequence[Any]:
    """`Promises._ends_for`, each end computed anew."""
    return promise._ends(self._session, job, preempts_now=preempts_now)


def _shortest_slice(self: RunnableJob, situation: Situation) -> float:
    """`RunnableJob.min_quantum`, computed anew."""
    part = min(self.tickets / self.size, 1.0)
    return max(self.paying_quantum(situation), situation.shortest_slice(self.job.id, part))


def _has_pool_with_turns(self: Any, runnable: RunnableJob, gpu_type: str) -> bool:
    """`LoadBalancer._has_turns`, pool by pool."""
    return any(self._capacity[pool] >= runnable.size for pool in self._pools_of_type(runnable.demand, gpu_type))


def _runs_on_due_types(self: Any, job: Job) -> bool:
    """`_PayoffOrder._keeps_types`, counted anew."""
    held = Counter[str]()
    for share in job.allocations:
        held[share.gpu_type] += share.resources.gpus
    return job.id in self.types and (not job.allocations or held == Counter(self.types[job.id]))


_make_utility = unified._Bids.make_utility


def _bid_by_bid(self: Any, queue: Sequence[HadarJob], servers: ServerPools) -> Utility:
    """`_Bids.make_utility`, one bid at a time, as the module says."""
    _make_utility(self, queue, servers)  # prices need the rest of it
    best = {job.job: servers.best_rate(job.throughput) for job in queue}
    seconds = {job.job: job.remaining / best[job.job] if best[job.job] > 0 else 0.0 for job in queue}
    sizes = {job.job: job.workers * max(seconds[job.job], 360.0) for job in queue}
    counts = {name: float(self._of_owner[row]) for name, row in self._row_of.items()}
    return lambda job, end: unified.bid(sizes[job.job], end - job.age, counts[job.job])


def _job_after_job(self: Any, names: Sequence[JobId], alone: Floats) -> Floats:
    """`Owners.counts`, user by user."""
    jobs, worth = {job.id: job for job in self._situation.snapshot.jobs}, owners._type_worth(self._situation)
    queue = [jobs[name] for name in names]
    held = defaultdict[str, float](float)
    for job in jobs.values():
        if job.id not in set(names):
            held[job.user] += sum(part.resources.gpus * worth[part.gpu_type] for part in job.allocations)
    if len({job.user for job in queue}) < 2:
        return np.ones(len(names))
    counts, powers = np.ones(len(names)), [floor(log(bid) / log(1.25)) for bid in alone.tolist()]
    for row in sorted(range(len(names)), key=lambda row: (-powers[row], not queue[row].allocations)):
        job, user = queue[row], self._number[queue[row].user]
        own = job.gpus * worth.get(job.original_request.gpu_type or "", 1.0)
        if job.allocations:
            own = sum(part.resources.gpus * worth[part.gpu_type] for part in job.allocations)
        holds = self._held[user] + 4 * 3600 * (held[job.user] + own / 2)
        counts[row] = owners.evened(self._due[user], holds, self._least, self._evenness)
        held[job.user] += own
    return counts


def _price_by_price(self: Any, allocations: Mapping[JobId, Allocation]) -> Floats:
    """`_Bids._type_prices`, job by job."""
    prices = dict[str, float]()
    rates = {
        name: {kind: rate for kind, rate in zip(self._types, self._relative_rates[row].tolist(), strict=True) if rate}
        for name, row in self._row_of.items()
    }
    wanted = set[str]().union(*(rates[name] for name in rates if name not in allocations))
    for name, allocation in allocations.items():
        kinds = {self._pools.gpu_types[pool] for pool in allocation.pools}
        if name in rates and kinds <= rates[name].keys():
            row, rate = self._row_of[name], min(rates[name][kind] for kind in kinds)
            offered = float(self._of_owner[row]) * rate * self._sizes[row] ** -0.75
            for kind in kinds & wanted:
                prices[kind] = min(prices.get(kind, inf), offered)
    return np.array([prices.get(kind, inf) for kind in self._types])


def _outbid_one_by_one(self: Any, allocations: Mapping[JobId, Allocation]) -> set[JobId]:
    """Who is outbid on all types that it could use: the jobs of `_Bids.why_wait`."""
    prices, outbid = dict(zip(self._types, self._type_prices(allocations).tolist(), strict=True)), set[JobId]()
    for name, row in self._row_of.items():
        rates = {kind: rate for kind, rate in zip(self._types, self._relative_rates[row].tolist(), strict=True) if rate}
        worth = float(self._of_owner[row]) * self._sizes[row] ** -0.75
        if name not in allocations and rates and all(rate * worth < prices[kind] < inf for kind, rate in rates.items()):
            outbid.add(name)
    return outbid


_why_wait = unified._Bids.why_wait


def _why_wait_one_by_one(self: Any, allocations: Mapping[JobId, Allocation]) -> Mapping[JobId, Reason]:
    """`_Bids.why_wait`, checked against the jobs that are found to be outbid one by one."""
    known = _why_wait(self, allocations)
    assert known.keys() == _outbid_one_by_one(self, allocations)
    return known


def _speed_of_each(self: Any, job: Job, allocations: tuple[NodeAllocation, ...]) -> float:
    """`_RelativeSpeeds.of`, for each job."""
    return float(self._knowledge.relative_speed(job, allocations, self._nodes))


def _tried_anew(self: Preempt, job: Job, asked: Any, queue: VictimQueue, count: int) -> bool:
    """`Preempt._are_enough`, for each newcomer."""
    return self._fits_without(job, queue, count)


def _of_both(self: Intersections, free: FreeResources, other: FreeResources) -> FreeResources:
    """`Intersections.of`, computed anew."""
    return free.intersection(other)


def _offers_of_all_places(self: FreeGpus, shape: GangShape) -> Sequence[Offer]:
    """`FreeGpus._offers_of_pools`, of all places that a gang could have, by their rates."""
    ranks = tuple(float(rank + 1) for rank in shape.speed_ranks)
    gang = GangThroughput(shape.workers, ranks, ranks, 1, 1, mixes_types=False)
    return [(number, place.cost, place) for number, _, place in undominated(gang, self.places(shape))]


def _taken_anew(self: Any, place: Place) -> Any:
    """`_FreeGroup.without`, for each state."""
    return self.without_servers(place.taken)


def _released_one_by_one(self: FreeResources, allocations: Sequence[Allocation]) -> None:
    """`FreeResources.release_all`."""
    for allocation in allocations:
        self.release(allocation)


def _listed_anew(self: Preempt, queue: VictimQueue) -> VictimQueue:
    """`Preempt._without_evicted`, from all that run."""
    return self._all_preemptible()


def _no_known_rates(*_: object) -> dict[str, float]:
    """`hadar.policy._known_rates`: every rate by what is known and estimated."""
    return {}


def _always_tried(_: Session) -> bool:
    """`pipeline._starts_without_evictions`: each round is run without evictions too."""
    return True


def _due_job_by_job(situation: Situation) -> Mapping[str, float]:
    """`owners._due_gpus`, by what each job is due."""
    snapshot, parts = situation.snapshot, situation.knowledge.parts_of_gpu
    jobs = [*situation.jobs, *(job for job in snapshot.jobs if job.allocations or job.id in parts)]
    jobs = [*{job.id: job for job in jobs}.values()]
    registry = tickets.build_ticket_registry(situation.tickets, snapshot.associations)
    gpus = float(sum(len(node.gpus) for node in snapshot.nodes))
    caps = np.array([snapshot.gpus_of(job) if job.allocations else job.gpus or parts.get(job.id, 0.0) for job in jobs])
    due = defaultdict[str, float](float)
    shares = tickets.divide_by_tickets(tickets.build_ticket_tree(jobs, registry), gpus, caps)
    for job, share in zip(jobs, shares.tolist(), strict=True):
        due[job.user] += share
    return due


FORMS = [
    pytest.param("gandiva-fair", LoadBalancer, "_rebalance_types", _largest_gap_first, id="moves between GPU types"),
    pytest.param("gandiva-fair", tickets, "_within_parts", _user_by_user, id="parts of jobs that name a GPU type"),
    pytest.param("synergy", reasons._Shortage, "reason", _shortage_of_each, id="why jobs wait, by attained service"),
    pytest.param("slurm", reasons._Shortage, "reason", _shortage_of_each, id="why jobs wait, by priority"),
    pytest.param("gandiva-fair", LoadBalancer, "_has_turns", _has_pool_with_turns, id="pools whose jobs take turns"),
    pytest.param("gandiva-fair", RunnableJob, "min_quantum", _shortest_slice, id="slices"),
    pytest.param("gandiva-fair", promise.Promises, "_ends_for", _ends_anew, id="ends of jobs that take turns"),
    pytest.param("synergy", promise.Promises, "_ends_for", _ends_anew, id="ends of jobs"),
    pytest.param("synergy", pipeline, "promise_holds", _on_whole_cluster, id="whether a promise holds"),
    pytest.param("unified", pipeline, "promise_holds", _on_whole_cluster, id="whether a promise of a market holds"),
    pytest.param("synergy", Intersections, "of", _of_both, id="what is free beside a promise"),
    pytest.param("unified", Intersections, "of", _of_both, id="what is free beside a promise, by worth"),
    pytest.param("fgd", Intersections, "of", _of_both, id="what is free beside a promise, by fragments"),
    pytest.param("hadar", hadar._PayoffOrder, "_keeps_types", _runs_on_due_types, id="who keeps GPU types"),
    pytest.param("unified", FreeGpus, "_offers_of_pools", _offers_of_all_places, id="places in one pool"),
    pytest.param("unified", places._FreeGroup, "without", _taken_anew, id="what states of the search share"),
    pytest.param("hadar", FreeGpus, "_offers_of_pools", _offers_of_all_places, id="places in one pool, by slack"),
    pytest.param("synergy", FreeResources, "release_all", _released_one_by_one, id="what many jobs release"),
    pytest.param("fgd", FreeResources, "release_all", _released_one_by_one, id="what many release, by fragments"),
    pytest.param("unified", Preempt, "_without_evicted", _listed_anew, id="who may be preempted after an eviction"),
    pytest.param("synergy", Preempt, "_without_evicted", _listed_anew, id="who may be preempted, by service"),
    pytest.param("unified", hadar, "_known_rates", _no_known_rates, id="rates of waiting jobs"),
    pytest.param("unified", unified._Bids, "make_utility", _bid_by_bid, id="bids"),
    pytest.param("unified", owners.Owners, "counts", _job_after_job, id="how much owners count"),
    pytest.param("unified", reasons._RelativeSpeeds, "of", _speed_of_each, id="speeds of running jobs"),
    pytest.param("unified", unified._Bids, "_type_prices", _price_by_price, id="prices of GPU types"),
    pytest.param("unified", unified._Bids, "why_wait", _why_wait_one_by_one, id="who is outbid"),
    pytest.param("tesserae-ftf", Preempt, "_are_enough", _tried_anew, id="how many have to leave, by fairness"),
    pytest.param("unified", Preempt, "_are_enough", _tried_anew, id="how many have to leave, by prices"),
    pytest.param("unified", pipeline, "_starts_without_evictions", _always_tried, id="rounds without evictions"),
    pytest.param("hadar", pipeline, "_starts_without_evictions", _always_tried, id="the same by effective throughput"),
    pytest.param("unified", owners, "_due_gpus", _due_job_by_job, id="what users are due"),
    pytest.param("tetris", TetrisAlignment, "rank", _alignment_of_each, id="the order by alignment"),
]
"""A policy, and where which part of it has a readable form."""


@cache
def _fast_decisions(policy: str, seed: int) -> list[Decision]:
    return _decisions(policy, seed)


@pytest.mark.parametrize(("policy", "owner", "name", "readable"), FORMS)
def test_decisions_are_those_of_the_readable_form(
    policy: str, owner: Any, name: str, readable: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, fast = list[str](), [_fast_decisions(policy, seed) for seed in SEEDS]

    def counted(*arguments: Any, **named: Any) -> Any:
        asked.append(name)
        return readable(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)
    assert fast == [_decisions(policy, seed) for seed in SEEDS]
    assert asked
