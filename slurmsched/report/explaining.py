"""Why a job runs where it does, or waits: what the last round that saw it wrote down."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from slurmsched.model import JobId, JobState, Result, Verb, decode
from slurmsched.report.history import UnknownJobError, history
from slurmsched.rounds.explanation import Explanation
from slurmsched.store.reading import Reading
from slurmsched.store.rows import JobRow, SetAsideRow

__all__ = ["JobExplained", "explained"]


@dataclass(frozen=True, slots=True)
class JobExplained:
    """One job's explanation. `service` in GPU-seconds; `moves` are our restarts of it; `round` is the latest one."""

    job: JobRow
    explanation: Explanation
    round: int | None
    service: float
    moves: int


def explained(reading: Reading, job: JobId) -> JobExplained:
    """What is known of a job. Raises UnknownJobError, EncodingError."""
    aside = next((own for own in reading.set_aside() if own.job in (job, job.partition("_")[0])), None)
    if aside is not None and reading.job(job) is None:
        raise UnknownJobError(aside.sentence)
    past, last = history(reading, job), reading.last_round()
    moves = sum(done.verb is Verb.REQUEUE and done.result is Result.DONE for done in past.operations)
    return JobExplained(past.job, _explanation(past.job, aside), last.id if last else None, past.service, moves)


def _explanation(row: JobRow, aside: SetAsideRow | None) -> Explanation:
    if aside is not None:
        return Explanation(row.id, aside.sentence)
    if row.reason:
        told = decode(Explanation, json.dumps(row.reason))
        if row.state is JobState.RUNNING:
            return told
        # It was written before the round was applied: what the job had then it may have lost by it.
        return replace(told, facts={name: fact for name, fact in told.facts.items() if name != "has"})
    return Explanation(row.id, f"job {row.id} has been seen; no round has decided about it yet")
