"""The loop that runs a policy's stages: order, size, place, admit, finish.

Source: Mohan et al., "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters" (Synergy, OSDI 2022), sections
3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from slurmsched.model import Decision, IdleGpus, Job, JobId, RankedJob, Reason, ReasonCode
from slurmsched.policies.admit.allocate import AllocateFree, WaitForCompleting
from slurmsched.policies.admit.overtaken import overtaken_jobs
from slurmsched.policies.admit.preempt import Preempt
from slurmsched.policies.admit.promise import KeptPromise, Promises, promise_holds, promise_of
from slurmsched.policies.admit.shrink import ShrinkRunning
from slurmsched.policies.cluster.resources import Allocation
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.finish.restart import resize_running
from slurmsched.policies.finish.spare import distribute_spare
from slurmsched.policies.orders import FirstInFirstOut, IdleLast
from slurmsched.policies.place.placement import NodeScore
from slurmsched.policies.reasons import explain
from slurmsched.policies.session import FinishStep, Session
from slurmsched.policies.sizes import Sizing
from slurmsched.policies.stages import (
    NO_ENTITLEMENT,
    AdmissionStep,
    Entitle,
    Entitlement,
    Order,
    PreemptionRule,
    Situation,
)

ADMISSION_STEPS: Final[tuple[Callable[[Session], AdmissionStep], ...]] = (
    AllocateFree,
    WaitForCompleting,
    ShrinkRunning,
    Preempt,
)
"""Ways to admit a newcomer, least disruptive first."""

FINISH_STEPS: Final[tuple[FinishStep, ...]] = (distribute_spare, resize_running)
"""Spare resources go to the jobs that they make faster."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A policy made of stages: one round as in Synergy (sections 3.2 and 4.2), except that allocations last.

    Jobs are considered in order. A running job keeps what it has. For a newcomer the `admission_steps` are tried until
    one admits it; if none does, it waits and the jobs behind it are still tried. The first that waits is promised a
    start, which the jobs behind it and the finish steps may not delay, and its turn comes first from then on. A job
    that was evicted is a newcomer when its turn comes, so that the next round does not undo this one. In the end the
    `finish_steps` run. If the entitlement tells what a round's allocations are worth, evictions that do not add to it
    are taken back. What the `last_steps` move is not weighed so.
    """

    name: str
    order: Order | None
    """None for a policy whose order follows from what jobs are due."""
    sizing: Sizing
    node_score: NodeScore
    finish_steps: tuple[FinishStep, ...] = FINISH_STEPS
    """Run once every job had its turn."""
    admission_steps: tuple[Callable[[Session], AdmissionStep], ...] = ADMISSION_STEPS
    """Tried for each newcomer, least disruptive first."""
    entitle: Entitle | None = None
    """Decides what jobs are due; None lets every job use what it asked for."""
    last_steps: tuple[FinishStep, ...] = ()
    """Run after the finish steps, once it is certain which evictions stand."""
    keeps_promise: bool = True
    """Whether a promised start is kept from round to round, ahead of the order; else the order decides anew."""
    parts_order: Order | None = None
    """The order of the jobs that ask for no whole GPU, where `entitle` decides for those that do: behind whom it gives
    GPUs and before the others. They preempt each other by its rule. None: by submission, behind all, and without."""

    @property
    def only_starts(self) -> bool:
        """Whether no running job is ever moved or preempted: allocations only end with their jobs."""
        return not (
            self.finish_steps or self.last_steps or self.entitle or any(map(_changes_running, self.admission_steps))
        )

    @property
    def only_resizes(self) -> bool:
        """Whether nothing is done with a running job while none waits but to restart it with more CPUs and memory."""
        return not self.entitle and {*self.finish_steps, *self.last_steps} <= set(FINISH_STEPS)

    def decide(self, situation: Situation) -> Decision:
        """Raises PolicyError if neither the row nor its entitlement has an order."""
        entitlement = _entitlement(self.entitle, situation, self.parts_order) if self.entitle else NO_ENTITLEMENT
        order = entitlement.order or self.order
        if order is None:
            raise PolicyError(f"policy {self.name} has no order")
        if situation.idle_last:
            order, entitlement = IdleLast(order, situation.idle_last), _idle_due_last(entitlement, situation.idle_last)
        session = Session(situation, order, self.sizing, self.node_score, entitlement)
        kept = KeptPromise.of_state(situation.state) if self.keeps_promise else None
        if kept is not None and kept.job in entitlement.promised_anew:
            kept = KeptPromise()
        session.takes_back = ShrinkRunning in self.admission_steps
        session.preempts = any(map(_preempts, self.admission_steps)) or bool(entitlement.slices)
        promises = Promises(session, kept)
        start = session.checkpoint() if entitlement.utility else None
        self._run(session, promises)
        if entitlement.utility and start and session.victims:
            with_evictions, worth = session.checkpoint(), entitlement.utility(session.allocations())
            session.rollback(start)
            without = entitlement.utility(session.allocations())
            if worth <= without or _starts_without_evictions(session):
                session.moves_left, session.may_evict = 0, False
                self._run(session, promises)
                without = entitlement.utility(session.allocations())
            if worth > without:
                session.rollback(with_evictions)
            else:
                session.moves_left, session.may_evict = situation.max_moves, True
        _finish(session, self.last_steps)
        session.cancel_noop_evictions()
        targets, waiting = explain(session, order.name)
        given_back, overtaken = overtaken_jobs(session)
        waiting |= given_back
        state = dict(situation.state)
        if not situation.starts_only:
            if entitlement.next_state:
                state = dict(entitlement.next_state(session.victims, session.allocations()))
            state = promises.next_state(state) if self.keeps_promise else state
        return Decision(
            self.name,
            session.ranking,
            targets,
            waiting,
            session.victims,
            overtaken.in_state(state),
            promise_of(session),
            max(entitlement.saved_moves, session.saved_moves) if session.may_evict else 0,
            entitlement.full_round_at,
        )

    def _run(self, session: Session, promises: Promises) -> None:
        admission = [step(session) for step in self.admission_steps]

        def admit(job: Job) -> bool:
            for step in admission:  # noqa: SIM110 `any` takes twice as long, and most jobs wait
                if step.try_admit(job):
                    return True
            return False

        for job in promises.first() if self.keeps_promise else ():
            if session.needs_placement(job) and not admit(job):
                if job.id in session.first:  # a start on a GPU type that it is not due now keeps the promise
                    session.demands.lift_restriction(job)
                if job.id not in session.first or not admit(job):
                    promises.passed_over(job)
        for ranked in session.ranking:
            job = session.jobs[ranked.job]
            is_promised = session.promise is not None and session.promise.job == job.id  # then it had its turn
            if session.needs_placement(job) and not is_promised and not admit(job):
                promises.passed_over(job)
        _finish(session, self.finish_steps)
        session.cancel_noop_evictions()


def _starts_without_evictions(session: Session) -> bool:
    """Whether a job with GPUs could start in this state; if not, a round without evictions changes nothing."""
    if not (session.free_at_minimum.gpus > 0).any():
        return False
    waiting = {session.demands.of(job): job for job in session.jobs.values() if job.gpus and not job.allocations}
    if any(session.has_room(job, session.free_at_minimum) for job in waiting.values()):
        return True
    for job in session.first:  # it may start on a GPU type that it is not due
        session.demands.lift_restriction(session.jobs[job])
    fits = any(session.has_room(session.jobs[job], session.free_at_minimum) for job in session.first)
    session.demands.restrict_all()
    return fits


def _idle_due_last(entitlement: Entitlement, idle: Mapping[JobId, IdleGpus]) -> Entitlement:
    """Return the entitlement with these jobs' turns after those of all others, and worth nothing to a round. No
    slice protects them, only guards do."""
    utility, last = entitlement.utility, max(entitlement.passes.values(), default=0.0)
    first = min((entitlement.passes[job] for job in idle if job in entitlement.passes), default=0.0)

    def without_idle(allocations: Mapping[JobId, Allocation]) -> float:
        busy = {job: allocation for job, allocation in allocations.items() if job not in idle}
        return utility(busy) if utility else 0.0

    return replace(
        entitlement,
        passes={job: last + 1 + turn - first if job in idle else turn for job, turn in entitlement.passes.items()},
        protected={job: why for job, why in entitlement.protected.items() if job not in idle},
        utility=without_idle if utility else None,
    )


def _preempts(step: Callable[[Session], AdmissionStep]) -> bool:
    return isinstance(step, type) and issubclass(step, Preempt)


def _changes_running(step: object) -> bool:
    return isinstance(step, type) and issubclass(step, Preempt | ShrinkRunning)


def _finish(session: Session, steps: Iterable[FinishStep]) -> None:
    """Run the steps, and take back each that would delay the promised start."""
    for finish in steps:
        before = session.checkpoint() if session.promise is not None else None
        finish(session)
        if before is not None and not promise_holds(session):
            session.rollback(before)


def _entitlement(entitle: Entitle, situation: Situation, parts_order: Order | None) -> Entitlement:
    """Return what jobs are due. Whole GPUs are divided by it; jobs with parts of GPUs or without any have an order of
    their own, and neither preempt those with whole GPUs nor are preempted by them."""
    due = tuple(job for job in situation.jobs if job.original_request.gpus)
    others = tuple(job for job in situation.jobs if not job.original_request.gpus)
    if not others:
        return entitle(situation)
    of_due = entitle(replace(situation, jobs=due))
    names = frozenset(job.id for job in others)

    def without_others(allocations: Mapping[JobId, Allocation]) -> Mapping[JobId, Allocation]:
        return {job: allocation for job, allocation in allocations.items() if job not in names}

    utility, why_start, why_wait, next_state = of_due.utility, of_due.why_start, of_due.why_wait, of_due.next_state
    return replace(
        of_due,
        order=of_due.order and _OrderOfBoth(of_due.order, due, parts_order, others, of_due.gpu_types.keys()),
        movable_only=of_due.movable_only | names,
        utility=utility and (lambda allocations: utility(without_others(allocations))),
        why_start=why_start and (lambda job: Reason(ReasonCode.FILLS_IN) if job.id in names else why_start(job)),
        why_wait=why_wait and (lambda allocations: why_wait(without_others(allocations))),
        next_state=next_state and (lambda victims, allocations: next_state(victims, without_others(allocations))),
        resources=None,
    )


@dataclass(frozen=True, slots=True)
class _OrderOfBoth:
    """The order of the jobs with whole GPUs, `due`, and that of the `others`, as in `Pipeline.parts_order`: those with
    whole GPUs that get any are in `given`. Of its rule only jobs of one kind are asked together."""

    order: Order
    due: tuple[Job, ...]
    others_order: Order | None
    others: tuple[Job, ...]
    given: Set[JobId]

    @property
    def name(self) -> str:
        return self.order.name

    def rank(self, situation: Situation) -> tuple[RankedJob, ...]:
        of_due = self.order.rank(replace(situation, jobs=self.due))
        if self.others_order is None:
            return (*of_due, *FirstInFirstOut().rank(replace(situation, jobs=self.others)))
        first = [ranked for ranked in of_due if ranked.job in self.given]
        last = [ranked for ranked in of_due if ranked.job not in self.given]
        return (*first, *self.others_order.rank(replace(situation, jobs=self.others)), *last)

    def preemption_rule(self, situation: Situation) -> PreemptionRule:
        rule = self.order.preemption_rule(replace(situation, jobs=self.due))
        others_order = self.others_order or FirstInFirstOut()
        of_others = others_order.preemption_rule(replace(situation, jobs=self.others))

        def preempts(newcomer: Job, running: Job) -> bool:
            if newcomer.original_request.gpus:
                return rule(newcomer, running)
            return not running.original_request.gpus and of_others(newcomer, running)

        return preempts
