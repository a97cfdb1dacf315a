"""Orders of jobs, and which newcomer may preempt which running job; each cites its paper."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isinf

import numpy as np

from slurmsched.model import Job, JobId, RankedJob, Resources
from slurmsched.model.reasons import format_duration, format_gpu_hours
from slurmsched.policies.stages import PreemptionRule, Situation


def rank_by(
    situation: Situation, key: Callable[[Job], tuple[float, ...]], reason: Callable[[Job], str]
) -> tuple[RankedJob, ...]:
    """Returns the jobs by ascending key, ties by `Job.queue_key`; `reason` puts the key into words."""
    in_order = sorted(situation.jobs, key=lambda job: (key(job), job.queue_key))
    return tuple(RankedJob(job.id, reason(job)) for job in in_order)


def never_preempts(newcomer: Job, running: Job) -> bool:  # noqa: ARG001 as every `Outranks` is called
    """Of orders in which no running job is displaced."""
    return False


@dataclass(frozen=True, slots=True)
class FirstInFirstOut:
    """By submission. Nobody is displaced: a running job came first, or took GPUs that nobody before it could use."""

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
    """By the priority Slurm gave, highest first. Nobody is displaced."""

    name: str = "priority"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        return rank_by(situation, lambda job: (-job.priority,), lambda job: f"priority {job.priority}")

    def preemption_rule(self, situation: Situation) -> PreemptionRule:  # noqa: ARG002 as the protocol has it
        return never_preempts


@dataclass(frozen=True, slots=True)
class ShortestRemainingTime:
    """By what is left of the duration its owner expects, or else of its time limit; unknown comes last.

    A newcomer displaces only a job that has at least `clearly` times as long to go. As it runs it has less and less to
    go, so the two do not swap back.
    """

    min_ratio: float = 2.0
    name: str = "srtf"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        remaining = situation.knowledge.remaining_seconds
        return rank_by(situation, lambda job: (remaining(job),), lambda job: f"{format_duration(remaining(job))} to go")

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        remaining = situation.knowledge.remaining_seconds

        def shorter(newcomer: Job, running: Job) -> bool:
            own, other = remaining(newcomer), remaining(running)
            return own < other and own * self.min_ratio <= other

        return shorter


@dataclass(frozen=True, slots=True)
class LeastAttainedService:
    """By the GPU-seconds a job has had. `queues` are the bounds between the queues, ascending: inside a queue jobs go
    by submission, so that two of like service do not take turns. Without bounds the service itself is the key.

    A job that has waited `patience` times as long as it has run counts as in the first queue (Tiresias' promotion of
    starved jobs; the factor is ours). A newcomer displaces only a job of a later queue or, without queues, one that
    has had `clearly` times its service and more than the newcomer gets in a round.
    """

    queues: tuple[float, ...] = ()
    promotion_factor: float = 8.0
    min_ratio: float = 2.0
    name: str = "las"

    def queue_index(self, situation: Situation, job: Job) -> int:
        """Its queue, the first is 0."""
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

        def far_less(newcomer: Job, running: Job) -> bool:
            own, other = attained(newcomer), attained(running)
            return other >= own * self.min_ratio and other > own + situation.period * newcomer.gpus

        return earlier_queue if self.queues else far_less

    def _queues(self, situation: Situation) -> dict[JobId, int]:
        return {job.id: self.queue_index(situation, job) for job in situation.jobs}

    def _is_starved(self, situation: Situation, job: Job) -> bool:
        executed = situation.knowledge.executed_seconds(job)
        waited = situation.snapshot.time - job.submit_time - executed
        return waited >= self.promotion_factor * executed


@dataclass(frozen=True, slots=True)
class FinishTimeFairness:
    """By rho, the highest first: how long the job takes in this cluster, from submission to end if it ran from now on,
    over how long it would take alone on its fair part of the GPUs.

    A newcomer displaces only a job whose rho is `clearly` times smaller.
    """

    min_ratio: float = 1.5
    name: str = "ftf"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        fair_share = _fair_share_of_gpus(situation)
        times = {job.id: _finish_times(situation, job, fair_share) for job in situation.jobs}
        rho = {job_id: shared / alone for job_id, (shared, alone) in times.items()}

        def reason(job: Job) -> str:
            shared, alone = times[job.id]
            return f"rho {rho[job.id]:.2f}: {format_duration(shared)} here, {format_duration(alone)} on its fair part"

        return rank_by(situation, lambda job: (-rho[job.id],), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        fair_share = _fair_share_of_gpus(situation)
        times = {job.id: _finish_times(situation, job, fair_share) for job in situation.jobs}
        rho = {job: shared / alone for job, (shared, alone) in times.items()}
        return lambda newcomer, running: rho[newcomer.id] >= self.min_ratio * rho[running.id]


def _fair_share_of_gpus(situation: Situation) -> float:
    """GPUs per job if all were shared out evenly."""
    total = sum(len(node.gpus) for node in situation.snapshot.nodes)
    return max(total, 1) / max(len(situation.jobs), 1)


def _finish_times(situation: Situation, job: Job, fair_share: float) -> tuple[float, float]:
    """Seconds from submission to end, shared and alone. Where nothing is known a job is half done."""
    knowledge = situation.knowledge
    executed, remaining = knowledge.executed_seconds(job), knowledge.remaining_seconds(job)
    if isinf(remaining):
        remaining = max(executed, situation.period)
    shared = max(0.0, situation.snapshot.time - job.submit_time) + remaining
    alone = (executed + remaining) * max(1.0, job.gpus / fair_share)
    return shared, alone


@dataclass(frozen=True, slots=True)
class DominantResourceFairness:
    """By progressive filling: next is always a job of the user whose largest part of any resource is the smallest,
    counting what runs and what was ranked before; a user's own jobs go by submission. Nobody is displaced."""

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
            ranking.append(RankedJob(job.id, f"{user} has {share:.0%} of what is scarcest"))
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
    """By the product of what a job asks and what is free, the largest first: both as parts of a whole node, and of all
    nodes the one that suits the job best. Running jobs come before. Nobody is displaced."""

    name: str = "tetris"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        nodes = [node for node in situation.snapshot.nodes if node.gpus]
        whole = np.array([(n.total.gpus, n.total.cpus, max(n.total.memory, 1)) for n in nodes], dtype=float)
        free = np.array([(n.free.gpus, n.free.cpus, n.free.memory) for n in nodes], dtype=float)
        parts, reciprocal = free / whole, 1 / whole
        score: dict[str, float] = {}
        for job in situation.jobs:
            demand = np.array(_demand_per_node(job)) * reciprocal
            score[job.id] = float(np.max((demand * parts).sum(axis=1), initial=0.0))

        def reason(job: Job) -> str:
            return "runs" if job.allocations else f"alignment {score[job.id]:.2f}"

        return rank_by(situation, lambda job: (not job.allocations, -score[job.id]), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:  # noqa: ARG002 as the protocol has it
        return never_preempts


def _demand_per_node(job: Job) -> tuple[float, float, float]:
    """On one node."""
    nodes = max(job.original_request.nodes, 1)
    return job.original_request.gpus / nodes, job.original_request.cpus / nodes, float(job.original_request.memory)
