"""Load balancing (Gandiva_fair, slide 10): the pool in which each local job waits, so that stride is fair to all."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

import numpy as np

from slurmsched.arrays import Floats, Ints
from slurmsched.model import JobId
from slurmsched.policies.cluster.demand import ResourceDemand
from slurmsched.policies.gandiva_fair.problem import RunnableJob, StrideProblem
from slurmsched.policies.gandiva_fair.trading import Entitlements

_HORIZON_ROUNDS: Final = 4.0
"""Rounds over which a shortfall is made up, and over which the progress of pools is projected."""

_LATE_TRIES: Final = 4
"""Jobs without a turn that are looked at, for each that a round may reassign."""

_EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Turns:
    """The jobs of a pool that have a turn, their passes and GPUs in order of pass, and the GPUs that are left."""

    jobs: Set[JobId]
    sizes: Sequence[tuple[float, int]]
    left: int

    def ahead(self, own: float, size: int) -> float:
        """Return the pass of the first that would lose its turn to a job of this pass and size: of all that have to go
        the lowest; infinite if none has to, and minus infinite if it has no turn here either."""
        left, lowest = self.left, inf
        for pass_value, gpus in reversed(self.sizes):
            if left >= size:
                break
            if pass_value <= own:
                return -inf
            left, lowest = left + gpus, pass_value
        return lowest if left >= size else -inf


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
        stay = problem.situation.unmovable
        fixed = [one for one in assigned if one.is_local and one.allocation is not None and one.job.id in stay]
        turning = problem.capacity.gpus.astype(np.float64)
        for one in fixed:
            turning[one.assigned_pool] -= one.size
        self._capacity = np.maximum(turning, _EPSILON)
        """GPUs of each pool whose jobs take turns: those that cannot be preempted keep theirs whatever they are due."""
        self._most_turning: dict[tuple[ResourceDemand, str], float] = {}
        """The most of these in a pool that holds such a gang."""
        stays = {one.job.id for one in fixed}
        local_jobs = [runnable for runnable in assigned if runnable.is_local and runnable.job.id not in stays]
        pool_indices = np.array([runnable.assigned_pool for runnable in local_jobs], dtype=np.int64)
        tickets = np.array([runnable.tickets for runnable in local_jobs])
        self._tickets = np.bincount(pool_indices, weights=tickets, minlength=len(problem.pools)).astype(np.float64)
        service = tickets * np.array([runnable.pass_value for runnable in local_jobs])
        self._service = np.bincount(pool_indices, weights=service, minlength=len(problem.pools)).astype(np.float64)
        """GPU-seconds that the jobs of each pool have had: the sum of tickets times passes."""

    def assign(self, runnable: RunnableJob) -> None:
        """Assign a job without a pool to the least loaded pool of the type of which its user is shortest."""
        if runnable.is_local and runnable.assigned_pool < 0:
            kinds = [
                gpu_type for gpu_type in self._entitlements.types if len(self._pools_of_type(runnable.demand, gpu_type))
            ]
            with_turns = [gpu_type for gpu_type in kinds if self._has_turns(runnable, gpu_type)]
            short = {kind: self._shortfalls.get((runnable.job.user, kind), 0.0) for kind in with_turns or kinds}
            gpu_type = max(short, key=short.__getitem__)
            runnable.assigned_pool = self._least_loaded(runnable, gpu_type)
        if runnable.is_local:
            self._add_load(runnable, 1.0)

    def _has_turns(self, runnable: RunnableJob, gpu_type: str) -> bool:
        """Whether some pool of this type has so many GPUs whose jobs take turns."""
        key = runnable.demand, gpu_type
        if key not in self._most_turning:
            self._most_turning[key] = float(self._capacity[self._pools_of_type(*key)].max())
        return self._most_turning[key] >= runnable.size

    def _min_pass_of(self, pool: int) -> float:
        """Return the lowest pass in seconds of the jobs assigned to this pool before; without any, of all pools."""
        return self._min_pass.get(pool, self._global_min_pass)

    def _cap_lead(self, runnable: RunnableJob) -> None:
        """Cap its pass at two slices above the pool's lowest, so that GPU time no other job could use soon stops
        counting against it."""
        quantum = max(runnable.min_quantum(self._problem.situation), self._problem.situation.period)
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

    def advance_late(self, jobs: Sequence[RunnableJob], of_job: Mapping[JobId, float], just_begun: Set[JobId]) -> None:
        """Reassign waiting jobs that have no turn in their pool to pools where their turn comes before jobs that are
        further ahead, with what their users are behind counted. Nobody's turn comes before those that have just begun.

        Gangs of other widths leave GPUs in a pool that only its narrow jobs fit, however far ahead their users are.
        """
        unmovable, queues = self._problem.situation.unmovable, defaultdict[int, list[RunnableJob]](list)
        passes = {
            runnable.job.id: -inf
            if runnable.is_awaiting
            or runnable.job.id in just_begun
            or (runnable.allocation is not None and runnable.job.id in unmovable)
            else of_job[runnable.job.id]
            for runnable in jobs
        }
        local_jobs = sorted((one for one in jobs if one.is_local), key=lambda one: passes[one.job.id])
        for runnable in local_jobs:
            queues[runnable.assigned_pool].append(runnable)
        turns = {pool: self._turns(pool, queue, passes) for pool, queue in queues.items()}
        late = [
            runnable
            for runnable in local_jobs
            if runnable.waits and runnable.job.id not in turns[runnable.assigned_pool].jobs
        ]
        for runnable in late[: _LATE_TRIES * self._settings.migrations]:
            if self._migrations >= self._settings.migrations:
                return
            source, own = runnable.assigned_pool, passes[runnable.job.id]
            if self._capacity[source] >= runnable.size or runnable.job.id not in self._unconfined:
                pools = self._pools_of_type(runnable.demand, self._problem.pools.gpu_types[source]).tolist()
            else:  # jobs that cannot be preempted hold its pool
                pools = self._problem.local_pools(runnable.demand).tolist()
            ahead = {pool: turns[pool].ahead(own, runnable.size) if pool in turns else inf for pool in pools}
            target = max(pools, key=ahead.__getitem__)
            if ahead[target] - own <= self._settings.quantum:
                continue
            queues[source].remove(runnable)
            self._reassign(runnable, target)
            insort(queues[target], runnable, key=lambda one: passes[one.job.id])
            turns |= {pool: self._turns(pool, queues[pool], passes) for pool in (source, target)}
            self._migrations += 1

    def _turns(self, pool: int, queue: Sequence[RunnableJob], passes: Mapping[JobId, float]) -> _Turns:
        left, jobs, sizes = int(self._problem.capacity.gpus[pool]), set[JobId](), list[tuple[float, int]]()
        for runnable in queue:
            if runnable.size <= left:
                left -= runnable.size
                jobs.add(runnable.job.id)
                sizes.append((passes[runnable.job.id], runnable.size))
        return _Turns(jobs, sizes, left)

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
        gaps = [(*self._type_gap(user, by_user_and_type), user) for user in {user for user, _ in by_user_and_type}]
        largest = [(-gap, user, source, target) for gap, source, target, user in gaps]
        heapify(largest)
        while self._migrations < most and largest:
            negative_gap, user, source, target = heappop(largest)
            mover = next(
                (
                    runnable
                    for runnable in by_user_and_type[user, source]
                    if self._may_move(runnable, target, -negative_gap)
                ),
                None,
            )
            if mover is None:
                continue
            by_user_and_type[user, source].remove(mover)
            self._reassign(mover, self._least_loaded(mover, target))
            self._migrations += 1
            gap, source, target = self._type_gap(user, by_user_and_type)  # a move changes the gaps of nobody else
            heappush(largest, (-gap, user, source, target))

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
