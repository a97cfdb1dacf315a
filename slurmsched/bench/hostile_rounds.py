"""Tests whole rounds with hostile text: crashes, effects of one job's text on other jobs, and the time of a record."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from slurmsched.backends.protocol import Identity, Privilege
from slurmsched.backends.simulated import VirtualClock
from slurmsched.backends.slurm.backend import SlurmBackend
from slurmsched.backends.slurm.command_source import CommandSource
from slurmsched.backends.slurm.commands import Commands
from slurmsched.bench.hostile_slurm import FakeJob, FakeSlurm
from slurmsched.bench.hostile_text import (
    NODES,
    NOW,
    HostileBatch,
    hostile_bytes,
    hostile_report,
    make_batch,
    make_held_batch,
)
from slurmsched.daemon.cleanup import release_all
from slurmsched.daemon.job_reports import read_reports
from slurmsched.daemon.scheduler import SchedulerContext, schedule_round
from slurmsched.jobside.spool import report_file_name
from slurmsched.knowledge import Knowledge, shipped_profiles
from slurmsched.model import Job, JobId, Request, SchedulerState, Snapshot
from slurmsched.policies.policies import POLICIES
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.settings.definition import (
    GuardSettings,
    HookSettings,
    ManageSettings,
    Mode,
    PolicySettings,
    RoundSettings,
    Settings,
    StorageSettings,
)
from slurmsched.store.store import Store
from slurmsched.traces.formats.sacct import SACCT_FIELDS, read_sacct
from slurmsched.traces.trace import ImportContext, TraceError

BOUND_MS: Final = 5.0
"""Most milliseconds of CPU time for parsing one record."""

_BATCH_SIZE: Final = 240
"""Hostile jobs in a batch."""
_BATCHES_PER_TASK: Final = 16
"""Batches that a worker runs before it returns its results."""
_FULL_ROUND_EVERY: Final = 16
"""One batch of this many also runs a round that has a database and changes jobs."""
_RETRIES: Final = 3
"""Times that a slow record is parsed again; the minimum counts, because garbage collection is not the record's cost."""
_ADDRESS_SPACE: Final = 4 << 30
"""Bytes that a worker may map, so that excessive use of memory raises an error."""
_STEP_TIMEOUT: Final = 60
"""CPU seconds after which a batch's step counts as hanging; a single record has a twelfth of that."""
_MAX_EXAMPLES: Final = 20
_HISTORY_LINES: Final = 20
"""Lines of history read in one batch."""

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HostileResults:
    """The results over all batches.

    `records` are the hostile records. `crashes` are records, batches and rounds that raised an exception or hung.
    `changed_jobs` are honest jobs whose values, position in the order or targets changed by a hostile job's text, or
    that were not held or released. `misread_jobs` are hostile jobs parsed with other values than Slurm's. The parser
    skipped `set_aside` jobs, and `lost_jobs` were neither parsed nor set aside. Times are CPU milliseconds of parsing
    one record; `wall_ms_per_record` is the whole run's time divided by the records. `examples` describe the first
    failures, with the seed of their batch.
    """

    records: int
    crashes: int
    changed_jobs: int
    misread_jobs: int
    lost_jobs: int
    set_aside: int
    honest_records: int
    rounds: int
    p50_ms: float
    p99_ms: float
    slowest_ms: float
    peak_rss_mb: float
    seconds: float
    wall_ms_per_record: float
    examples: tuple[str, ...]


@dataclass(slots=True)
class _PartialResults:
    """The results of some batches."""

    records: int = 0
    crashes: int = 0
    changed: int = 0
    misread: int = 0
    lost: int = 0
    set_aside: int = 0
    honest: int = 0
    rounds: int = 0
    times: list[float] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    examples: list[str] = field(default_factory=list)

    def add_example(self, example: str) -> None:
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(example)

    def add_crash(self, seed: str, error: BaseException) -> None:
        self.crashes += 1
        self.add_example(f"batch {seed}: {type(error).__name__}: {str(error)[:120]}")


class _StepTimeoutError(Exception):
    """A step exceeded its limit of CPU time."""


def run_hostile(
    records: int, seed: int, workers: int = 1, on_progress: Callable[[float], None] = lambda _part: None
) -> HostileResults:
    """Parses and schedules at least `records` hostile records. `on_progress` gets the part done, from 0 to 1."""
    began = time.perf_counter()
    batches = -(-records // _BATCH_SIZE)
    tasks = [range(first, min(first + _BATCHES_PER_TASK, batches)) for first in range(0, batches, _BATCHES_PER_TASK)]
    size = min(_BATCH_SIZE, records)
    parts: list[_PartialResults] = []
    # One worker is a separate process too, because its memory is limited. Spawned, so that its peak starts at zero.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_limit_worker) as pool:
        futures = [pool.submit(_run_batches, seed, size, task) for task in tasks]
        for future in as_completed(futures):
            parts.append(future.result())
            on_progress(len(parts) / len(tasks))
    return _combine(parts, time.perf_counter() - began)


def _combine(parts: Sequence[_PartialResults], seconds: float) -> HostileResults:
    times: _Floats = np.concatenate([np.asarray(part.times, dtype=np.float32) for part in parts]) * 1000
    records = sum(part.records for part in parts)
    return HostileResults(
        records=records,
        crashes=sum(part.crashes for part in parts),
        changed_jobs=sum(part.changed for part in parts),
        misread_jobs=sum(part.misread for part in parts),
        lost_jobs=sum(part.lost for part in parts),
        set_aside=sum(part.set_aside for part in parts),
        honest_records=sum(part.honest for part in parts),
        rounds=sum(part.rounds for part in parts),
        p50_ms=float(np.percentile(times, 50)),
        p99_ms=float(np.percentile(times, 99)),
        slowest_ms=float(times.max()),
        peak_rss_mb=max(part.peak_rss_mb for part in parts),
        seconds=seconds,
        wall_ms_per_record=1000 * seconds / records,
        examples=tuple(example for part in parts for example in part.examples)[:_MAX_EXAMPLES],
    )


def _limit_worker() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    signal.signal(signal.SIGPROF, _raise_timeout)


def _raise_timeout(_signal: int, _frame: object) -> None:
    raise _StepTimeoutError("the step exceeded its CPU time limit")


@contextmanager
def _cpu_time_limit(seconds: float) -> Iterator[None]:
    """Raises _StepTimeoutError if the block takes more CPU seconds."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _run_batches(seed: int, size: int, batches: Iterable[int]) -> _PartialResults:
    part = _PartialResults()
    for number in batches:
        name = f"{seed}:{number}"
        random = Random(name)  # noqa: S311  # generated text, not secrets
        batch = make_batch(random, size)
        part.records += len(batch.hostile)
        part.honest += len(batch.jobs) - len(batch.hostile)
        _time_reading(name, batch, part)
        for step in (
            (_compare_decisions, _hold_and_release, _read_reports_and_history)
            if number % _FULL_ROUND_EVERY == 0
            else (_compare_decisions,)
        ):
            try:
                with _cpu_time_limit(_STEP_TIMEOUT):
                    step(name, batch, part, random)
            except Exception as error:  # any exception is a result of this test
                part.add_crash(name, error)
    part.peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return part


def _slurm_backend(slurm: FakeSlurm) -> SlurmBackend:
    return SlurmBackend(Commands(30.0, runner=slurm), CommandSource(), lambda: float(NOW), user=lambda: "synsched")


def _time_reading(batch_name: str, batch: HostileBatch, part: _PartialResults) -> None:
    """Measures the parsing of each hostile record, in a poll of one node and no other job."""
    slurm = FakeSlurm(batch.release, NODES[:1], ())
    backend = _slurm_backend(slurm)
    for job in batch.jobs:
        if job.number not in batch.hostile:
            continue
        slurm.jobs = [job]
        try:
            with _cpu_time_limit(_STEP_TIMEOUT / 12):
                seconds = _poll_seconds(slurm, backend)
                for _ in range(_RETRIES if 1000 * seconds > BOUND_MS else 0):
                    gc.collect()
                    seconds = min(seconds, _poll_seconds_anew(slurm, job))
        except Exception as error:  # any exception is a result of this test
            part.add_crash(f"{batch_name}, record {job.number}", error)
            part.times.append(_STEP_TIMEOUT / 12 if isinstance(error, _StepTimeoutError) else 0.0)
        else:
            part.times.append(seconds)
            if 1000 * seconds > BOUND_MS:
                part.add_example(f"batch {batch_name}, record {job.number} of {batch.release}: {1000 * seconds:.1f} ms")


def _poll_seconds(slurm: FakeSlurm, backend: SlurmBackend) -> float:
    """Returns the CPU seconds of a poll without those of the fake Slurm."""
    slurm.own_cpu_seconds, began = 0.0, time.thread_time()
    backend.observe()
    return time.thread_time() - began - slurm.own_cpu_seconds


def _poll_seconds_anew(slurm: FakeSlurm, job: FakeJob) -> float:
    """Returns the same for a backend that has never seen the job and so has not cached its allocation."""
    backend, slurm.jobs = _slurm_backend(slurm), []
    backend.observe()
    slurm.jobs = [job]
    return _poll_seconds(slurm, backend)


def _compare_decisions(batch_name: str, batch: HostileBatch, part: _PartialResults, random: Random) -> None:
    """Parses and schedules the batch and its harmless version; honest jobs must have the same results in both."""
    hostile_snapshot = _slurm_backend(FakeSlurm(batch.release, NODES, batch.jobs)).observe()
    harmless_snapshot = _slurm_backend(FakeSlurm(batch.release, NODES, batch.harmless())).observe()
    absent = {job.id for job in harmless_snapshot.jobs} - {job.id for job in hostile_snapshot.jobs}
    set_aside = {job.job for job in hostile_snapshot.set_aside}
    part.set_aside += len(set_aside)
    part.lost += sum(
        _job_number(job) in batch.hostile and job not in set_aside and job.partition("_")[0] not in set_aside
        for job in absent
    )
    changed = _changed_values(hostile_snapshot, harmless_snapshot, batch.hostile)
    misread = [
        job.id
        for job in hostile_snapshot.jobs
        if _job_number(job.id) in batch.hostile and _is_misread(job, harmless_snapshot.jobs_by_id.get(job.id))
    ]
    part.misread += len(misread)
    if misread:
        part.add_example(f"batch {batch_name} of {batch.release}: misread: {misread[:5]}")
    policy = random.choice(tuple(POLICIES))
    hostile_round = _run_round(hostile_snapshot, policy)
    harmless_round = _run_round(_with_owner_texts(harmless_snapshot, hostile_snapshot, batch.hostile), policy)
    part.rounds += 1
    changed |= _changed_decisions(hostile_round, harmless_round, batch.hostile)
    part.changed += len(changed)
    if changed:
        part.add_example(f"batch {batch_name} of {batch.release}, {policy}: changed: {sorted(changed)[:5]}")


def _job_number(job: JobId) -> int:
    return int(job.partition("_")[0])


def _changed_values(hostile_snapshot: Snapshot, harmless_snapshot: Snapshot, hostile: frozenset[int]) -> set[str]:
    """Returns the honest jobs and the nodes that differ from those without hostile text."""
    job_ids = {*hostile_snapshot.jobs_by_id, *harmless_snapshot.jobs_by_id}
    jobs = {
        job
        for job in job_ids
        if _job_number(job) not in hostile
        and hostile_snapshot.jobs_by_id.get(job) != harmless_snapshot.jobs_by_id.get(job)
    }
    set_aside = {job.job for job in hostile_snapshot.set_aside if _job_number(job.job) not in hostile}
    nodes = {
        node
        for node in {*hostile_snapshot.nodes_by_name, *harmless_snapshot.nodes_by_name}
        if hostile_snapshot.nodes_by_name.get(node) != harmless_snapshot.nodes_by_name.get(node)
    }
    return jobs | set_aside | nodes


def _is_misread(job: Job, harmless: Job | None) -> bool:
    """Whether the hostile job's text changed values that are not its owner's text."""
    return harmless is None or _slurm_values(job) != _slurm_values(harmless)


def _slurm_values(job: Job) -> tuple[object, ...]:
    request = replace(job.original_request, features="")
    return (job.user, job.state, job.allocations, job.submit_time, job.hold, job.partitions, job.priority, request)


def _with_owner_texts(harmless_snapshot: Snapshot, hostile_snapshot: Snapshot, hostile: frozenset[int]) -> Snapshot:
    """Returns the harmless snapshot without jobs that the hostile one lacks, the hostile jobs with their own names,
    comments, accounts, features and options."""
    jobs = []
    for job in harmless_snapshot.jobs:
        if _job_number(job.id) in hostile:
            if (hostile_job := hostile_snapshot.jobs_by_id.get(job.id)) is None:
                continue
            jobs.append(
                replace(
                    job,
                    name=hostile_job.name,
                    comment=hostile_job.comment,
                    hints=hostile_job.hints,
                    account=hostile_job.account,
                    unmanageable=hostile_job.unmanageable,
                    original_request=replace(job.original_request, features=hostile_job.original_request.features),
                    current_request=replace(job.current_request, features=hostile_job.current_request.features),
                )
            )
        else:
            jobs.append(job)
    return replace(harmless_snapshot, jobs=tuple(jobs), set_aside=hostile_snapshot.set_aside)


def _run_round(snapshot: Snapshot, policy: str) -> RoundResult:
    settings = _make_settings(Path("/nonexistent"), policy)
    return run_round(snapshot, SchedulerState(), settings, _knowledge(), Identity("bench", Privilege.SLURM_USER))


def _changed_decisions(hostile_round: RoundResult, harmless_round: RoundResult, hostile: frozenset[int]) -> set[str]:
    """Returns the honest jobs whose position among honest jobs, or whose targets, differ."""

    def honest(result: RoundResult) -> tuple[list[JobId], Mapping[JobId, object]]:
        order = [ranked.job for ranked in result.decision.order if _job_number(ranked.job) not in hostile]
        targets = {job: target for job, target in result.decision.targets.items() if _job_number(job) not in hostile}
        return order, targets

    (order, targets), (usual_order, usual_targets) = honest(hostile_round), honest(harmless_round)
    reordered = {job for job, other in zip(order, usual_order, strict=False) if job != other}
    unmatched = {*order} ^ {*usual_order}
    retargeted = {job for job in {*targets, *usual_targets} if targets.get(job) != usual_targets.get(job)}
    return reordered | unmatched | retargeted


def _hold_and_release(batch_name: str, batch: HostileBatch, part: _PartialResults, random: Random) -> None:
    """Checks that rounds on a full cluster hold every waiting job, and that a release gives every job back."""
    del batch
    held = make_held_batch(random, _BATCH_SIZE)
    with tempfile.TemporaryDirectory(prefix="synsched-hostile-") as folder:
        slurm = FakeSlurm(held.release, NODES, held.jobs)
        backend, clock, path = _slurm_backend(slurm), VirtualClock(float(NOW)), Path(folder)
        settings = _make_settings(path, "synergy")
        with closing(Store.open(path / "synsched.db", clock.now())) as store:
            for _ in range(2):
                schedule_round(SchedulerContext(settings, backend, _knowledge()), store, clock)
                clock.advance(settings.rounds.period)
            waiting = [job for job in slurm.jobs if not job.node and job.number not in held.hostile]
            free = [job.number for job in waiting if job.reason != "JobHeldAdmin"]
            release_all(backend, store, clock, 0.0)
            kept = [job.number for job in waiting if job.reason == "JobHeldAdmin"]
        part.rounds += 2
    part.changed += len({*free, *kept})
    if free or kept:
        part.add_example(
            f"batch {batch_name} of {held.release}: not held: {free[:3]}, still held after the release: {kept[:3]}"
        )


def _read_reports_and_history(batch_name: str, batch: HostileBatch, part: _PartialResults, random: Random) -> None:
    """Reads hostile reports and sacct history; each must be parsed or rejected with a TraceError."""
    del batch_name, part
    jobs = [Job(str(job.number), job.user, Request(), Request()) for job in batch.jobs]
    numbers = [job.number for job in batch.jobs]
    with tempfile.TemporaryDirectory(prefix="synsched-hostile-") as folder:
        user_folder = Path(folder, str(os.getuid()))
        user_folder.mkdir(mode=0o755)
        for job in jobs:
            (user_folder / report_file_name(job.id)).write_bytes(hostile_report(random, numbers))
        read_reports(Path(folder), jobs, {job.id: job.user for job in jobs}, lambda _user: os.getuid())
    valid = {"State": "COMPLETED", "Submit": "0", "Start": "1", "Elapsed": "00:01:00"}
    for number in numbers[:_HISTORY_LINES]:
        text = hostile_bytes(random, numbers).decode(errors="replace")
        row = (str(number) if column == "JobID" else valid.get(column, text) for column in SACCT_FIELDS)
        with suppress(TraceError):
            read_sacct(f"{'|'.join(SACCT_FIELDS)}\n{'|'.join(row)}", "sacct", ImportContext())


def _make_settings(folder: Path, policy: str) -> Settings:
    return Settings(
        manage=ManageSettings(partitions=("gpu",), opt_in=False),
        rounds=RoundSettings(mode=Mode.ENFORCE),
        policy=PolicySettings(system=policy),
        guards=GuardSettings(min_run_time=0.0),
        hook=HookSettings(heartbeat=str(folder / "heartbeat"), disable_file=str(folder / "disable")),
        storage=StorageSettings(path=str(folder / "synsched.db")),
    )


_KNOWLEDGE_CACHE: list[Knowledge] = []


def _knowledge() -> Knowledge:
    """The shipped profiles, read once by each worker."""
    if not _KNOWLEDGE_CACHE:
        _KNOWLEDGE_CACHE.append(shipped_profiles())
    return _KNOWLEDGE_CACHE[0]
