"""How long a round's part in the database takes beside a long history."""

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
from slurmsched.backends.recorded import pack
from slurmsched.bench.generated import NOW, generated
from slurmsched.knowledge import Knowledge
from slurmsched.model import Code, Operation, Reason, Result, Snapshot, Verb, encode, survey
from slurmsched.rounds.explaining import explain
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings
from slurmsched.store.store import Store

__all__ = ["StoreTime", "time_store"]

DAYS: Final = 90
_DAY: Final = 86400.0
_PERIOD: Final = 300.0
_LIVE: Final = 2
_KINDS: Final = 200
"""Requests that differ, of all finished jobs."""

_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class StoreTime:
    """`rows` are finished jobs of 90 days. Seconds are medians over rounds with two jobs in the queue: of one poll
    written down, of what earlier rounds left read, of a decision written down, of old history dropped."""

    rows: int
    sight_s: float
    memory_s: float
    remember_s: float
    prune_s: float
    total_s: float
    file_mb: float


def time_store(jobs: int, times: Iterable[int]) -> StoreTime:
    """Measure on a database of `jobs` finished jobs in $TMPDIR, about 2 kB each, once for each of `times`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        with closing(Store.open(path, NOW)) as store:
            _fill(store, jobs)
            spent = [_round(store, number) for number in times]
        size = path.stat().st_size / 1e6
    sight, memory, remember, prune = (median(stage) for stage in zip(*spent, strict=True))
    return StoreTime(jobs, sight, memory, remember, prune, sight + memory + remember + prune, size)


def _round(store: Store, number: int) -> tuple[float, float, float, float]:
    """Seconds of each part of one round."""
    at = NOW + _PERIOD * (number + 1)
    seen = replace(generated(8, 1, _LIVE), time=at)
    round_id = store.journal.begin_round(at, "enforce", "synergy", "las")
    began = perf_counter()
    store.remembering.sight(round_id, seen, seen.job)
    sighted = perf_counter()
    memory = store.remembering.memory(seen, "synergy")
    known = perf_counter()
    result = run_round(seen, memory, Settings(), Knowledge(), Identity("bench", Privilege.SLURM_USER))
    recording = pack(seen, memory)
    decided = perf_counter()
    store.remembering.remember(round_id, result, explain, recording)
    remembered = perf_counter()
    store.remembering.prune(at, DAYS, 200)
    return sighted - began, known - sighted, remembered - decided, perf_counter() - remembered


def _fill(store: Store, jobs: int) -> None:
    """Finished jobs with what belongs to each, spread evenly over the days, and the rounds that decided them."""
    database, queue = store.database, generated(8, 1, _KINDS)
    rounds = range(1, int(DAYS * _DAY / _PERIOD) + 1)
    overview = encode(survey(queue))
    with database.transaction():
        for some in _batches(_past_rounds(rounds, overview)):
            database.write_many(_ROUND, some)
    for statement, rows in (
        (_JOB, _finished(queue, jobs)),
        (_SERVICE, ({"id": row["id"], "at": row["at"]} for row in _finished(queue, jobs))),
        (_EVENT, _happened(queue, jobs)),
        (_OPERATION, _done(queue, jobs, len(rounds))),
    ):
        for some in _batches(rows):
            with database.transaction():
                database.write_many(statement, some)


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while some := list(islice(rows, _BATCH)):
        yield some


def _past_rounds(rounds: range, overview: str) -> Iterator[dict[str, Any]]:
    for number in rounds:
        started = NOW - (len(rounds) - number + 1) * _PERIOD
        yield {"id": number, "started": started, "overview": overview}


def _finished(queue: Snapshot, jobs: int) -> Iterator[dict[str, Any]]:
    requests = [encode(job.request) for job in queue.jobs]
    reason = encode({"facts": {"has": "1 GPU on n0001"}, "headline": "ran", "details": ["x" * 60] * 8})
    summary = encode({"user": "user1", "partition": "gpu", "gpus": 1, "nodes": ["n0001"], "hints": queue.jobs[0].hints})
    for number in range(jobs):
        yield {
            "id": str(1_000_000 + number),
            "at": NOW - DAYS * _DAY * (1 - (number + 1) / (jobs + 1)),
            "original": requests[number % len(requests)],
            "reason": reason,
            "summary": summary,
        }


def _happened(queue: Snapshot, jobs: int) -> Iterator[dict[str, Any]]:
    for row in _finished(queue, jobs):
        for kind in ("seen", "released", "started", "ended"):
            yield {"id": row["id"], "at": row["at"], "kind": kind}


def _done(queue: Snapshot, jobs: int, rounds: int) -> Iterator[dict[str, Any]]:
    release = encode(Reason(Code.START))
    for number, row in enumerate(_finished(queue, jobs)):
        verb = Verb.REQUEUE if number % 10 == 0 else Verb.RELEASE
        sentence = Operation(verb, row["id"], Reason(Code.START)).sentence
        yield {
            "round": 1 + number * rounds // jobs,
            "verb": verb.value,
            "id": row["id"],
            "reason": release,
            "sentence": sentence,
            "result": Result.DONE.value,
            "at": row["at"],
        }


_ROUND: Final = (
    "INSERT INTO rounds (id, started, finished, mode, system, ordering, overview)"
    " VALUES (:id, :started, :started, 'enforce', 'synergy', 'las', :overview)"
)
_JOB: Final = (
    "INSERT INTO jobs (id, owner, name, first_seen, last_seen, state, original, reason, sentence, summary, submitted)"
    " VALUES (:id, 'user1', 'train', :at, :at, 'finished', :original, :reason, 'ran', :summary, :at)"
)
_SERVICE: Final = "INSERT INTO service (job, run_started, gpu_seconds) VALUES (:id, :at, 3600)"
_EVENT: Final = "INSERT INTO events (at, round, job, kind, sentence) VALUES (:at, 1, :id, :kind, 'as it was decided')"
_OPERATION: Final = (
    "INSERT INTO operations (round, position, verb, subject, reason, sentence, result, intended, finished)"
    " VALUES (:round, 0, :verb, :id, :reason, :sentence, :result, :at, :at)"
)
