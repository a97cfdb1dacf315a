"""One job's trouble kept to that job: whatever fails about it sets it aside, and the round goes on without it.

A poll written down: a job that cannot be costs itself alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.failures import RoundFailedError, describe_error, format_trace
from slurmsched.model import ClusterOverview, JobId, Request, Snapshot, SynschedError, cluster_overview
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.explanation import Explanation
from slurmsched.rounds.fragmentation import survey_with_fragments
from slurmsched.rounds.round import RoundResult
from slurmsched.rounds.scope import unmanaged_reason
from slurmsched.rounds.set_aside import changed_jobs, decide_without_culprits, job_fingerprint, set_aside_jobs
from slurmsched.settings.definition import Settings
from slurmsched.store.errors import StoreError
from slurmsched.store.jobs import unstorable_jobs
from slurmsched.store.set_aside import JobFingerprint
from slurmsched.store.store import Store

_RETRY_AFTER: Final = 3600.0
"""Seconds after which a job about which deciding failed is tried again although nothing about it has changed."""
_TRIES: Final = 60
_MAX_SECONDS: Final = 30.0
"""Most further decisions of a round that failed, and seconds for all of them: then all that changed stay out of it."""


def still_failing_jobs(snapshot: Snapshot, store: Store) -> dict[JobId, str]:
    """The jobs about which deciding failed a while ago and that are as they were; why. Raises StoreError."""
    marks = store.set_aside.fingerprints()
    return {
        job.id: marks[job.id].reason
        for job in snapshot.jobs
        if job.id in marks
        and snapshot.time - marks[job.id].tried < _RETRY_AFTER
        and _fingerprint(snapshot, job.id) == marks[job.id].fingerprint
    }


def managed_jobs(snapshot: Snapshot, settings: Settings) -> tuple[frozenset[JobId], dict[JobId, str]]:
    """The managed jobs; and those of which that cannot be told, with the reason."""
    managed: set[JobId] = set()
    failed: dict[JobId, str] = {}
    for job in snapshot.jobs:
        try:
            if unmanaged_reason(job, settings) is None:
                managed.add(job.id)
        except Exception as error:
            failed[job.id] = f"whether it is managed cannot be told ({describe_error(error)})"
    return frozenset(managed), failed


def overview_or_survey(snapshot: Snapshot, usual: tuple[tuple[Request, int], ...]) -> ClusterOverview:
    """What `status` shows of the nodes; without what is lost to the usual jobs where that cannot be worked out."""
    try:
        return survey_with_fragments(snapshot, usual)
    except Exception:  # requests of months go into it: none of them may end a round
        return cluster_overview(snapshot)


@dataclass(frozen=True, slots=True)
class IsolatedDecision:
    """A round's decision. `marks` are of the jobs set aside because deciding failed over them."""

    result: RoundResult
    explanations: Mapping[JobId, Explanation]
    marks: Mapping[JobId, JobFingerprint]

    def explain(self, _result: RoundResult, job: JobId) -> Explanation:
        """As it was worked out before."""
        return self.explanations[job]


class DecideRound(Protocol):
    """Decides and plans over a snapshot, purely."""

    def __call__(self, snapshot: Snapshot, /) -> RoundResult: ...


def decide_isolated(
    snapshot: Snapshot, decide: DecideRound, store: Store, clock: Clock, log: Callable[[str], None]
) -> IsolatedDecision:
    """Decide; where that fails, again without the jobs that make it fail.

    First without those that are new or changed since the last round that could be decided, then, if nobody among them
    is to blame, among all. Raises RoundFailedError, StoreError, and a SynschedError that no job is to blame for.
    """
    try:
        result, excluded = decide(snapshot), frozenset[JobId]()
        why = ""
    except Exception as error:  # an error of any kind, for want of memory too, may be one job's doing
        why = _failure_reason(error)
        log(f"deciding failed: {format_trace(error)}")
        result, excluded = _decide_without_failing(snapshot, decide, store, clock, error)
        log(f"decided without {len(excluded)} jobs that made it fail: {', '.join(sorted(excluded)[:10])}")
    reasons = dict.fromkeys(excluded, why)
    explanations, unexplained = _explain_all(result)
    if unexplained:
        reasons |= unexplained
        result = decide(set_aside_jobs(snapshot, reasons))
        explanations, unexplained = _explain_all(result)
        explanations |= {job: Explanation(job, f"job {job}: {said}") for job, said in unexplained.items()}
    marks = {job: JobFingerprint(_fingerprint(snapshot, job), snapshot.time, reason) for job, reason in reasons.items()}
    fingerprints = {job.id: _fingerprint(snapshot, job.id) for job in snapshot.jobs if job.id not in marks}
    store.set_aside.record_decided(fingerprints, snapshot.time)
    return IsolatedDecision(result, explanations, marks)


def _decide_without_failing(
    snapshot: Snapshot, decide: DecideRound, store: Store, clock: Clock, first: Exception
) -> tuple[RoundResult, frozenset[JobId]]:
    marks = {job.id: _fingerprint(snapshot, job.id) for job in snapshot.jobs}
    suspects = changed_jobs(marks, store.set_aside.last_decided_fingerprints())
    budget, end = iter(range(_TRIES)), clock.monotonic() + _MAX_SECONDS

    def leaving_out(jobs: Collection[JobId]) -> RoundResult:
        return decide(set_aside_jobs(snapshot, dict.fromkeys(jobs, _failure_reason(first))))

    def may_continue() -> bool:
        return next(budget, None) is not None and clock.monotonic() < end

    for suspected in (suspects, tuple(marks)):
        try:
            return decide_without_culprits(leaving_out, suspected, may_continue)
        except Exception as error:
            last = error
    if isinstance(first, SynschedError):
        raise first
    raise RoundFailedError(f"the round could not be decided: {describe_error(last)}") from last


def _failure_reason(error: Exception) -> str:
    return f"deciding about it fails ({describe_error(error)})"


def _explain_all(result: RoundResult) -> tuple[dict[JobId, Explanation], dict[JobId, str]]:
    explanations: dict[JobId, Explanation] = {}
    failed: dict[JobId, str] = {}
    for job in result.snapshot.jobs:
        if job.id in result.unmanaged:
            continue
        try:
            explanations[job.id] = explain(result, job.id)
        except Exception as error:
            failed[job.id] = f"it cannot be explained ({describe_error(error)})"
    return explanations, failed


def _fingerprint(snapshot: Snapshot, job: JobId) -> str:
    try:
        return job_fingerprint(snapshot.jobs_by_id[job])
    except Exception as error:  # what cannot be told apart counts as unchanged
        return describe_error(error)


def record_poll_isolated(
    store: Store,
    round_id: int | None,
    snapshot: Snapshot,
    managed: Collection[JobId],
    overview: ClusterOverview | None = None,
) -> dict[JobId, str]:
    """Bring jobs and accounts up to a poll; the jobs that could not be, with the reason. Raises StoreError."""
    try:
        store.state.record_poll(round_id, snapshot, managed, overview)
    except StoreError:
        raise
    except Exception as error:
        failed = unstorable_jobs(store.database, snapshot, managed, describe_error)
        if not failed:
            raise RoundFailedError(f"the jobs cannot be written down: {describe_error(error)}") from error
        store.state.record_poll(round_id, set_aside_jobs(snapshot, failed), managed, overview)
        return failed
    return {}
