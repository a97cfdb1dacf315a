"""What a round leaves for the next one, for `status` and `explain`, and for replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from slurmsched.model import (
    JobId,
    Memory,
    Outcome,
    Overview,
    Request,
    Snapshot,
    Target,
    decode,
    encode,
    survey,
)
from slurmsched.rounds.explanation import Explanation
from slurmsched.rounds.foreseen import Surprise
from slurmsched.store.accounts import Accounts
from slurmsched.store.columns import Row, decoded, flag, mapping, maybe, number, text, whole
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

_DAY: Final = 86400.0
_AHEAD: Final = 3600.0
"""Seconds by which a clock may have been set ahead without anything being dropped too early."""

_STEP: Final = 6 * 3600.0
"""Seconds of history that one round drops at most."""

_MOST_KINDS: Final = 1000


class Remembering:
    """Between rounds. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def memory(self, snapshot: Snapshot, system: str) -> Memory:
        """What earlier rounds, and `system` in them, left for the jobs in the snapshot, which has been sighted.

        Only rows of these jobs are read, and what is bounded by time. A row that cannot be read is left out by itself.
        """
        database = self._database
        found = database.unreadable.each("jobs", "id", _remembered, database.rows_of(_REMEMBERED, snapshot.job))
        rows = {row.job: row for row in found}
        accounts, measurements = Accounts(database), Measurements(database)
        return Memory(
            originals={job: row.original for job, row in rows.items() if row.original is not None},
            submitted={
                job: row.submitted
                for job, row in rows.items()
                if row.submitted is not None and row.submitted < snapshot.job[job].submit_time
            },
            held=frozenset(job for job, row in rows.items() if row.held),
            service=accounts.service(snapshot.job),
            moves=accounts.moves(snapshot.time, snapshot.job),
            nices={job: row.nice for job, row in rows.items() if row.nice is not None},
            stalled=self._stalled(snapshot.time),
            measured=measurements.measured(rows),
            steps={job: word.steps for job, word in measurements.words(rows).items()},
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
        unmanaged, seen = result.unmanaged, result.snapshot.time
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
            self._tell(seen)

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
        """Drop history older than `keep_days` and an hour, and all but the latest `keep_snapshots` recordings.

        What is dropped advances by six hours a round at most: a clock that jumps ahead takes little along before
        somebody sets it right, and a daemon that comes back after months does not stand still over it.
        """
        with self._database.transaction():
            oldest = self._oldest(at - keep_days * _DAY - _AHEAD)
            self._database.write(_OLD_RECORDINGS, (keep_snapshots,))
            self._database.write("INSERT OR REPLACE INTO upkeep (name, at) VALUES ('pruned', ?)", (oldest,))
            ended = [row["id"] for row in self._database.rows(_ENDED, (oldest,))]
            for table in ("reported", "rates"):
                self._database.write_of(f"DELETE FROM {table} WHERE job IN ({{jobs}})", ended)  # noqa: S608 own names
            self._database.write_of("DELETE FROM jobs WHERE id IN ({jobs})", ended)
            for statement in _PRUNE:
                self._database.write(statement, {"oldest": oldest})

    def _oldest(self, wanted: float) -> float:
        """Up to when history is dropped now; the first time, whatever is too old."""
        rows = self._database.rows("SELECT name, at FROM upkeep WHERE name = 'pruned'")
        before = self._database.unreadable.each("upkeep", "name", lambda row: number(row, "at"), rows)
        return min(wanted, before[0] + _STEP) if before else wanted

    def _tell(self, at: float) -> None:
        """Write down which rows could not be read, and drop what was not met again for a day."""
        met = self._database.unreadable.take()
        self._database.write_many(
            "INSERT OR REPLACE INTO unreadable (place, row, problem, at) VALUES (?, ?, ?, ?)",
            [(row.place, row.row, row.problem, at) for row in met],
        )
        self._database.write("DELETE FROM unreadable WHERE at < ?", (at - _DAY,))

    def _stalled(self, at: float) -> Mapping[JobId, str]:
        """Jobs that Slurm did not start, or whose request it would not change twice: they would keep their place in the
        order, and with it everybody behind them. Times are held against each other both ways: with a clock that was set
        back nobody waits for longer.
        """
        times = {"since": at - RETRY_AFTER, "until": at + RETRY_AFTER}
        rows = self._database.rows(_UNDONE, times) + self._database.rows(_REFUSED, times)
        return dict(self._database.unreadable.each("operations", "id", _stalled, rows))

    def _usual(self, since: float) -> tuple[tuple[Request, int], ...]:
        """What jobs seen after `since` ask for, and how many each: the thousand most usual requests."""
        day = int(since / _DAY)
        rows = self._database.rows(_USUAL, {"since": since, "day": day, "soon": since + 2 * _DAY, "most": _MOST_KINDS})
        return self._database.unreadable.each("requests_by_day", "original", _requested, rows)

    def _policy_state(self, system: str) -> Mapping[str, object]:
        rows = self._database.rows("SELECT system, state FROM policy_state WHERE system = ?", (system,))
        states = self._database.unreadable.each("policy_state", "system", lambda row: mapping(row, "state"), rows)
        return states[0] if states else {}


@dataclass(frozen=True, slots=True)
class _Remembered:
    """One job; `original` and `nice` only where what stands in Slurm is ours."""

    job: JobId
    original: Request | None
    nice: int | None
    held: bool
    submitted: float | None


def _remembered(row: Row) -> _Remembered:
    return _Remembered(
        job=text(row, "id"),
        original=decoded(Request, row, "original") if flag(row, "reshaped") else None,
        nice=whole(row, "original_nice") if flag(row, "boosted") else None,
        held=flag(row, "held_by_us"),
        submitted=maybe(row, "submitted"),
    )


def _stalled(row: Row) -> tuple[JobId, str]:
    return text(row, "subject"), text(row, "detail")


def _requested(row: Row) -> tuple[Request, int]:
    return _request(text(row, "original")), whole(row, "times")


@lru_cache(maxsize=4096)
def _request(stored: str) -> Request:
    """The same few requests come every round."""
    return decode(Request, stored)


_REMEMBERED: Final = (
    "SELECT id, original, original_nice, held_by_us, reshaped, boosted, submitted FROM jobs WHERE id IN ({jobs})"
)
_USUAL: Final = (
    "SELECT original, times FROM ("
    " SELECT original, SUM(jobs) AS times FROM ("
    "  SELECT original, jobs FROM requests_by_day WHERE day > :day"
    "  UNION ALL SELECT original, 1 FROM jobs"
    "  WHERE last_seen > :since AND last_seen < :soon AND CAST(last_seen / 86400 AS INTEGER) = :day"
    " ) GROUP BY original ORDER BY times DESC, original LIMIT :most"
    ") ORDER BY original"
)
_UNDONE: Final = (
    "SELECT id, subject, detail FROM operations WHERE verb = 'release' AND result = 'undone'"
    " AND finished > :since AND finished < :until ORDER BY id"
)
_REFUSED: Final = (
    "SELECT max(id) AS id, subject, detail FROM operations WHERE verb = 'reshape' AND result = 'refused'"
    " AND finished > :since AND finished < :until GROUP BY subject HAVING count(*) > 1"
)

_DECIDED: Final = (
    "UPDATE jobs SET rank = :rank, rank_key = :rank_key, reason = :reason, sentence = :sentence, target = :target"
    " WHERE id = :id"
)
_OLD_RECORDINGS: Final = (
    "UPDATE rounds SET snapshot = NULL WHERE snapshot IS NOT NULL AND id <="
    " (SELECT id FROM rounds WHERE snapshot IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_ENDED: Final = (
    "SELECT id FROM jobs WHERE last_seen < ? AND state = 'finished' AND NOT (held_by_us OR reshaped OR boosted)"
)
_PRUNE: Final = (
    "DELETE FROM operations WHERE result != 'intended' AND intended < :oldest",
    "DELETE FROM events WHERE at < :oldest",
    "DELETE FROM service WHERE run_started < :oldest AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = service.job)",
    "DELETE FROM rounds WHERE started < :oldest AND NOT EXISTS (SELECT 1 FROM operations WHERE round = rounds.id)",
)


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
