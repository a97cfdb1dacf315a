"""The scheduler's state between rounds: loaded before a decision, recorded after it for `status` and replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from slurmsched.knowledge.knowledge import OUT_OF_MEMORY_SECONDS
from slurmsched.model import (
    ClusterOverview,
    ClusterOverviews,
    Explanation,
    JobId,
    JobState,
    ListEncoder,
    Node,
    Outcome,
    Reason,
    Request,
    SchedulerState,
    Snapshot,
    Target,
    encode,
    encode_with,
)
from slurmsched.rounds.device_mismatch import DeviceMismatch
from slurmsched.rounds.refusals import RefusedStart, with_refusals
from slurmsched.rounds.specs import with_original_requests
from slurmsched.store.database import Database
from slurmsched.store.finished_runs import FinishedRuns
from slurmsched.store.jobs import JobRows, decoded_request, update_jobs
from slurmsched.store.journal import (
    ActivityCounts,
    JobEvent,
    JobEventKind,
    events_of_outcomes,
    notified_jobs,
    record_events,
)
from slurmsched.store.measurements import Measurements
from slurmsched.store.rows import (
    DatabaseRow,
    boolean,
    integer,
    json_object,
    number,
    optional_number,
    parse_origin,
    text,
)
from slurmsched.store.service import AttainedService
from slurmsched.store.set_aside import held_aside, set_aside_since

USUAL_REQUESTS_WINDOW: Final = 14 * 86400.0
"""Seconds for which a job counts among the usual requests after it was last seen."""


def feasible_requests(
    requests: Iterable[tuple[Request, int]], nodes: Collection[Node]
) -> tuple[tuple[Request, int], ...]:
    """The (request, count) pairs whose request fits the cluster in every resource.

    Stored requests may be older than the cluster or wrongly parsed, and must not influence a round.
    """
    gpus = sum(len(node.gpus) for node in nodes)
    per_node = max((len(node.gpus) for node in nodes), default=0)
    shards = sum(gpu.shards for node in nodes for gpu in node.gpus)
    cpus = sum(node.total.cpus for node in nodes)
    memory = max((node.total.memory for node in nodes), default=0)

    def fits(request: Request) -> bool:
        return (
            0 <= request.gpus <= gpus
            and 0 <= (request.gpus_per_node or 0) <= per_node
            and 1 <= request.nodes <= len(nodes)
            and 0 <= request.cpus <= cpus
            and 0 <= request.memory <= memory
            and 0 <= request.shards <= shards
        )

    return tuple((request, count) for request, count in requests if fits(request))


if TYPE_CHECKING:  # `synsched pause` opens the database too and must not load the policies
    from slurmsched.rounds.round import RoundResult

    Explain = Callable[[RoundResult, JobId], Explanation]


_DAY: Final = 86400.0
_CLOCK_TOLERANCE: Final = 3600.0
"""Seconds that history is kept longer, in case the clock was set ahead."""

_PRUNE_STEP: Final = 6 * 3600.0
"""Maximum history that one round prunes, in seconds."""

_MAX_USUAL_REQUESTS: Final = 1000

_ROW_CHANGES: Final = (JobEventKind.SEEN, JobEventKind.ENDED)
"""Events with which what is stored of the last decision about a job is deleted."""

_SIZED: Final = (JobState.PENDING, JobState.RUNNING)


class StateStore:
    """Loads and records the scheduler's state. All methods raise StoreError."""

    def __init__(
        self, database: Database, finished_runs: FinishedRuns | None = None, counts: ActivityCounts | None = None
    ) -> None:
        self._database = database
        self._counts = counts or ActivityCounts()
        self.overview: ClusterOverview | None = None
        """What was recorded last of the nodes with their fragmentation."""
        self.overviews = ClusterOverviews()
        """Those of the snapshots that are recorded."""
        self._finished_runs = finished_runs or FinishedRuns(database)
        self._rows = JobRows()
        self._stored: Mapping[JobId, tuple[DatabaseRow, _StoredJob]] = {}
        """What the rows say that the last poll left as they were."""
        self._polled: Snapshot | None = None
        """The snapshot that was recorded last, if that went well: it tells which rows are as they were read."""
        self._decisions = _Decisions()
        self._nodes, self._fragments = ListEncoder(), ListEncoder()

    def read_ahead(self, at: float) -> None:
        """Read what the next poll will be compared with, while Slurm still answers it; `at` in unix seconds."""
        self._rows.read_ahead(self._database, at)

    def load_state(self, snapshot: Snapshot, policy: str, *, lengths: bool = False) -> SchedulerState:
        """The state that earlier rounds left for the jobs in the snapshot, and the state of `policy`; with `lengths`
        how long jobs still run.

        The snapshot has been passed to `record_poll`. Only rows of its jobs and of bounded age are read; an unreadable
        row is left out.
        """
        database = self._database
        known = self._rows.unchanged if self._polled is snapshot else {}
        others = snapshot.jobs_by_id.keys() - known.keys()
        as_before = {job: stored for job, (row, stored) in self._stored.items() if known.get(job) is row}
        unchanged = (row for job, row in known.items() if job in snapshot.jobs_by_id and job not in as_before)
        stored_jobs = database.unreadable_rows.parse_each(
            "jobs", "id", _stored_job, [*unchanged, *database.rows_of_jobs(_SELECT_JOBS, others)]
        )
        rows = as_before | {row.job: row for row in stored_jobs}
        self._stored = {job: (known[job], row) for job, row in rows.items() if job in known}
        attained, measurements = AttainedService(database), Measurements(database)
        reports, families = measurements.last_reports(rows), {job.family for job in snapshot.jobs} - {""}
        by_type = attained.gpu_seconds_by_type(snapshot.jobs_by_id)
        service = {job: sum(of_types.values()) for job, of_types in by_type.items()}
        steps = {job: report.steps for job, report in reports.items()}
        origins = {job: row.origin for job, row in rows.items() if row.origin is not None}
        state = SchedulerState(
            original_requests={job: row.original for job, row in rows.items() if row.original is not None},
            submitted={
                job: row.submitted
                for job, row in rows.items()
                if row.submitted is not None and row.submitted < snapshot.jobs_by_id[job].submit_time
            },
            held=frozenset(job for job, row in rows.items() if row.held),
            service=service,
            service_by_type=by_type,
            moves=attained.moves(snapshot.time, snapshot.jobs_by_id),
            nices={job: row.nice for job, row in rows.items() if row.nice is not None},
            measured=measurements.rates(rows),
            family_rates=measurements.family_rates(families),
            steps=steps,
            restart_seconds={
                job: report.restart_seconds for job, report in reports.items() if report.restart_seconds is not None
            },
            policy_state=self._policy_state(policy),
            usual=feasible_requests(self._usual_requests(snapshot.time - USUAL_REQUESTS_WINDOW), snapshot.nodes),
            notified=notified_jobs(self._database, snapshot),
            set_aside=set_aside_since(self._database),
            held_aside=held_aside(self._database, snapshot),
            out_of_memory=measurements.out_of_memory(snapshot.time),
            pair_rates=measurements.pair_rates(families),
            idle={job: idle for job, idle in measurements.idle_gpus().items() if job in snapshot.jobs_by_id},
            use=self._finished_runs.use_of(snapshot.jobs_in_state(*_SIZED), snapshot.time, origins),
            lengths=self._finished_runs.lengths_of(snapshot, service, steps, origins) if lengths else {},
        )
        refused = self.refused_starts()
        return with_refusals(state, refused, with_original_requests(snapshot, state)) if refused else state

    def refused_starts(self) -> Mapping[JobId, RefusedStart]:
        """The last start of each job that Slurm refused; not all of them still stand."""
        rows = self._database.rows("SELECT * FROM refused_starts")
        known = self._database.unreadable_rows.parse_each("refused_starts", "job", _refused_start, rows)
        return {refused.job: refused for refused in known}

    def held_jobs(self) -> tuple[JobId, ...]:
        """The unfinished jobs under our hold."""
        query = "SELECT id FROM jobs WHERE held_by_us AND state != 'finished'"
        return tuple(str(row["id"]) for row in self._database.rows(query))

    def record_refusals(self, refused: Iterable[RefusedStart]) -> None:
        """Remember these refusals, and forget those of a day ago and earlier."""
        entries = [{**asdict(one), "nodes": ",".join(one.nodes)} for one in refused]
        if entries:
            with self._database.transaction():
                self._database.write_many(_INSERT_REFUSAL, entries)
                self._database.write("DELETE FROM refused_starts WHERE at < ?", (entries[0]["at"] - _DAY,))
            self._counts.refused_starts += len(entries)

    def record_reasons(self, reasons: Mapping[JobId, Reason]) -> None:
        """Record why these jobs wait after all, instead of the decision to start them."""
        explained = {job: Explanation.of_reason(job, reason) for job, reason in reasons.items()}
        self._database.write_many(
            "UPDATE jobs SET reason = :reason, sentence = :sentence, target = NULL WHERE id = :id",
            [{"id": job, "reason": encode(why), "sentence": why.headline} for job, why in explained.items()],
        )
        self._decisions.forget(reasons)

    def record_poll(
        self,
        round_id: int | None,
        snapshot: Snapshot,
        managed: Collection[JobId],
        overview: ClusterOverview | None = None,
    ) -> tuple[JobEvent, ...]:
        """Record a poll: jobs and attained service, and within a round the overview of the nodes for `status`; return
        what happened to jobs since the last one."""
        self._polled = None
        with self._database.transaction():
            events = tuple(update_jobs(self._database, snapshot, managed, self._rows))
            record_events(self._database, round_id, events)
            AttainedService(self._database).record_runs(snapshot)
            if round_id is not None:
                self._database.write(
                    "UPDATE rounds SET overview = ? WHERE id = ?",
                    (self._encoded(overview or self.overviews.of(snapshot)), round_id),
                )
        self._polled = snapshot
        self._decisions.forget(event.job for event in events if event.kind in _ROW_CHANGES)
        self._counts.events.update(event.kind for event in events)
        self.overview = overview or self.overview
        return events

    def record_decision(
        self,
        round_id: int,
        result: RoundResult,
        explain: Explain,
        recording: Callable[[], bytes] | None = None,
        overview: ClusterOverview | None = None,
    ) -> None:
        """Record a round's decision before it is executed. `recording` returns its recording for replay, which may be
        packed in the meantime."""
        decided, version = dict(_decided_of(result, explain)), self._database.version
        packed = recording() if recording else None
        with self._database.transaction():
            self._database.write_many(_UPDATE_DECISION, self._decisions.differing(decided, version))
            self._database.write(
                "INSERT OR REPLACE INTO policy_state (system, state) VALUES (?, ?)",
                (result.decision.policy, encode(result.decision.state)),
            )
            self._database.write(
                "UPDATE rounds SET overview = ?, snapshot = ? WHERE id = ?",
                (self._encoded(overview or self.overviews.of(result.snapshot)), packed, round_id),
            )
            self._finished_runs.record_forecasts()
            self._record_unreadable(result.snapshot.time)
        self._decisions.store(decided, version)
        self.overview = overview or self.overview

    def _encoded(self, overview: ClusterOverview) -> str:
        """What `encode` returns: most of thousands of nodes are used as in the last round."""
        texts = {"nodes": self._nodes.encode(overview.nodes)}
        if overview.fragments is not None:
            [texts["fragments"]] = self._fragments.encode_each([overview.fragments])
        return encode_with(overview, texts)

    def record_events(
        self,
        round_id: int,
        outcomes: Iterable[Outcome],
        allocated: Iterable[JobId],
        at: float,
        mismatches: Iterable[DeviceMismatch] = (),
    ) -> None:
        """Record what a round did to jobs, for `history`. `allocated` are the jobs with a target, `mismatches` those
        that run on other GPUs than planned."""
        query = "SELECT verb, subject, finished FROM operations WHERE round = ? AND finished IS NOT NULL"
        done = {
            (row["verb"], row["subject"]): time
            for row in self._database.rows(query, (round_id,))
            if isinstance(time := row["finished"], float)
        }
        events = (
            *events_of_outcomes(outcomes, allocated, at, done),
            *(JobEvent(at, mismatch.job, JobEventKind.DEVICE, mismatch.sentence) for mismatch in mismatches),
        )
        record_events(self._database, round_id, events)
        self._counts.events.update(event.kind for event in events)

    def prune(self, at: float, keep_days: int, keep_snapshots: int) -> None:
        """Delete history older than `keep_days` and an hour, all but the latest `keep_snapshots` recordings, and all
        but the latest overviews of the nodes.

        A round deletes at most six hours of history: a clock that jumps ahead does little harm until it is corrected,
        and a daemon that returns after months is not blocked.
        """
        with self._database.transaction():
            oldest = self._prune_before(at - keep_days * _DAY - _CLOCK_TOLERANCE)
            self._database.write(_OLD_RECORDINGS, (keep_snapshots,))
            self._database.write(_OLD_OVERVIEWS)
            self._database.write("INSERT OR REPLACE INTO upkeep (name, at) VALUES ('pruned', ?)", (oldest,))
            ended = [row["id"] for row in self._database.rows(_SELECT_ENDED, (oldest,))]
            for table in ("reported", "rates", "start_forecasts", "first_draws"):
                self._database.write_for_jobs(f"DELETE FROM {table} WHERE job IN ({{jobs}})", ended)  # noqa: S608 own names
            self._database.write_for_jobs("DELETE FROM jobs WHERE id IN ({jobs})", ended)
            self._finished_runs.prune(oldest)
            for statement in _PRUNE:
                self._database.write(statement, {"oldest": oldest, "counts": OUT_OF_MEMORY_SECONDS})

    def _prune_before(self, wanted: float) -> float:
        """The time before which history is deleted now; the first time it is `wanted`."""
        rows = self._database.rows("SELECT name, at FROM upkeep WHERE name = 'pruned'")
        before = self._database.unreadable_rows.parse_each("upkeep", "name", lambda row: number(row, "at"), rows)
        return min(wanted, before[0] + _PRUNE_STEP) if before else wanted

    def _record_unreadable(self, at: float) -> None:
        """Record the rows that could not be read, and delete records that are a day old."""
        unreadable = self._database.unreadable_rows.take()
        self._database.write_many(
            "INSERT OR REPLACE INTO unreadable (place, row, problem, at) VALUES (?, ?, ?, ?)",
            [(row.table, row.row, row.problem, at) for row in unreadable],
        )
        self._database.write("DELETE FROM unreadable WHERE at < ?", (at - _DAY,))

    def _usual_requests(self, since: float) -> tuple[tuple[Request, int], ...]:
        """The thousand most frequent requests of jobs seen after `since` (unix seconds), with their counts."""
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
    """One row of `jobs`; `original` and `nice` are None unless we changed the request or the nice in Slurm, `origin` is
    the script and the folder, once they were asked for."""

    job: JobId
    original: Request | None
    nice: int | None
    held: bool
    submitted: float | None
    origin: tuple[str, str] | None


def _stored_job(row: DatabaseRow) -> _StoredJob:
    return _StoredJob(
        job=text(row, "id"),
        original=decoded_request(text(row, "original")) if boolean(row, "reshaped") else None,
        nice=integer(row, "original_nice") if boolean(row, "boosted") else None,
        held=boolean(row, "held_by_us"),
        submitted=optional_number(row, "submitted"),
        origin=None if row["script"] is None else parse_origin(row),
    )


def _refused_start(row: DatabaseRow) -> RefusedStart:
    return RefusedStart(
        text(row, "job"),
        number(row, "at"),
        integer(row, "tries"),
        text(row, "reason"),
        tuple(filter(None, text(row, "nodes").split(","))),
        text(row, "basis"),
        boolean(row, "displaced"),
    )


def _request_count(row: DatabaseRow) -> tuple[Request, int]:
    return decoded_request(text(row, "original")), integer(row, "times")


_SELECT_JOBS: Final = (
    "SELECT id, original, original_nice, held_by_us, reshaped, boosted, submitted, script, folder FROM jobs"
    " WHERE id IN ({jobs})"
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
_INSERT_REFUSAL: Final = (
    "INSERT OR REPLACE INTO refused_starts (job, at, tries, reason, nodes, basis, displaced)"
    " VALUES (:job, :at, :tries, :reason, :nodes, :basis, :displaced)"
)

_UPDATE_DECISION: Final = (
    "UPDATE jobs SET rank = :rank, rank_key = :rank_key, reason = :reason, sentence = :sentence, target = :target"
    " WHERE id = :id"
)
_OLD_RECORDINGS: Final = (
    "UPDATE rounds SET snapshot = NULL WHERE snapshot IS NOT NULL AND id <="
    " (SELECT id FROM rounds WHERE snapshot IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_OLD_OVERVIEWS: Final = (
    "UPDATE rounds SET overview = NULL WHERE overview IS NOT NULL AND id <="
    " (SELECT id FROM rounds WHERE overview IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET 20)"
)
_SELECT_ENDED: Final = (
    "SELECT id FROM jobs WHERE last_seen < ? AND state = 'finished' AND NOT (held_by_us OR reshaped OR boosted)"
)
_PRUNE: Final = (
    "DELETE FROM operations WHERE result != 'intended' AND intended < :oldest",
    "DELETE FROM events WHERE at < :oldest",
    "DELETE FROM family_rates WHERE at < :oldest",
    "DELETE FROM pair_rates WHERE at < :oldest",
    "DELETE FROM out_of_memory WHERE at < :oldest - :counts",
    "DELETE FROM told_starts WHERE started < :oldest",
    "DELETE FROM service WHERE run_started < :oldest AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = service.job)",
    "DELETE FROM rounds WHERE started < :oldest AND NOT EXISTS (SELECT 1 FROM operations WHERE round = rounds.id)",
)


_Decided = tuple[Explanation, tuple[int, str] | None, Target | None]
"""What was decided about a job: why, its rank in the order with the sort key, and what it is to have."""


class _Decisions:
    """What is stored of decisions, so that a round writes only those that differ from the last one's."""

    def __init__(self) -> None:
        self._stored: Mapping[JobId, _Decided] = {}
        self._version = 0

    def differing(self, decided: Mapping[JobId, _Decided], version: int) -> list[dict[str, Any]]:
        """The columns of the jobs about which something else is stored. `version` is that of the database: all are
        told anew if somebody else has written to it."""
        stored = self._stored if version == self._version else {}
        return [_columns_of(job, about) for job, about in decided.items() if stored.get(job) != about]

    def store(self, decided: Mapping[JobId, _Decided], version: int) -> None:
        """These, and no others, are stored now."""
        self._stored, self._version = decided, version

    def forget(self, jobs: Iterable[JobId]) -> None:
        """Of these jobs something else may be stored."""
        jobs = set(jobs)
        if jobs:
            self._stored = {job: about for job, about in self._stored.items() if job not in jobs}


def _decided_of(result: RoundResult, explain: Explain) -> Iterator[tuple[JobId, _Decided]]:
    ranks = {ranked.job: (rank, ranked.key) for rank, ranked in enumerate(result.decision.order, start=1)}
    for job in result.snapshot.jobs_by_id:
        if job not in result.unmanaged:
            yield job, (explain(result, job), ranks.get(job), result.decision.targets.get(job))
    for job, reason in result.unmanaged.items():
        yield job, (Explanation.of_reason(job, reason), None, None)


def _columns_of(job: JobId, decided: _Decided) -> dict[str, Any]:
    explanation, rank, target = decided
    number, key = rank or (None, "")
    return {
        "id": job,
        "rank": number,
        "rank_key": key,
        "reason": encode(explanation),
        "sentence": explanation.headline,
        "target": None if target is None else encode(target),
    }
