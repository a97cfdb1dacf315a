"""Measures a round's database work on a database with a long history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.recorded import pack_recording
from slurmsched.bench.workload import NOW, generate_snapshot
from slurmsched.knowledge import Knowledge
from slurmsched.model import Operation, Reason, ReasonCode, Result, Snapshot, Verb, cluster_overview, encode
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings
from slurmsched.store.store import Store

HISTORY_DAYS: Final = 90
_DAY: Final = 86400.0
_ROUND_PERIOD: Final = 300.0
_QUEUED_JOBS: Final = 2
_REQUEST_KINDS: Final = 200
"""Different requests among all finished jobs."""

_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class StoreTime:
    """Median seconds over rounds with two queued jobs, on a database with `rows` finished jobs of the last 90 days.

    `sight_s` is the time to record a poll, `memory_s` to load the state, `remember_s` to record a decision, and
    `prune_s` to delete old history. `file_mb` is the size of the database in MB.
    """

    rows: int
    sight_s: float
    memory_s: float
    remember_s: float
    prune_s: float
    total_s: float
    file_mb: float


def time_store(jobs: int, repetitions: Iterable[int]) -> StoreTime:
    """Measures a database of `jobs` finished jobs, about 2 kB each in $TMPDIR, once for each of `repetitions`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        with closing(Store.open(path, NOW)) as store:
            _fill_history(store, jobs)
            spent = [_time_round(store, number) for number in repetitions]
        size = path.stat().st_size / 1e6
    poll, load, record, prune = (median(stage) for stage in zip(*spent, strict=True))
    return StoreTime(jobs, poll, load, record, prune, poll + load + record + prune, size)


def _time_round(store: Store, number: int) -> tuple[float, float, float, float]:
    """Returns the seconds to record a poll, load the state, record a decision and prune."""
    round_time = NOW + _ROUND_PERIOD * (number + 1)
    snapshot = replace(generate_snapshot(8, 1, _QUEUED_JOBS), time=round_time)
    round_id = store.journal.begin_round(round_time, "enforce", "synergy", "las")
    began = perf_counter()
    store.state.record_poll(round_id, snapshot, snapshot.jobs_by_id)
    polled = perf_counter()
    state = store.state.load_state(snapshot, "synergy")
    loaded = perf_counter()
    result = run_round(snapshot, state, Settings(), Knowledge(), Identity("bench", Privilege.SLURM_USER))
    recording = pack_recording(snapshot, state)
    decided = perf_counter()
    store.state.record_decision(round_id, result, explain, recording)
    recorded = perf_counter()
    store.state.prune(round_time, HISTORY_DAYS, 200)
    return polled - began, loaded - polled, recorded - decided, perf_counter() - recorded


def _fill_history(store: Store, jobs: int) -> None:
    """Writes finished jobs with their events and operations, evenly spread over the days, and their rounds."""
    database, queue = store.database, generate_snapshot(8, 1, _REQUEST_KINDS)
    rounds = range(1, int(HISTORY_DAYS * _DAY / _ROUND_PERIOD) + 1)
    overview = encode(cluster_overview(queue))
    with database.transaction():
        for batch in _batches(_round_rows(rounds, overview)):
            database.write_many(_INSERT_ROUND, batch)
    for statement, rows in (
        (_INSERT_JOB, _job_rows(queue, jobs)),
        (_INSERT_SERVICE, ({"id": row["id"], "at": row["at"]} for row in _job_rows(queue, jobs))),
        (_INSERT_EVENT, _event_rows(queue, jobs)),
        (_INSERT_OPERATION, _operation_rows(queue, jobs, len(rounds))),
    ):
        for batch in _batches(rows):
            with database.transaction():
                database.write_many(statement, batch)


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield batch


def _round_rows(rounds: range, overview: str) -> Iterator[dict[str, Any]]:
    for number in rounds:
        started = NOW - (len(rounds) - number + 1) * _ROUND_PERIOD
        yield {"id": number, "started": started, "overview": overview}


def _job_rows(queue: Snapshot, jobs: int) -> Iterator[dict[str, Any]]:
    requests = [encode(job.original_request) for job in queue.jobs]
    reason = encode({"facts": {"has": "1 GPU on n0001"}, "headline": "ran", "details": ["x" * 60] * 8})
    summary = encode({"user": "user1", "partition": "gpu", "gpus": 1, "nodes": ["n0001"], "hints": queue.jobs[0].hints})
    for number in range(jobs):
        yield {
            "id": str(1_000_000 + number),
            "at": NOW - HISTORY_DAYS * _DAY * (1 - (number + 1) / (jobs + 1)),
            "original": requests[number % len(requests)],
            "reason": reason,
            "summary": summary,
        }


def _event_rows(queue: Snapshot, jobs: int) -> Iterator[dict[str, Any]]:
    for row in _job_rows(queue, jobs):
        for kind in ("seen", "released", "started", "ended"):
            yield {"id": row["id"], "at": row["at"], "kind": kind}


def _operation_rows(queue: Snapshot, jobs: int, rounds: int) -> Iterator[dict[str, Any]]:
    release = encode(Reason(ReasonCode.START))
    for number, row in enumerate(_job_rows(queue, jobs)):
        verb = Verb.REQUEUE if number % 10 == 0 else Verb.RELEASE
        sentence = Operation(verb, row["id"], Reason(ReasonCode.START)).sentence
        yield {
            "round": 1 + number * rounds // jobs,
            "verb": verb.value,
            "id": row["id"],
            "reason": release,
            "sentence": sentence,
            "result": Result.DONE.value,
            "at": row["at"],
        }


_INSERT_ROUND: Final = (
    "INSERT INTO rounds (id, started, finished, mode, system, ordering, overview)"
    " VALUES (:id, :started, :started, 'enforce', 'synergy', 'las', :overview)"
)
_INSERT_JOB: Final = (
    "INSERT INTO jobs (id, owner, name, first_seen, last_seen, state, original, reason, sentence, summary, submitted)"
    " VALUES (:id, 'user1', 'train', :at, :at, 'finished', :original, :reason, 'ran', :summary, :at)"
)
_INSERT_SERVICE: Final = "INSERT INTO service (job, run_started, gpu_seconds) VALUES (:id, :at, 3600)"
_INSERT_EVENT: Final = (
    "INSERT INTO events (at, round, job, kind, sentence) VALUES (:at, 1, :id, :kind, 'as it was decided')"
)
_INSERT_OPERATION: Final = (
    "INSERT INTO operations (round, position, verb, subject, reason, sentence, result, intended, finished)"
    " VALUES (:round, 0, :verb, :id, :reason, :sentence, :result, :at, :at)"
)
