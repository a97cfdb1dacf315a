"""Measures a round's database work on a database with a long history, and what it pays to learn of runs that ended."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from gzip import compress
from itertools import islice
from json import dumps
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.recorded import pack_recording
from slurmsched.backends.slurm.accounting import format_finished, parse_finished
from slurmsched.bench.workload import NOW, generate_snapshot
from slurmsched.knowledge import Knowledge
from slurmsched.model import Operation, Reason, ReasonCode, Result, Snapshot, Verb, cluster_overview, encode
from slurmsched.rounds.explainer import explain
from slurmsched.rounds.round import run_round
from slurmsched.settings.definition import Settings
from slurmsched.store.finished_runs import AccountingCursor, FinishedRuns
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
    store.state.record_decision(round_id, result, explain, lambda: recording)
    recorded = perf_counter()
    store.state.prune(round_time, HISTORY_DAYS, 200)
    return polled - began, loaded - polled, recorded - decided, perf_counter() - recorded


@dataclass(frozen=True, slots=True)
class LearningTime:
    """Seconds that a round pays for `ended` runs that sacct tells of, medians of the rounds: to read what sacct printed
    (`mb` MB), and to store it. slurmdbd's own time comes on top."""

    ended: int
    mb: float
    parse_s: float
    record_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class AccountingTime:
    """What `finished` runs cost when they are read for the first time, in pages as rounds read them, how large the
    database is then, and what a later round pays for each number of runs that ended."""

    finished: int
    pages: int
    first_s: float
    longest_page_s: float
    file_mb: float
    rounds: tuple[LearningTime, ...]


_PAGE: Final = 5_000
"""Runs of one answer of sacct, as rounds ask for them."""
_ENDED: Final = (0, 100, _PAGE)
_ROUNDS_READ_AGAIN: Final = 2
"""Rounds whose runs are read once more in each, as rounds of five minutes ask for the ten minutes before too."""


def time_accounting(finished: int, repetitions: Iterable[int]) -> AccountingTime:
    """Measures the reader of sacct's output and the database, about 0.3 kB for each run in $TMPDIR."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        with closing(Store.open(path, NOW)) as store:
            pages = [
                _time_learning(store.finished_runs, first, min(_PAGE, finished - first), 0)
                for first in range(0, finished, _PAGE)
            ]
            (size,) = store.database.rows("SELECT page_count * page_size AS n FROM pragma_page_count, pragma_page_size")
            told, rounds = finished, dict[int, list[LearningTime]]()
            for _ in repetitions:
                for ended in _ENDED:
                    again = min(_ROUNDS_READ_AGAIN * ended, told)
                    rounds.setdefault(ended, []).append(_time_learning(store.finished_runs, told, ended, again))
                    told += ended
    seconds = [page.total_s for page in pages]
    medians = tuple(_median_time(spent) for spent in rounds.values())
    return AccountingTime(finished, len(pages), sum(seconds), max(seconds), size["n"] / 1e6, medians)


def _median_time(spent: Sequence[LearningTime]) -> LearningTime:
    columns = ([getattr(one, name) for one in spent] for name in ("mb", "parse_s", "record_s", "total_s"))
    return LearningTime(spent[0].ended, *map(median, columns))


def _time_learning(runs: FinishedRuns, first: int, ended: int, again: int) -> LearningTime:
    """Learns of `ended` runs from the number `first` on, whose answer also has those `again` that ended before."""
    printed = format_finished(_sacct_rows(first - again, ended + again), _MARK)
    began = perf_counter()
    page = parse_finished(printed, _MARK)
    parsed = perf_counter()
    runs.record(*AccountingCursor(NOW + first, _DAY).after(page.runs, NOW + first + ended), "v100")
    recorded = perf_counter()
    return LearningTime(ended, len(printed) / 1e6, parsed - began, recorded - parsed, recorded - began)


def _sacct_rows(first: int, count: int) -> Iterator[dict[str, str]]:
    """Runs with the rows of their batch steps, as sacct prints them where jobacct_gather and jobstats are in use; one
    ends each second, of 500 users with 40 scripts each."""
    for number in range(first, first + count):
        user, script = divmod(number % 20_000, 40)
        start, end = (datetime.fromtimestamp(NOW + at, UTC).strftime(_TIME) for at in (number - 3600, number))
        times = {"Start": start, "End": end, "ElapsedRaw": "3600", "State": "COMPLETED"}
        yield times | {
            "JobIDRaw": str(number + 1),
            "JobID": str(number + 1),
            "User": f"user{user}",
            "JobName": f"train-{script}",
            "TimelimitRaw": "2880",
            "AllocTRES": "billing=8,cpu=8,gres/gpu:v100=1,gres/gpu=1,mem=64G,node=1",
            "TotalCPU": "06:12:03",
            "WorkDir": f"/home/user{user}/experiments/{script}",
            "Comment": "synsched:model=resnet50",
            "AdminComment": _SUMMARY,
        }
        use = "cpu=06:12:03,energy=0,fs/disk=901,gres/gpumem=9472M,gres/gpuutil=93,mem=20413K,pages=12,vmem=31M"
        yield times | {
            "JobIDRaw": f"{number + 1}.batch",
            "JobID": f"{number + 1}.batch",
            "JobName": "batch",
            "AllocTRES": "cpu=8,gres/gpu:v100=1,gres/gpu=1,mem=64G,node=1",
            "NTasks": "1",
            "TotalCPU": "06:12:03",
            "MaxRSS": "20413K",
            "TRESUsageInMax": use,
            "TRESUsageInTot": use,
        }


_MARK: Final = "0123456789abcdef" * 2
_TIME: Final = "%Y-%m-%dT%H:%M:%S"
_NODE: Final = {
    "cpus": 8,
    "gpu_total_memory": {"0": 34089730048},
    "gpu_used_memory": {"0": 9932111872},
    "gpu_utilization": {"0": 71.3},
    "total_memory": 68719476736,
    "total_time": 22323.4,
    "used_memory": 21474836480,
}
_SUMMARY: Final = "JS1:" + b64encode(compress(dumps({"nodes": {"n0001": _NODE}, "gpus": 1}).encode(), mtime=0)).decode()


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
