"""Jobs that are set aside (excluded from decisions): since when, why, and fingerprints to notice a changed job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.model import Explanation, JobId, Reason, ReasonCode, SetAsideJob, Snapshot, encode
from slurmsched.store.database import Database

_UPSERT: Final = (
    "INSERT INTO set_aside (job, owner, partition, reason, since, mark, tried)"
    " VALUES (:job, :owner, :partition, :reason, :at, :mark, :tried)"
    " ON CONFLICT (job) DO UPDATE SET owner = excluded.owner, partition = excluded.partition,"
    " reason = excluded.reason, mark = excluded.mark, tried = excluded.tried"
)
_UPDATE_EXPLANATION: Final = (
    "UPDATE jobs SET reason = :explanation, sentence = :sentence, target = NULL, rank = NULL, rank_key = ''"
    " WHERE id = :job"
)


@dataclass(frozen=True, slots=True)
class JobFingerprint:
    """A job's fingerprint when the decision about it failed, the last time at `tried` (unix seconds), and the error."""

    fingerprint: str
    tried: float
    reason: str


class SetAsideStore:
    """The jobs that are set aside. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def replace(self, aside: tuple[SetAsideJob, ...], at: float, fingerprints: Mapping[JobId, JobFingerprint]) -> None:
        """Set exactly these jobs aside as of `at` (unix seconds); `fingerprints` are of those that were readable."""
        kept = {job.job for job in aside}
        with self._database.transaction():
            known = {str(row["job"]) for row in self._database.rows("SELECT job FROM set_aside")}
            self._database.write_many("DELETE FROM set_aside WHERE job = ?", [(job,) for job in known - kept])
            rows = [_row(job, at, fingerprints.get(job.job)) for job in aside]
            self._database.write_many(_UPSERT, rows)
            self._database.write_many(_UPDATE_EXPLANATION, rows)

    def fingerprints(self) -> Mapping[JobId, JobFingerprint]:
        """The fingerprints of the jobs for which the decision failed."""
        rows = self._database.rows("SELECT job, mark, tried, reason FROM set_aside WHERE mark != ''")
        return {row["job"]: JobFingerprint(row["mark"], row["tried"], row["reason"]) for row in rows}

    def counts(self) -> tuple[int, int]:
        """How many jobs are set aside: those that could not be read, and those for which the decision failed."""
        rows = self._database.rows("SELECT mark != '' AS readable, count(*) AS jobs FROM set_aside GROUP BY 1")
        jobs = {bool(row["readable"]): int(row["jobs"]) for row in rows}
        return jobs.get(False, 0), jobs.get(True, 0)

    def record_decided(self, fingerprints: Mapping[JobId, str], at: float) -> None:
        """Record the jobs over which a round was decided at `at` (unix seconds)."""
        self._database.write(
            "INSERT OR REPLACE INTO decided (id, at, marks) VALUES (1, ?, ?)", (at, json.dumps(dict(fingerprints)))
        )

    def last_decided_fingerprints(self) -> Mapping[JobId, str]:
        """The fingerprints of all jobs in the last decided round; empty if they cannot be read."""
        for row in self._database.rows("SELECT marks FROM decided"):
            try:
                fingerprints = json.loads(row["marks"])
            except (ValueError, TypeError):
                continue
            if isinstance(fingerprints, dict):
                return {str(job): str(fingerprint) for job, fingerprint in fingerprints.items()}
        return {}


def set_aside_since(database: Database) -> Mapping[JobId, float]:
    """Since when each job is set aside (unix seconds). Raises StoreError."""
    return {row["job"]: row["since"] for row in database.rows("SELECT job, since FROM set_aside")}


def held_aside(database: Database, snapshot: Snapshot) -> Mapping[JobId, float]:
    """The set-aside jobs under our hold that still exist, and since when they are set aside (unix seconds).

    Raises StoreError.
    """
    since = set_aside_since(database)
    return {
        row["id"]: since.get(row["id"], since.get(row["id"].partition("_")[0], snapshot.time))
        for row in database.rows("SELECT id FROM jobs WHERE held_by_us")
        if row["id"] not in snapshot.jobs_by_id and not snapshot.is_gone(row["id"])
    }


def _row(aside: SetAsideJob, at: float, fingerprint: JobFingerprint | None) -> dict[str, str | float]:
    reason = Reason(ReasonCode.SET_ASIDE, {"why": aside.reason})
    explanation = Explanation.of_reason(aside.job, reason)
    return {
        "job": aside.job,
        "owner": aside.user,
        "partition": aside.partition,
        "reason": aside.reason,
        "at": at,
        "mark": fingerprint.fingerprint if fingerprint else "",
        "tried": fingerprint.tried if fingerprint else 0.0,
        "explanation": encode(explanation),
        "sentence": explanation.headline,
    }
