"""What a round leaves for the next one, for `status` and `explain`, and for replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from slurmsched.model import (
    ClusterOverview,
    JobId,
    Node,
    Outcome,
    Request,
    SchedulerState,
    Snapshot,
    Target,
    cluster_overview,
    decode,
    encode,
)
from slurmsched.rounds.device_mismatch import DeviceMismatch
from slurmsched.rounds.explanation import Explanation
from slurmsched.store.database import Database
from slurmsched.store.events import JobEvent, JobEventKind, events_of_outcomes, record_events
from slurmsched.store.jobs import update_jobs
from slurmsched.store.journal import notified_jobs
from slurmsched.store.measurements import Measurements
from slurmsched.store.rows import (
    DatabaseRow,
    boolean,
    decoded_value,
    integer,
    json_object,
    number,
    optional_number,
    text,
)
from slurmsched.store.service import AttainedService
from slurmsched.store.set_aside import held_aside, set_aside_since

USUAL_REQUESTS_WINDOW: Final = 14 * 86400.0
"""Seconds."""


def feasible_requests(
    requests: Iterable[tuple[Request, int]], nodes: Collection[Node]
) -> tuple[tuple[Request, int], ...]:
    """The requests, each with how often it was made, that are no larger than the cluster in any amount.

    What is stored may be older than the cluster, or of a reader that believed too much: no round is decided by it.
    """
    gpus = sum(len(node.gpus) for node in nodes)
    per_node = max((len(node.gpus) for node in nodes), default=0)
    shards = sum(gpu.shards for node in nodes for gpu in node.gpus)
    cpus = sum(node.total.cpus for node in nodes)
    memory = max((node.total.memory for node in nodes), default=0)

    def fits(asked: Request) -> bool:
        return (
            0 <= asked.gpus <= gpus
            and 0 <= (asked.gpus_per_node or 0) <= per_node
            and 1 <= asked.nodes <= len(nodes)
            and 0 <= asked.cpus <= cpus
            and 0 <= asked.memory <= memory
            and 0 <= asked.shards <= shards
        )

    return tuple((asked, times) for asked, times in requests if fits(asked))


if TYPE_CHECKING:  # `synsched pause` opens the database too, and needs no policy for it
    from slurmsched.rounds.round import RoundResult

    Explain = Callable[[RoundResult, JobId], Explanation]


RETRY_AFTER: Final = 900.0
"""Seconds for which a job whose start Slurm did not make is not tried again: each try may displace others."""

_DAY: Final = 86400.0
_CLOCK_TOLERANCE: Final = 3600.0
"""Seconds by which a clock may have been set ahead without anything being dropped too early."""

_PRUNE_STEP: Final = 6 * 3600.0
"""Seconds of history that one round drops at most."""

_MAX_USUAL_REQUESTS: Final = 1000


class StateStore:
    """Between rounds. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load_state(self, snapshot: Snapshot, policy: str) -> SchedulerState:
        """What earlier rounds, and `system` in them, left for the jobs in the snapshot, which has been sighted.

        Only rows of these jobs are read, and what is bounded by time. A row that cannot be read is left out by itself.
        """
        database = self._database
        found = database.unreadable_rows.parse_each(
            "jobs", "id", _stored_job, database.rows_of_jobs(_SELECT_JOBS, snapshot.jobs_by_id)
        )
        rows = {row.job: row for row in found}
        accounts, measurements = AttainedService(database), Measurements(database)
        return SchedulerState(
            original_requests={job: row.original for job, row in rows.items() if row.original is not None},
            submitted={
                job: row.submitted
                for job, row in rows.items()
                if row.submitted is not None and row.submitted < snapshot.jobs_by_id[job].submit_time
            },
            held=frozenset(job for job, row in rows.items() if row.held),
            service=accounts.gpu_seconds(snapshot.jobs_by_id),
            moves=accounts.moves(snapshot.time, snapshot.jobs_by_id),
            nices={job: row.nice for job, row in rows.items() if row.nice is not None},
            stalled=self._stalled_jobs(snapshot.time),
            measured=measurements.rates(rows),
            steps={job: word.steps for job, word in measurements.last_reports(rows).items()},
            policy_state=self._policy_state(policy),
            usual=feasible_requests(self._usual_requests(snapshot.time - USUAL_REQUESTS_WINDOW), snapshot.nodes),
            notified=notified_jobs(self._database, snapshot),
            set_aside=set_aside_since(self._database),
            held_aside=held_aside(self._database, snapshot),
        )

    def record_poll(
        self,
        round_id: int | None,
        snapshot: Snapshot,
        managed: Collection[JobId],
        overview: ClusterOverview | None = None,
    ) -> None:
        """Bring jobs and accounts up to a poll, and within a round what `status` and `free` show of the nodes."""
        with self._database.transaction():
            record_events(self._database, round_id, update_jobs(self._database, snapshot, managed))
            AttainedService(self._database).record_runs(snapshot)
            if round_id is not None:
                self._database.write(
                    "UPDATE rounds SET overview = ? WHERE id = ?",
                    (encode(overview or cluster_overview(snapshot)), round_id),
                )

    def record_decision(
        self,
        round_id: int,
        result: RoundResult,
        explain: Explain,
        recording: bytes | None = None,
        overview: ClusterOverview | None = None,
    ) -> None:
        """A round's decision, before anything is done about it, with its recording for replay."""
        unmanaged, seen = result.unmanaged, result.snapshot.time
        alone = [(job, Explanation(job, unmanaged[job].sentence), None, None) for job in unmanaged]
        with self._database.transaction():
            self._database.write_many(
                _UPDATE_DECISION, [*_decision_columns(result, explain), *starmap(_job_decision, alone)]
            )
            self._database.write(
                "INSERT OR REPLACE INTO policy_state (system, state) VALUES (?, ?)",
                (result.decision.policy, encode(result.decision.state)),
            )
            self._database.write(
                "UPDATE rounds SET overview = ?, snapshot = ? WHERE id = ?",
                (encode(overview or cluster_overview(result.snapshot)), recording, round_id),
            )
            self._record_unreadable(seen)

    def record_events(
        self,
        round_id: int,
        outcomes: Iterable[Outcome],
        allocated: Iterable[JobId],
        at: float,
        mismatches: Iterable[DeviceMismatch] = (),
    ) -> None:
        """What the round did to whom, for `history`. `placed` are the jobs that have a target, `surprised` those that
        run on other GPUs than it foresaw."""
        record_events(self._database, round_id, events_of_outcomes(outcomes, allocated, at))
        record_events(
            self._database, round_id, (JobEvent(at, own.job, JobEventKind.DEVICE, own.sentence) for own in mismatches)
        )

    def prune(self, at: float, keep_days: int, keep_snapshots: int) -> None:
        """Drop history older than `keep_days` and an hour, and all but the latest `keep_snapshots` recordings.

        What is dropped advances by six hours a round at most: a clock that jumps ahead takes little along before
        somebody sets it right, and a daemon that comes back after months does not stand still over it.
        """
        with self._database.transaction():
            oldest = self._prune_before(at - keep_days * _DAY - _CLOCK_TOLERANCE)
            self._database.write(_OLD_RECORDINGS, (keep_snapshots,))
            self._database.write("INSERT OR REPLACE INTO upkeep (name, at) VALUES ('pruned', ?)", (oldest,))
            ended = [row["id"] for row in self._database.rows(_SELECT_ENDED, (oldest,))]
            for table in ("reported", "rates"):
                self._database.write_for_jobs(f"DELETE FROM {table} WHERE job IN ({{jobs}})", ended)  # noqa: S608 own names
            self._database.write_for_jobs("DELETE FROM jobs WHERE id IN ({jobs})", ended)
            for statement in _PRUNE:
                self._database.write(statement, {"oldest": oldest})

    def _prune_before(self, wanted: float) -> float:
        """Up to when history is dropped now; the first time, whatever is too old."""
        rows = self._database.rows("SELECT name, at FROM upkeep WHERE name = 'pruned'")
        before = self._database.unreadable_rows.parse_each("upkeep", "name", lambda row: number(row, "at"), rows)
        return min(wanted, before[0] + _PRUNE_STEP) if before else wanted

    def _record_unreadable(self, at: float) -> None:
        """Write down which rows could not be read, and drop what was not met again for a day."""
        met = self._database.unreadable_rows.take()
        self._database.write_many(
            "INSERT OR REPLACE INTO unreadable (place, row, problem, at) VALUES (?, ?, ?, ?)",
            [(row.table, row.row, row.problem, at) for row in met],
        )
        self._database.write("DELETE FROM unreadable WHERE at < ?", (at - _DAY,))

    def _stalled_jobs(self, at: float) -> Mapping[JobId, str]:
        """Jobs that Slurm did not start, or whose request it would not change twice: they would keep their place in the
        order, and with it everybody behind them. Times are held against each other both ways: with a clock that was set
        back nobody waits for longer.
        """
        times = {"since": at - RETRY_AFTER, "until": at + RETRY_AFTER}
        rows = self._database.rows(_SELECT_UNDONE_RELEASES, times) + self._database.rows(_SELECT_REFUSED_UPDATES, times)
        return dict(self._database.unreadable_rows.parse_each("operations", "id", _stalled_job, rows))

    def _usual_requests(self, since: float) -> tuple[tuple[Request, int], ...]:
        """What jobs seen after `since` ask for, and how many each: the thousand most usual requests."""
        day = int(since / _DAY)
        rows = self._database.rows(
            _SELECT_USUAL, {"since": since, "day": day, "soon": since + 2 * _DAY, "most": _MAX_USUAL_REQUESTS}
        )
        return self._database.unreadable_rows.parse_each("requests_by_day", "original", _request_count, rows)

    def _policy_state(self, policy: str) -> Mapping[str, object]:
        rows = self._database.rows("SELECT system, state FROM policy_state WHERE system = ?", (policy,))
        states = self._database.unreadable_rows.parse_each(
            "policy_state", "system", lambda row: json_object(row, "state"), rows
        )
        return states[0] if states else {}


@dataclass(frozen=True, slots=True)
class _StoredJob:
    """One job; `original` and `nice` only where what stands in Slurm is ours."""

    job: JobId
    original: Request | None
    nice: int | None
    held: bool
    submitted: float | None


def _stored_job(row: DatabaseRow) -> _StoredJob:
    return _StoredJob(
        job=text(row, "id"),
        original=decoded_value(Request, row, "original") if boolean(row, "reshaped") else None,
        nice=integer(row, "original_nice") if boolean(row, "boosted") else None,
        held=boolean(row, "held_by_us"),
        submitted=optional_number(row, "submitted"),
    )


def _stalled_job(row: DatabaseRow) -> tuple[JobId, str]:
    return text(row, "subject"), text(row, "detail")


def _request_count(row: DatabaseRow) -> tuple[Request, int]:
    return _request(text(row, "original")), integer(row, "times")


@lru_cache(maxsize=4096)
def _request(stored: str) -> Request:
    """The same few requests come every round."""
    return decode(Request, stored)


_SELECT_JOBS: Final = (
    "SELECT id, original, original_nice, held_by_us, reshaped, boosted, submitted FROM jobs WHERE id IN ({jobs})"
)
_SELECT_USUAL: Final = (
    "SELECT original, times FROM ("
    " SELECT original, SUM(jobs) AS times FROM ("
    "  SELECT original, jobs FROM requests_by_day WHERE day > :day"
    "  UNION ALL SELECT original, 1 FROM jobs"
    "  WHERE last_seen > :since AND last_seen < :soon AND CAST(last_seen / 86400 AS INTEGER) = :day"
    " ) GROUP BY original ORDER BY times DESC, original LIMIT :most"
    ") ORDER BY original"
)
_SELECT_UNDONE_RELEASES: Final = (
    "SELECT id, subject, detail FROM operations WHERE verb = 'release' AND result = 'undone'"
    " AND finished > :since AND finished < :until ORDER BY id"
)
_SELECT_REFUSED_UPDATES: Final = (
    "SELECT max(id) AS id, subject, detail FROM operations WHERE verb = 'reshape' AND result = 'refused'"
    " AND finished > :since AND finished < :until GROUP BY subject HAVING count(*) > 1"
)

_UPDATE_DECISION: Final = (
    "UPDATE jobs SET rank = :rank, rank_key = :rank_key, reason = :reason, sentence = :sentence, target = :target"
    " WHERE id = :id"
)
_OLD_RECORDINGS: Final = (
    "UPDATE rounds SET snapshot = NULL WHERE snapshot IS NOT NULL AND id <="
    " (SELECT id FROM rounds WHERE snapshot IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_SELECT_ENDED: Final = (
    "SELECT id FROM jobs WHERE last_seen < ? AND state = 'finished' AND NOT (held_by_us OR reshaped OR boosted)"
)
_PRUNE: Final = (
    "DELETE FROM operations WHERE result != 'intended' AND intended < :oldest",
    "DELETE FROM events WHERE at < :oldest",
    "DELETE FROM service WHERE run_started < :oldest AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = service.job)",
    "DELETE FROM rounds WHERE started < :oldest AND NOT EXISTS (SELECT 1 FROM operations WHERE round = rounds.id)",
)


def _decision_columns(result: RoundResult, explain: Explain) -> Iterator[dict[str, Any]]:
    ranks = {ranked.job: (place, ranked.key) for place, ranked in enumerate(result.decision.order, start=1)}
    for job in result.snapshot.jobs:
        if job.id not in result.unmanaged:
            yield _job_decision(job.id, explain(result, job.id), ranks.get(job.id), result.decision.targets.get(job.id))


def _job_decision(
    job: JobId, explanation: Explanation, rank: tuple[int, str] | None, target: Target | None
) -> dict[str, Any]:
    position, key = rank or (None, "")
    return {
        "id": job,
        "rank": position,
        "rank_key": key,
        "reason": encode(explanation),
        "sentence": explanation.headline,
        "target": None if target is None else encode(target),
    }
