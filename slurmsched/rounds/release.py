"""Which holds and requests are ours, what the owners asked for, and the plan that gives everything back to Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slurmsched.model import Hold, Job, JobState, Operation, Plan, Reason, ReasonCode, SchedulerState, Snapshot, Verb
from slurmsched.rounds.set_aside import release_by_id
from slurmsched.rounds.specs import equivalent, spec_of


def held_by_us(job: Job, state: SchedulerState) -> bool:
    """Whether a pending job is held, and by us: by the daemon, or by the hook for it.

    The hook holds at submission only: on a job that has run since, its mark says nothing about today's hold.
    """
    if job.hold is Hold.NONE or held_by_owner(job):
        return False
    set_by_hook = job.hold is Hold.USER and job.hints.held_by_hook and job.restarts == 0
    return set_by_hook or job.id in state.held


def held_by_owner(job: Job) -> bool:
    """Whether the hold is evidently its owner's, whatever was ours before: then the hook takes its mark away.

    Without a hint it is not evident: an operator may have replaced the comment. Nor is it on a job that has run: what
    the daemon requeued may be shown as under its owner's hold.
    """
    hints = job.hints
    return job.hold is Hold.USER and job.restarts == 0 and hints.given and not hints.held_by_hook


_RELEASE_REASON = Reason(ReasonCode.GIVE_BACK)


def release_plan(snapshot: Snapshot, state: SchedulerState) -> Plan:
    """Original requests, original nice, our holds released: for `synsched release`, the watchdog and uninstalling.

    Only pending jobs can be changed. A hold that its owner or an administrator set stays. A job whose record cannot be
    read is let go by its number alone, however it stands: better pinned than held.
    """
    waiting = tuple(snapshot.jobs_in_state(JobState.PENDING))
    return Plan(
        (
            *(operation for job in waiting for operation in _restore_nice(job, state)),
            *(operation for job in waiting for operation in restore_placement(job, state)),
            *map(release_by_id, state.held_aside),
        )
    )


def restore_placement(job: Job, state: SchedulerState) -> Iterator[Operation]:
    """One pending job's shape and hold, in this order: it is not let go before it is itself again."""
    original = state.original_requests.get(job.id)
    if original is not None and not equivalent(spec_of(job.current_request), spec_of(original)):
        yield Operation(Verb.UPDATE, job.id, _RELEASE_REASON, spec_of(job.current_request), spec_of(original))
    if held_by_us(job, state):
        yield Operation(Verb.RELEASE, job.id, _RELEASE_REASON, job.hold.value, Hold.NONE.value)


def _restore_nice(job: Job, state: SchedulerState) -> Iterator[Operation]:
    original = state.nices.get(job.id)
    if original is not None and job.nice != original:
        yield Operation(Verb.PRIORITIZE, job.id, _RELEASE_REASON, job.nice, original)


def with_original_requests(snapshot: Snapshot, state: SchedulerState) -> Snapshot:
    """The snapshot with each reshaped job's original as its `request`, and each requeued one's first submission;
    `standing` stays what Slurm holds."""
    if not state.original_requests and not state.submitted:
        return snapshot
    return replace(snapshot, jobs=tuple(_with_original_request(job, state) for job in snapshot.jobs))


def _with_original_request(job: Job, state: SchedulerState) -> Job:
    original, submitted = state.original_requests.get(job.id), state.submitted.get(job.id)
    if original is None and submitted is None:
        return job
    return replace(
        job,
        original_request=job.original_request if original is None else original,
        submit_time=job.submit_time if submitted is None else submitted,
    )
