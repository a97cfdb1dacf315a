"""What a round leaves for the next one, for `status` and `explain`, and for replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from slurmsched.model import (
    EncodingError,
    JobId,
    Memory,
    Outcome,
    Overview,
    Request,
    Result,
    Snapshot,
    Target,
    Verb,
    decode,
    encode,
    survey,
)
from slurmsched.rounds.explanation import Explanation
from slurmsched.rounds.foreseen import Surprise
from slurmsched.store.accounts import Accounts
from slurmsched.store.database import Database
from slurmsched.store.history import Event, Kind, events_of, note
from slurmsched.store.journal import notified
from slurmsched.store.lately import USUAL
from slurmsched.store.measurements import Measurements
from slurmsched.store.set_aside import held_aside, since
from slurmsched.store.sightings import sight
from slurmsched.store.usual import possible

if TYPE_CHECKING:  # `synsched pause` opens the database too, and needs no policy for it
    from slurmsched.rounds.round import RoundResult

    Explain = Callable[[RoundResult, JobId], Explanation]

__all__ = ["RETRY_AFTER", "Remembering"]

RETRY_AFTER: Final = 900.0
"""Seconds for which a job whose start Slurm did not make is not tried again: each try may displace others."""


class Remembering:
    """Between rounds. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def memory(self, snapshot: Snapshot, system: str) -> Memory:
        """What earlier rounds, and `system` in them, left for the jobs in the snapshot, which has been sighted."""
        rows = {
            row["id"]: row
            for row in self._database.rows(
                "SELECT id, original, original_nice, held_by_us, reshaped, boosted, submitted FROM jobs"
            )
            if row["id"] in snapshot.job
        }
        accounts, measurements = Accounts(self._database), Measurements(self._database)
        return Memory(
            originals={job: decode(Request, row["original"]) for job, row in rows.items() if row["reshaped"]},
            submitted={
                job: row["submitted"]
                for job, row in rows.items()
                if row["submitted"] is not None and row["submitted"] < snapshot.job[job].submit_time
            },
            held=frozenset(job for job, row in rows.items() if row["held_by_us"]),
            service=accounts.service(snapshot.job),
            moves={job: times for job, times in accounts.moves(snapshot.time).items() if job in snapshot.job},
            nices={job: row["original_nice"] for job, row in rows.items() if row["boosted"]},
            stalled=self._stalled(snapshot.time),
            measured=measurements.measured(rows),
            steps={job: word.steps for job, word in measurements.words().items() if job in rows},
            policy_state=self._policy_state(system),
            usual=possible(self._usual(snapshot.time - USUAL), snapshot.nodes),
            notified=notified(self._database, snapshot),
            set_aside=since(self._database),
            held_aside=held_aside(self._database, snapshot),
        )

    def sight(
        self, round_id: int | None, snapshot: Snapshot, managed: Collection[JobId], overview: Overview | None = None
    ) -> None:
        """Bring jobs and accounts up to a poll, and within a round what `status` and `free` show of the nodes."""
        with self._database.transaction():
            note(self._database, round_id, sight(self._database, snapshot, managed))
            Accounts(self._database).observe(snapshot)
            if round_id is not None:
                self._database.write(
                    "UPDATE rounds SET overview = ? WHERE id = ?", (encode(overview or survey(snapshot)), round_id)
                )

    def remember(
        self,
        round_id: int,
        result: RoundResult,
        explain: Explain,
        recording: bytes | None = None,
        overview: Overview | None = None,
    ) -> None:
        """A round's decision, before anything is done about it, with its recording for replay."""
        unmanaged = result.unmanaged
        alone = [(job, Explanation(job, unmanaged[job].sentence), None, None) for job in unmanaged]
        with self._database.transaction():
            self._database.write_many(_DECIDED, [*_decided(result, explain), *starmap(_row, alone)])
            self._database.write(
                "INSERT OR REPLACE INTO policy_state (system, state) VALUES (?, ?)",
                (result.decision.policy, encode(result.decision.state)),
            )
            self._database.write(
                "UPDATE rounds SET overview = ?, snapshot = ? WHERE id = ?",
                (encode(overview or survey(result.snapshot)), recording, round_id),
            )

    def happened(
        self,
        round_id: int,
        outcomes: Iterable[Outcome],
        placed: Iterable[JobId],
        at: float,
        surprised: Iterable[Surprise] = (),
    ) -> None:
        """What the round did to whom, for `history`. `placed` are the jobs that have a target, `surprised` those that
        run on other GPUs than it foresaw."""
        note(self._database, round_id, events_of(outcomes, placed, at))
        note(self._database, round_id, (Event(at, own.job, Kind.DEVICE, own.sentence) for own in surprised))

    def prune(self, at: float, keep_days: int, keep_snapshots: int) -> None:
        """Drop history older than `keep_days` and all but the latest `keep_snapshots` recordings."""
        oldest = at - keep_days * 86400.0
        with self._database.transaction():
            self._database.write(
                "UPDATE rounds SET snapshot = NULL WHERE snapshot IS NOT NULL AND id NOT IN"
                " (SELECT id FROM rounds WHERE snapshot IS NOT NULL ORDER BY id DESC LIMIT ?)",
                (keep_snapshots,),
            )
            for statement in _PRUNE:
                self._database.write(statement, {"oldest": oldest})

    def _stalled(self, at: float) -> Mapping[JobId, str]:
        rows = self._database.rows(
            "SELECT subject, detail FROM operations WHERE verb = ? AND result = ? AND finished > ? ORDER BY id",
            (Verb.RELEASE.value, Result.UNDONE.value, at - RETRY_AFTER),
        )
        return {row["subject"]: row["detail"] for row in rows}

    def _usual(self, since: float) -> tuple[tuple[Request, int], ...]:
        rows = self._database.rows(
            "SELECT original, count(*) AS times FROM jobs WHERE last_seen > ? GROUP BY original ORDER BY original",
            (since,),
        )
        return tuple(_readable(rows))

    def _policy_state(self, system: str) -> Mapping[str, object]:
        rows = self._database.rows("SELECT state FROM policy_state WHERE system = ?", (system,))
        return {str(key): value for row in rows for key, value in json.loads(row["state"]).items()}


_DECIDED: Final = (
    "UPDATE jobs SET rank = :rank, rank_key = :rank_key, reason = :reason, sentence = :sentence, target = :target"
    " WHERE id = :id"
)
_PRUNE: Final = (
    "DELETE FROM operations WHERE result != 'intended' AND intended < :oldest",
    "DELETE FROM events WHERE at < :oldest",
    "DELETE FROM jobs WHERE state = 'finished' AND last_seen < :oldest AND NOT (held_by_us OR reshaped OR boosted)",
    "DELETE FROM service WHERE run_started < :oldest AND job NOT IN (SELECT id FROM jobs)",
    "DELETE FROM reported WHERE job NOT IN (SELECT id FROM jobs)",
    "DELETE FROM rates WHERE job NOT IN (SELECT id FROM jobs)",
    "DELETE FROM rounds WHERE started < :oldest AND id NOT IN (SELECT round FROM operations)",
)


def _readable(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Request, int]]:
    """A request that cannot be read is not usual; what its job loses by it is its own."""
    for row in rows:
        with suppress(EncodingError):
            yield decode(Request, row["original"]), row["times"]


def _decided(result: RoundResult, explain: Explain) -> Iterator[dict[str, Any]]:
    ranks = {ranked.job: (place, ranked.key) for place, ranked in enumerate(result.decision.order, start=1)}
    for job in result.snapshot.jobs:
        if job.id not in result.unmanaged:
            yield _row(job.id, explain(result, job.id), ranks.get(job.id), result.decision.targets.get(job.id))


def _row(job: JobId, explanation: Explanation, rank: tuple[int, str] | None, target: Target | None) -> dict[str, Any]:
    place, key = rank or (None, "")
    return {
        "id": job,
        "rank": place,
        "rank_key": key,
        "reason": encode(explanation),
        "sentence": explanation.headline,
        "target": None if target is None else encode(target),
    }
