"""Jobs that nothing is decided about: since when and why, and what each job looked like when all could be decided."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurmsched.model import JobId, Reason, ReasonCode, SetAsideJob, Snapshot, encode
from slurmsched.rounds.explanation import Explanation
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
    """What a job looked like when deciding about it failed, the last time at `tried` (unix seconds), and the reason."""

    fingerprint: str
    tried: float
    reason: str


class SetAsideStore:
    """The jobs that are set aside, from one round to the next. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def replace(self, aside: tuple[SetAsideJob, ...], at: float, fingerprints: Mapping[JobId, JobFingerprint]) -> None:
        """These are set aside as of `at` (unix seconds), and no others; `marks` are of those that could be read."""
        kept = {one.job for one in aside}
        with self._database.transaction():
            known = {str(row["job"]) for row in self._database.rows("SELECT job FROM set_aside")}
            self._database.write_many("DELETE FROM set_aside WHERE job = ?", [(job,) for job in known - kept])
            rows = [_row(one, at, fingerprints.get(one.job)) for one in aside]
            self._database.write_many(_UPSERT, rows)
            self._database.write_many(_UPDATE_EXPLANATION, rows)

    def fingerprints(self) -> Mapping[JobId, JobFingerprint]:
        """Those about which deciding failed."""
        rows = self._database.rows("SELECT job, mark, tried, reason FROM set_aside WHERE mark != ''")
        return {row["job"]: JobFingerprint(row["mark"], row["tried"], row["reason"]) for row in rows}

    def record_decided(self, fingerprints: Mapping[JobId, str], at: float) -> None:
        """A round was decided at `at` (unix seconds), over these jobs."""
        self._database.write(
            "INSERT OR REPLACE INTO decided (id, at, marks) VALUES (1, ?, ?)", (at, json.dumps(dict(fingerprints)))
        )

    def last_decided_fingerprints(self) -> Mapping[JobId, str]:
        """What each job looked like in the last round that could be decided; nothing where that cannot be read."""
        for row in self._database.rows("SELECT marks FROM decided"):
            try:
                found = json.loads(row["marks"])
            except (ValueError, TypeError):
                continue
            if isinstance(found, dict):
                return {str(job): str(mark) for job, mark in found.items()}
        return {}


def set_aside_since(database: Database) -> Mapping[JobId, float]:
    """When each job that is set aside came to be so (unix seconds)."""
    return {row["job"]: row["since"] for row in database.rows("SELECT job, since FROM set_aside")}


def held_aside(database: Database, snapshot: Snapshot) -> Mapping[JobId, float]:
    """The jobs under our hold that exist and are set aside, and since when they are (unix seconds)."""
    known = set_aside_since(database)
    return {
        row["id"]: known.get(row["id"], known.get(row["id"].partition("_")[0], snapshot.time))
        for row in database.rows("SELECT id FROM jobs WHERE held_by_us")
        if row["id"] not in snapshot.jobs_by_id and not snapshot.is_gone(row["id"])
    }


def _row(aside: SetAsideJob, at: float, fingerprint: JobFingerprint | None) -> dict[str, str | float]:
    why = Reason(ReasonCode.SET_ASIDE, {"why": aside.reason})
    explanation = Explanation(aside.job, f"job {aside.job} {why.sentence}")
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
