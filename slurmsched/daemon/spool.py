"""The reports in the spool, read as what they are: files that anybody may have put there.

Slurm says whose each job is. Only that owner's folder is looked into, only a plain file of his is opened, and of that
only what a report may be long. Nothing is listed to find a report, so a full folder slows nobody down.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from pwd import getpwnam
from typing import Final

from slurmsched.jobside.errors import ForeignFolderError, ReportError
from slurmsched.jobside.folders import SPOOL, checked_folder
from slurmsched.jobside.report import LONGEST, Report, Stage, decode
from slurmsched.jobside.spool import report_name
from slurmsched.jobside.untrusted import PLAIN, opened
from slurmsched.model import Job, JobId
from slurmsched.store.measurements import Complaint

__all__ = ["UserId", "about", "checkpointed", "read_reports", "uid_of"]

LISTED: Final = 2000
"""Files in one folder after which its owner is named; nothing beyond is looked at."""

UserId = Callable[[str], int | None]
"""A user's number on this machine; None for one that it does not know."""


def uid_of(user: str) -> int | None:
    """As the system knows users."""
    try:
        return getpwnam(user).pw_uid
    except KeyError:
        return None


def about(job: Job) -> str:
    """How a complaint names a job."""
    return f"job {job.id} of {job.user}"


def read_reports(
    root: Path, jobs: Iterable[Job], owners: Mapping[JobId, str], uid: UserId = uid_of
) -> tuple[Mapping[JobId, Report], tuple[Complaint, ...]]:
    """What these jobs report, and who put something there that is no report of his. `owners` are all jobs' users."""
    reports: dict[JobId, Report] = {}
    complaints: list[Complaint] = []
    by_user: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        by_user[job.user].append(job)
    try:
        with opened(root, SPOOL) as spool:
            for user, own in by_user.items():
                number = uid(user)
                if number is None:
                    complaints.append(Complaint(f"user {user}", "is not known on this host: his reports are not read"))
                    continue
                found, said = _of_user(spool, user, number, own, owners)
                reports.update(found)
                complaints += said
    except FileNotFoundError:
        return {}, ()
    except OSError as error:
        return {}, (Complaint("the spool", f"cannot be read: {error}"),)
    return reports, tuple(complaints)


def checkpointed(root: Path, jobs: Sequence[Job], uid: UserId = uid_of) -> frozenset[JobId]:
    """Those of the jobs that say that their state is saved. Who lies about it loses his own work and nobody else's."""
    reports, _ = read_reports(root, jobs, {}, uid)
    return frozenset(
        job.id
        for job in jobs
        if (report := reports.get(job.id)) is not None
        and (report.job, report.run, report.stage) == (job.id, job.restarts, Stage.CHECKPOINTED)
    )


def _of_user(
    spool: int, user: str, uid: int, jobs: Iterable[Job], owners: Mapping[JobId, str]
) -> tuple[Mapping[JobId, Report], Sequence[Complaint]]:
    reports: dict[JobId, Report] = {}
    complaints: list[Complaint] = []
    try:
        with checked_folder(spool, str(uid), {uid}) as folder:
            for job in jobs:
                try:
                    report = _read(folder, job.id, uid)
                except ReportError as error:
                    complaints.append(Complaint(about(job), str(error)))
                else:
                    reports.update({job.id: report} if report else {})
            complaints += _strangers(folder, user, owners)
    except FileNotFoundError:
        return {}, ()
    except ForeignFolderError as error:
        complaints.append(Complaint(f"user {user}", f"the spool folder {uid} is not read: it {error}"))
    except OSError as error:
        complaints.append(Complaint(f"user {user}", f"the spool folder {uid} cannot be read: {error}"))
    return reports, complaints


def _read(folder: int, job: JobId, uid: int) -> Report | None:
    try:
        with opened(report_name(job), PLAIN, folder) as file:
            found = os.fstat(file)
            if found.st_uid != uid:
                raise ReportError(f"its report belongs to user number {found.st_uid}: have it removed")
            if not stat.S_ISREG(found.st_mode):
                raise ReportError("its report is no plain file")
            return decode(os.read(file, LONGEST + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"its report cannot be read: {error.strerror}") from error


def _strangers(folder: int, user: str, owners: Mapping[JobId, str]) -> Iterator[Complaint]:
    """What lies in a user's folder and is not his."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, LISTED)]
    if len(names) == LISTED:
        yield Complaint(f"user {user}", f"has {LISTED} files or more in the spool: have them removed")
    for job in (name.removesuffix(".json") for name in names):
        if owners.get(job, user) != user:
            yield Complaint(f"user {user}", f"reports about job {job}, which is {owners[job]}'s: not read")
            return
