"""Promises the first job of the order that does not fit a start, so that no job starves: EASY backfill for any order.

The ends of the other jobs say when and where it fits at the latest. What starts in the meantime may not delay that: it
ends before, or takes what is free beside the job. Where orders change from round to round the promise does not: it is
kept in the policy's state, ahead of the order, until the job has started or is gone. A job that needs what several jobs
have, and ranks behind jobs that came after it, is promised a start before the first of the order: else these would
start on every GPU that becomes free. Where nobody knows when jobs end, no time can be promised; once the job has waited
long, its nodes are drained instead, though only of jobs that began while it waited: only jobs whose end is known start
there. While a job that was there first is in the way, nothing stays idle for it.

Source: Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import inf, isinf
from typing import Final

from slurmsched.arrays import Mask
from slurmsched.model import Hold, Job, JobId, JobState, Promise, Reason, ReasonCode
from slurmsched.model.reasons import shorter_limit, time_of_day
from slurmsched.policies.admit.allocate import FailedRequestCache
from slurmsched.policies.cluster.demand import DemandLevel, ResourceDemand
from slurmsched.policies.cluster.eligibility import closed_nodes
from slurmsched.policies.cluster.resources import Allocation, FreeResources
from slurmsched.policies.place.placement import Placement
from slurmsched.policies.session import PromisedStart, Session
from slurmsched.policies.state import decode_state, with_part

LONG_WAIT: Final = 6
"""Rounds after which nodes are drained for a job: they may stay idle for as long as nobody knows."""

_MOST_TRIED: Final = 32
"""Starts computed in a round to find the first job that is overtaken while it waits for what several have: one takes 20
ms where 2,000 jobs run. Those before it wait for one end each, and make room for others when they have started."""

_FIRST_ENDS: Final = 64
"""Ends that are looked at first: mostly a few of many are enough."""

_STATE_KEY: Final = "promise"


@dataclass(frozen=True, slots=True)
class KeptPromise:
    """The promise between two rounds: the job that waits for its start, empty if there is none; and the moves that
    rounds left unused for it, where it has to preempt more jobs than a round may move."""

    job: str = ""
    saved_moves: int = 0

    @classmethod
    def of_state(cls, state: Mapping[str, object]) -> KeptPromise:
        """Return the promise of the last round; one to no job if there was none."""
        return decode_state(cls, state.get(_STATE_KEY))

    def in_state(self, state: Mapping[str, object]) -> dict[str, object]:
        """Return the policy's state with this promise."""
        return with_part(state, _STATE_KEY, self if self.job else None)


@dataclass(frozen=True, slots=True)
class _End:
    """When a job that has resources, or gets some, leaves them at the latest, in unix seconds; `job` is empty where
    none has them any more."""

    at: float
    begun: float
    job: JobId
    allocation: Allocation
    certain: bool


class Promises:
    """The promises of one session. `kept` is that of the last round; None for a policy that promises anew in each."""

    def __init__(self, session: Session, kept: KeptPromise | None) -> None:
        self._session, self._kept, self._drains = session, kept or KeptPromise(), kept is not None
        self._unplaceable = FailedRequestCache()
        self._once_all_left: FreeResources | None = None
        self._known_ends: dict[JobId, _End] = {}
        self._outlasting = _outlasting_slices(session)
        """The running jobs that leave when their slices are over and others are due: before they end by themselves."""
        self._all_take_turns = bool(self._outlasting) and all(
            job.id in self._outlasting for job in session.situation.snapshot.jobs if job.allocations
        )
        """Then no job waits for more than turns, and none is promised a start."""
        self._never_ran: tuple[Sequence[int], Sequence[int]] | None = None
        """The ranks of the waiting jobs that never ran, and the GPUs of the widest of the first none, one, two of them;
        None where nobody asked."""

    def first(self) -> Iterator[Job]:
        """Yield the jobs whose turn comes before all others': the one that waits for its promised start and, unless it
        still does, the first by submission that others overtake while it waits for what several jobs have. Jobs of
        higher tiers come before both. One that is due nothing is left out, and one that ran and gave way while a
        wider one that never ran waits before it."""
        session, undue = self._session, self._session.entitlement.undue
        kept = session.jobs.get(self._kept.job)
        if kept is not None and kept.state is JobState.PENDING and kept.id not in undue and not self._gives_way(kept):
            above = list(self._above(kept))
            yield from above
            if not above:
                session.first.add(kept.id)
                session.saved_moves = self._kept.saved_moves
            yield kept
        seen, tried = set[ResourceDemand](), 0
        for job in self._overtaken if session.promise is None else ():
            demand = session.demands.of(job)
            skipped = self._gives_way(job) or demand in seen or not session.needs_placement(job)
            if skipped or not _may_be_promised(session, job) or next(self._above(job), None) is not None:
                continue
            seen.add(demand)
            start = self._reserve(job)
            if start is not None and start.binding and len(start.waits_for) > 1:
                session.first.add(job.id)
                yield job
                return
            tried += start is not None
            if tried == _MOST_TRIED:
                return

    def _gives_way(self, job: Job) -> bool:
        """Whether the job ran already, and a wider one that never did waits before it in order. It could keep that from
        its start until all jobs that run now have ended: when it runs again itself, the order decides."""
        session, ran = self._session, self._session.situation.knowledge.attained_gpu_seconds
        if not ran(job):
            return False
        if self._never_ran is None:
            waiting = (session.jobs[ranked.job] for ranked in session.ranking)
            never = [other for other in waiting if other.state is JobState.PENDING and not ran(other)]
            able = [other for other in never if session.needs_placement(other) and _may_be_promised(session, other)]
            widest = accumulate((other.gpus for other in able), max)
            self._never_ran = [session.rank_of[other.id] for other in able], [0, *widest]
        ranks, widest_before = self._never_ran
        return widest_before[bisect_left(ranks, session.rank_of[job.id])] > job.gpus

    @cached_property
    def _overtaken(self) -> Sequence[Job]:
        """Return the waiting jobs of several GPUs that rank behind one that came later, the first by submission first.
        Others need no more than the order: what it prefers to them came before them."""
        session, overtaken, best = self._session, list[Job](), inf
        waiting = [job for job in session.situation.by_submission() if job.state is JobState.PENDING]
        for job in reversed(waiting):
            rank = session.rank_of[job.id]
            if best < rank and job.gpus > 1:
                overtaken.append(job)
            best = min(best, rank)
        return overtaken[::-1]

    def _above(self, job: Job) -> Iterator[Job]:
        """Yield the newcomers of higher tiers that compete with the job."""
        session = self._session
        for other in session.tiers.above(job.id, session.ranking):
            if session.needs_placement(other) and _may_be_promised(session, other):
                yield other

    def _has_waited_long(self, job: Job) -> bool:
        situation = self._session.situation
        since = _waits_since(job)
        waited = situation.snapshot.time - since - situation.knowledge.executed_seconds(job)
        return job.state is JobState.PENDING and waited >= LONG_WAIT * situation.period

    def passed_over(self, job: Job) -> None:
        """Promise a newcomer that no step admits a start if it is the first, or record that it waits for the first."""
        session = self._session
        if session.promise is None:
            if _may_be_promised(session, job):
                session.promise = self._reserve(job)
            if session.promise is not None and session.promise.binding:
                _set_reason(session, job, session.promise)
        elif session.outlasts_promise(job) and self._fits_but_for_promise(job):
            session.set_waiting_reason(job, _behind_promise_reason(session, session.promise))

    def next_state(self, state: Mapping[str, object]) -> dict[str, object]:
        """Return the policy's state with the promise to keep, until its job is seen running or is gone."""
        session, kept = self._session, self._kept
        promise = session.promise
        if promise is not None and promise.binding and promise.job not in session.placements:
            saved = session.unused_moves + (kept.saved_moves if promise.job == kept.job else 0)
            waits_for_others = promise.start > session.situation.snapshot.time and session.entitlement.utility is None
            if promise.job == kept.job and waits_for_others:  # it is left moves for those that it may preempt
                saved += min(session.moves_left, max(0, session.jobs[promise.job].gpus - saved))
            return KeptPromise(promise.job, saved).in_state(state)
        job = session.situation.snapshot.jobs_by_id.get(kept.job)
        return (kept if job is not None and job.state is JobState.PENDING else KeptPromise()).in_state(state)

    def _reserve(self, job: Job) -> PromisedStart | None:
        """Return the earliest start of the job by the ends of the others, on nodes that are not reserved before it
        would end then; None where it never fits, or fits already."""
        session, closed = self._session, frozenset[str]()
        if self._all_take_turns:
            return None
        while (start := self._earliest(job, closed)) is not None:
            nodes = {session.pools.node(pool).name for pool in start.placement.pools}
            reserved = closed_nodes(job, session.situation.snapshot, start.start)
            if reserved.isdisjoint(nodes):
                break
            closed |= reserved  # also where it could start later still: only the end of the reservation opens them
        return start

    def _earliest(self, job: Job, closed: frozenset[str]) -> PromisedStart | None:
        """Return the earliest start of the job without these nodes.

        A job that it may preempt at any time leaves once the others have. Where it waits for no others it would have
        done so, unless moves are short or that is not worth it: then it waits for the ends of these.
        """
        session = self._session
        among = ~session.pools.on_nodes(closed) if closed else None
        if session.has_room(job, session.free_at_minimum, among) or self._never_fits(job, among):
            return None
        ends = self._ends_for(job)
        start = self._earliest_after(job, among, ends)
        if start is None or start.start > session.situation.snapshot.time or _waits_for_moves(session, job):
            return start
        by_themselves = self._ends_for(job, preempts_now=False)
        return start if by_themselves == ends else self._earliest_after(job, among, by_themselves)

    def _ends_for(self, job: Job, *, preempts_now: bool = True) -> Sequence[_End]:
        return _ends(self._session, job, preempts_now=preempts_now, known=self._known_ends)

    def _earliest_after(self, job: Job, among: Mask | None, of_others: Sequence[_End]) -> PromisedStart | None:
        """Return the earliest start of a job that has no room now, in these pools, by the ends of the others."""
        session = self._session
        since = _waits_since(job)
        ends = sorted(of_others, key=lambda end: (end.at, isinf(end.at) and end.begun <= since, end.begun, end.job))

        low, count, free, most = 0, len(ends), session.free_at_minimum.copy(), _FIRST_ENDS
        while count - low > 1:
            middle, most = min((low + count) // 2, low + most), 2 * most
            later = _released(free.copy(), ends[low:middle])
            if session.has_room(job, later, among):
                count = middle
            else:
                low, free = middle, later
        free = _released(free, ends[low:count])
        placement = session.find_placement(job, DemandLevel.MINIMUM, free, among)
        if placement is None:
            return None
        placement = placement.with_devices(free)
        held = ((end, end.allocation) for end in ends[:count])
        needed = free.must_leave(placement.allocation(session.pools), held)
        start = max((end.at for end in needed), default=ends[count - 1].at)
        ended = [end for end in ends if end.at <= start] if not isinf(start) else ends
        beside = _released(free, ended[count:]).on_nodes_of(placement.pools)
        beside.allocate(placement.allocation(session.pools))
        return PromisedStart(
            job.id,
            placement,
            start,
            tuple(end.job for end in needed if end.job),
            frozenset(end.job for end in ended),
            beside,
            binding=self._outlasting.isdisjoint(end.job for end in needed)
            and (not isinf(start) or (_is_drained_for(job, needed) and self._drains and self._has_waited_long(job))),
            certain=all(end.certain for end in needed) and not self._may_be_overtaken(placement),
        )

    def _never_fits(self, job: Job, among: Mask | None) -> bool:
        """Whether the job has no room in these pools even once all others have left. What is free then is the same
        whatever else is placed or preempted in the meantime."""
        if self._once_all_left is None:
            self._once_all_left = _released(self._session.free_at_minimum.copy(), self._ends_for(job))
        return not self._session.has_room(job, self._once_all_left, among)

    def _may_be_overtaken(self, placement: Placement) -> bool:
        """Whether Slurm may start a job that is not managed on one of these nodes first."""
        return any(self._session.pools.node(pool).name in self._awaited_by_others for pool in placement.pools)

    @cached_property
    def _awaited_by_others(self) -> frozenset[str]:
        """The nodes of the partitions that jobs wait for which are neither managed nor about to start."""
        snapshot, known = self._session.situation.snapshot, self._session.jobs.keys() | self._session.situation.starting
        others = (job for job in snapshot.jobs_in_state(JobState.PENDING) if job.id not in known)
        return snapshot.nodes_in({name for job in others if job.hold is Hold.NONE for name in job.partitions})

    def _fits_but_for_promise(self, job: Job) -> bool:
        session, demand = self._session, self._session.demands.of(job)
        if self._unplaceable.contains(demand, session.eviction_epoch):
            return False
        promise, session.promise = session.promise, None
        fits = session.has_room(job, session.free_at_minimum)
        session.promise = promise
        if not fits:
            self._unplaceable.add(demand)
        return fits


def _released(free: FreeResources, ends: Iterable[_End]) -> FreeResources:
    """Return what is free once these have ended; `free` is changed."""
    free.release_all([end.allocation for end in ends])
    return free


def _waits_since(job: Job) -> float:
    return max(job.submit_time, job.eligible_time or 0.0)


def _is_drained_for(job: Job, needed: Sequence[_End]) -> bool:
    """Whether nodes are drained of these jobs, of which those that were there before the newcomer are last: not if one
    was, nor if one alone gives back all that is needed, since then nothing is kept idle."""
    all_at_once = len(needed) == 1 and sum(needed[0].allocation.gpus) >= job.gpus
    return needed[-1].begun > _waits_since(job) and not all_at_once


def _outlasting_slices(session: Session) -> frozenset[JobId]:
    """Return the running jobs that have time slices, which are over before the jobs end by themselves."""
    slices, situation = session.entitlement.slices, session.situation
    stay = situation.non_preemptible.keys() - situation.preemptible_from.keys()
    jobs = (job for job in session.jobs.values() if job.allocations and job.id in slices and job.id not in stay)
    return frozenset(job.id for job in jobs if (job.start_time or 0.0) + slices[job.id] < session.expected_end(job))


def _may_be_promised(session: Session, job: Job) -> bool:
    """Whether the job may be promised a start: not if it just gave way, is due nothing, or another copy of it has
    resources."""
    if job.id in session.victims or job.id in session.entitlement.undue:
        return False
    placed = (*session.running, *session.placements) if job.copy_of else ()
    return all(session.jobs[other].copy_of != job.copy_of for other in placed)


def _waits_for_moves(session: Session, job: Job) -> bool:
    """Whether the job may preempt all that are in its way, as soon as rounds have left it enough moves."""
    return job.id in session.first and (session.saved_moves or session.unused_moves) > 0


def _preemptible_at(session: Session, newcomer: Job, job: Job, *, preempts_now: bool) -> float:
    """Return when the newcomer may preempt the running job, in unix seconds; infinite if nobody knows, or if it may now
    and that does not matter."""
    situation, now = session.situation, session.situation.snapshot.time
    if not session.preempts or job.id not in session.jobs or not session.may_preempt(newcomer, job):
        return inf
    if job.id in situation.preemptible_from:
        return max(situation.preemptible_from[job.id], now)
    return now if _preempts_now(session, newcomer, counts=preempts_now) and session.may_leave(job.id) else inf


def _preempts_now(session: Session, newcomer: Job, *, counts: bool) -> bool:
    """Whether it matters that the newcomer may preempt jobs now: if that `counts` and there are moves, or if it waits
    for moves."""
    has_moves = session.situation.max_moves > 0 or session.situation.starts_only
    return (counts and has_moves and session.entitlement.utility is None) or _waits_for_moves(session, newcomer)


def _ends(
    session: Session,
    newcomer: Job,
    *,
    by_slices: bool = False,
    preempts_now: bool = True,
    beside: Allocation | None = None,
    known: dict[JobId, _End] | None = None,
) -> Sequence[_End]:
    """Return the end of each job with an allocation, managed or not, of those that are about to start, and of those
    placed in this round, if `by_slices` that of their slices. A job that the newcomer may preempt, now or once it has
    run for long enough, leaves then. With `beside` of those alone that have something on its nodes.
    `known` are the ends by themselves of running jobs, which is added to."""
    known = {} if known is None else known
    situation, ends, pools = session.situation, list[_End](), session.pools
    early = bool(situation.preemptible_from) or _preempts_now(session, newcomer, counts=preempts_now)
    on_nodes = set(pools.of_nodes(pools.node_of[list(beside.pools)]).tolist() if beside else ())
    observed = situation.snapshot
    for job in observed.holders_on(pools.node(pool).name for pool in beside.pools) if beside else observed.holders:
        if job.id in session.victims:
            continue
        held = session.running.get(job.id) or session.pools.held_by(job)
        end = known.get(job.id)
        if end is None or end.allocation is not held:
            end = known[job.id] = _own_end(job, held, end.at if end else session.expected_end(job))
        free_from = _preemptible_at(session, newcomer, job, preempts_now=preempts_now) if early else inf
        ends.append(end if free_from >= end.at else replace(end, at=free_from, certain=False))
    for starting, allocations in situation.starting.items():
        begins = situation.snapshot.jobs_by_id.get(starting)
        if begins is not None and begins.state is JobState.PENDING:
            held = session.pools.allocation(allocations, exclusive=begins.original_request.exclusive)
            now, limited = situation.snapshot.time, begins.time_limit is not None
            ends.append(_End(session.expected_end(begins), now, starting, held, limited))
    if situation.unattributed:
        now, held = situation.snapshot.time, session.pools.allocation(situation.unattributed)
        ends.append(_End(now, now, "", held, certain=False))
    for placed, placement in session.placements.items():
        if beside and on_nodes.isdisjoint(placement.pools):
            continue
        job = session.jobs[placed]
        at, begun = (session.leaves_by if by_slices else session.expected_end)(job), situation.snapshot.time
        ends.append(_End(at, begun, placed, placement.allocation(session.pools), job.time_limit is not None))
    return ends


def _own_end(job: Job, held: Allocation, at: float) -> _End:
    """Return the end of a running job that nobody preempts."""
    certain = job.time_limit is not None or job.end_time is not None
    return _End(at, job.start_time or 0.0, job.id, held, certain)


def promise_holds(session: Session) -> bool:
    """Whether the promised job still fits at its start, by the ends of all jobs that have resources now."""
    promise = session.promise
    if promise is None or not promise.binding or promise.job in session.placements:
        return True
    placed = promise.placement.allocation(session.pools)
    # where no end is known, the jobs that were there before are waited for, and no others
    ends_before = (
        end
        for end in _ends(session, session.jobs[promise.job], by_slices=True, beside=placed)
        if (end.job in promise.ended if isinf(end.at) else end.at <= promise.start)
    )
    free = _released(session.free_at_minimum.copy(), ends_before)
    return free.fits(placed)


def promise_of(session: Session) -> Promise | None:
    """Return what the decision says of the session's promise."""
    promise = session.promise
    if promise is None or not promise.binding or promise.job in session.placements:
        return None
    return Promise(
        promise.job,
        None if isinf(promise.start) else promise.start,
        promise.placement.node_allocations(session.pools),
        promise.waits_for,
        promise.certain,
    )


def _set_reason(session: Session, job: Job, promise: PromisedStart) -> None:
    known = session.reasons.get(job.id)
    preempts_later = known is not None and known.code in (ReasonCode.MOVES_SPENT, ReasonCode.MOVES_SAVED)
    if not (preempts_later and isinf(promise.start)):
        session.set_waiting_reason(job, _promise_reason(session, promise))


def _promise_reason(session: Session, promise: PromisedStart) -> Reason:
    jobs, nodes = ", ".join(promise.waits_for), _nodes(session, promise)
    if not promise.waits_for:
        return Reason(ReasonCode.FREED_NOW, {"nodes": nodes})
    if isinf(promise.start):
        return Reason(ReasonCode.NODES_DRAIN, {"jobs": jobs, "nodes": nodes})
    known = session.situation.snapshot.jobs_by_id
    if all(job in known and known[job].state is JobState.COMPLETING for job in promise.waits_for):
        return Reason(ReasonCode.FREED_SOON, {"jobs": jobs, "nodes": nodes})
    when = time_of_day(promise.start, session.situation.snapshot.time)
    code = ReasonCode.PROMISED_START if promise.certain else ReasonCode.EXPECTED_START
    return Reason(code, {"when": when, "jobs": jobs, "nodes": nodes, "start": promise.start})


def _behind_promise_reason(session: Session, promise: PromisedStart) -> Reason:
    details: dict[str, str | int | float] = {"job": promise.job, "nodes": _nodes(session, promise)}
    if isinf(promise.start):
        return Reason(ReasonCode.BEHIND_DRAIN, details)
    now = session.situation.snapshot.time
    details |= {"when": time_of_day(promise.start, now), **shorter_limit(promise.start - now)}
    return Reason(ReasonCode.BEHIND_PROMISE, details)


def _nodes(session: Session, promise: PromisedStart) -> str:
    return ", ".join(sorted({session.pools.node(pool).name for pool in promise.placement.pools}))
