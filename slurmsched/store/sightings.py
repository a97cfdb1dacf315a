"""What each poll shows of the jobs we know: first sight, their own request, their state, and that they are gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from slurmsched.model import Hold, Job, JobId, JobState, Memory, Request, Snapshot, decode, encode
from slurmsched.rounds.holds import held_by_owner, held_by_us
from slurmsched.rounds.shapes import same, shape_of
from slurmsched.store.database import Database
from slurmsched.store.history import Event, Kind
from slurmsched.store.mending import mended

__all__ = ["failing", "sight"]

_NOTHING: Final = Memory()
_ENDED: Final = JobState.FINISHED.value
_ACTIVE: Final = frozenset({JobState.RUNNING, JobState.SUSPENDED})

_INSERT: Final = (
    "INSERT INTO jobs"
    " (id, owner, name, first_seen, last_seen, state, original, original_nice, held_by_us, summary, submitted)"
    " VALUES (:id, :owner, :name, :at, :at, :state, :original, :nice, :held, :summary, :submitted)"
)
_UPDATE: Final = (
    "UPDATE jobs SET owner = :owner, last_seen = :at, state = :state, name = :name, summary = :summary,"
    " submitted = MIN(COALESCE(submitted, :submitted), :submitted),"
    " held_by_us = CASE WHEN :unheld THEN 0 ELSE MAX(held_by_us, :held) END,"
    " reshaped = reshaped AND NOT :as_submitted,"
    " original = CASE WHEN reshaped OR NOT :waits THEN original ELSE :original END,"
    " boosted = boosted AND original_nice != :nice,"
    " original_nice = CASE WHEN boosted THEN original_nice ELSE :nice END"
    " WHERE id = :id"
)
_NOTHING_OURS: Final = "UPDATE jobs SET held_by_us = 0, reshaped = 0, boosted = 0 WHERE id = ?"
_DAY: Final = 86400.0
_LIMIT: Final = 1 << 63
_FORGET: Final = (
    "DELETE FROM jobs WHERE id = ?",
    "DELETE FROM service WHERE job = ?",
    "DELETE FROM reported WHERE job = ?",
    "DELETE FROM rates WHERE job = ?",
)


def sight(database: Database, snapshot: Snapshot, managed: Collection[JobId]) -> tuple[Event, ...]:
    """Bring the `jobs` table up to the snapshot; what changed for whom.

    A managed job that is new gets its row with what it asks for now. While it waits and we have not reshaped it, its
    own request follows what its owner makes of it; from then on the stored one stands. A job that is set aside stays as
    it was. One that Slurm knows no more has ended; what is ours of it ends a day later: one wrong look loses no hold.
    """
    with database.transaction():
        known = _known(database, snapshot, managed)
        arrays = frozenset(job for job, row in known.items() if row["held_by_us"] and row["state"] != _ENDED)
        again = [job for job in snapshot.jobs if job.id in known]
        new = [job for job in snapshot.jobs if job.id not in known and (job.id in managed or _is_ours(job, arrays))]
        gone = [job for job, row in known.items() if snapshot.is_gone(job) and row["state"] != _ENDED]
        unread = [job for job in known if job not in snapshot.job and not snapshot.is_gone(job)]
        over = [job for job, row in known.items() if snapshot.is_gone(job) and row["last_seen"] < snapshot.time - _DAY]
        lifted = [job.id for job in again if _is_lifted(database, known[job.id], job)]
        database.write_many(_INSERT, [_seen(job, snapshot.time, arrays) for job in new])
        database.write_many(_UPDATE, [_seen(job, snapshot.time, arrays, known[job.id]) for job in again])
        database.write_many("UPDATE jobs SET state = ?, target = NULL WHERE id = ?", [(_ENDED, job) for job in gone])
        database.write_many("UPDATE jobs SET last_seen = ? WHERE id = ?", [(snapshot.time, job) for job in unread])
        database.write_many(_NOTHING_OURS, [(job,) for job in over])
    return (
        *(Event(snapshot.time, job, Kind.OVERRULED, "somebody else lifted our hold") for job in lifted),
        *(event for job in again for event in _changes(known[job.id], job, snapshot.time)),
        *(event for job in new for event in _first_sight(job, snapshot.time)),
        *(Event(snapshot.time, job, Kind.ENDED, "left the queue") for job in gone),
    )


def failing(
    database: Database, snapshot: Snapshot, managed: Collection[JobId], say: Callable[[Exception], str]
) -> dict[JobId, str]:
    """The jobs that cannot be written down, or whose row cannot be read, with the reason; `say` puts an error in words.

    Asked only once `sight` has failed. Raises StoreError.
    """
    with database.transaction():
        known = _known(database, snapshot, managed)
    failed: dict[JobId, str] = {}
    for job in snapshot.jobs:
        row = known.get(job.id)
        try:
            _check_storable(_seen(job, snapshot.time, (), row))
            if row is not None:
                list(_changes(row, job, snapshot.time))
        except Exception as error:  # whatever it is, it is this job's alone
            failed[job.id] = f"what is known of it cannot be read or written ({say(error)})"
    return failed


def _check_storable(row: Mapping[str, Any]) -> None:
    """Raises UnicodeEncodeError, OverflowError for what SQLite cannot hold."""
    for value in row.values():
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, int) and not -_LIMIT <= value < _LIMIT:
            raise OverflowError("a number beyond 64 bits")


def _known(database: Database, snapshot: Snapshot, managed: Collection[JobId]) -> dict[JobId, dict[str, Any]]:
    """The rows of all jobs that live, of ended ones of which something is still ours, and of managed ones that had
    ended and are here all the same. Those whose number belongs to another job now are forgotten.
    """
    rows = mended(database, "state != 'finished' OR held_by_us OR reshaped OR boosted", (), snapshot.time)
    known = {row["id"]: row for row in rows}
    for number in managed:
        if number not in known and number in snapshot.job:
            known.update((number, row) for row in mended(database, "id = ?", (number,), snapshot.time))
    others = [job for job, row in known.items() if job in snapshot.job and _is_another(row, snapshot.job[job])]
    for job in others:
        _forget(database, job)
        del known[job]
    return known


def _is_another(row: Mapping[str, Any], job: Job) -> bool:
    """Whether the row is of an older job with the same number.

    Only one that had ended can be, and of the same owner only one that never ran before: a requeue renews the time of
    submission too.
    """
    later = job.submit_time > row["last_seen"] and job.restarts == 0
    return row["state"] == _ENDED and bool(row["owner"] != job.user or later)


def _forget(database: Database, job: JobId) -> None:
    for statement in _FORGET:
        database.write(statement, (job,))


def _stands_as_submitted(job: Job, row: Mapping[str, Any]) -> bool:
    return bool(row["reshaped"]) and same(shape_of(decode(Request, row["original"])), shape_of(job.standing))


def _is_lifted(database: Database, row: Mapping[str, Any], job: Job) -> bool:
    """Whether a job that waited under our hold has none any more, or has run, though we did nothing to it since."""
    ran = job.state in _ACTIVE or job.state is JobState.COMPLETING
    lifted = ran or (job.state is JobState.PENDING and job.hold is Hold.NONE)
    if not (row["held_by_us"] and row["state"] == JobState.PENDING.value and lifted):
        return False
    query = "SELECT 1 FROM operations WHERE subject = ? AND intended >= ? LIMIT 1"
    return not database.rows(query, (job.id, row["last_seen"]))


def _is_ours(job: Job, arrays: Collection[JobId]) -> bool:
    """Whether a waiting task is under the hold that we set on its whole array while that could not be read."""
    return job.array_job in arrays and job.state is JobState.PENDING and job.hold is Hold.ADMIN


def _seen(job: Job, at: float, arrays: Collection[JobId], row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    waits = job.state is JobState.PENDING
    return {
        "waits": waits,
        "as_submitted": row is not None and _stands_as_submitted(job, row),
        "id": job.id,
        "owner": job.user,
        "name": job.name,
        "at": at,
        "state": job.state.value,
        "original": encode(job.standing),
        "nice": job.nice,
        "submitted": job.submit_time,
        "held": waits and (held_by_us(job, _NOTHING) or _is_ours(job, arrays)),
        "unheld": (waits and (job.hold is Hold.NONE or held_by_owner(job))) or job.state in _ACTIVE,
        "summary": encode(_summary(job)),
    }


def _summary(job: Job) -> dict[str, object]:
    """What people are shown of a job without asking Slurm."""
    return {
        "user": job.user,
        "account": job.account,
        "partition": ",".join(job.partitions),
        "gpus": job.gpus,
        "gpu_type": ",".join(sorted({share.gpu_type for share in job.shares})) or job.request.gpu_type or "",
        "cpus": job.allocated.cpus or job.request.cpus,
        "memory": job.allocated.memory or job.request.memory * job.request.nodes,
        "nodes": job.nodes,
        "hints": job.hints,
        "problems": job.hints.problems,
    }


def _first_sight(job: Job, at: float) -> Iterator[Event]:
    yield Event(at, job.id, Kind.SEEN, f"first seen, {job.state.value}")
    yield from _complaints(job, at)


def _complaints(job: Job, at: float) -> Iterator[Event]:
    for problem in job.hints.problems:
        yield Event(at, job.id, Kind.HINT, problem)


def _changes(row: Mapping[str, Any], job: Job, at: float) -> Iterator[Event]:
    before = JobState(row["state"])
    if job.state is JobState.RUNNING and before is not JobState.RUNNING:
        yield Event(at, job.id, Kind.STARTED, f"runs on {','.join(job.nodes) or 'its nodes'} with {job.gpus} GPUs")
    if job.state is JobState.FINISHED and before is not JobState.FINISHED:
        yield Event(at, job.id, Kind.ENDED, f"ended: {job.state_text.lower()}")
