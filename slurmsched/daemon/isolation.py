"""Isolates failures to single jobs: one that cannot be read, stored or decided is set aside, and the round goes on.

An unexpected error is described by its type and its place in the code, not by its message, which may hold users' text.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.log import NO_LOG, DaemonLog
from slurmsched.model import ClusterOverview, Explanation, Job, JobId, Request, Snapshot, SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.fragmentation import with_fragments
from slurmsched.rounds.partitions import jobs_left_to_slurm
from slurmsched.rounds.round import RoundResult
from slurmsched.rounds.scope import partition_totals, unmanaged_reason
from slurmsched.rounds.set_aside import JobFingerprints, changed_jobs, decide_without_culprits, set_aside_jobs
from slurmsched.settings.definition import Settings
from slurmsched.store.errors import StoreError
from slurmsched.store.jobs import unstorable_jobs
from slurmsched.store.set_aside import JobFingerprint
from slurmsched.store.store import Store

_PACKAGE: Final = "slurmsched"
_FRAMES: Final = 8
"""Most innermost calls in a trace: a recursion has thousands."""


class RoundFailedError(SynschedError):
    """An unexpected error: a round could not be decided or applied."""


def describe_error(error: BaseException) -> str:
    """Its type and the innermost line of this package, e.g. `MemoryError in policies/session.py:43`."""
    ours = [frame for frame in _frames(error) if _PACKAGE in Path(frame.filename).parts]
    where = f" in {_location(ours[-1])}" if ours else ""
    return f"{type(error).__name__}{where}"


def format_trace(error: BaseException) -> str:
    """Its type and the innermost calls, in one line, for the log."""
    calls = (f"{_location(frame)} {frame.name}" for frame in _frames(error)[-_FRAMES:])
    return f"{type(error).__name__}: {' > '.join(calls)}"


def _frames(error: BaseException) -> traceback.StackSummary:
    return traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)


def _location(frame: traceback.FrameSummary) -> str:
    parts = Path(frame.filename).parts
    if _PACKAGE in parts:
        last = len(parts) - 1 - parts[::-1].index(_PACKAGE)
        parts = parts[last + 1 :]
    else:
        parts = parts[-2:]
    return f"{'/'.join(parts)}:{frame.lineno}"


_RETRY_AFTER: Final = 3600.0
"""Seconds after which a job that made deciding fail is tried again although it has not changed."""
_TRIES: Final = 60
_MAX_SECONDS: Final = 30.0
"""Most further decisions of a round that failed, and most seconds for them; then all suspects stay out."""


def still_failing_jobs(snapshot: Snapshot, store: Store, prints: JobFingerprints) -> dict[JobId, str]:
    """Jobs that made deciding fail recently and have not changed, with the reason. Raises StoreError."""
    marks = store.set_aside.fingerprints()
    return {
        job.id: marks[job.id].reason
        for job in snapshot.jobs
        if job.id in marks
        and snapshot.time - marks[job.id].tried < _RETRY_AFTER
        and _fingerprint(job, prints) == marks[job.id].fingerprint
    }


def managed_jobs(snapshot: Snapshot, settings: Settings) -> tuple[frozenset[JobId], dict[JobId, str]]:
    """The managed jobs, and the jobs for which this cannot be determined, with the reason."""
    managed: set[JobId] = set()
    failed: dict[JobId, str] = {}
    totals = partition_totals(snapshot)
    left = jobs_left_to_slurm(snapshot, totals)
    for job in snapshot.jobs:
        try:
            if job.id not in left and unmanaged_reason(job, settings, totals) is None:
                managed.add(job.id)
        except Exception as error:
            failed[job.id] = f"whether it is managed cannot be determined ({describe_error(error)})"
    return frozenset(managed), failed


def with_fragments_if_possible(overview: ClusterOverview, usual: tuple[tuple[Request, int], ...]) -> ClusterOverview:
    """The overview for `synsched status`; without the fragmentation if it cannot be computed."""
    try:
        return with_fragments(overview, usual)
    except Exception:  # it depends on months of requests, none of which may end a round
        return overview


@dataclass(frozen=True, slots=True)
class IsolatedDecision:
    """A round's decision. `marks` are the fingerprints of jobs set aside because they made deciding fail."""

    result: RoundResult
    explanations: Mapping[JobId, Explanation]
    marks: Mapping[JobId, JobFingerprint]

    def explain(self, _result: RoundResult, job: JobId) -> Explanation:
        """Return the explanation computed before."""
        return self.explanations[job]


class DecideRound(Protocol):
    """Decides and plans for a snapshot, without side effects."""

    def __call__(self, snapshot: Snapshot, /) -> RoundResult: ...


def decide_isolated(
    snapshot: Snapshot,
    decide: DecideRound,
    store: Store,
    clock: Clock,
    log: Callable[[str], None],
    *,
    prints: JobFingerprints,
) -> IsolatedDecision:
    """Decide; if that fails, decide again without the jobs that make it fail.

    They are searched among the jobs that are new or changed since the last successful decision, then among all jobs.
    Raises RoundFailedError, StoreError, and a SynschedError that no job causes.
    """
    try:
        result, excluded = decide(snapshot), frozenset[JobId]()
        why = ""
    except Exception as error:  # any error, even a lack of memory, may be caused by one job
        why = _failure_reason(error)
        log(f"deciding failed: {format_trace(error)}")
        result, excluded = _decide_without_failing(snapshot, decide, store, clock, error, prints=prints)
        log(f"decided without {pluralise(len(excluded), 'job')} that made it fail: {', '.join(sorted(excluded)[:10])}")
    reasons = dict.fromkeys(excluded, why)
    explanations, unexplained = _explain_all(result)
    if unexplained:
        reasons |= unexplained
        result = decide(set_aside_jobs(snapshot, reasons))
        explanations, unexplained = _explain_all(result)
        explanations |= {job: Explanation(job, f"job {job}: {reason}") for job, reason in unexplained.items()}
    fingerprints = {job.id: _fingerprint(job, prints) for job in snapshot.jobs}
    prints.keep(fingerprints)
    marks = {job: JobFingerprint(fingerprints.pop(job), snapshot.time, reason) for job, reason in reasons.items()}
    store.set_aside.record_decided(fingerprints, snapshot.time)
    return IsolatedDecision(result, explanations, marks)


def _decide_without_failing(
    snapshot: Snapshot, decide: DecideRound, store: Store, clock: Clock, first: Exception, *, prints: JobFingerprints
) -> tuple[RoundResult, frozenset[JobId]]:
    fingerprints = {job.id: _fingerprint(job, prints) for job in snapshot.jobs}
    suspects = changed_jobs(fingerprints, store.set_aside.last_decided_fingerprints())
    budget, end = iter(range(_TRIES)), clock.monotonic() + _MAX_SECONDS

    def leaving_out(jobs: Collection[JobId]) -> RoundResult:
        return decide(set_aside_jobs(snapshot, dict.fromkeys(jobs, _failure_reason(first))))

    def may_continue() -> bool:
        return next(budget, None) is not None and clock.monotonic() < end

    for suspected in (suspects, tuple(fingerprints)):
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


def _fingerprint(job: Job, prints: JobFingerprints) -> str:
    try:
        return prints.of(job)
    except Exception as error:  # the error stands for the job: the same error counts as unchanged
        return describe_error(error)


def record_poll_isolated(
    store: Store,
    round_id: int | None,
    snapshot: Snapshot,
    managed: Collection[JobId],
    overview: ClusterOverview | None = None,
    *,
    log: DaemonLog = NO_LOG,
) -> dict[JobId, str]:
    """Store a poll of jobs and accounts; return the jobs that cannot be stored, with the reason. Raises StoreError."""
    try:
        log.job_events(store.state.record_poll(round_id, snapshot, managed, overview), snapshot)
    except StoreError:
        raise
    except Exception as error:
        failed = unstorable_jobs(store.database, snapshot, managed, describe_error)
        if not failed:
            raise RoundFailedError(f"the jobs cannot be stored: {describe_error(error)}") from error
        log.job_events(store.state.record_poll(round_id, set_aside_jobs(snapshot, failed), managed, overview), snapshot)
        return failed
    return {}
