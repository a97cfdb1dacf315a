"""Gandiva_fair as a policy (Chaudhary et al., EuroSys 2020, by the slides of their talk): every user gets the part of
the cluster's throughput that the user's tickets stand for, on any GPU types and with jobs of any size.

Every local job is assigned to a pool. Split stride is fair across pools while their load, in tickets per GPU, is
balanced (slide 10), and the balancer assigns a user's jobs to the GPU types that the user holds.

On Slurm a suspended job keeps its GPUs, so a slice ends with the checkpoint signal and a requeue. A waiting job can
resume in any pool, so only waiting jobs are reassigned, and no running job is moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.model import Job, JobId, JobState, RankedJob, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.cluster.demand import ResourceDemand
from slurmsched.policies.cluster.resources import Allocation
from slurmsched.policies.gandiva_fair.accounts import (
    GandivaFairState,
    PassRecord,
    advance_passes,
    best_rates,
    compute_shortfalls,
    update_accounts,
)
from slurmsched.policies.gandiva_fair.problem import RunnableJob, StrideProblem
from slurmsched.policies.gandiva_fair.trading import Entitlements, compute_entitlements
from slurmsched.policies.reasons import reserved_reason
from slurmsched.policies.sizes import Proportional, Sizing
from slurmsched.policies.stages import Entitlement, PreemptionRule, Situation
from slurmsched.policies.state import decode_state, encode_state

_HORIZON_ROUNDS: Final = 4.0
"""Rounds over which a shortfall is made up, and over which the progress of pools is projected."""

_EPSILON: Final = 1e-9


class LoadBalancer:
    """Assigns jobs to pools and balances their load. `shortfalls` are GPU-seconds by user and type."""

    def __init__(
        self,
        problem: StrideProblem,
        entitlements: Entitlements,
        shortfalls: Mapping[str, Mapping[str, float]],
        assigned: Sequence[RunnableJob],
    ) -> None:
        self._problem, self._entitlements, self._settings = problem, entitlements, problem.situation.tickets
        self._horizon = _HORIZON_ROUNDS * problem.situation.period
        self._capacity = np.maximum(problem.capacity.gpus.astype(np.float64), 1e-9)
        self._shortfalls: dict[tuple[str, str], float] = {}
        for user, held in entitlements.holdings.items():
            user_shortfalls = shortfalls.get(user, {})
            for gpu_type, gpus in held.items():
                self._shortfalls[user, gpu_type] = gpus + user_shortfalls.get(gpu_type, 0.0) / self._horizon
        self._pools_by_type: dict[tuple[ResourceDemand, str], Ints] = {}
        self._unconfined = {
            runnable.job.id
            for runnable, free in zip(problem.runnable_jobs, entitlements.runs_anywhere, strict=True)
            if free
        }
        self._migrations = 0
        self._min_pass: dict[int, float] = {}
        for runnable in assigned:
            self._min_pass[runnable.assigned_pool] = min(
                runnable.pass_value, self._min_pass.get(runnable.assigned_pool, runnable.pass_value)
            )
        self._global_min_pass = min(self._min_pass.values(), default=0.0)
        for runnable in assigned:
            self._cap_lead(runnable)
            self._add_holding(runnable, 1.0)
        local_jobs = [runnable for runnable in assigned if runnable.is_local]
        pool_indices = np.array([runnable.assigned_pool for runnable in local_jobs], dtype=np.int64)
        tickets = np.array([runnable.tickets for runnable in local_jobs])
        self._tickets = np.bincount(pool_indices, weights=tickets, minlength=len(problem.pools)).astype(np.float64)
        service = tickets * np.array([runnable.pass_value for runnable in local_jobs])
        self._service = np.bincount(pool_indices, weights=service, minlength=len(problem.pools)).astype(np.float64)
        """GPU-seconds that the jobs of each pool have had: the sum of tickets times passes."""

    def assign(self, runnable: RunnableJob, part: float | None = None) -> None:
        """Assign a job without a pool to the least loaded pool of the type of which its user is shortest.

        A new job's pass starts `part` of a slice above the lowest in the pool; None leaves the pass of a job that only
        lost its pool. `part` is 1 for a single new job, so that many short jobs in a row get no more than one long job.
        Jobs that arrive together are spread over the slice, so that they do not all run at once.
        """
        if runnable.is_local and runnable.assigned_pool < 0:
            kinds = [
                gpu_type for gpu_type in self._entitlements.types if len(self._pools_of_type(runnable.demand, gpu_type))
            ]
            gpu_type = max(kinds, key=lambda gpu_type: self._shortfalls.get((runnable.job.user, gpu_type), 0.0))
            runnable.assigned_pool = self._least_loaded(runnable, gpu_type)
        if part is not None:
            runnable.pass_value = self._min_pass_of(runnable.assigned_pool) + part * runnable.stride(
                runnable.min_quantum(self._settings)
            )
        if runnable.is_local:
            self._add_load(runnable, 1.0)

    def _min_pass_of(self, pool: int) -> float:
        """Return the lowest pass in seconds of the jobs assigned to this pool before; without any, of all pools."""
        return self._min_pass.get(pool, self._global_min_pass)

    def _cap_lead(self, runnable: RunnableJob) -> None:
        """Cap its pass at two slices above the pool's lowest, so that GPU time no other job could use soon stops
        counting against it."""
        quantum = max(runnable.min_quantum(self._settings), self._problem.situation.period)
        runnable.pass_value = min(
            runnable.pass_value, self._min_pass_of(runnable.assigned_pool) + 2 * runnable.stride(quantum)
        )

    def balance(self, waiting: Sequence[RunnableJob]) -> None:
        """Reassign a few waiting jobs: first to pools of another type, then to other pools of the same type."""
        most = self._settings.migrations
        if len(self._entitlements.types) > 1:
            self._rebalance_types(waiting, most)
        by_pool = defaultdict[int, list[RunnableJob]](list)
        for runnable in sorted(waiting, key=lambda runnable: runnable.pass_value):
            by_pool[runnable.assigned_pool].append(runnable)
        for gpu_type in self._entitlements.types:
            pools = np.array(
                [pool for pool, pool_type in enumerate(self._problem.pools.gpu_types) if pool_type == gpu_type],
                dtype=np.int64,
            )
            while self._migrations < most and len(pools) > 1 and self._rebalance_pools(pools, by_pool):
                self._migrations += 1

    def _pools_of_type(self, demand: ResourceDemand, gpu_type: str) -> Ints:
        key = (demand, gpu_type)
        if key not in self._pools_by_type:
            types, pools = self._problem.pools.gpu_types, self._problem.local_pools(demand)
            self._pools_by_type[key] = pools[[types[int(pool)] == gpu_type for pool in pools]] if len(pools) else pools
        return self._pools_by_type[key]

    def _least_loaded(self, runnable: RunnableJob, gpu_type: str) -> int:
        pools = self._pools_of_type(runnable.demand, gpu_type)
        load = (self._tickets[pools] + runnable.tickets) / self._capacity[pools]
        return int(pools[int(np.argmin(load))])

    def _add_load(self, runnable: RunnableJob, sign: float) -> None:
        self._tickets[runnable.assigned_pool] += sign * runnable.tickets
        self._service[runnable.assigned_pool] += sign * runnable.tickets * runnable.pass_value
        self._add_holding(runnable, sign)

    def _add_holding(self, runnable: RunnableJob, sign: float) -> None:
        """Count its tickets against its user's holding of the type of its pool."""
        if runnable.is_local and runnable.job.id in self._unconfined:
            key = (runnable.job.user, self._problem.pools.gpu_types[runnable.assigned_pool])
            self._shortfalls[key] = self._shortfalls.get(key, 0.0) - sign * runnable.tickets

    def _reassign(self, runnable: RunnableJob, pool: int) -> None:
        self._add_load(runnable, -1.0)
        runnable.assigned_pool = pool
        self._add_load(runnable, 1.0)

    def _rebalance_types(self, waiting: Sequence[RunnableJob], most: int) -> None:
        by_user_and_type = defaultdict[tuple[str, str], list[RunnableJob]](list)
        for runnable in sorted(waiting, key=lambda runnable: runnable.pass_value):
            if runnable.job.id in self._unconfined:
                by_user_and_type[runnable.job.user, self._problem.pools.gpu_types[runnable.assigned_pool]].append(
                    runnable
                )
        users = {user for user, _ in by_user_and_type}
        while self._migrations < most and users:
            gaps = [(self._type_gap(user, by_user_and_type), user) for user in sorted(users)]
            (gain, source, target), user = max(gaps, key=lambda gap: gap[0][0])
            mover = next(
                (runnable for runnable in by_user_and_type[user, source] if self._may_move(runnable, target, gain)),
                None,
            )
            if mover is None:
                users.discard(user)
                continue
            by_user_and_type[user, source].remove(mover)
            self._reassign(mover, self._least_loaded(mover, target))
            self._migrations += 1

    def _type_gap(
        self, user: str, by_user_and_type: Mapping[tuple[str, str], list[RunnableJob]]
    ) -> tuple[float, str, str]:
        """Return the user's gap in GPUs between two types, the type with too much and the type with too little."""
        short = {gpu_type: self._shortfalls.get((user, gpu_type), 0.0) for gpu_type in self._entitlements.types}
        sources = [gpu_type for gpu_type in short if by_user_and_type.get((user, gpu_type))]
        target = max(short, key=lambda gpu_type: short[gpu_type])
        source = min(sources, key=lambda gpu_type: short[gpu_type], default=target)
        return short[target] - short[source], source, target

    def _may_move(self, runnable: RunnableJob, gpu_type: str, gap: float) -> bool:
        return gap > runnable.tickets and len(self._pools_of_type(runnable.demand, gpu_type)) > 0

    def _rebalance_pools(self, pools: Ints, by_pool: Mapping[int, list[RunnableJob]]) -> bool:
        """Reassign a waiting job from the pool whose jobs will be furthest behind to the one furthest ahead.

        Return False where no job brings the two closer.
        """
        tickets, had = self._tickets[pools], self._service[pools]
        ahead = _projected_pass(tickets, had + self._horizon * self._capacity[pools])
        source, target = int(np.argmin(ahead)), int(np.argmax(ahead))
        gap = float(ahead[target] - ahead[source]) if source != target else 0.0
        if gap <= self._settings.quantum:
            return False
        target_pool = int(pools[target])
        for runnable in by_pool.get(int(pools[source]), []):
            if not self._problem.is_local_pool(runnable.demand, target_pool):
                continue
            moved = np.array([-runnable.tickets, runnable.tickets])
            both = np.array([source, target])
            served = had[both] + self._horizon * self._capacity[pools[both]] + moved * runnable.pass_value
            source_pass, target_pass = _projected_pass(tickets[both] + moved, served).tolist()
            if abs(target_pass - source_pass) < gap:
                by_pool[runnable.assigned_pool].remove(runnable)
                self._reassign(runnable, target_pool)
                by_pool[target_pool].append(runnable)
                return True
        return False


def _projected_pass(tickets: Floats, served: Floats) -> Floats:
    """Return the mean pass that the jobs of each pool will have reached; infinite for a pool without jobs."""
    return np.where(tickets > _EPSILON, served / np.maximum(tickets, _EPSILON), np.inf)


@dataclass(frozen=True, slots=True)
class GandivaTickets:
    """Entitlement by tickets: GPUs by tickets and trades, and the order by pass, which is what a job had of them.

    A gang that fits into one pool, sized by `sizing`, has a home there. Running jobs are protected within their slice.
    """

    sizing: Sizing = field(default_factory=Proportional)
    name: str = "pass"

    def __call__(self, situation: Situation) -> Entitlement:
        state, problem = decode_state(GandivaFairState, situation.state), StrideProblem(situation, self.sizing)
        best = best_rates(state, situation.jobs, situation.knowledge.measured)
        entitlements = compute_entitlements(problem, best)
        for runnable, tickets in zip(problem.runnable_jobs, entitlements.tickets.tolist(), strict=True):
            runnable.tickets = tickets
        advance_passes(problem.runnable_jobs, state, situation.knowledge.service)
        shortfalls = compute_shortfalls(problem, entitlements, state)
        min_pass = _assign_pools(problem, entitlements, state, shortfalls)
        queue = sorted(problem.runnable_jobs, key=lambda runnable: (runnable.pass_value, runnable.allocation is None))
        turns = _Turns(problem, queue, min_pass)

        def next_state(_: Mapping[JobId, JobId], allocations: Mapping[JobId, Allocation]) -> Mapping[str, object]:
            accounts = update_accounts(problem, entitlements, state, shortfalls)
            jobs = _pass_records(problem, allocations)
            return encode_state(GandivaFairState(situation.snapshot.time, accounts, entitlements.trades, jobs, best))

        return Entitlement(
            order=_PassOrder(turns.ranking(), turns.passes, queue, self.name),
            homes={runnable.job.id: runnable.assigned_pool for runnable in queue if runnable.assigned_pool >= 0},
            passes=turns.passes,
            preferred_types=entitlements.types,
            protected=_within_slice(queue, situation),
            why_start=turns.why_start,
            why_end=turns.why_end,
            why_wait=turns.why_wait,
            next_state=next_state,
            resources=problem.resources,
        )


@dataclass(frozen=True, slots=True)
class _PassOrder:
    """The lowest pass first; of equals the one that runs.

    A newcomer may preempt a job that is ahead by more than the least by which a slice advances any job: of jobs that
    are alike, none is due again as soon as it was preempted.
    """

    ranking: tuple[RankedJob, ...]
    passes: Mapping[JobId, float]
    queue: Sequence[RunnableJob]
    name: str

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:  # noqa: ARG002 the ranking is of this situation
        return self.ranking

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        @cache
        def margin() -> float:
            return min(runnable.stride(runnable.min_quantum(situation.tickets)) for runnable in self.queue)

        return lambda newcomer, running: self.passes[running.id] - self.passes[newcomer.id] > margin()


def _within_slice(queue: Sequence[RunnableJob], situation: Situation) -> dict[JobId, Reason]:
    """Return the running jobs whose slice is not over, to the nearest round."""
    protected: dict[JobId, Reason] = {}
    for runnable in queue:
        if runnable.allocation is None:
            continue
        quantum, job = runnable.min_quantum(situation.tickets), runnable.job
        if job.run_time + situation.period / 2 < quantum:
            details = {"run": format_duration(job.run_time), "minimum": format_duration(quantum)}
            protected[job.id] = Reason(ReasonCode.MIN_RUN_TIME, details)
    return protected


class _Turns:
    """What people are told about the turns of the jobs in `queue`, which is in order of pass."""

    def __init__(self, problem: StrideProblem, queue: Sequence[RunnableJob], min_pass: Mapping[int, float]) -> None:
        self._problem, self._queue = problem, queue
        self.passes = {runnable.job.id: runnable.pass_value for runnable in queue}
        self._texts = {
            runnable.job.id: (
                format_duration(max(0.0, runnable.pass_value - min_pass[runnable.assigned_pool])),
                f"{runnable.tickets:.2f}",
            )
            for runnable in queue
        }
        """How far a job's pass is above the lowest in its pool, and the GPUs it is entitled to."""

    def ranking(self) -> tuple[RankedJob, ...]:
        """Return all jobs of the situation, those that end last."""
        ending = (job.id for job in self._problem.situation.jobs if job.state is JobState.COMPLETING)
        return (
            *(RankedJob(job, f"{ahead} ahead, entitled to {due} GPUs") for job, (ahead, due) in self._texts.items()),
            *(RankedJob(job, "ends") for job in ending),
        )

    def why_start(self, job: Job) -> Reason:
        ahead, due = self._texts[job.id]
        return Reason(ReasonCode.TURN, {"ahead": ahead, "due": due})

    def why_end(self, job: Job, newcomer: Job) -> Reason:
        ahead, due = self._texts[job.id]
        details = {
            "run": format_duration(job.run_time),
            "ahead": ahead,
            "due": due,
            "newcomer": f"job {newcomer.id} of {newcomer.user}",
            "behind": self._texts[newcomer.id][0],
        }
        return Reason(ReasonCode.SLICE_ENDED, details)

    def why_wait(self, allocations: Mapping[JobId, Allocation]) -> dict[JobId, Reason]:
        """Return why the jobs without an allocation wait: for their turn in the queue of their pool, or for room."""
        before, reasons = Counter[int](), dict[JobId, Reason]()
        names = [self._problem.pools.node(pool).name for pool in range(len(self._problem.pools))]
        for runnable in self._queue:
            job, pool = runnable.job.id, _home_after(runnable, allocations)
            if job not in allocations:
                ahead, due = self._texts[job]
                reasons[job] = (
                    self._no_home_reason(runnable)
                    if pool < 0
                    else Reason(
                        ReasonCode.AWAITS_TURN,
                        {"count": before[pool], "node": names[pool], "due": due, "ahead": ahead},
                    )
                )
            before[pool] += 1
        return reasons

    def _no_home_reason(self, runnable: RunnableJob) -> Reason:
        """Return why a job without a pool waits: it needs several nodes, or fits nowhere."""
        if what := self._problem.empty_cluster.unmet_demand(runnable.job):
            return Reason(ReasonCode.NEVER_FITS, {"what": what})
        no_room = Reason(ReasonCode.NO_ROOM, {"gpus": runnable.job.original_request.gpus})
        return reserved_reason(runnable.demand, self._problem.situation.snapshot) or no_room


def _home_after(runnable: RunnableJob, allocations: Mapping[JobId, Allocation]) -> int:
    """Return the pool of a job after the round: it stays assigned to the one that it was placed in."""
    held = allocations.get(runnable.job.id)
    return held.pools[0] if held is not None and runnable.is_local else runnable.assigned_pool


def _assign_pools(
    problem: StrideProblem,
    entitlements: Entitlements,
    state: GandivaFairState,
    shortfalls: Mapping[str, Mapping[str, float]],
) -> Mapping[int, float]:
    """Assign jobs without a pool, balance the pools, and return the lowest pass of each pool."""
    pools = problem.pools
    names = {f"{pools.node(pool).name} {pools.gpu_types[pool]}": pool for pool in range(len(pools))}
    assigned, newcomers = list[RunnableJob](), list[RunnableJob]()
    for runnable in problem.runnable_jobs:
        before = state.jobs.get(runnable.job.id)
        if runnable.allocation is None and runnable.is_local and before is not None:
            pool_index = names.get(before.assigned_pool, -1)
            runnable.assigned_pool = pool_index if problem.is_local_pool(runnable.demand, pool_index) else -1
        has_pool = before is not None and (runnable.assigned_pool >= 0 or not runnable.is_local)
        (assigned if has_pool else newcomers).append(runnable)
    balancer = LoadBalancer(problem, entitlements, shortfalls, assigned)
    new = [runnable for runnable in newcomers if runnable.job.id not in state.jobs]
    count, seen = Counter(runnable.job.user for runnable in new), Counter[str]()
    for runnable in newcomers:
        if runnable.job.id in state.jobs:
            balancer.assign(runnable)
        else:
            seen[runnable.job.user] += 1
            balancer.assign(runnable, seen[runnable.job.user] / count[runnable.job.user])
    balancer.balance([runnable for runnable in assigned if runnable.is_local and runnable.allocation is None])
    min_pass: dict[int, float] = {}
    for runnable in problem.runnable_jobs:
        min_pass[runnable.assigned_pool] = min(
            runnable.pass_value, min_pass.get(runnable.assigned_pool, runnable.pass_value)
        )
    return min_pass


def _pass_records(problem: StrideProblem, allocations: Mapping[JobId, Allocation]) -> Mapping[JobId, PassRecord]:
    """Return the record of every job; for a job on several nodes the pool names only their GPU type."""
    pools, attained = problem.pools, problem.situation.knowledge.attained_gpu_seconds
    names = [f"{pools.node(pool).name} {gpu_type}" for pool, gpu_type in enumerate(pools.gpu_types)]
    records: dict[JobId, PassRecord] = {}
    for runnable in problem.runnable_jobs:
        pool, held = _home_after(runnable, allocations), allocations.get(runnable.job.id) or runnable.allocation
        type_only = f" {pools.gpu_types[held.pools[0]]}" if held and held.pools else ""
        assigned_pool = names[pool] if pool >= 0 else type_only
        records[runnable.job.id] = PassRecord(round(runnable.pass_value, 3), attained(runnable.job), assigned_pool)
    return records
