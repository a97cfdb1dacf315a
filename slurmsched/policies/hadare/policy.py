"""HadarE (Sultana et al., 2025, section V): the copies of a forked job are the tasks of a job array that its owner
submitted.

Hadar schedules all copies as jobs, each with its part of the work (section V-A). No two copies of a job run on one
node, and a node is idle only if no job has a step for it (theorem 3). A job that ends in the coming round keeps only
the nodes that it needs for that, if others have a use for the rest. The remaining steps are divided among the running
copies (section V-B); the job itself counts the steps done. A running copy without a step is not preempted, since that
would free no needed GPU. A waiting copy stays held if the running ones will finish before it could help. The rate on a
GPU type where a model never ran is estimated (equation 10) and corrected by measurements.

A round is full as soon as a forked job ends, not only by the clock: no node waits for the next one while a job has
steps for it (theorem 3). The copies of it that never ran have nothing left to do. They end as soon as they start, on
nodes for which nobody else has a use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import floor, inf
from typing import Final

from slurmsched.knowledge import Knowledge, Profile, Scaling
from slurmsched.knowledge.estimation import ThroughputEstimates, estimates_by_type
from slurmsched.model import Job, JobId, JobState, NodeAllocation, RankedJob, Reason, ReasonCode
from slurmsched.model.reasons import format_percent
from slurmsched.policies.admit.allocate import AllocateFree
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.hadar.policy import HadarPrices
from slurmsched.policies.hadar.problem import UtilityFactory, slack_aware
from slurmsched.policies.session import Session
from slurmsched.policies.stages import Entitlement, Order, PreemptionRule, Situation


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """A forked job and its copies in the queue; `remaining` of its steps are not reported as done.

    `throughput` is by GPU type; `measured_by_copy` are the steps per second that each copy measured, by GPU type.
    """

    job: JobId
    copies: tuple[Job, ...]
    remaining: int
    throughput: ThroughputEstimates
    measured_by_copy: Mapping[JobId, Mapping[str, float]]

    def rate(self, copy: JobId, allocations: Iterable[NodeAllocation]) -> float:
        """Returns the steps per second of a copy with these allocations, that of its slowest type.

        Its own measurement counts first, then those of other copies on the type, then the estimate.
        """
        types = {share.gpu_type for share in allocations}
        return min(
            (self.measured_by_copy.get(copy, {}).get(kind) or self.throughput.rate_on(kind) for kind in types),
            default=0.0,
        )

    @property
    def measured(self) -> bool:
        """Whether any copy has measured its rate."""
        return bool(self.throughput.measured)


def copy_groups(
    jobs: Iterable[Job], knowledge: Knowledge, types: Iterable[str], done: Mapping[JobId, int]
) -> list[CopyGroup]:
    """Returns the forked jobs among these, in submission order of their copies: those of whole GPUs, since copies on
    parts of GPUs are jobs like others.

    `done` has the steps of each forked job that were known to be done before.
    """
    copies: dict[JobId, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.queue_key):
        if job.copy_of and job.original_request.gpus:
            copies.setdefault(job.copy_of, []).append(job)
    return [_copy_group(job, copies[job], knowledge, tuple(types), done.get(job, 0)) for job in copies]


def _copy_group(
    job: JobId, copies: list[Job], knowledge: Knowledge, types: tuple[str, ...], steps_before: int
) -> CopyGroup:
    total = _total_steps(copies)
    reported = max((knowledge.steps.get(copy.id, 0) for copy in copies), default=0)
    measured_by_copy = {copy.id: knowledge.measured[copy.id] for copy in copies if copy.id in knowledge.measured}
    by_type: dict[str, list[float]] = {}
    for rates in measured_by_copy.values():
        for kind, rate in rates.items():
            by_type.setdefault(kind, []).append(rate)
    measured = {kind: sum(rates) / len(rates) for kind, rates in by_type.items()}
    throughput = ThroughputEstimates(_estimated_rates(copies[0], knowledge, types), measured)
    return CopyGroup(job, tuple(copies), total - min(total, max(steps_before, reported)), throughput, measured_by_copy)


def _estimated_rates(copy: Job, knowledge: Knowledge, types: tuple[str, ...]) -> Mapping[str, float]:
    """Returns the rates of the model as far as they are known, else those of equation 10."""
    gpus = max(copy.original_request.gpus, 1)
    return knowledge.rates_by_type(copy, types, gpus) or estimates_by_type(types)


_PROMISED_AFTER: Final = 2 * 3600.0
"""Seconds that a copy waits before a promised start of it is remembered. The shortest forked job is to have all nodes;
a promise gives them to one that is longer, so that it waits for ever behind none.

Simulated with 14 forked jobs of up to 10 GPU-hours on 8 nodes of three types, means of seeds 42 to 44: at load 0.8 a
promise at once, after 2 h or after 4 h gives a mean completion time of 1.50, 1.39 or 1.36 h and a longest wait of 1.1,
2.3 or 3.3 h; at load 1.2 it is 1.81, 1.72 or 1.66 h and 1.5, 3.0 or 4.2 h. Two hours take 30 % off the longest wait for
2 to 4 % of the mean.
"""


@dataclass(frozen=True, slots=True)
class HadarEPrices:
    """Hadar's entitlement with copies: no two of a job on one node, none that would come too late.

    The state is Hadar's, and of forked jobs the steps done, which are to end in the round, which are over, which copies
    run, and the time.
    """

    make_utility: UtilityFactory = slack_aware
    name: str = "hadare"

    def __call__(self, situation: Situation) -> Entitlement:
        ended, over = _ended_jobs(situation)
        all_groups = _copy_groups(situation)
        over |= {group.job for group in all_groups if not group.remaining and not _has_running_copy(group)}
        groups = [group for group in all_groups if group.job not in over]
        left_over = {copy.id for group in all_groups if group.job in over for copy in group.copies}
        superfluous = {
            copy.id: why for group in groups for copy, why in _superfluous_copies(group, situation.restart_cost)
        }
        if situation.starts_only:  # steps are divided once a round: another copy would divide them anew
            begun = {job.copy_of for job in situation.jobs if job.state is not JobState.PENDING}
            superfluous |= {
                job.id: Reason(ReasonCode.FULL_ROUND, {"job": job.copy_of})
                for job in situation.jobs
                if job.copy_of in begun and job.copy_of and job.state is JobState.PENDING
            }
        ended_before = _names_in(situation.state, "ending")  # what was wrong once is not believed a second time
        needed = {
            group.job: frozenset() if group.job in ended_before else _copies_that_end_it(group, situation)
            for group in groups
        }
        leaving = {copy.id: copy for group in groups for copy in _evictable_copies(group, needed[group.job], situation)}
        others = [job for job in situation.jobs if job.id not in left_over]
        if any(job.state is JobState.PENDING and not needed.get(job.copy_of) for job in others):
            superfluous |= {
                copy.id: _copies_suffice(group)
                for group in groups
                if needed[group.job]
                for copy in group.copies
                if copy.state is JobState.PENDING
            }
        kept = {
            copy: Reason(ReasonCode.ENDS_IN_ROUND, {"job": job}) for job, copies in needed.items() for copy in copies
        }
        apart = superfluous.keys() | leaving.keys() | kept.keys()
        scheduled = tuple(job for job in others if job.id not in apart)
        known = replace(situation, jobs=scheduled, knowledge=_with_groups(situation.knowledge, groups))
        entitlement = HadarPrices(self.make_utility, self.name)(known, superfluous, leaving, kept)
        done = {group.job: _total_steps(group.copies) - group.remaining for group in all_groups}
        hadar_state, copy_of = entitlement.next_state, {job.id: job.copy_of for job in situation.jobs if job.copy_of}
        return replace(
            entitlement,
            order=_LeftOverLast(entitlement.order, frozenset(left_over)) if entitlement.order else None,
            promised_anew=frozenset(
                job.id
                for job in scheduled
                if job.copy_of and situation.snapshot.time - job.submit_time < _PROMISED_AFTER
            ),
            anti_affinity={job.id: job.copy_of for job in situation.jobs if job.copy_of and job.id not in superfluous},
            next_state=lambda *outcome: {
                **(hadar_state(*outcome) if hadar_state else {}),
                "done": done,
                "ending": [job for job, copies in needed.items() if copies],
                "over": sorted(over & done.keys()),
                "running": {job: copy_of[job] for job in sorted(copy_of.keys() & outcome[1].keys())},
                "time": situation.snapshot.time,
            },
            full_round_at=_full_round_time(situation) if situation.starts_only and ended and others else inf,
            resources=None,  # they are those of the jobs that the prices are for
        )


@dataclass(frozen=True, slots=True)
class _LeftOverLast:
    """Another order, with the copies of jobs that are over behind all others."""

    order: Order
    left_over: frozenset[JobId]

    @property
    def name(self) -> str:
        return self.order.name

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        ranked = self.order.rank(situation)
        return (
            *(job for job in ranked if job.job not in self.left_over),
            *(replace(job, key="its job is over") for job in ranked if job.job in self.left_over),
        )

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        return self.order.preemption_rule(situation)


def spread_copies(session: Session) -> None:
    """Places copies of a forked job that still wait on any idle GPU (theorem 3).

    Prices ignore that two copies of a job may not share a node, so the type that a copy is due may be free only on
    nodes with other copies. Copies of jobs that are over come last.
    """
    step = AllocateFree(session)
    for ranked in session.ranking:
        job = session.jobs[ranked.job]
        if job.id in session.entitlement.anti_affinity and session.needs_placement(job):
            session.demands.lift_restriction(job)
            step.try_admit(job)


def dispatch_steps(session: Session) -> None:
    """Divides the remaining steps of each forked job among its copies that run or were placed (section V-B)."""
    for group in _copy_groups(session.situation):
        allocations = {
            copy.id: allocations for copy in group.copies if (allocations := _allocations(session, copy)) is not None
        }
        rates = [group.rate(copy, on_nodes) for copy, on_nodes in allocations.items()]
        if not any(rates):
            continue
        details: Mapping[str, str | int | float] = {
            "left": group.remaining,
            "job": group.job,
            "speed": "measured" if group.measured else "estimated",
        }
        for copy, rate, steps in zip(allocations, rates, divide_steps(group.remaining, rates), strict=True):
            session.steps[copy] = steps
            part = format_percent(rate / sum(rates))
            session.remarks[copy] = Reason(ReasonCode.DISPATCHED, {**details, "steps": steps, "part": part})


def _allocations(session: Session, copy: Job) -> tuple[NodeAllocation, ...] | None:
    if copy.id in session.running:
        return copy.allocations
    placement = session.placements.get(copy.id)
    return None if placement is None else placement.node_allocations(session.pools)


def _copy_groups(situation: Situation) -> list[CopyGroup]:
    types = sorted({gpu.type for node in situation.snapshot.nodes for gpu in node.gpus})
    return copy_groups(situation.jobs, situation.knowledge, types, _steps_done(situation.state))


def _with_groups(knowledge: Knowledge, groups: Iterable[CopyGroup]) -> Knowledge:
    """Returns the knowledge with what is known of forked jobs for each of their copies: the measured rates, and as
    service the part of the work that is done, which one copy's own service does not tell."""
    profiles, service, by_type = dict(knowledge.by_family), dict(knowledge.service), dict(knowledge.service_by_type)
    for group in groups:
        gpus, total = max(group.copies[0].original_request.gpus, 1), _total_steps(group.copies)
        known = knowledge.rate_profile(group.copies[0])
        kinds = {*group.throughput.measured, *(known.scaling if known else ())} if group.measured else frozenset[str]()
        scaling = {kind: Scaling((gpus,), (group.throughput.rate_on(kind),)) for kind in kinds}
        for copy in group.copies:
            if scaling:
                profiles[copy.id] = Profile(group.job, "", {}, f"measured by copies of {group.job}", scaling)
            seconds = copy.hints.duration or copy.time_limit
            if seconds and group.remaining:
                service[copy.id] = seconds * (1 - group.remaining / total) * gpus
                by_type.pop(copy.id, None)
    return replace(knowledge, by_family=profiles, service=service, service_by_type=by_type)


def _copies_that_end_it(group: CopyGroup, situation: Situation) -> frozenset[JobId]:
    """Returns the running copies on which a forked job ends in this round; none if it does not, or was not measured."""
    running = [copy for copy in group.copies if copy.state is JobState.RUNNING and copy.allocations]
    if situation.starts_only or not group.measured or not group.remaining:
        return frozenset()
    slot = situation.period - situation.restart_cost
    rates = [group.rate(copy.id, copy.allocations) for copy in running]
    needed = copies_needed(group.remaining, rates, slot)
    ends = needed and group.remaining <= slot * sum(rates[index] for index in needed)
    return frozenset(running[index].id for index in needed) if ends else frozenset()


def _evictable_copies(group: CopyGroup, needed: Collection[JobId], situation: Situation) -> list[Job]:
    """Returns the running copies of a forked job that ends in this round without them: their nodes are for others.

    They lose no work, and yet the guard of the shortest run keeps them as it keeps others: on the mixes of
    `hadare-mixes`, seeds 42 to 44, total time without it is the same within 0.4 %, and the mean completion time 2 to
    4 % longer.
    """
    return [
        copy
        for copy in group.copies
        if needed
        and copy.id not in needed
        and copy.state is JobState.RUNNING
        and copy.allocations
        and copy.id not in situation.non_preemptible
        and copy.id not in situation.unmovable
    ]


def _superfluous_copies(group: CopyGroup, restart_cost: float) -> Iterator[tuple[Job, Reason]]:
    """Yields the waiting copies that would start too late to help; a start takes `restart_cost` seconds."""
    running = [copy for copy in group.copies if copy.state is JobState.RUNNING]
    speed = sum(group.rate(copy.id, copy.allocations) for copy in running)
    waiting = [copy for copy in group.copies if copy.state is JobState.PENDING]
    if not running:
        return
    ends_soon = group.measured and group.remaining <= speed * restart_cost
    for index, copy in enumerate(waiting, start=len(running)):
        if ends_soon or index >= group.remaining:
            yield copy, _copies_suffice(group)


def _copies_suffice(group: CopyGroup) -> Reason:
    return Reason(ReasonCode.COPIES_SUFFICE, {"job": group.job, "left": group.remaining})


def _has_running_copy(group: CopyGroup) -> bool:
    return any(copy.state is not JobState.PENDING for copy in group.copies)


def _ended_jobs(situation: Situation) -> tuple[frozenset[JobId], frozenset[JobId]]:
    """Returns the forked jobs that have ended since the last full round, and all of which no copy has anything to do.

    One has ended if all copies that ran after that round are gone: they leave when the steps are done. A copy that was
    requeued is still there.
    """
    present = {job.id for job in situation.snapshot.jobs if job.state is not JobState.FINISHED}
    begun = {
        job.copy_of
        for job in situation.snapshot.jobs
        if job.state not in (JobState.PENDING, JobState.FINISHED) and job.copy_of
    }
    running = situation.state.get("running")
    copies: dict[str, set[str]] = {}
    for copy, job in running.items() if isinstance(running, Mapping) else ():
        if isinstance(copy, str) and isinstance(job, str):
            copies.setdefault(job, set()).add(copy)
    ended = {job for job, ran in copies.items() if not ran & present} - begun
    return frozenset(ended), frozenset((_names_in(situation.state, "over") | ended) - begun)


def _full_round_time(situation: Situation) -> float:
    """Returns when a full round is due that the clock does not bring.

    Not sooner after the last one than a restart takes: in each, the copies of all forked jobs exchange parameters.
    """
    last = situation.state.get("time")
    return last + situation.restart_cost if isinstance(last, int | float) else inf


def _total_steps(copies: Iterable[Job]) -> int:
    return max(copy.hints.fork or 0 for copy in copies)


def _steps_done(state: Mapping[str, object]) -> Mapping[JobId, int]:
    done = state.get("done")
    return {job: steps for job, steps in done.items() if isinstance(steps, int)} if isinstance(done, Mapping) else {}


def _names_in(state: Mapping[str, object], key: str) -> frozenset[JobId]:
    names = state.get(key)
    return frozenset(job for job in names if isinstance(job, str)) if isinstance(names, list | tuple) else frozenset()


def divide_steps(steps: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Divides the steps over copies with these rates in steps per second, so that the last copy ends earliest.

    Each copy's portion differs from the exact proportion by less than the number of copies. A few steps go to the
    fastest copies only (the rule of the last round). Raises PolicyError if there are steps but no rate is above 0.
    """
    if steps < 0 or any(rate < 0 for rate in rates):
        raise PolicyError(f"cannot divide {steps} steps over rates {', '.join(f'{rate:g}' for rate in rates)}")
    total_rate = sum(rates)
    if steps and not total_rate > 0:
        raise PolicyError(f"no copy of the job can run on any node, but {steps} steps are left")
    portions = [floor(steps * (rate / total_rate)) if rate else 0 for rate in rates]
    while sum(portions) > steps:  # the portion of a very small rate may be rounded up
        portions[max(range(len(rates)), key=portions.__getitem__)] -= 1
    ends = [((portions[copy] + 1) / rate, copy) for copy, rate in enumerate(rates) if rate > 0]
    heapify(ends)
    for _ in range(steps - sum(portions)):
        _, copy = heappop(ends)
        portions[copy] += 1
        heappush(ends, ((portions[copy] + 1) / rates[copy], copy))
    return tuple(portions)


def copies_needed(steps: int, rates: Sequence[float], slot: float, *, spare_fast: bool = True) -> tuple[int, ...]:
    """Returns which copies, by index, do the last `steps` within `slot` seconds, or all that get a step if none do.

    With `spare_fast` that is the slowest copy that suffices alone, which leaves faster nodes to others; else, and
    where none does, the fewest fastest. `rates` are in steps per second.
    """
    by_rate = sorted((copy for copy, rate in enumerate(rates) if rate > 0), key=lambda copy: (-rates[copy], copy))
    for copy in reversed(by_rate) if spare_fast else ():
        if steps / rates[copy] <= slot:
            return (copy,)
    taken: tuple[int, ...] = ()
    for copy in by_rate:
        portions = divide_steps(steps, [rates[one] for one in taken]) if taken else ()
        seconds = max((part / rates[one] for one, part in zip(taken, portions, strict=True)), default=float("inf"))
        if seconds > slot and all(divide_steps(steps, [rates[one] for one in (*taken, copy)])):
            taken = (*taken, copy)
    return taken
