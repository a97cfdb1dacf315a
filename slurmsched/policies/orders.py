"""The orders of jobs, and which newcomer may preempt which running job."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from math import isinf
from typing import Final

import numpy as np

from slurmsched.model import IdleGpus, Job, JobId, RankedJob, Resources
from slurmsched.model.reasons import format_duration, format_gpu_hours, format_percent
from slurmsched.policies.stages import Order, PreemptionRule, Situation


def rank_by(
    situation: Situation, key: Callable[[Job], tuple[float, ...]], reason: Callable[[Job], str]
) -> tuple[RankedJob, ...]:
    """Returns the jobs by ascending key, ties by `Job.queue_key`; `reason` puts the key into words."""
    in_order = sorted(situation.by_submission(), key=key)
    return tuple([RankedJob(job.id, reason(job)) for job in in_order])


def never_preempts(newcomer: Job, running: Job) -> bool:  # noqa: ARG001 as `PreemptionRule` has it
    """The rule of orders that never preempt."""
    return False


@dataclass(frozen=True, slots=True)
class FirstInFirstOut:
    """By submission, without preemption: a running job came first, or uses GPUs that no job before it could use."""

    name: str = "fifo"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        now = situation.snapshot.time
        return rank_by(
            situation, lambda _: (), lambda job: f"submitted {format_duration(max(0.0, now - job.submit_time))} ago"
        )

    def preemption_rule(self, situation: Situation) -> PreemptionRule:  # noqa: ARG002 as the protocol has it
        return never_preempts


@dataclass(frozen=True, slots=True)
class SlurmPriority:
    """By Slurm's priority, highest first, without preemption."""

    name: str = "priority"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        return rank_by(situation, lambda job: (-job.priority,), lambda job: f"priority {job.priority}")

    def preemption_rule(self, situation: Situation) -> PreemptionRule:  # noqa: ARG002 as the protocol has it
        return never_preempts


@dataclass(frozen=True, slots=True)
class ShortestRemainingTime:
    """By remaining time: as earlier runs tell it, of the hinted duration, or else of the time limit; jobs with none of
    these come last.

    A newcomer preempts only a job whose remaining time is at least `min_ratio` times its own. Its own shrinks as it
    runs, so the two do not swap back.
    """

    min_ratio: float = 2.0
    name: str = "srtf"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        remaining = situation.knowledge.remaining_seconds

        def reason(job: Job) -> str:
            return _BY_EARLIER_RUNS if _is_learnt(situation, job) else f"{format_duration(remaining(job))} to go"

        return rank_by(situation, lambda job: (remaining(job),), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        remaining = situation.knowledge.remaining_seconds

        def shorter(newcomer: Job, running: Job) -> bool:
            new, old = remaining(newcomer), remaining(running)
            return new < old and new * self.min_ratio <= old

        return shorter


@dataclass(frozen=True, slots=True)
class LeastAttainedService:
    """By attained GPU-seconds, in discretized queues (Gu et al., Tiresias, NSDI 2019).

    `queues` are the ascending bounds between the queues, in GPU-seconds. Inside a queue jobs go by submission, so that
    two with similar service do not take turns. Without bounds the service itself is the key. A job that has waited
    `promotion_factor` times as long as it has run counts as in the first queue (Tiresias' promotion of starved jobs;
    the default factor is ours); once it runs again, until it has run for what that queue allows, so that the restart
    pays. A newcomer preempts only a job of a later queue; without queues, only one whose service is at least
    `min_ratio` times its own and exceeds it by more than the newcomer gets in a round.
    """

    queues: tuple[float, ...] = ()
    promotion_factor: float = 8.0
    min_ratio: float = 2.0
    name: str = "las"

    def queue_index(self, situation: Situation, job: Job) -> int:
        """Return the index of the job's queue; the first is 0."""
        index = bisect_right(self.queues, situation.knowledge.attained_gpu_seconds(job))
        return 0 if index and self._is_starved(situation, job) else index

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        attained = situation.knowledge.attained_gpu_seconds
        if not self.queues:
            return rank_by(
                situation, lambda job: (attained(job),), lambda job: f"{format_gpu_hours(attained(job))} attained"
            )
        count, queues = len(self.queues) + 1, self._queues(situation)

        def reason(job: Job) -> str:
            return f"{format_gpu_hours(attained(job))} attained, queue {queues[job.id] + 1} of {count}"

        return rank_by(situation, lambda job: (queues[job.id],), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        attained, queues = situation.knowledge.attained_gpu_seconds, self._queues(situation)

        def earlier_queue(newcomer: Job, running: Job) -> bool:
            return queues[newcomer.id] < queues[running.id]

        parts = situation.knowledge.parts_of_gpu

        def far_less(newcomer: Job, running: Job) -> bool:
            new, old = attained(newcomer), attained(running)
            in_a_round = situation.period * (parts.get(newcomer.id) or newcomer.gpus)
            return old >= new * self.min_ratio and old > new + in_a_round

        return earlier_queue if self.queues else far_less

    def _queues(self, situation: Situation) -> dict[JobId, int]:
        return {job.id: self.queue_index(situation, job) for job in situation.jobs}

    def _is_starved(self, situation: Situation, job: Job) -> bool:
        executed = situation.knowledge.executed_seconds(job)
        waited = situation.snapshot.time - job.submit_time - executed
        if waited >= self.promotion_factor * executed:
            return True
        this_run = min(job.run_time, executed) if job.allocations else 0.0
        attained_in_run = this_run * situation.knowledge.attained_gpu_seconds(job) / max(executed, 1.0)
        return waited >= self.promotion_factor * (executed - this_run) and 0 < attained_in_run < self.queues[0]


@dataclass(frozen=True, slots=True)
class FinishTimeFairness:
    """By finish-time fairness rho, highest first (Mahajan et al., Themis, NSDI 2020).

    Rho is the time from submission to the end, if the job runs from now on, divided by the time that it would take
    alone on its fair share of the GPUs. A newcomer preempts only a job whose rho is `min_ratio` times smaller.
    """

    min_ratio: float = 1.5
    name: str = "ftf"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        fair_share = _fair_share_of_gpus(situation)
        times = {job.id: _finish_times(situation, job, fair_share) for job in situation.jobs}
        rho = {job_id: shared / alone for job_id, (shared, alone) in times.items()}

        def reason(job: Job) -> str:
            if _is_learnt(situation, job):
                return _BY_EARLIER_RUNS
            shared, alone = times[job.id]
            return f"rho {rho[job.id]:.2f}: {format_duration(shared)} here, {format_duration(alone)} on its fair share"

        return rank_by(situation, lambda job: (-rho[job.id],), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        fair_share = _fair_share_of_gpus(situation)
        times = {job.id: _finish_times(situation, job, fair_share) for job in situation.jobs}
        rho = {job: shared / alone for job, (shared, alone) in times.items()}
        return lambda newcomer, running: rho[newcomer.id] >= self.min_ratio * rho[running.id]


_BY_EARLIER_RUNS: Final = "by how long its owner's earlier runs took"
"""Everybody reads what ranks a job: how long runs take that it is ranked by, is told to their owner alone."""


def _is_learnt(situation: Situation, job: Job) -> bool:
    return situation.knowledge.learnt_length(job) is not None


def _fair_share_of_gpus(situation: Situation) -> float:
    """Return the GPUs per job if all were divided evenly."""
    total = sum(len(node.gpus) for node in situation.snapshot.nodes)
    return max(total, 1) / max(len(situation.jobs), 1)


def _finish_times(situation: Situation, job: Job, fair_share: float) -> tuple[float, float]:
    """Return the seconds from submission to the end, shared and alone.

    Without a duration estimate a job is assumed to be half finished, and to have at least one period left.
    """
    knowledge = situation.knowledge
    done, remaining = knowledge.done_seconds(job), knowledge.remaining_seconds(job)
    if isinf(remaining):
        remaining = max(done, situation.period)
    shared = max(0.0, situation.snapshot.time - job.submit_time) + remaining
    alone = (done + remaining) * max(1.0, job.gpus / fair_share)
    return shared, alone


@dataclass(frozen=True, slots=True)
class DominantResourceFairness:
    """By dominant share (Ghodsi et al., DRF, NSDI 2011), by progressive filling and without preemption.

    The next job is always one of the user with the smallest dominant share, which counts the user's running jobs and
    those ranked before. The jobs of one user go by submission.
    """

    name: str = "drf"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        whole = sum((node.total for node in situation.snapshot.nodes if node.gpus), Resources())
        in_order = rank_by(situation, lambda job: (not job.allocations,), lambda _: "")
        jobs = {job.id: job for job in situation.jobs}
        waiting: defaultdict[str, deque[Job]] = defaultdict(deque)
        has: defaultdict[str, Resources] = defaultdict(Resources)
        ranking: list[RankedJob] = []
        for entry in in_order:
            job = jobs[entry.job]
            if job.allocations:
                has[job.user] += job.allocated
                ranking.append(RankedJob(job.id, "runs"))
            else:
                waiting[job.user].append(job)
        users = [(_dominant_share(has[user], whole), user) for user in waiting]
        heapify(users)
        while users:
            share, user = heappop(users)
            job = waiting[user].popleft()
            ranking.append(RankedJob(job.id, f"{user} has a dominant share of {format_percent(share)}"))
            has[user] += _requested(job)
            if waiting[user]:
                heappush(users, (_dominant_share(has[user], whole), user))
        return tuple(ranking)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:  # noqa: ARG002 as the protocol has it
        return never_preempts


def _requested(job: Job) -> Resources:
    return Resources(
        job.original_request.gpus,
        job.original_request.cpus,
        job.original_request.memory * max(job.original_request.nodes, 1),
    )


def _dominant_share(has: Resources, whole: Resources) -> float:
    return max(has.gpus / max(whole.gpus, 1), has.cpus / max(whole.cpus, 1), has.memory / max(whole.memory, 1))


@dataclass(frozen=True, slots=True)
class TetrisAlignment:
    """By alignment, largest first (Grandl et al., Tetris, SIGCOMM 2014), without preemption; running jobs come first.

    The alignment of a job is the dot product of its demand and a node's free resources, both as parts of the whole
    node, on the node where it is largest of those where the job fits. One that fits nowhere now comes last.
    """

    name: str = "tetris"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        nodes = [node for node in situation.snapshot.nodes if node.gpus]
        whole = np.array([(n.total.gpus, n.total.cpus, max(n.total.memory, 1)) for n in nodes], dtype=float)
        whole = whole.reshape(-1, 3)
        free = np.array([(n.free.gpus, n.free.cpus, n.free.memory) for n in nodes], dtype=float)
        parts, reciprocal = free.reshape(-1, 3) / whole, 1 / whole

        @cache
        def alignment(*asked: float) -> float:
            demand = np.array(asked)
            fits = (demand <= free.reshape(-1, 3)).all(axis=1)
            return float((demand * reciprocal * parts)[fits].sum(axis=1).max(initial=0.0))

        score = {job.id: alignment(*_demand_per_node(job)) for job in situation.jobs}

        def reason(job: Job) -> str:
            return "runs" if job.allocations else f"alignment {score[job.id]:.2f}"

        return rank_by(situation, lambda job: (not job.allocations, -score[job.id]), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:  # noqa: ARG002 as the protocol has it
        return never_preempts


def _demand_per_node(job: Job) -> tuple[float, float, float]:
    """Return GPUs, CPUs and MiB on each node."""
    nodes = max(job.original_request.nodes, 1)
    return job.original_request.gpus / nodes, job.original_request.cpus / nodes, float(job.original_request.memory)


@dataclass(frozen=True, slots=True)
class IdleLast:
    """Another order, with running jobs whose GPUs are idle behind all others: every other newcomer may preempt them,
    also where the order never preempts, and they are preempted first. They preempt nobody themselves."""

    order: Order
    idle: Mapping[JobId, IdleGpus]

    @property
    def name(self) -> str:
        return self.order.name

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        ranking = self.order.rank(situation)
        busy = (ranked for ranked in ranking if ranked.job not in self.idle)
        idle = (
            RankedJob(ranked.job, f"behind all others by idle=last, {ranked.key}")  # how idle, its owner alone is told
            for ranked in ranking
            if ranked.job in self.idle
        )
        return (*busy, *idle)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        rule = self.order.preemption_rule(situation)

        def makes_room(newcomer: Job, running: Job) -> bool:
            return newcomer.id not in self.idle and (running.id in self.idle or rule(newcomer, running))

        return makes_room
