"""The operations that make the cluster follow a decision: hold, start, preempt, in that order of disruption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from slurmsched.model import Code, Decision, Hold, Job, JobId, JobState, Operation, Reason, Verb
from slurmsched.model.wording import span
from slurmsched.policies.protocol import Situation
from slurmsched.rounds.leads import Leads
from slurmsched.rounds.notified import NEWCOMERS
from slurmsched.rounds.seating import Seating, Start
from slurmsched.rounds.shapes import leased, same, shape_of

__all__ = ["enforcing", "let_go", "taken_over"]


def enforcing(
    situation: Situation,
    decision: Decision,
    seating: Seating,
    stopped: Mapping[JobId, Reason],
    leads: Leads,
) -> tuple[Operation, ...]:
    """Least disruptive first: holds, starts that need nobody gone, preemptions, the starts they are for."""
    soon = {start.job.id for start in seating.starts if not start.gone}
    jobs = {job.id: situation.snapshot.job.get(job.id, job) for job in situation.jobs}
    stay = [job for job in jobs.values() if job.id not in soon]
    stay += [situation.snapshot.job[job] for job, why in stopped.items() if why.code not in (Code.LIMITS, Code.STALLED)]
    at_once = [start for start in seating.starts if not start.gone]
    later = [start for start in seating.starts if start.gone]
    moved = {start.job.id: start for start in later if start.job.id in start.gone}
    newcomers = {job: start for start in reversed(later) for job in start.gone}
    keys = {ranked.job: ranked.key for ranked in decision.order}
    ended = {job: why for job, why in decision.waiting.items() if why.code is Code.SLICE_ENDED}
    return (
        *_held(stay),
        *(operation for start in at_once for operation in let_go(start)),
        *(
            operation
            for job, others in seating.notified.items()
            for operation in _told(jobs[job], leads, {NEWCOMERS: ",".join(others)})
        ),
        *(
            operation
            for job in seating.leaving
            for operation in _sent_away(
                situation, jobs[job], ended.get(job) or _why(job, moved, newcomers, keys), leads
            )
        ),
        *(operation for start in later for operation in let_go(start)),
    )


def taken_over(job: Job) -> Operation:
    """Hold a waiting job, so that Slurm starts it only when it is told to."""
    return Operation(Verb.HOLD, job.id, Reason(Code.TAKE_OVER), Hold.NONE.value, Hold.ADMIN.value)


def let_go(start: Start) -> Iterator[Operation]:
    """Give the job its shape, where another stands, and release it.

    It is released even if nothing holds it: that clears a begin time, and the start is then watched until it happens.
    """
    job, target = start.job, start.target
    begins = Reason(
        Code.START,
        {"nodes": ",".join(start.shape.nodes), "gpus": start.shape.gpus, "cpus": target.resources.cpus},
    )
    moves = job.id in start.gone
    stands = shape_of(job.standing)
    if not same(stands, start.shape):
        why = target.reasons[0] if target.reasons else begins
        yield Operation(Verb.RESHAPE, job.id, why, stands, start.shape, gone=(job.id,) if moves else ())
    hold = Hold.REQUEUED if moves else Hold.ADMIN if start.gone and job.hold is Hold.NONE else job.hold
    yield Operation(Verb.RELEASE, job.id, begins, hold.value, Hold.NONE.value, gone=start.gone)


def _held(waiting: Iterable[Job]) -> Iterator[Operation]:
    """Jobs that Slurm stops by a limit are left out: held, they would no longer show that it does."""
    return (taken_over(job) for job in waiting if job.state is JobState.PENDING and job.hold is Hold.NONE)


def _sent_away(situation: Situation, job: Job, why: Reason, leads: Leads) -> Iterator[Operation]:
    """The checkpoint signal, where the job has one, and the requeue; its `before` is what it ran on."""
    yield from _told(job, leads, {})
    lease = leased(job, situation.snapshot.node)
    yield Operation(Verb.REQUEUE, job.id, why, lease, Hold.REQUEUED.value, lead=leads.seconds(job))


def _told(job: Job, leads: Leads, details: Mapping[str, str]) -> Iterator[Operation]:
    """The checkpoint signal; none for a job that named none, or that was told in an earlier round."""
    signal = leads.signal(job)
    if signal is not None:
        why = Reason(Code.PREPARE, {"lead": span(leads.seconds(job)), **details})
        yield Operation(Verb.NOTIFY, job.id, why, after=signal.value)


def _why(
    job: JobId, moved: Mapping[JobId, Start], newcomers: Mapping[JobId, Start], keys: Mapping[JobId, str]
) -> Reason:
    if job in moved:
        reasons = moved[job].target.reasons
        return reasons[0] if reasons else Reason(Code.START, {"nodes": ",".join(moved[job].shape.nodes)})
    newcomer = newcomers[job].job.id
    said = [keys[other] for other in (newcomer, job) if keys.get(other)]
    return Reason(Code.NEWCOMER_FIRST, {"newcomer": f"job {newcomer}", "why": " against ".join(said) or "it is first"})
