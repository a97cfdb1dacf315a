"""Places jobs where they are fastest: those that start, and running ones where that clearly pays for a restart: on the
GPU type that they are due, on idle GPUs that are faster or have more CPUs and memory beside them, or with more of these
where they are."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isinf
from typing import Final

from slurmsched.knowledge import Knowledge
from slurmsched.knowledge.estimation import estimates_by_type
from slurmsched.model import Job, JobId, Reason, ReasonCode
from slurmsched.model.reasons import format_duration
from slurmsched.policies.admit.allocate import FailedRequestCache, rates_of_part
from slurmsched.policies.admit.preempt import VictimQueue
from slurmsched.policies.cluster.demand import DemandLevel
from slurmsched.policies.cluster.eligibility import may_begin_again
from slurmsched.policies.finish.spare import extra_resources, largest_that_fits
from slurmsched.policies.place.placement import MOST_CPUS, Placement
from slurmsched.policies.session import Session
from slurmsched.policies.sizes import PerTaskResources, SizeUpgrade, size_upgrades
from slurmsched.policies.stages import Situation


@dataclass(frozen=True, slots=True)
class _Restart:
    """A running job, a placement on which it is faster, and the seconds that this saves."""

    job: Job
    placement: Placement
    saving: float


def resize_running(session: Session) -> None:
    """Restart the jobs that save most GPU-seconds, as many as may still be moved this round."""
    if not session.situation.snapshot.nodes or session.moves_left <= 0:
        return
    running = [session.jobs[job] for job in session.running]
    for resize in _worth_most_first(session, running, partial(_worthwhile_resize, session)):
        why = restart_reason(resize.saving, session.situation.cost_of_restart(resize.job.id))
        session.restart_with(resize.job, resize.placement, why)


def _worth_most_first(
    session: Session, jobs: Iterable[Job], find: Callable[[Job], _Restart | None]
) -> Iterator[_Restart]:
    """Yield what `find` returns for these jobs, those first that save most GPU-seconds, as long as the round has moves
    left. It is asked again each time: earlier restarts may have taken the resources."""
    found = [restart for job in jobs if (restart := find(job)) is not None]
    for planned in sorted(
        found, key=lambda restart: (-restart.saving * restart.job.gpus, session.rank_of[restart.job.id])
    ):
        restart = find(planned.job) if session.moves_left > 0 else None
        if restart is not None:
            yield restart


def restart_reason(saving: float, cost: float) -> Reason:
    """Return why a job is restarted; both are in seconds."""
    return Reason(ReasonCode.PAYS_FOR_RESTART, {"saving": format_duration(saving), "cost": format_duration(cost)})


def _worthwhile_resize(session: Session, job: Job) -> _Restart | None:
    """Return the job's best resize on its GPUs; None where it is not clearly worth a restart."""
    remaining = session.situation.knowledge.remaining_seconds_there(job)
    may_restart = session.is_preemptible(job.id) and may_begin_again(job, session.situation.snapshot)
    current = _current_placement(session, job) if may_restart and not isinf(remaining) else None
    if current is None:
        return None
    upgrade = _fastest_upgrade(session, job, current)
    if upgrade is None or session.delays_promise(job, current.allocation(session.pools)):
        return None
    per_task, faster = upgrade
    now = session.situation.knowledge.relative_speed(job, job.allocations, session.situation.snapshot.nodes_by_name)
    saving = _expected_run(session, job, remaining) * (1 - now / (now + faster))
    larger = replace(current, per_task=per_task)
    extra = extra_resources(larger.allocation(session.pools), current.allocation(session.pools))
    pays = saving > session.entitlement.min_benefit * session.situation.cost_of_restart(
        job.id
    ) and session.free_at_minimum.fits(extra)
    return _Restart(job, larger, saving) if pays else None


def _fastest_upgrade(session: Session, job: Job, placement: Placement, *, counted: bool = True) -> SizeUpgrade | None:
    """Return the size of parts that makes the job fastest, of what is free on the nodes of the placement; None where no
    more does. Unless `counted`, nothing is allocated to it yet."""
    kind, limit = session.pools.kinds[placement.kind], largest_that_fits(session, job.id, placement, counted=counted)
    upgrades = size_upgrades(session.sizing, placement.gang, kind, placement.per_task, limit)
    steps = (step for step in upgrades if not isinf(step[1]))  # those tell a turn, not a speed
    return max(steps, key=lambda step: (step[1], -step[0].cpus, -step[0].memory), default=None)


def longer_run_from(situation: Situation, job: Job) -> float:
    """Return from when on the job may be expected to keep more resources for longer than now, in unix seconds: always
    if it was restarted before, else when the duration of its hint has passed and its time limit counts."""
    now, expected = situation.snapshot.time, job.hints.duration
    if job.restarts:
        return now
    left = -1.0 if expected is None else expected - situation.knowledge.done_seconds(job)
    return now + situation.knowledge.seconds_there(job, left) if left >= 0 else inf


def _expected_run(session: Session, job: Job, remaining: float) -> float:
    """Return for how long the job keeps what it is restarted with: until its end or, where it was restarted before, for
    as long as its runs have lasted on average."""
    executed = session.situation.knowledge.executed_seconds(job)
    return min(remaining, executed / job.restarts) if job.restarts else remaining


def _current_placement(session: Session, job: Job) -> Placement | None:
    """Return the allocation as a placement; None for uneven parts, an exclusive job, or one without a profile."""
    gang, allocation = session.demands.of(job).gang, session.running[job.id]
    kinds = {int(session.pools.kind_of[pool]) for pool in allocation.pools}
    if (
        gang.profile is None
        or not gang.gpus_per_part
        or gang.request.exclusive
        or len(kinds) != 1
        or any(n % gang.gpus_per_part for n in allocation.gpus)
    ):
        return None
    parts = tuple(gpus // gang.gpus_per_part for gpus in allocation.gpus)
    kind = kinds.pop()
    units = session.pools.kinds[kind].cpu_units(gang.request.threads_per_core)
    per_task = PerTaskResources(units.within(allocation.cpus[0]) // parts[0], max(allocation.memory) // max(parts))
    placed = Placement(gang, allocation.pools, parts, per_task, kind)
    return placed if placed.allocation(session.pools).by_pool() == allocation.by_pool() else None


_CLEARLY_FASTER: Final = 1.1
"""How many times as fast a job has to be elsewhere to start there: what is less leaves nodes as they were filled."""

_MOST_SEARCHES: Final = 1000
"""Searches for a faster place in a round: of thousands of jobs that start at once, the others start where they are."""


def start_where_fastest(session: Session) -> None:
    """Let the jobs that start in this round have the idle GPUs on which their type and the CPUs and memory beside them
    make them fastest together.

    The market sees GPUs, and consolidation prefers full nodes: a job that is three times as fast with twelve CPUs
    started beside three, next to an idle node.
    """
    fastest, made_room = _FastestIdle(session), {*session.victims, *session.victims.values()}
    for name in [*session.placements] if fastest.idle.total() else ():
        job, placed, knowledge = session.jobs[name], session.placements[name], session.situation.knowledge
        if job.allocations or name in made_room or not job.gpus or placed.gang.profile is None:
            continue  # whoever gave way to it did so for these GPUs
        here = [session.pools.gpu_types[pool] for pool in placed.pools]
        types = session.pools.known_types if knowledge.compares_types(job) else here
        found, now = fastest.of(job, types), _speed(session, job, _enlarged(session, job, placed))
        if found is not None and found.speed > _CLEARLY_FASTER * now > 0:
            session.demands.lift_restriction(job)
            session.place_again(job, found.placement)
            session.reasons[name] = Reason(ReasonCode.FASTEST_HERE, {"times": f"{found.speed / now:.1f}"})
            fastest.forget()


def move_where_fastest(session: Session) -> None:
    """Move running jobs to idle GPUs on which they are faster by measured rates, and by the CPUs and memory there, as
    many as may still move this round; those first that save most GPU-seconds."""
    fastest = _FastestIdle(session)
    movable = _movable_jobs(session) if fastest.idle.total() else ()
    for move in _worth_most_first(session, movable, partial(_worthwhile_move, session, fastest)):
        session.demands.lift_restriction(move.job)
        why = restart_reason(move.saving, session.situation.cost_of_restart(move.job.id))
        session.restart_with(move.job, move.placement, why)
        fastest.forget()


def _worthwhile_move(session: Session, fastest: _FastestIdle, job: Job) -> _Restart | None:
    """Return the job's move to where it is fastest; None where that is not clearly worth a restart."""
    knowledge, nodes = session.situation.knowledge, session.situation.snapshot.nodes_by_name
    left, held = _expected_run(session, job, remaining_or_executed(knowledge, job)), _held_types(job)
    least = session.entitlement.min_benefit * session.situation.cost_of_restart(job.id)
    measured = knowledge.measured_types(job)
    if left <= least or not job.gpus or (not measured and knowledge.profile(job) is None):
        return None  # it is nearly done, or nothing is known of it that tells of a faster place
    if not may_begin_again(job, session.situation.snapshot):
        return None
    found = fastest.of(job, measured if measured >= held else held if len(held) == 1 else ())
    if found is None or found.speed <= (now := knowledge.speed(job, job.allocations, nodes)):
        return None
    saving = left * (1 - now / found.speed)
    return _Restart(job, found.placement, saving) if saving > least else None


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a job, and its speed there, as by `Knowledge.speed`."""

    speed: float
    placement: Placement


@dataclass(slots=True)
class _FastestIdle:
    """The idle GPUs on which jobs are fastest, searched for once for jobs that are alike."""

    session: Session
    idle: Counter[str] = field(default_factory=Counter)
    _searches: int = 0
    _known: dict[Hashable, _Place | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Look again at what is idle, after a job was placed."""
        self.idle = self.session.free_at_minimum.idle_by_type()
        self._known.clear()

    def of(self, job: Job, types: Collection[str]) -> _Place | None:
        """Return where the job is fastest among the idle GPUs of these types, whatever type it is due; None where it
        fits nowhere."""
        session, knowledge = self.session, self.session.situation.knowledge
        enough = tuple(kind for kind, gpus in self.idle.items() if kind in types and gpus >= job.gpus)
        if not enough:
            return None
        session.demands.lift_restriction(job)
        alike = session.attempt(job), session.lends_to(job.id), id(knowledge.rate_profile(job)), enough
        if alike not in self._known:
            places = self._places(job, enough) if self._searches < _MOST_SEARCHES else ()
            self._known[alike] = max(places, key=lambda place: place.speed, default=None)
        session.demands.restrict(job)
        return self._known[alike]

    def _places(self, job: Job, types: Iterable[str]) -> Iterator[_Place]:
        """Yield a place of each type that has room: with all that makes the job faster, else where most CPUs are."""
        session, free = self.session, self.session.free_at_minimum
        self._searches += 1
        for kind in types:
            among = session.pools.of_type(kind)
            placement = session.find_placement(job, DemandLevel.BEST, free, among) if session.lends_to(job.id) else None
            placement = placement or session.find_placement(job, DemandLevel.MINIMUM, free, among, node_score=MOST_CPUS)
            if placement is not None:
                placement = _enlarged(session, job, placement, counted=False)
                yield _Place(_speed(session, job, placement), placement)


def _enlarged(session: Session, job: Job, placement: Placement, *, counted: bool = True) -> Placement:
    """Return the placement with as many of the CPUs and as much of the memory that are free there as make the job
    faster. Unless `counted`, nothing is allocated to it yet."""
    if placement.gang.request.exclusive:
        return placement
    upgrade = _fastest_upgrade(session, job, placement, counted=counted)
    return replace(placement, per_task=upgrade[0]) if upgrade is not None else placement


def _speed(session: Session, job: Job, placement: Placement) -> float:
    """Return the job's speed with a placement."""
    nodes = session.situation.snapshot.nodes_by_name
    return session.situation.knowledge.speed(job, placement.node_allocations(session.pools), nodes)


def migrate_to_due_type(session: Session) -> None:
    """Move jobs in order, as many as may still move this round. No job is moved onto several types."""
    for job in _movable_jobs(session):
        saving, restart_cost = _saved_seconds(session, job), session.situation.cost_of_restart(job.id)
        if saving <= session.entitlement.min_benefit * restart_cost:
            continue
        placement = session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum)
        if placement is not None:
            session.restart_with(job, placement, restart_reason(saving, restart_cost))


def _movable_jobs(session: Session) -> Iterator[Job]:
    """Yield the running jobs that may be moved, in order, as long as the round has moves left."""
    for ranked in session.ranking:
        if session.moves_left <= 0:
            return
        if ranked.job in session.running and session.is_preemptible(ranked.job):
            yield session.jobs[ranked.job]


_LEAST_GAIN_BY_ESTIMATE: Final = 2.0
"""How many times as fast a GPU type has to be by its data sheet for a job to be tried there: estimates are off by
far less."""


def try_faster_idle_types(session: Session) -> None:
    """Move jobs of whose rates nothing is known to idle GPUs that are much faster by their data sheets (equation 10),
    as many jobs as may still move this round.

    Such a job would stay where it began until its end, on slow GPUs beside idle fast ones. It may turn out not to be
    faster: then a restart was lost, once for each type, as nothing moves it back. So it has to have run for a while,
    and counts as half finished at most.
    """
    estimates, idle = estimates_by_type(session.pools.known_types), session.free_at_minimum.idle_by_type()
    for job in _movable_jobs(session) if len(set(estimates.values())) > 1 and idle.total() else ():
        if not _is_unmeasured(session, job):
            continue
        now = min((estimates.get(kind, inf) for kind in _held_types(job)), default=inf)
        if _try_faster(session, job, idle, {kind: of / now for kind, of in estimates.items()}):
            idle = session.free_at_minimum.idle_by_type()


def migrate_parts_of_gpus(session: Session) -> None:
    """Move jobs with a part of a GPU to a type that is faster by measured rates and has room, as many jobs as may still
    move this round.

    The market is of whole GPUs: such a job has what it leaves idle, and would stay on slow GPUs until its end.
    """
    knowledge, idle = session.situation.knowledge, session.free_at_minimum.idle_by_type()
    for job in _movable_jobs(session) if len(idle) > 1 else ():
        measured = knowledge.measured_types(job)
        rates = rates_of_part(knowledge, job, [kind for kind in idle if kind in measured])
        now = [rates.get(kind, 0.0) for kind in _held_types(job)]
        if not rates or not all(now):
            continue
        faster = {kind: rate / min(now) for kind, rate in rates.items() if rate > min(now)}
        _restart_on_fastest(session, job, idle, faster, remaining_or_executed(knowledge, job))


def _is_unmeasured(session: Session, job: Job) -> bool:
    """Whether the job may have any GPU type, and no ratio of its rates on two of them is known."""
    request = job.original_request
    any_type = request.gpu_type is None and bool(request.gpus or request.shards)
    return any_type and not session.situation.knowledge.compares_types(job)


def _try_faster(session: Session, job: Job, idle: Mapping[str, int], times_as_fast: Mapping[str, float]) -> bool:
    """Restart the job on the fastest of these types on which it fits, if that is worth it; return whether it is."""
    knowledge = session.situation.knowledge
    left = min(remaining_or_executed(knowledge, job), knowledge.executed_seconds(job))
    much_faster = {kind: faster for kind, faster in times_as_fast.items() if faster >= _LEAST_GAIN_BY_ESTIMATE}
    return _restart_on_fastest(session, job, idle, much_faster, left)


def _restart_on_fastest(
    session: Session, job: Job, idle: Mapping[str, int], times_as_fast: Mapping[str, float], left: float
) -> bool:
    """Restart a job with so many seconds left on the fastest of these types on which it fits; return whether it is: not
    where that saves too little for what a restart costs."""
    cost = session.situation.cost_of_restart(job.id)
    for kind, faster in sorted(times_as_fast.items(), key=lambda each: -each[1]):
        saving = left * (1 - 1 / faster)
        if saving <= session.entitlement.min_benefit * cost:
            return False
        if idle[kind] < job.gpus:
            continue
        among = session.pools.of_type(kind)
        session.demands.lift_restriction(job)  # to the type that it has
        for level in (DemandLevel.BEST, DemandLevel.MINIMUM):
            placement = session.find_placement(job, level, session.free_at_minimum, among)
            if placement is not None:
                session.restart_with(job, placement, restart_reason(saving, cost))
                return True
    return False


def exchange_types(session: Session) -> None:
    """Let running jobs that are due GPU types which others have change places with these, as many jobs as may still
    move this round; those first that save most GPU-seconds.

    What the first of an exchange saves has to pay for the restarts of all, and the entitlement's utility has to rise.
    """
    utility = session.entitlement.utility
    if utility is None or session.moves_left < _FEWEST_TO_EXCHANGE:
        return
    jobs = [session.jobs[job] for job in session.running if session.is_preemptible(job)]
    changing = [job for job in jobs if _due_rates(session, job) is not None and not _has_due_type(session, job)]
    saved = {job.id: _saved_seconds(session, job) * job.gpus for job in changing}
    gaining = [
        job
        for job in changing
        if saved[job.id] > session.entitlement.min_benefit * _restart_gpu_seconds(session, [job.id])
    ]
    failed = FailedRequestCache()
    for job in sorted(gaining, key=lambda job: (-saved[job.id], session.rank_of[job.id])):
        request = session.attempt(job)
        if session.moves_left < _FEWEST_TO_EXCHANGE:
            return
        if job.id not in session.running or failed.contains(request, session.eviction_epoch):
            continue
        before, worth = session.checkpoint(), utility(session.allocations())
        moved = _change_places(session, job, changing)
        pays = saved[job.id] > session.entitlement.min_benefit * _restart_gpu_seconds(session, moved)
        if not (moved and pays and utility(session.allocations()) > worth):
            session.rollback(before)
            failed.add(request)


_FEWEST_TO_EXCHANGE: Final = 2


def _change_places(session: Session, first: Job, changing: Sequence[Job]) -> Sequence[JobId]:
    """Move the job to the type that it is due, those of `changing` that are in its way to theirs, and so on; return
    all that move, none if one of them finds no place or there are too many. Then the session has to be rolled back."""
    saving = _saved_seconds(session, first)
    moving = [first.id]
    session.evict(first.id, first)
    for name in moving:  # which grows
        found = _place_among(session, session.jobs[name], changing, first)
        if found is None:
            return ()
        leaving, placement = found
        for other in leaving:
            session.evict(other, first)
        moving += leaving
        session.allocate(session.jobs[name], placement)
        if session.moves_left < 0:
            return ()
    session.reasons[first.id] = restart_reason(saving, session.situation.cost_of_restart(first.id))
    return moving


def _place_among(
    session: Session, job: Job, changing: Sequence[Job], first: Job
) -> tuple[list[JobId], Placement] | None:
    """Return which of `changing` leave for the job, as few as possible, and its placement then, or None. Those are
    tried alone that are due what the first job of the exchange had."""
    placement = session.find_placement(job, DemandLevel.MINIMUM, session.free_at_minimum)
    if placement is not None:
        return [], placement
    due, had = session.entitlement.gpu_types, _held_types(first)
    holders = [other for other in changing if other.id in session.running and _held_types(other) & due[job.id]]
    for others in ([other for other in holders if due[other.id] <= had], holders):
        queue = VictimQueue.of(session, [other.id for other in others])

        def placed(count: int, queue: VictimQueue = queue) -> Placement | None:
            return session.find_placement(job, DemandLevel.MINIMUM, queue.free_without(count, session.free_at_minimum))

        counts = range(1, len(others) + 1)
        count = bisect_left(counts, True, key=lambda k: placed(k) is not None) + 1
        placement = placed(count) if count <= len(others) else None
        if placement is not None:
            free = queue.free_without(count, session.free_at_minimum)
            held = ((other, session.allocation_of(other)) for other in reversed(queue.jobs[:count]))
            return free.must_leave(placement.allocation(session.pools), held), placement
    return None


def _held_types(job: Job) -> frozenset[str]:
    return frozenset(on_node.gpu_type for on_node in job.allocations)


def _has_due_type(session: Session, job: Job) -> bool:
    return _held_types(job) == session.entitlement.gpu_types[job.id]


def _restart_gpu_seconds(session: Session, jobs: Iterable[JobId]) -> float:
    """Return what the restarts of these jobs cost together, in GPU-seconds."""
    return sum(session.situation.cost_of_restart(job) * session.jobs[job].gpus for job in jobs)


def _saved_seconds(session: Session, job: Job) -> float:
    """Return by how many seconds the job would end sooner, by measured rates."""
    rates = _due_rates(session, job)
    if rates is None:
        return 0.0
    now, then = rates
    return remaining_or_executed(session.situation.knowledge, job) * (1 - now / then) if then > now else 0.0


def _due_rates(session: Session, job: Job) -> tuple[float, float] | None:
    """Return the job's measured rates on the GPU types that it has, with the CPUs and memory that it has there, and on
    the one that it is due, with its share of these; None where one of these is not known, and for a job that is due
    several types or none."""
    rates, due = session.entitlement.rates, session.entitlement.gpu_types.get(job.id, frozenset())
    if len(due) != 1:
        return None
    now = [rates.get((job.id, on_node.gpu_type)) for on_node in job.allocations]
    then = rates.get((job.id, next(iter(due))))
    known = [rate for rate in now if rate is not None]
    if then is None or not known or len(known) < len(now):
        return None
    knowledge, nodes = session.situation.knowledge, session.situation.snapshot.nodes_by_name
    return min(known) * knowledge.relative_speed(job, job.allocations, nodes), then


def remaining_or_executed(knowledge: Knowledge, job: Job) -> float:
    """Return the seconds that the job still needs on the GPUs that it has. Without a duration estimate it is assumed
    half finished."""
    remaining = knowledge.remaining_seconds_there(job)
    return knowledge.executed_seconds(job) if isinf(remaining) else remaining
