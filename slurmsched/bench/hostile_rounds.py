"""Hostile text through whole rounds: what crashes, what one job's text changes of another, what a record costs."""

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
from slurmsched.backends.slurm.commands import Commands
from slurmsched.backends.slurm.sources import CommandSource
from slurmsched.bench.hostile_batches import NODES, NOW, Batch, batch, held_batch
from slurmsched.bench.hostile_jobs import MadeUpJob
from slurmsched.bench.hostile_slurm import MadeUpSlurm
from slurmsched.bench.hostile_text import hostile_bytes, hostile_report
from slurmsched.daemon.releasing import release_all
from slurmsched.daemon.scheduling import Site, one_round
from slurmsched.daemon.spool import read_reports
from slurmsched.jobside.spool import report_name
from slurmsched.knowledge import Knowledge, shipped_profiles
from slurmsched.model import Job, JobId, Memory, Request, Snapshot
from slurmsched.policies.systems import SYSTEMS
from slurmsched.rounds.round import RoundResult, run_round
from slurmsched.settings.definition import Guards, Hook, Manage, Mode, Policy, Rounds, Settings, Storage
from slurmsched.store.store import Store
from slurmsched.traces.errors import TraceError
from slurmsched.traces.imported import Sources
from slurmsched.traces.importing.sacct import ASK, read_sacct

__all__ = ["BOUND_MS", "HostileFigures", "feed_hostile"]

BOUND_MS: Final = 5.0
"""Milliseconds of the processor that the reading of one record may cost."""

_BATCH: Final = 240
"""Hostile jobs in a batch."""
_TASK: Final = 16
"""Batches that a worker does before it says how it went."""
_WHOLE: Final = 16
"""One batch of so many also goes through a round with a database that changes something."""
_AGAIN: Final = 3
"""Times that a slow record is read again: the least counts, as a collection of garbage is not the record's."""
_ADDRESS_SPACE: Final = 4 << 30
"""Bytes that a worker may map, so that what asks for all memory is an error and not the machine's end."""
_LONGEST: Final = 60
"""CPU seconds after which a batch's step counts as hanging; a single record has a twelfth of that."""
_SHOWN: Final = 20
_HISTORY: Final = 20
"""Lines of history read in one batch."""

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HostileFigures:
    """`records` are hostile ones alone. `crashes` are records, batches and rounds that ended in an exception or hung.

    `changed_jobs` are jobs of others whose values, place in the order or targets a hostile job's text changed, and
    those that were not held or given back with the others. `misread_jobs` are hostile ones read with other resources
    than Slurm's own; `lost_jobs` were neither read nor set aside; `set_aside` were, by the reader. Times are CPU
    milliseconds of reading one record alone; `wall_ms_per_record` is all that was done, divided by the records.
    `examples` tell of the first failures, with the seed of their batch.
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
class _Part:
    """What some batches gave."""

    records: int = 0
    crashes: int = 0
    changed: int = 0
    misread: int = 0
    lost: int = 0
    set_aside: int = 0
    honest: int = 0
    rounds: int = 0
    times: list[float] = field(default_factory=list)
    rss: float = 0.0
    examples: list[str] = field(default_factory=list)

    def tell(self, what: str) -> None:
        if len(self.examples) < _SHOWN:
            self.examples.append(what)

    def crashed(self, seed: str, error: BaseException) -> None:
        self.crashes += 1
        self.tell(f"batch {seed}: {type(error).__name__}: {str(error)[:120]}")


class _HangsError(Exception):
    """A step took more time of the processor than any could."""


def feed_hostile(
    records: int, seed: int, workers: int = 1, tell: Callable[[float], None] = lambda _part: None
) -> HostileFigures:
    """Read and decide about at least as many hostile records. `tell` hears the part that is done, from 0 to 1."""
    began = time.perf_counter()
    batches = -(-records // _BATCH)
    tasks = [range(first, min(first + _TASK, batches)) for first in range(0, batches, _TASK)]
    size = min(_BATCH, records)
    parts: list[_Part] = []
    # A process of its own even for one worker: it may map only so much memory. Spawned, so that its peak is its own.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_bound) as pool:
        waiting = [pool.submit(_fed, seed, size, task) for task in tasks]
        for done in as_completed(waiting):
            parts.append(done.result())
            tell(len(parts) / len(tasks))
    return _figures(parts, time.perf_counter() - began)


def _figures(parts: Sequence[_Part], seconds: float) -> HostileFigures:
    times: _Floats = np.concatenate([np.asarray(part.times, dtype=np.float32) for part in parts]) * 1000
    records = sum(part.records for part in parts)
    return HostileFigures(
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
        peak_rss_mb=max(part.rss for part in parts),
        seconds=seconds,
        wall_ms_per_record=1000 * seconds / records,
        examples=tuple(example for part in parts for example in part.examples)[:_SHOWN],
    )


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    signal.signal(signal.SIGPROF, _hangs)


def _hangs(_signal: int, _frame: object) -> None:
    raise _HangsError("it takes longer than anything could")


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises _HangsError where the block takes more CPU seconds."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _fed(seed: int, size: int, batches: Iterable[int]) -> _Part:
    part = _Part()
    for number in batches:
        name = f"{seed}:{number}"
        random = Random(name)  # noqa: S311  # made-up text, not secrets
        made = batch(random, size)
        part.records += len(made.hostile)
        part.honest += len(made.jobs) - len(made.hostile)
        _read_alone(name, made, part)
        for step in (_decide, _hold_and_release, _rest) if number % _WHOLE == 0 else (_decide,):
            try:
                with _within(_LONGEST):
                    step(name, made, part, random)
            except Exception as error:  # whatever is raised is what is looked for here
                part.crashed(name, error)
    part.rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return part


def _backend(slurm: MadeUpSlurm) -> SlurmBackend:
    return SlurmBackend(Commands(30.0, run=slurm), CommandSource(), lambda: float(NOW), user=lambda: "synsched")


def _read_alone(name: str, made: Batch, part: _Part) -> None:
    """How long each hostile record takes, in a poll of one node and no other job."""
    slurm = MadeUpSlurm(made.release, NODES[:1], ())
    backend = _backend(slurm)
    for job in made.jobs:
        if job.number not in made.hostile:
            continue
        slurm.jobs = [job]
        try:
            with _within(_LONGEST / 12):
                spent = _spent(slurm, backend)
                for _ in range(_AGAIN if 1000 * spent > BOUND_MS else 0):
                    gc.collect()
                    spent = min(spent, _spent_anew(slurm, job))
        except Exception as error:  # whatever is raised is what is looked for here
            part.crashed(f"{name}, record {job.number}", error)
            part.times.append(_LONGEST / 12 if isinstance(error, _HangsError) else 0.0)
        else:
            part.times.append(spent)
            if 1000 * spent > BOUND_MS:
                part.tell(f"batch {name}, record {job.number} of {made.release}: {1000 * spent:.1f} ms")


def _spent(slurm: MadeUpSlurm, backend: SlurmBackend) -> float:
    """CPU seconds of a poll without what the made-up Slurm itself takes."""
    slurm.spent, began = 0.0, time.thread_time()
    backend.observe()
    return time.thread_time() - began - slurm.spent


def _spent_anew(slurm: MadeUpSlurm, job: MadeUpJob) -> float:
    """Likewise by a reader that has never seen the job: one that has may know what it has on its nodes."""
    backend, slurm.jobs = _backend(slurm), []
    backend.observe()
    slurm.jobs = [job]
    return _spent(slurm, backend)


def _decide(name: str, made: Batch, part: _Part, random: Random) -> None:
    """The batch and its harmless counterpart, read and decided about; others' jobs have to come out alike."""
    seen = _backend(MadeUpSlurm(made.release, NODES, made.jobs)).observe()
    usual = _backend(MadeUpSlurm(made.release, NODES, made.harmless())).observe()
    absent = {job.id for job in usual.jobs} - {job.id for job in seen.jobs}
    aside = {job.job for job in seen.set_aside}
    part.set_aside += len(aside)
    part.lost += sum(_number(job) in made.hostile and job not in aside and job.partition("_")[0] not in aside
                     for job in absent)  # fmt: skip
    changed = _changed_values(seen, usual, made.hostile)
    misread = [job.id for job in seen.jobs if _number(job.id) in made.hostile and _misread(job, usual.job.get(job.id))]
    part.misread += len(misread)
    if misread:
        part.tell(f"batch {name} of {made.release}: misread: {misread[:5]}")
    kind = random.choice(tuple(SYSTEMS))
    ours = _decided(seen, kind)
    counterpart = _decided(_with_own_words(usual, seen, made.hostile), kind)
    part.rounds += 1
    changed |= _changed_decisions(ours, counterpart, made.hostile)
    part.changed += len(changed)
    if changed:
        part.tell(f"batch {name} of {made.release}, {kind}: changed: {sorted(changed)[:5]}")


def _number(job: JobId) -> int:
    return int(job.partition("_")[0])


def _changed_values(seen: Snapshot, usual: Snapshot, hostile: frozenset[int]) -> set[str]:
    """Jobs of others that are not as they are without hostile text, and nodes."""
    there = {*seen.job, *usual.job}
    jobs = {job for job in there if _number(job) not in hostile and seen.job.get(job) != usual.job.get(job)}
    aside = {job.job for job in seen.set_aside if _number(job.job) not in hostile}
    nodes = {node for node in {*seen.node, *usual.node} if seen.node.get(node) != usual.node.get(node)}
    return jobs | aside | nodes


def _misread(job: Job, usual: Job | None) -> bool:
    """Whether the job is taken for another than Slurm says; its words are its owner's."""
    if usual is None:
        return True
    words = replace(job.request, features="")
    return (job.user, job.state, job.shares, job.submit_time, job.hold, job.partitions, job.priority, words) != (
        usual.user, usual.state, usual.shares, usual.submit_time, usual.hold, usual.partitions, usual.priority,
        replace(usual.request, features=""),
    )  # fmt: skip


def _with_own_words(usual: Snapshot, seen: Snapshot, hostile: frozenset[int]) -> Snapshot:
    """The harmless snapshot without the jobs that are not in the other, the hostile ones with what they may say: their
    own names, comments, accounts and features."""
    jobs = []
    for job in usual.jobs:
        if _number(job.id) in hostile:
            if (own := seen.job.get(job.id)) is None:
                continue
            jobs.append(
                replace(
                    job, name=own.name, comment=own.comment, hints=own.hints, account=own.account,
                    request=replace(job.request, features=own.request.features),
                    standing=replace(job.standing, features=own.standing.features),
                )
            )  # fmt: skip
        else:
            jobs.append(job)
    return replace(usual, jobs=tuple(jobs), set_aside=seen.set_aside)


def _decided(snapshot: Snapshot, kind: str) -> RoundResult:
    settings = _settings(Path("/nonexistent"), kind)
    return run_round(snapshot, Memory(), settings, _knowledge(), Identity("bench", Privilege.SLURM_USER))


def _changed_decisions(ours: RoundResult, usual: RoundResult, hostile: frozenset[int]) -> set[str]:
    """Jobs of others with another place in the order among themselves, other targets, or other operations."""

    def honest(result: RoundResult) -> tuple[list[JobId], Mapping[JobId, object]]:
        order = [ranked.job for ranked in result.decision.order if _number(ranked.job) not in hostile]
        targets = {job: target for job, target in result.decision.targets.items() if _number(job) not in hostile}
        return order, targets

    (order, targets), (usual_order, usual_targets) = honest(ours), honest(usual)
    elsewhere = {job for job, other in zip(order, usual_order, strict=False) if job != other}
    ended = {*order} ^ {*usual_order}
    return elsewhere | ended | {job for job in {*targets, *usual_targets} if targets.get(job) != usual_targets.get(job)}


def _hold_and_release(name: str, made: Batch, part: _Part, random: Random) -> None:
    """A whole round on a full cluster holds everybody who waits, and a release gives everybody back."""
    del made
    held = held_batch(random, _BATCH)
    with tempfile.TemporaryDirectory(prefix="synsched-hostile-") as folder:
        slurm = MadeUpSlurm(held.release, NODES, held.jobs)
        backend, clock, path = _backend(slurm), VirtualClock(float(NOW)), Path(folder)
        settings = _settings(path, "synergy")
        with closing(Store.open(path / "synsched.db", clock.now())) as store:
            for _ in range(2):
                one_round(Site(settings, backend, _knowledge()), store, clock)
                clock.advance(settings.rounds.period)
            waiting = [job for job in slurm.jobs if not job.node and job.number not in held.hostile]
            free = [job.number for job in waiting if job.reason != "JobHeldAdmin"]
            release_all(backend, store, clock, 0.0)
            kept = [job.number for job in waiting if job.reason == "JobHeldAdmin"]
        part.rounds += 2
    part.changed += len({*free, *kept})
    if free or kept:
        part.tell(f"batch {name} of {held.release}: not held {free[:3]}, held after the release {kept[:3]}")


def _rest(name: str, made: Batch, part: _Part, random: Random) -> None:
    """Reports in the spool, and history from sacct: each is read, or refused in words."""
    del name, part
    jobs = [Job(str(job.number), job.user, Request(), Request()) for job in made.jobs]
    numbers = [job.number for job in made.jobs]
    with tempfile.TemporaryDirectory(prefix="synsched-hostile-") as folder:
        own = Path(folder, str(os.getuid()))
        own.mkdir(mode=0o755)
        for job in jobs:
            (own / report_name(job.id)).write_bytes(hostile_report(random, numbers))
        read_reports(Path(folder), jobs, {job.id: job.user for job in jobs}, lambda _user: os.getuid())
    given = {"State": "COMPLETED", "Submit": "0", "Start": "1", "Elapsed": "00:01:00"}
    for number in numbers[:_HISTORY]:
        words = hostile_bytes(random, numbers).decode(errors="replace")
        row = (str(number) if column == "JobID" else given.get(column, words) for column in ASK)
        with suppress(TraceError):
            read_sacct(f"{'|'.join(ASK)}\n{'|'.join(row)}", "sacct", Sources())


def _settings(folder: Path, kind: str) -> Settings:
    return Settings(
        manage=Manage(partitions=("gpu",), opt_in=False),
        rounds=Rounds(mode=Mode.ENFORCE),
        policy=Policy(system=kind),
        guards=Guards(min_run_time=0.0),
        hook=Hook(heartbeat=str(folder / "heartbeat"), disable_file=str(folder / "disable")),
        storage=Storage(path=str(folder / "synsched.db")),
    )


_KNOWLEDGE: list[Knowledge] = []


def _knowledge() -> Knowledge:
    """The shipped profiles, read once by each worker."""
    if not _KNOWLEDGE:
        _KNOWLEDGE.append(shipped_profiles())
    return _KNOWLEDGE[0]
