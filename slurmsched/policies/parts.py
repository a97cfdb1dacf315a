"""Jobs with a part of a GPU under `unified`: they bid as jobs with whole GPUs do.

The market is of whole GPUs. What waits for parts, and does not fit beside others, bids there in bundles that fill a
GPU, the sum of what its jobs bid; where a bundle is due one, its jobs may preempt jobs that are due none. Among
themselves jobs with parts rank by their bids: by submission a job of two minutes waited for hours behind jobs that take
days. As with whole GPUs (`policies.unified`) the least GPU time comes first, and what waits for its first start counts
more and more. Who owns them does not count.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

import numpy as np

from slurmsched.arrays import Floats
from slurmsched.knowledge import Knowledge
from slurmsched.model import MILLI_PER_GPU, Job, JobId, RankedJob
from slurmsched.model.reasons import format_gpu_hours
from slurmsched.policies.admit.allocate import AllocateFastestPart, has_part
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.hadar.problem import Bundle, GangThroughput, HadarJob
from slurmsched.policies.orders import rank_by
from slurmsched.policies.session import Session
from slurmsched.policies.stages import PreemptionRule, Situation
from slurmsched.policies.unified import SHORTEST, bid, seconds_left, urged, waited

_MIN_RATIO: Final = 2.0


@dataclass(frozen=True, slots=True)
class HighestBid:
    """The jobs without GPUs by submission, then those with parts of GPUs by what they bid for a GPU, the highest first.

    A newcomer with a part preempts only one that bids half as much at most: what waits bids more as time passes, and
    the two shall not change places to and fro.
    """

    name: str = "unified"

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        sizes = _sizes(situation, situation.jobs)
        bids = _bids(situation, situation.jobs, sizes)

        def reason(job: Job) -> str:
            return f"{format_gpu_hours(sizes[job.id])} to go" if bids[job.id] else "no GPUs"

        return rank_by(situation, lambda job: (-bids[job.id] if bids[job.id] else -inf,), reason)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        bids = _bids(situation, situation.jobs, _sizes(situation, situation.jobs))

        def bids_far_more(newcomer: Job, running: Job) -> bool:
            return 0 < _MIN_RATIO * bids[running.id] <= bids[newcomer.id]

        return bids_far_more


def _sizes(situation: Situation, jobs: Iterable[Job]) -> Mapping[JobId, float]:
    """Returns the GPU-seconds that each job still needs; 0.0 without a part of a GPU."""
    knowledge, left = situation.knowledge, seconds_left(situation.snapshot)
    return {job.id: knowledge.parts_of_gpu.get(job.id, 0.0) * max(left(knowledge, job), SHORTEST) for job in jobs}


def _bids(situation: Situation, jobs: Iterable[Job], sizes: Mapping[JobId, float]) -> Mapping[JobId, float]:
    """Returns what each job of that size bids for a GPU at its best rate; 0.0 without a part of a GPU."""
    return {job.id: bid(sizes[job.id], sizes[job.id], urged(waited(job, situation))) for job in jobs}


def bundle_parts(situation: Situation, types: Sequence[str]) -> tuple[Bundle, ...]:
    """Returns the jobs that wait for parts of GPUs, do not fit beside others and may not preempt a part, in bundles of
    one GPU at most: the highest bids first, each in the fullest bundle that has room for it. `types` are the GPU types
    of the market.

    Which of the GPUs of a type are on nodes with CPUs and memory for them does not count, as for whole GPUs.
    """
    waiting = [job for job in situation.parts if has_part(job) and not job.allocations]
    if not waiting:
        return ()
    sizes, room, reach = _sizes(situation, situation.parts), _Room.of(situation), _Reach(situation)
    bids = _bids(situation, situation.parts, sizes)
    held = sorted((bids[job.id], job.id, job) for job in situation.parts if has_part(job) and job.allocations)
    victims = [job for *_, job in held]
    open_bundles = defaultdict[frozenset[str], list[tuple[int, int]]](list)
    bundles = list[tuple[frozenset[str], list[Job]]]()
    for job in sorted(waiting, key=lambda job: (-bids[job.id], job.queue_key)):
        kinds, part = reach.of(job), round(MILLI_PER_GPU * situation.knowledge.parts_of_gpu.get(job.id, 0.0))
        if not kinds or not part or room.take(kinds, part, job.original_request.cpus):
            continue
        victim = next((one for one in victims if _makes_room(one, job, kinds, situation.knowledge, bids)), None)
        if victim is not None:
            victims.remove(victim)
            continue
        having_room = open_bundles[kinds]
        fullest = bisect_left(having_room, (part, 0))
        if fullest < len(having_room):
            left, number = having_room.pop(fullest)
        elif len(bundles) < reach.gpus:
            left, number = MILLI_PER_GPU, len(bundles)
            bundles.append((kinds, []))
        else:
            continue
        insort(having_room, (left - part, number))
        bundles[number][1].append(job)
    return tuple(
        [
            _bundle_of(
                f"parts of GPU {number}",
                [
                    _Member(job, sizes[job.id], bids[job.id], _rates(job, kinds, types, situation.knowledge))
                    for job in jobs
                ],
                situation.knowledge.parts_of_gpu,
            )
            for number, (kinds, jobs) in enumerate(bundles)
        ]
    )


def _makes_room(
    running: Job, newcomer: Job, kinds: Set[str], knowledge: Knowledge, bids: Mapping[JobId, float]
) -> bool:
    """Returns whether the job has as much of a GPU of one of these types as the newcomer, which may preempt it."""
    parts, of_kind = knowledge.parts_of_gpu, {share.gpu_type for share in running.allocations} <= kinds | {""}
    enough = parts.get(running.id, 0.0) >= parts.get(newcomer.id, 0.0)
    return enough and of_kind and _MIN_RATIO * bids[running.id] <= bids[newcomer.id]


class _Member(NamedTuple):
    """A job of a bundle: the GPU-seconds that it still needs, its bid for a GPU, and the part of its best rate that it
    has on each type of the market."""

    job: Job
    size: float
    bid: float
    rates: Floats


def _rates(job: Job, kinds: Set[str], types: Sequence[str], knowledge: Knowledge) -> Floats:
    """Returns the part of its best rate on `kinds` that a job has on each of `types`; 0 on those out of its reach."""
    known = knowledge.rates_by_type(job, kinds, 1)
    best = max(known.values(), default=0.0)
    return np.array([(known[kind] / best if best else 1.0) if kind in kinds else 0.0 for kind in types])


def _bundle_of(name: str, members: Sequence[_Member], parts_of_gpu: Mapping[JobId, float]) -> Bundle:
    """Returns the bundle of these jobs: as long, and as fast on each type, as they are in the mean by their utility."""
    parts = np.array([parts_of_gpu[of.job.id] for of in members])
    utilities = parts * [of.bid for of in members]
    weights = utilities / utilities.sum()
    left = float(weights @ (np.array([of.size for of in members]) / parts))
    rates = tuple((weights @ np.array([of.rates for of in members])).tolist())
    throughput = GangThroughput(1, rates, rates, max_servers=1, mixes_types=False)
    return Bundle(tuple([of.job.id for of in members]), HadarJob(name, throughput, left, left), float(utilities.sum()))


class _Reach:
    """The GPU types with parts that jobs may have: what they ask for, on the open nodes of their partitions."""

    def __init__(self, situation: Situation) -> None:
        with_parts = [node for node in situation.snapshot.nodes if any(gpu.shards for gpu in node.gpus)]
        self.gpus = sum(len(node.gpus) for node in with_parts)
        self._of_partition = {
            partition: frozenset(gpu.type for node in with_parts if node.name in names for gpu in node.gpus)
            for partition, names in situation.open_nodes.items()
        }
        self._known: dict[tuple[tuple[str, ...], str | None], frozenset[str]] = {}

    def of(self, job: Job) -> frozenset[str]:
        key = job.partitions, job.original_request.gpu_type
        if key not in self._known:
            there = frozenset[str]().union(*(self._of_partition.get(name, ()) for name in job.partitions))
            self._known[key] = there if key[1] is None else there & {key[1]}
        return self._known[key]


@dataclass(slots=True)
class _Room:
    """What is free of the GPUs of which others have parts: by type its milli-GPU and the idle CPUs of its node, the
    least first."""

    free: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, situation: Situation) -> _Room:
        free = defaultdict[str, list[tuple[int, int]]](list)
        open_nodes = frozenset[str]().union(*situation.open_nodes.values())
        for node in situation.snapshot.nodes:
            for gpu in node.gpus if node.name in open_nodes else ():
                if gpu.shards and 0 < gpu.used < MILLI_PER_GPU:
                    free[gpu.type].append((MILLI_PER_GPU - gpu.used, node.total.cpus - node.used.cpus))
        return cls({kind: sorted(rests) for kind, rests in free.items()})

    def take(self, kinds: Set[str], part: int, cpus: int) -> bool:
        """Takes the smallest rest with so many milli-GPU and CPUs; returns whether there was one."""
        found = list[tuple[tuple[int, int], str]]()
        for kind in kinds & self.free.keys():
            rests = self.free[kind]
            enough = (rest for rest in rests[bisect_left(rests, (part, 0)) :] if rest[1] >= cpus)
            found += [(rest, kind) for rest in [next(enough, None)] if rest is not None]
        if not found:
            return False
        rest, kind = min(found)
        self.free[kind].remove(rest)
        insort(self.free[kind], (rest[0] - part, rest[1] - cpus))
        return True


def preempt_parts(session: Session) -> None:
    """Finish step: jobs that wait for parts of GPUs preempt others with parts that bid far less; those that are due
    some, and cannot, preempt jobs with whole GPUs that are due none."""
    jobs, due = session.jobs, session.entitlement.parts_due
    if session.moves_left <= 0 or not (due or any(has_part(jobs[job]) for job in session.running)):
        return
    free, of_parts, of_whole = AllocateFastestPart(session), _PreemptParts(session), _PreemptUndue(session)
    for ranked in session.ranking:
        job = jobs[ranked.job]
        if has_part(job) and session.needs_placement(job):
            steps = (free, of_parts, of_whole) if job.id in due else (of_parts,)
            any(step.try_admit(job) for step in steps)


class _PreemptParts(Preempt):
    """Preempts jobs with parts of GPUs alone."""

    def _preemptible_among(self, running: Set[JobId]) -> Iterable[JobId]:
        jobs = self.session.jobs
        return [job for job in running if has_part(jobs[job]) and self.session.is_preemptible(job)]


class _PreemptUndue(Preempt):
    """Preempts jobs with whole GPUs that are due none."""

    def _preemptible_among(self, running: Set[JobId]) -> Iterable[JobId]:
        session, given = self.session, self.session.entitlement.gpu_types
        undue = (job for job in running if session.jobs[job].original_request.gpus and job not in given)
        return filter(session.is_preemptible, undue)
