"""Which holds and changed requests are ours, the original requests, and the plan that gives all jobs back to Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slurmsched.model import Hold, Job, JobState, Operation, Plan, Reason, ReasonCode, SchedulerState, Snapshot, Verb
from slurmsched.rounds.set_aside import release_by_id
from slurmsched.rounds.specs import equivalent, spec_of


def held_by_us(job: Job, state: SchedulerState) -> bool:
    """Whether a pending job is held by us: by the daemon, or by the submit hook on its behalf."""
    if job.hold is Hold.NONE or held_by_owner(job):
        return False
    return job.held_by_hook or job.id in state.held


def held_by_owner(job: Job) -> bool:
    """Whether the hold is certainly the owner's: the hook removes its mark when an owner holds a job.

    It is not certain without a hint, since an operator may have replaced the comment, nor on a job that has run, since
    Slurm may show what the daemon requeued as held by its owner.
    """
    hints = job.hints
    return job.hold is Hold.USER and job.restarts == 0 and hints.given and not hints.held_by_hook


_RELEASE_REASON = Reason(ReasonCode.GIVE_BACK)


def release_plan(snapshot: Snapshot, state: SchedulerState) -> Plan:
    """Restore original requests and nice and release our holds: for `synsched release`, the watchdog, uninstalling.

    Only pending jobs can be changed. A hold by the owner or an administrator stays. A job whose record cannot be read
    is released by its id alone, whatever its request is: a pinned job is better than a held one.
    """
    waiting = tuple(snapshot.jobs_in_state(JobState.PENDING))
    hooked = (aside.job for aside in snapshot.set_aside if aside.held_by_hook)
    return Plan(
        (
            *(operation for job in waiting for operation in _restore_nice(job, state)),
            *(operation for job in waiting for operation in restore_placement(job, state)),
            *map(release_by_id, dict.fromkeys((*state.held_aside, *hooked))),
        )
    )


def restore_placement(job: Job, state: SchedulerState) -> Iterator[Operation]:
    """Restore a pending job's original request, then release its hold: it must not start with our request."""
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
    """The snapshot with each changed job's `original_request` and each requeued job's first `submit_time`.

    `current_request` stays what Slurm shows.
    """
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
