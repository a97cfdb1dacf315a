"""Jobs that are set aside because they cannot be read or make deciding fail, so that all other jobs are scheduled.

A job that is set aside is no victim and has no advantage: Slurm would start it ahead of the held jobs, so it is held
too, by its id alone, until no managed job waits for resources, and for at most a day. So is a hold of the submit hook.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final, TypeVar

from slurmsched.model import (
    Hold,
    Job,
    JobId,
    JobState,
    Operation,
    Reason,
    ReasonCode,
    Request,
    SchedulerState,
    SetAsideJob,
    Snapshot,
    Verb,
)
from slurmsched.settings.definition import ManageSettings

MAX_HOLD: Final = 86400.0
"""Seconds for which a job that is set aside is held at most."""


def set_aside_jobs(snapshot: Snapshot, reasons: Mapping[JobId, str]) -> Snapshot:
    """The snapshot with these jobs set aside, each with its reason. Their resources stay allocated on their nodes."""
    if not reasons:
        return snapshot
    aside = tuple(
        SetAsideJob(
            job.id,
            reasons[job.id],
            job.user,
            ",".join(job.partitions),
            pending=job.state is JobState.PENDING and job.hold is Hold.NONE,
            held_by_hook=job.held_by_hook,
        )
        for job in snapshot.jobs
        if job.id in reasons
    )
    remaining = tuple(job for job in snapshot.jobs if job.id not in reasons)
    return replace(snapshot, jobs=remaining, set_aside=(*snapshot.set_aside, *aside))


def set_aside_operations(
    snapshot: Snapshot, state: SchedulerState, manage: ManageSettings, *, managed_jobs_wait: bool
) -> Iterator[Operation]:
    """Yield holds of set-aside jobs in managed partitions and releases of those that were held long enough.

    `managed_jobs_wait` is whether a managed job waits for resources; if none does, all are released.
    """
    now = snapshot.time
    overdue = frozenset(job for job, since in state.set_aside.items() if now - since >= MAX_HOLD)
    held = [aside.job for aside in snapshot.set_aside if aside.held_by_hook and aside.job not in state.held_aside]
    yield from (release_by_id(job) for job in held if job in overdue or not managed_jobs_wait)
    if managed_jobs_wait:
        for aside in snapshot.set_aside:
            if aside.pending and aside.job not in overdue and _in_scope(aside, manage):
                reason = Reason(ReasonCode.SET_ASIDE, {"why": aside.reason})
                yield Operation(Verb.HOLD, aside.job, reason, Hold.NONE.value, Hold.ADMIN.value)
        yield from (release_by_id(job) for job, since in state.held_aside.items() if now - since >= MAX_HOLD)
    else:
        yield from map(release_by_id, state.held_aside)


def release_by_id(job: JobId) -> Operation:
    """Release our hold by the job's id alone, since the rest of its record cannot be read."""
    return Operation(Verb.RELEASE, job, Reason(ReasonCode.GIVE_BACK), Hold.ADMIN.value, Hold.NONE.value)


def _in_scope(aside: SetAsideJob, manage: ManageSettings) -> bool:
    partitions = set(aside.partition.split(","))
    return bool(partitions & set(manage.partitions)) and not partitions <= set(manage.never_partitions)


T = TypeVar("T")


def job_fingerprint(job: Job) -> str:
    """A hash of everything about the job that a decision looks at, except time."""
    key = (
        job.user,
        job.account,
        job.partitions,
        job.qos,
        job.state.value,
        job.hold.value,
        _request_key(job.current_request),
        [
            (a.node, a.resources.gpus, a.resources.cpus, a.resources.memory, a.indices, a.shards)
            for a in job.allocations
        ],
        job.comment,
        job.time_limit,
        job.nice,
        job.restarts,
        job.dependency,
        job.reservation,
        job.throttle,
        job.unmanageable,
    )
    return blake2b(repr(key).encode(errors="surrogatepass"), digest_size=8).hexdigest()


class JobFingerprints:
    """Fingerprints of jobs, kept from round to round: of a job of which nothing but the run time has changed it is the
    same."""

    def __init__(self) -> None:
        self._known: dict[JobId, tuple[Job, str]] = {}

    def of(self, job: Job) -> str:
        """Return its fingerprint."""
        known = self._known.get(job.id)
        if known is None or known[0].differs_but_in_run_time(job):
            known = self._known[job.id] = job, job_fingerprint(job)
        return known[1]

    def keep(self, jobs: Collection[JobId]) -> None:
        """Forget all jobs but these."""
        if len(jobs) < len(self._known):
            self._known = {job: known for job, known in self._known.items() if job in jobs}


def changed_jobs(fingerprints: Mapping[JobId, str], before: Mapping[JobId, str]) -> tuple[JobId, ...]:
    """The jobs that are new or changed, the new ones last."""
    changed = (job for job, fingerprint in fingerprints.items() if before.get(job) != fingerprint)
    return tuple(sorted(changed, key=lambda job: job not in before))


def decide_without_culprits(
    decide: Callable[[Collection[JobId]], T], suspects: Sequence[JobId], may_continue: Callable[[], bool]
) -> tuple[T, frozenset[JobId]]:
    """Decide without as few of the suspects as possible; returns the decision and the jobs that were left out.

    `decide` is called with the jobs to leave out. First it leaves out all suspects; an exception is then passed on. A
    binary search lets suspects in again, so that one culprit among n costs log n decisions. Once `may_continue`
    returns False, all suspects that are not known to be harmless stay out.
    """
    remaining, culprits, harmless = list(suspects), set[JobId](), 0
    best = decide(frozenset(remaining))
    while harmless < len(remaining):
        first_failing = len(remaining)  # deciding fails with all before this index let in
        while first_failing - harmless > 1 and may_continue():
            middle = (harmless + first_failing) // 2
            try:
                best, harmless = decide(culprits.union(remaining[middle:])), middle
            except Exception:  # of any kind: a job before `middle` causes it
                first_failing = middle
        if first_failing - harmless > 1:
            break
        culprits.add(remaining.pop(harmless))
        if not may_continue():
            break
        try:
            return decide(frozenset(culprits)), frozenset(culprits)
        except Exception:  # noqa: S112 there is another culprit among the remaining
            continue
    return best, frozenset(culprits.union(remaining[harmless:]))


def _request_key(request: Request) -> tuple[object, ...]:
    return (
        request.gpus,
        request.gpu_type,
        request.gpus_per_node,
        request.nodes,
        request.max_nodes,
        request.tasks,
        request.cpus,
        request.memory,
        request.shards,
        request.features,
        sorted(request.pinned),
        sorted(request.excluded),
        request.exclusive,
    )
