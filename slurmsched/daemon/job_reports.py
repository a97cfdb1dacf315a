"""Reads and validates the reports of jobs once a round: Slurm's data takes precedence, impossible values are rejected.
Beside them, what a Prometheus reports of the GPUs of running jobs.

The spool is untrusted, since every user may put files there. For each job only its owner's folder is read, only a
regular file of that owner, and at most the length of a report. A report is opened by name, so that a folder with many
files slows nothing down.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from pathlib import Path
from pwd import getpwnam
from typing import Final

from slurmsched.backends.prometheus import EXPORTERS, MOST_RUNNING, RUNNING_JOBS, Prometheus, PrometheusError
from slurmsched.jobside.errors import ReportError, UntrustedFolderError
from slurmsched.jobside.report import MAX_REPORT_BYTES, Report, Stage, decode_report
from slurmsched.jobside.spool import report_file_name
from slurmsched.jobside.untrusted import SAFE_READ_FLAGS, SPOOL_FLAGS, open_descriptor, open_owned_folder
from slurmsched.model import IdleGpus, Job, JobId, JobState, MeasuredRate, Node, OutOfMemory, Resources, Snapshot
from slurmsched.settings.definition import LearningSettings, Settings
from slurmsched.store.finished_runs import FinishedRuns, pauses
from slurmsched.store.measurements import LastReport, Measurements, PairSample, RateSample, RejectedReport
from slurmsched.store.rows import ExporterRow
from slurmsched.store.store import Store

_CLOCK_TOLERANCE: Final = 60.0
"""Seconds by which clocks and durations may differ."""

_MIN_SECONDS: Final = 1.0
"""Least seconds of work from which a rate is measured."""

_MAX_RATE: Final = 100_000.0
"""Steps per second; a higher rate is rejected."""

_MAX_RATE_RATIO: Final = 10.0
"""Most by which the reported rate may differ from the counted steps, as a factor; averaging explains less."""


def last_report(job: Job, report: Report, before: LastReport | None, beside: JobId | None = None) -> LastReport:
    """The part of a report that is stored until the next one; `before` is the last one, also of an earlier run, and
    `beside` the job that shares its GPUs."""
    restart = before.restart_seconds if before is not None else None
    first = before is None or before.run != report.run or not before.timed_steps
    if first and report.done and 0 < report.run == job.restarts and job.start_time is not None:
        restart = max(0.0, report.at - job.start_time - report.busy)
    return LastReport(job.id, report.run, report.at, report.steps, report.done, report.busy, restart, beside)


def reject_reason(job: Job, report: Report, before: LastReport | None, now: float) -> str | None:
    """Why the report is rejected; None if it is accepted. `before` is the last accepted report of the same run."""
    return next((reason for check in _CHECKS if (reason := check(job, report, before, now)) is not None), None)


def rate_sample(job: Job, report: Report, before: LastReport | None, nodes: Mapping[str, Node]) -> RateSample | None:
    """The rate measured since the last report, with the resources that Slurm shows for the job.

    None if there is no new work, or if the job runs on several GPU types, so that its rate belongs to neither.
    """
    steps, seconds = _new_work(report, before)
    types = {allocation.gpu_type for allocation in job.allocations}
    hosts = [(nodes[a.node], a.resources.gpus) for a in job.allocations if a.node in nodes]
    if steps <= 0 or seconds < _MIN_SECONDS or len(types) != 1 or not job.gpus or len(hosts) != len(job.allocations):
        return None
    allocated, fair = job.allocated, sum((node.proportional_share(gpus) for node, gpus in hosts), Resources())
    each = 1 / job.gpus
    measured = MeasuredRate(
        gpu_type=types.pop(),
        gpus=job.gpus,
        nodes=len(job.allocations),
        cpus=allocated.cpus * each,
        memory=allocated.memory * each,
        fair_cpus=fair.cpus * each,
        fair_memory=fair.memory * each,
        rate=steps / seconds,
        at=report.at,
    )
    return RateSample(job.id, measured, steps, seconds, job.family)


def partner(job: Job, snapshot: Snapshot) -> JobId | None:
    """The one job that shares all of the job's GPUs; empty if it has them to itself, None for any other sharing."""
    others = snapshot.sharers_of(job)
    if not others:
        return "" if job.devices else None
    return others[0].id if len(others) == 1 and set(others[0].devices) == set(job.devices) else None


def pair_sample(
    job: Job, report: Report, before: LastReport | None, beside: JobId | None, snapshot: Snapshot
) -> PairSample | None:
    """What the job measured since the last report of the same run, `beside` its partner or alone (see `partner`).

    None unless it was beside this job, or alone, at the last report too, and if there is no new work.
    """
    steps, seconds = _new_work(report, before)
    types = {allocation.gpu_type for allocation in job.allocations}
    if before is None or beside is None or beside != before.beside or steps <= 0 or seconds < _MIN_SECONDS:
        return None
    other = snapshot.jobs_by_id.get(beside)
    if not job.family or len(types) != 1 or (other is not None and not _was_there(other, before.at)):
        return None
    gpus, cpus = len(job.devices), job.allocated.cpus
    return PairSample(job.family, other.family if other else "", types.pop(), gpus, cpus, steps, seconds, report.at)


def _was_there(other: Job, since: float) -> bool:
    """Whether this job, whose family is known, has run all the time since then."""
    return bool(other.family) and other.start_time is not None and other.start_time <= since


def _new_work(report: Report, before: LastReport | None) -> tuple[int, float]:
    """Steps and seconds of this run since the last report."""
    return (
        (report.done - before.timed_steps, report.busy - before.timed_seconds) if before else (report.done, report.busy)
    )


_Check = Callable[[Job, Report, LastReport | None, float], str | None]


def _wrong_job(job: Job, report: Report, _before: LastReport | None, _now: float) -> str | None:
    return f"reports as job {report.job}" if report.job != job.id else None


def _wrong_run(job: Job, report: Report, _before: LastReport | None, _now: float) -> str | None:
    return f"reports run {report.run}, which has not started" if report.run > job.restarts else None


def _wrong_node(job: Job, report: Report, _before: LastReport | None, _now: float) -> str | None:
    allocation = next((a for a in job.allocations if a.node == report.node), None)
    if report.run != job.restarts or not report.node:
        return None
    if allocation is None:
        return f"reports from {report.node}, where it does not run"
    foreign = allocation.indices and not set(report.gpus) <= set(allocation.indices)
    return f"reports GPUs of {report.node} that it does not have" if foreign else None


def _wrong_time(_job: Job, report: Report, before: LastReport | None, now: float) -> str | None:
    if report.at > now + _CLOCK_TOLERANCE:
        return "reports a time in the future: check the clock of its node"
    return "reports an earlier time than before" if before is not None and report.at < before.at else None


def _impossible_amount(job: Job, report: Report, _before: LastReport | None, _now: float) -> str | None:
    if report.run == job.restarts and report.busy > job.run_time + _CLOCK_TOLERANCE:
        return f"claims {report.busy:.0f} s of work in a run of {job.run_time:.0f} s"
    return f"claims {report.done} steps of {report.steps}" if report.done > report.steps else None


def _counts_backwards(_job: Job, report: Report, before: LastReport | None, _now: float) -> str | None:
    steps, seconds = _new_work(report, before)
    return "counts backwards within a run" if steps < 0 or seconds < 0 else None


def _too_fast(_job: Job, report: Report, before: LastReport | None, _now: float) -> str | None:
    steps, seconds = _new_work(report, before)
    if max(steps - 1, 0) > _MAX_RATE * seconds or report.rate > _MAX_RATE:
        return f"claims more than {_MAX_RATE:.0f} steps per second"
    if (
        seconds >= _CLOCK_TOLERANCE
        and steps
        and not 1 / _MAX_RATE_RATIO < report.rate * seconds / steps < _MAX_RATE_RATIO
    ):
        return f"claims {report.rate:.3g} steps per second and counts {steps / seconds:.3g} per second"
    return None


_CHECKS: Final[tuple[_Check, ...]] = (
    _wrong_job,
    _wrong_run,
    _wrong_node,
    _wrong_time,
    _impossible_amount,
    _counts_backwards,
    _too_fast,
)


MAX_LISTED: Final = 2000
"""Most files listed in one folder; a folder with more is complained about."""

UserIdLookup = Callable[[str], int | None]
"""Returns a user's id on this host; None for an unknown user."""


def uid_of(user: str) -> int | None:
    """The user's id by the system's user database; None for an unknown user."""
    try:
        return getpwnam(user).pw_uid
    except KeyError:
        return None


def complaint_subject(job: Job) -> str:
    """The subject of a complaint about a job."""
    return f"job {job.id} of {job.user}"


def read_reports(
    root: Path, jobs: Iterable[Job], owners: Mapping[JobId, str], uid: UserIdLookup = uid_of
) -> tuple[Mapping[JobId, Report], tuple[RejectedReport, ...]]:
    """The reports of these jobs, and complaints about what was rejected. `owners` are the users of all jobs."""
    reports: dict[JobId, Report] = {}
    complaints: list[RejectedReport] = []
    by_user: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        by_user[job.user].append(job)
    try:
        with open_descriptor(root, SPOOL_FLAGS) as spool:
            for user, user_jobs in by_user.items():
                user_id = uid(user)
                if user_id is None:
                    complaints.append(
                        RejectedReport(f"user {user}", "is not known on this host: their reports are not read")
                    )
                    continue
                user_reports, user_complaints = _read_user_reports(spool, user, user_id, user_jobs, owners)
                reports.update(user_reports)
                complaints += user_complaints
    except FileNotFoundError:
        return {}, ()
    except OSError as error:
        return {}, (RejectedReport("the spool", f"cannot be read: {error}"),)
    return reports, tuple(complaints)


def checkpointed_jobs(root: Path, jobs: Sequence[Job], uid: UserIdLookup = uid_of) -> frozenset[JobId]:
    """The jobs that report a written checkpoint. A user who reports it falsely loses only their own work."""
    reports, _ = read_reports(root, jobs, {}, uid)
    return frozenset(
        job.id
        for job in jobs
        if (report := reports.get(job.id)) is not None
        and (report.job, report.run, report.stage) == (job.id, job.restarts, Stage.CHECKPOINTED)
    )


def _read_user_reports(
    spool: int, user: str, uid: int, jobs: Iterable[Job], owners: Mapping[JobId, str]
) -> tuple[Mapping[JobId, Report], Sequence[RejectedReport]]:
    reports: dict[JobId, Report] = {}
    complaints: list[RejectedReport] = []
    try:
        with open_owned_folder(spool, str(uid), {uid}) as folder:
            for job in jobs:
                try:
                    report = _read_report(folder, job.id, uid)
                except ReportError as error:
                    complaints.append(RejectedReport(complaint_subject(job), str(error)))
                else:
                    reports.update({job.id: report} if report else {})
            complaints += _foreign_files(folder, user, owners)
    except FileNotFoundError:
        return {}, ()
    except UntrustedFolderError as error:
        complaints.append(RejectedReport(f"user {user}", f"the spool folder {uid} is not read: it {error}"))
    except OSError as error:
        complaints.append(RejectedReport(f"user {user}", f"the spool folder {uid} cannot be read: {error}"))
    return reports, complaints


def _read_report(folder: int, job: JobId, uid: int) -> Report | None:
    try:
        with open_descriptor(report_file_name(job), SAFE_READ_FLAGS, folder) as file:
            status = os.fstat(file)
            if status.st_uid != uid:
                raise ReportError(f"its report belongs to user id {status.st_uid}: have it removed")
            if not stat.S_ISREG(status.st_mode):
                raise ReportError("its report is not a regular file")
            return decode_report(os.read(file, MAX_REPORT_BYTES + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"its report cannot be read: {error.strerror}") from error


def _foreign_files(folder: int, user: str, owners: Mapping[JobId, str]) -> Iterator[RejectedReport]:
    """Yield complaints about files in a user's folder that are not about that user's jobs."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MAX_LISTED)]
    if len(names) == MAX_LISTED:
        yield RejectedReport(f"user {user}", f"has {MAX_LISTED} files or more in the spool: have them removed")
    for job in (name.removesuffix(".json") for name in names):
        if owners.get(job, user) != user:
            yield RejectedReport(f"user {user}", f"reports about job {job}, which is {owners[job]}'s: not read")
            return


def ingest(
    spool: Path,
    snapshot: Snapshot,
    managed: Collection[JobId],
    measurements: Measurements,
    uid: UserIdLookup = uid_of,
    *,
    forgotten: Mapping[str, float] | None = None,
) -> int:
    """Read the reports of running managed jobs and store those that are accepted; return the number of reports.

    What a job had reported before its owner was `forgotten` (unix seconds) is in its later reports too: of these only
    what was done between two of them counts. No file in the spool can make it fail. Raises StoreError.
    """
    running = [job for job in snapshot.jobs_in_state(JobState.RUNNING) if job.id in managed]
    reports, complaints = read_reports(spool, running, {job.id: job.user for job in snapshot.jobs}, uid)
    last = measurements.last_reports(job.id for job in running)
    accepted: list[LastReport] = []
    samples: list[RateSample] = []
    pairs: list[PairSample] = []
    rejected: list[RejectedReport] = []
    for job in running:
        report, before = reports.get(job.id), last.get(job.id)
        forgotten_at = (forgotten or {}).get(job.user, -inf) if before is None else -inf
        if report is None or not _is_new(job, report, before) or report.at <= forgotten_at:
            continue
        same_run = before if before is not None and before.run == report.run else None
        why = reject_reason(job, report, same_run, snapshot.time)
        if why is not None:
            rejected.append(RejectedReport(complaint_subject(job), why))
            continue
        beside = partner(job, snapshot)
        accepted.append(last_report(job, report, before, beside))
        counts_all = forgotten_at < (0.0 if job.start_time is None else job.start_time)
        sample = rate_sample(job, report, same_run, snapshot.nodes_by_name) if counts_all else None
        samples += [sample] if sample is not None else []
        pair = pair_sample(job, report, same_run, beside, snapshot)
        pairs += [pair] if pair is not None else []
    measurements.record(accepted, samples, (*complaints, *rejected), snapshot.time, pairs)
    return len(reports)


OUT_OF_MEMORY_STATE: Final = "OUT_OF_MEMORY"
"""Slurm's state of a job that used more memory of its node than it has."""


def record_out_of_memory(
    spool: Path | None, snapshot: Snapshot, measurements: Measurements, uid: UserIdLookup = uid_of
) -> None:
    """Store which of the jobs that ended since the last decision ran out of memory beside another one on their GPU.

    Slurm's state says so of the memory of a node, the job's own last report of that of a GPU. Raises StoreError.
    """
    ended = {job.id: job for job in snapshot.jobs_in_state(JobState.FINISHED)}
    partners = {
        ended[job]: snapshot.jobs_by_id[other]
        for job, other in (measurements.partners_of(ended) if ended else {}).items()
        if other in snapshot.jobs_by_id
    }
    reports, _ = read_reports(spool, partners, {}, uid) if spool and partners else ({}, ())
    measurements.record_out_of_memory(
        OutOfMemory(job.user, job.hints.model, other.user, other.hints.model, job.end_time or snapshot.time)
        for job, other in partners.items()
        if job.hints.model and other.hints.model and _ran_out_of_memory(job, reports.get(job.id))
    )


def _ran_out_of_memory(job: Job, report: Report | None) -> bool:
    """Whether Slurm says so, or the job's own report of its last run. Who reports it falsely keeps only jobs of their
    own from sharing."""
    reported = report is not None and (report.job, report.run, report.stage) == (
        job.id,
        job.restarts,
        Stage.OUT_OF_MEMORY,
    )
    return reported or job.state_text == OUT_OF_MEMORY_STATE


def _is_new(job: Job, report: Report, last: LastReport | None) -> bool:
    """Whether the report is of the current run and was not read before."""
    return report.run >= job.restarts and (last is None or (report.run, report.at) != (last.run, last.at))


_IDLE_KEPT: Final = 3.0
"""Periods for which a job stays named whose GPUs were idle when they were last told."""
_MOST_HALVINGS: Final = 4
"""Failures in a row after each of which half as many jobs are asked for: perhaps it was too much."""


def record_idle_gpus(snapshot: Snapshot, settings: Settings, store: Store, now: float) -> Mapping[JobId, IdleGpus]:
    """Ask Prometheus which running jobs have GPUs that are idle for long, store them, and return those told of now.

    A job is not judged before it has run for so long. One of which nothing is told keeps its row for a few rounds: not
    told is not busy. Raises StoreError.
    """
    learning, known = settings.learning, store.measurements.idle_gpus()
    window = int(learning.idle_after) if learning.prometheus else 0
    if not window:
        if known:
            store.measurements.record_idle(())
        return {}
    running = {job.id: job for job in snapshot.jobs_in_state(JobState.RUNNING)}
    judged = {job.number or job.id: job for job in running.values() if job.run_time >= window + _CLOCK_TOLERANCE}
    told = {
        judged[number]: idle for number, idle in _ask_idle(judged, learning, store.finished_runs, window, now).items()
    }
    answered = {job.id for job in told}
    kept = {
        job: row
        for job, row in known.items()
        if job in running and _still_counts(row, running[job], snapshot, settings)
    }
    fresh = {
        job.id: IdleGpus(
            *(job.id, job.user, job.gpus, idle),
            kept[job.id].since if job.id in kept else snapshot.time - window,
            snapshot.time,
            job.hints.idle_last,
        )
        for job, idle in told.items()
        if idle
    }
    if known or fresh:
        unanswered = {job: row for job, row in kept.items() if job not in answered}
        store.measurements.record_idle((unanswered | fresh).values())
    return fresh


def _still_counts(row: IdleGpus, job: Job, snapshot: Snapshot, settings: Settings) -> bool:
    """Whether a stored row was told lately, and of the present run of the job."""
    age = snapshot.time - row.at
    return 0 <= age <= _IDLE_KEPT * settings.rounds.period and row.since >= snapshot.time - job.run_time


def _ask_idle(
    judged: Mapping[str, Job], learning: LearningSettings, runs: FinishedRuns, window: int, now: float
) -> Mapping[str, int]:
    """How many GPUs of each of these jobs are idle, by Slurm's number of the job; empty if nobody tells."""
    record = runs.exporters().get(RUNNING_JOBS, ExporterRow(RUNNING_JOBS))
    whole = {number: job.gpus for number, job in judged.items() if number.isdecimal() and _has_whole_gpus(job)}
    if not whole or pauses(record.asked, record.failures, now):
        return {}
    largest = sorted(whole, key=lambda number: (-whole[number], number))
    asked = {number: whole[number] for number in largest[: MOST_RUNNING >> min(record.failures, _MOST_HALVINGS)]}
    told: Mapping[str, int] = {}
    try:
        told = Prometheus(learning.prometheus, learning.prometheus_cluster).idle_gpus(asked, window, EXPORTERS)
        record = record.after(len(told), now)
    except PrometheusError as error:
        record = record.failed(str(error), now)
    runs.record_exporters((record,))
    return told


def _has_whole_gpus(job: Job) -> bool:
    """Whether nobody else uses the GPUs that it has: of a shared one the use is not its own."""
    return job.gpus > 0 and not any(allocation.shards for allocation in job.allocations)
