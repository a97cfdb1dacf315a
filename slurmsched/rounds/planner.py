"""Turns a decision into a plan: only the operations that are needed, the least disruptive first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from slurmsched.model import (
    CheckpointSignal,
    Decision,
    Hold,
    Job,
    JobId,
    JobState,
    Operation,
    Plan,
    Reason,
    ReasonCode,
    SchedulerState,
    Snapshot,
    Verb,
)
from slurmsched.model.reasons import format_duration
from slurmsched.policies.policies import order_read
from slurmsched.policies.stages import Situation
from slurmsched.rounds.checkpoints import NEWCOMERS, AwaitedCheckpoint, has_checkpointed
from slurmsched.rounds.feasibility import FeasibilityCheck, PlannedStart, check_feasible
from slurmsched.rounds.guards import checkpoint_lead
from slurmsched.rounds.priorities import nice_operations, weight_operations
from slurmsched.rounds.set_aside import set_aside_operations
from slurmsched.rounds.specs import equivalent, restore_placement, running_spec, spec_of
from slurmsched.settings.definition import Mode, Settings

NOTE_PREFIX: Final = "synsched: "
"""Prefix of our notes. An AdminComment without it was written by others and is left alone."""

_MAX_NOTE_LENGTH: Final = 240
"""Characters."""


def note_operations(jobs: Iterable[Job], decision: Decision, waiting: Mapping[JobId, Reason]) -> Iterator[Operation]:
    """Yield a NOTE for each job whose reason has changed; reasons in `waiting` override those of the decision."""
    for job in jobs:
        reason = waiting.get(job.id) or _note_reason(job.id, decision)
        if reason is None or (job.admin_comment and not job.admin_comment.startswith(NOTE_PREFIX)):
            continue
        text = (NOTE_PREFIX + reason.sentence)[:_MAX_NOTE_LENGTH]
        if text != job.admin_comment:
            yield Operation(Verb.NOTE, job.id, reason, job.admin_comment, text)


def _note_reason(job: JobId, decision: Decision) -> Reason | None:
    target = decision.targets.get(job)
    if target is not None:
        return target.reasons[0] if target.reasons else None
    return decision.waiting.get(job)


@dataclass(frozen=True, slots=True)
class CheckpointLeads:
    """Checkpoint leads in one round. A job that was notified earlier and has had its lead is not notified again."""

    snapshot: Snapshot
    state: SchedulerState
    settings: Settings

    def signal(self, job: Job) -> CheckpointSignal | None:
        """The signal to send before the job is requeued; None if the job has none or has already had its lead."""
        return None if has_checkpointed(job, self.snapshot, self.state, self.settings) else job.hints.checkpoint_signal

    def seconds(self, job: Job) -> int:
        """Seconds between that signal and the requeue; 0 if no signal is sent."""
        return 0 if self.signal(job) is None else checkpoint_lead(job, self.settings.checkpoint)

    def outlasts_round(self, job: Job) -> bool:
        """Whether the lead is longer than a round waits (`rounds.settle_timeout`)."""
        return self.seconds(job) > self.settings.rounds.settle_timeout


def defer_long_leads(check: FeasibilityCheck, leads: CheckpointLeads) -> FeasibilityCheck:
    """Take out the starts that wait for a long checkpoint lead: this round only notifies the jobs in their way.

    No other job is preempted for such a start yet.
    """
    with_long_lead = {job for job in check.requeued if leads.outlasts_round(leads.snapshot.jobs_by_id[job])}
    if not with_long_lead:
        return check
    later = [start for start in check.starts if with_long_lead.intersection(start.gone)]
    starts = tuple(start for start in check.starts if not with_long_lead.intersection(start.gone))
    awaited = {job: _awaited_checkpoint(leads, job, later) for job in check.requeued if job in with_long_lead}
    needed = {job for start in starts for job in start.gone}
    return replace(
        check,
        starts=starts,
        requeued=tuple(job for job in check.requeued if job in needed),
        deferred={
            **check.deferred,
            **{start.job.id: _deferral_reason(start, awaited, leads.snapshot.time) for start in later},
        },
        notified={job: checkpoint.newcomers for job, checkpoint in awaited.items()},
    )


def _awaited_checkpoint(leads: CheckpointLeads, job_id: JobId, later: list[PlannedStart]) -> AwaitedCheckpoint:
    newcomers = tuple(start.job.id for start in later if job_id in start.gone)
    return AwaitedCheckpoint(job_id, newcomers, leads.snapshot.time + leads.seconds(leads.snapshot.jobs_by_id[job_id]))


def _deferral_reason(start: PlannedStart, awaited: dict[JobId, AwaitedCheckpoint], now: float) -> Reason:
    """Why a job starts, or moves, in a later round."""
    if start.job.state is JobState.RUNNING and start.job.id in awaited:
        return awaited[start.job.id].keep_reason(now)
    return max(
        (awaited[job] for job in start.gone if job in awaited), key=lambda checkpoint: checkpoint.due
    ).wait_reason(now)


_NOT_HELD: Final = (
    ReasonCode.LIMITS,
    ReasonCode.STALLED,
    ReasonCode.REFUSED,
    ReasonCode.STARTING,
    ReasonCode.DEPENDENCY_FAILED,
)
"""Reasons for which a job that cannot start now is not taken over."""


def enforcement_operations(
    situation: Situation,
    decision: Decision,
    check: FeasibilityCheck,
    ineligible: Mapping[JobId, Reason],
    leads: CheckpointLeads,
) -> tuple[Operation, ...]:
    """The operations in order: holds, starts on free resources, notifications, requeues, starts that need those.

    Among the last, jobs that are restarted come before newcomers, and a newcomer starts only once those of its victims
    that are restarted run again: if Slurm refuses a restart, the job that ran returns to its place.
    A job for which the whole cluster would not suffice, that only Slurm can place, or whose dependency failed is given
    back to Slurm, which tells its owner or removes it. So is one that jobs of Slurm's own overtook.
    """
    starting_now = {start.job.id for start in check.starts if not start.gone}
    jobs = {job.id: situation.snapshot.jobs_by_id.get(job.id, job) for job in situation.jobs}
    not_ours = (ReasonCode.NEVER_FITS, ReasonCode.UNMANAGED, ReasonCode.OVERTAKEN)
    given_back = {job for job, why in decision.waiting.items() if why.code in not_ours and job in jobs}
    leaving = starting_now | given_back
    stay = [job for job in jobs.values() if job.id not in leaving]
    stay += [situation.snapshot.jobs_by_id[job] for job, why in ineligible.items() if why.code not in _NOT_HELD]
    never = [job for job, why in ineligible.items() if why.code is ReasonCode.DEPENDENCY_FAILED]
    at_once = [start for start in check.starts if not start.gone]
    later = sorted((start for start in check.starts if start.gone), key=lambda start: start.job.id not in start.gone)
    moved = {start.job.id: start for start in later if start.job.id in start.gone}
    first = {job for job, start in moved.items() if not (start.target.after or start.target.once_left)}
    newcomers = {job: start for start in reversed(later) for job in start.gone}
    keys = {ranked.job: ranked.key for ranked in decision.order}
    ended = {job: why for job, why in decision.waiting.items() if why.code in _ENDS}
    return (
        *_hold_operations(stay),
        *_restore_placements((jobs[job] for job in sorted(given_back)), leads.state),
        *_restore_placements((situation.snapshot.jobs_by_id[job] for job in sorted(never)), leads.state),
        *(operation for start in at_once for operation in start_operations(start)),
        *(
            operation
            for job, others in check.notified.items()
            for operation in _notify_operations(jobs[job], leads, {NEWCOMERS: ",".join(others)})
        ),
        *(
            operation
            for job in check.requeued
            for operation in _requeue_operations(
                situation, jobs[job], ended.get(job) or _requeue_reason(job, moved, newcomers, keys), leads
            )
        ),
        *(operation for start in later for operation in start_operations(start, first)),
    )


def hold_operation(job: Job) -> Operation:
    """Hold a pending job, so that Slurm does not start it by itself."""
    return Operation(Verb.HOLD, job.id, Reason(ReasonCode.TAKE_OVER), Hold.NONE.value, Hold.ADMIN.value)


def start_operations(start: PlannedStart, moved: Collection[JobId] = ()) -> Iterator[Operation]:
    """Yield the UPDATE to the planned spec, if the current one differs, and the RELEASE; `moved` are the jobs that the
    plan restarts before newcomers.

    A job that is not held is released too: this clears a begin time, and the start is then waited for.
    """
    job, target = start.job, start.target
    reason = Reason(
        ReasonCode.START,
        {"nodes": ",".join(start.spec.nodes), "gpus": start.spec.gpus, "cpus": target.resources.cpus},
    )
    moves = job.id in start.gone
    current = spec_of(job.current_request)
    if not equivalent(current, start.spec):
        why = target.reasons[0] if target.reasons else reason
        yield Operation(Verb.UPDATE, job.id, why, current, start.spec, gone=(job.id,) if moves else ())
    hold = Hold.REQUEUED if moves else Hold.ADMIN if start.gone and job.hold is Hold.NONE else job.hold
    restarted = () if moves else (other for other in start.gone if other in moved)
    standing = (*restarted, *start.target.after)
    yield Operation(Verb.RELEASE, job.id, reason, hold.value, Hold.NONE.value, gone=start.gone, standing=standing)


def _hold_operations(waiting: Iterable[Job]) -> Iterator[Operation]:
    """Jobs stopped by a Slurm limit must not be passed: a hold would hide Slurm's reason."""
    return (hold_operation(job) for job in waiting if job.state is JobState.PENDING and job.hold is Hold.NONE)


def _requeue_operations(situation: Situation, job: Job, why: Reason, leads: CheckpointLeads) -> Iterator[Operation]:
    """Yield the checkpoint signal, if any, and the REQUEUE; its `before` is the spec that the job ran with."""
    yield from _notify_operations(job, leads, {})
    spec = running_spec(job, situation.snapshot.nodes_by_name)
    yield Operation(Verb.REQUEUE, job.id, why, spec, Hold.REQUEUED.value, lead=leads.seconds(job))


def _notify_operations(job: Job, leads: CheckpointLeads, details: Mapping[str, str]) -> Iterator[Operation]:
    """Yield the checkpoint signal, if one is to be sent."""
    signal = leads.signal(job)
    if signal is not None:
        why = Reason(ReasonCode.PREPARE, {"lead": format_duration(leads.seconds(job)), **details})
        yield Operation(Verb.NOTIFY, job.id, why, after=signal.value)


_ENDS: Final = frozenset({ReasonCode.SLICE_ENDED, ReasonCode.IDLE_GPUS})
"""They say why a job waits that ran, and not only who comes first."""


def _requeue_reason(
    job: JobId, moved: Mapping[JobId, PlannedStart], newcomers: Mapping[JobId, PlannedStart], keys: Mapping[JobId, str]
) -> Reason:
    if job in moved:
        reasons = moved[job].target.reasons
        return reasons[0] if reasons else Reason(ReasonCode.START, {"nodes": ",".join(moved[job].spec.nodes)})
    newcomer = newcomers[job].job.id
    keys_compared = [keys[other] for other in (newcomer, job) if keys.get(other)]
    return Reason(
        ReasonCode.NEWCOMER_FIRST,
        {"newcomer": f"job {newcomer}", "why": " against ".join(keys_compared) or "it is first"},
    )


class Permissions(Protocol):
    """What the user we act as may do in Slurm; `backends.protocol.Identity` implements it."""

    def may(self, verb: Verb) -> bool: ...


@dataclass(frozen=True, slots=True)
class ConfigFragment:
    """A configuration file: its current text (None if it does not exist) and the text that the settings ask for."""

    path: str
    current: str | None
    rendered: str


def make_plan(
    situation: Situation,
    decision: Decision,
    state: SchedulerState,
    settings: Settings,
    identity: Permissions,
    *,
    mode: Mode,
    ineligible: Mapping[JobId, Reason] | None = None,
    config_fragments: Sequence[ConfigFragment] = (),
) -> Plan:
    """Return what this mode does to follow the decision; empty if nothing has to change.

    `ineligible` are the managed jobs that are not in the situation because they could not start now. In OBSERVE the
    plan is that of ENFORCE, to be shown and not applied. Operations that `identity` may not do have `permitted=False`.
    """
    ineligible = ineligible or {}
    managed = [situation.snapshot.jobs_by_id[job] for job in (*(job.id for job in situation.jobs), *ineligible)]
    operations: list[Operation] = []
    deferred: Mapping[JobId, Reason] = {}
    if mode in (Mode.OBSERVE, Mode.ENFORCE):
        leads = CheckpointLeads(situation.snapshot, state, settings)
        check = defer_long_leads(check_feasible(situation, decision), leads)
        deferred = check.deferred
        operations += enforcement_operations(situation, decision, check, ineligible, leads)
        waits = any(job.state is JobState.PENDING for job in situation.jobs)
        waits = waits or any(why.code is ReasonCode.AWAITS_CHECKPOINT for why in ineligible.values())
        operations += set_aside_operations(situation.snapshot, state, settings.manage, managed_jobs_wait=waits)
    if mode is Mode.PRIORITIZE:
        operations += _restore_placements(managed, state)
        policy = settings.policy
        order = order_read(policy.system, policy.order) or policy.system
        operations += nice_operations(situation.snapshot, decision, state, order)
    if settings.nodes.admin_comment:
        operations += note_operations(managed, decision, {**ineligible, **deferred})
    if mode is not Mode.ADVISE:
        operations += weight_operations(situation.snapshot) if settings.nodes.weights else ()
        operations += _configure_operations(config_fragments)
    return Plan(tuple(replace(op, permitted=identity.may(op.verb)) for op in operations), deferred)


def _restore_placements(managed: Iterable[Job], state: SchedulerState) -> Iterable[Operation]:
    """Undo our holds and pins, so that Slurm places the jobs."""
    return (op for job in managed if job.state is JobState.PENDING for op in restore_placement(job, state))


def _configure_operations(fragments: Iterable[ConfigFragment]) -> Iterable[Operation]:
    return (
        Operation(Verb.CONFIGURE, fragment.path, Reason(ReasonCode.RENDER), fragment.current, fragment.rendered)
        for fragment in fragments
        if fragment.current != fragment.rendered
    )
