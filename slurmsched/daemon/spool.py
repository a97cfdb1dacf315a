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

from slurmsched.jobside.errors import ReportError
from slurmsched.jobside.report import LONGEST, Report, Stage, decode
from slurmsched.jobside.spool import report_name
from slurmsched.jobside.untrusted import PLAIN, opened
from slurmsched.model import Job, JobId
from slurmsched.store.measurements import Complaint

__all__ = ["UserId", "about", "checkpointed", "read_reports", "uid_of"]

LISTED: Final = 2000
"""Files in one folder after which its owner is named; nothing beyond is looked at."""

_FOLDER: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC

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
    for user, own in by_user.items():
        number = uid(user)
        if number is None:
            complaints.append(Complaint(f"user {user}", "is not known on this host: his reports are not read"))
            continue
        try:
            with opened(root / str(number), _FOLDER) as folder:
                _check_owner(folder, number)
                for job in own:
                    try:
                        report = _read(folder, job.id, number)
                    except ReportError as error:
                        complaints.append(Complaint(about(job), str(error)))
                    else:
                        reports.update({job.id: report} if report else {})
                complaints += _strangers(folder, user, owners)
        except FileNotFoundError:
            continue
        except (ReportError, OSError) as error:
            said = str(error) if isinstance(error, ReportError) else f"the spool folder cannot be read: {error}"
            complaints.append(Complaint(f"user {user}", said))
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


def _read(folder: int, job: JobId, uid: int) -> Report | None:
    try:
        with opened(report_name(job), PLAIN, folder) as file:
            _check_owner(file, uid)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ReportError("its report is no plain file")
            return decode(os.read(file, LONGEST + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"its report cannot be read: {error.strerror}") from error


def _check_owner(descriptor: int, uid: int) -> None:
    owner = os.fstat(descriptor).st_uid
    if owner != uid:
        raise ReportError(f"the spool has a file or folder there that belongs to user number {owner}: remove it")


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
