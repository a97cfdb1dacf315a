"""Where jobs report: `SPOOL/UID/JOB.json` on a file system that the daemon sees too.

Each owner has a folder of his own, which the first of his jobs makes; SPOOL itself is open to all, as /tmp is. So who
writes there makes sure first that the folder is his (`slurmsched.jobside.folders`). The daemon knows of each job whose
it is, looks into that owner's folder only, and takes no file that is not his.

The daemon is another user, so reports can be read by all; in a private spool, by the group of the spool alone.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from slurmsched.jobside.atomic_files import replace_file_in
from slurmsched.jobside.errors import UntrustedFolderError
from slurmsched.jobside.report import MAX_REPORT_BYTES, Report, decode_report, encode_report
from slurmsched.jobside.untrusted import (
    SAFE_READ_FLAGS,
    SPOOL_FLAGS,
    is_private_spool,
    open_descriptor,
    open_owned_folder,
)

_MAX_AGE: Final = 7 * 86400.0
"""Seconds after which what a killed job left is cleared away."""

_JOB_ID: Final = r"(?:[0-9]+(?:[_+][0-9]+)?|local)"
_REPORT_FILE: Final = re.compile(rf"{_JOB_ID}\.json|\.{_JOB_ID}\.json\.[0-9A-Za-z]+")
"""Reports, and those that were not finished; nothing else is ever removed."""


def is_job_id(text: str) -> bool:
    """Whether this is how Slurm names a job."""
    return re.fullmatch(_JOB_ID, text) is not None


def report_file_name(job: str) -> str:
    """The name of a job's file in its owner's folder."""
    return f"{job}.json"


class Spool:
    """The writer's side, for one job of ours. Its methods raise OSError; ForeignFolderError, which is one, where the
    folder with our number is another's or others can write it: it is then neither written nor cleared."""

    def __init__(self, root: Path, job: str) -> None:
        self._root = root
        self._name = report_file_name(job)

    def write(self, report: Report) -> None:
        """Replace the last report: a reader sees the one or the other. Not fsynced: the next one is soon there."""
        data = encode_report(report)
        with open_descriptor(self._root, SPOOL_FLAGS) as root:
            try:
                self._replace_report(root, data)
            except FileNotFoundError:
                self._make_user_folder(root)
                self._replace_report(root, data)

    def read(self) -> Report | None:
        """The last report; None where there is none. Raises ReportError too."""
        with (
            suppress(FileNotFoundError),
            open_descriptor(self._root, SPOOL_FLAGS) as root,
            self._open_user_folder(root) as folder,
            open_descriptor(self._name, SAFE_READ_FLAGS, folder) as file,
        ):
            return decode_report(os.read(file, MAX_REPORT_BYTES + 1))
        return None

    def remove(self) -> None:
        """Take the report away."""
        with (
            suppress(FileNotFoundError),
            open_descriptor(self._root, SPOOL_FLAGS) as root,
            self._open_user_folder(root) as folder,
        ):
            os.unlink(self._name, dir_fd=folder)

    def clear(self) -> None:
        """Take the report away, and what older jobs of ours left behind."""
        expired_before = time.time() - _MAX_AGE
        with (
            suppress(FileNotFoundError),
            open_descriptor(self._root, SPOOL_FLAGS) as root,
            self._open_user_folder(root) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):  # another job of ours was faster
                    if entry.name == self._name or (
                        _REPORT_FILE.fullmatch(entry.name) and _is_expired(entry, expired_before)
                    ):
                        os.unlink(entry.name, dir_fd=folder)

    @contextmanager
    def _open_user_folder(self, root: int) -> Iterator[int]:
        uid = str(os.geteuid())
        try:
            with open_owned_folder(root, uid, {os.geteuid()}) as folder:
                yield folder
        except UntrustedFolderError as error:
            raise UntrustedFolderError(f"{self._root / uid} {error}") from error

    def _make_user_folder(self, root: int) -> None:
        """Nothing happens where there is one already, whoever made it: it is checked when it is opened."""
        uid = str(os.geteuid())
        if is_private_spool(os.fstat(root)):
            # A child has a umask of its own, so that no other thread's files get ours. chmod afterwards would not do:
            # it takes the inherited group's bit away from whoever is not in that group.
            subprocess.run(["mkdir", "--", str(self._root / uid)], umask=0o027, stderr=subprocess.DEVNULL, check=False)
            return
        with suppress(FileExistsError):
            os.mkdir(uid, mode=0o755, dir_fd=root)
            with self._open_user_folder(root) as folder:
                os.fchmod(folder, 0o755)

    def _replace_report(self, root: int, data: bytes) -> None:
        with self._open_user_folder(root) as folder:
            private = is_private_spool(os.fstat(root)) and os.fstat(folder).st_mode & stat.S_ISGID
            replace_file_in(folder, self._name, data, 0o640 if private else 0o644, fsync=False)


def _is_expired(entry: os.DirEntry[str], expired_before: float) -> bool:
    """Whether it is a plain file that nobody has written since `oldest` (unix seconds)."""
    status = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(status.st_mode) and status.st_mtime < expired_before
