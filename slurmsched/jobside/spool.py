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

from slurmsched.jobside.durable import replace_in
from slurmsched.jobside.errors import ForeignFolderError
from slurmsched.jobside.folders import SPOOL, checked_folder, is_private
from slurmsched.jobside.report import LONGEST, Report, decode, encode
from slurmsched.jobside.untrusted import PLAIN, opened

__all__ = ["Spool", "is_job", "report_name"]

_OLD: Final = 7 * 86400.0
"""Seconds after which what a killed job left is cleared away."""

_JOB: Final = r"(?:[0-9]+(?:[_+][0-9]+)?|local)"
_OURS: Final = re.compile(rf"{_JOB}\.json|\.{_JOB}\.json\.[0-9A-Za-z]+")
"""Reports, and those that were not finished; nothing else is ever removed."""


def is_job(text: str) -> bool:
    """Whether this is how Slurm names a job."""
    return re.fullmatch(_JOB, text) is not None


def report_name(job: str) -> str:
    """The name of a job's file in its owner's folder."""
    return f"{job}.json"


class Spool:
    """The writer's side, for one job of ours. Its methods raise OSError; ForeignFolderError, which is one, where the
    folder with our number is another's or others can write it: it is then neither written nor cleared."""

    def __init__(self, root: Path, job: str) -> None:
        self._root = root
        self._name = report_name(job)

    def write(self, report: Report) -> None:
        """Replace the last report: a reader sees the one or the other. Not fsynced: the next one is soon there."""
        data = encode(report)
        with opened(self._root, SPOOL) as root:
            try:
                self._replace(root, data)
            except FileNotFoundError:
                self._make_folder(root)
                self._replace(root, data)

    def read(self) -> Report | None:
        """The last report; None where there is none. Raises ReportError too."""
        with (
            suppress(FileNotFoundError),
            opened(self._root, SPOOL) as root,
            self._folder(root) as folder,
            opened(self._name, PLAIN, folder) as file,
        ):
            return decode(os.read(file, LONGEST + 1))
        return None

    def remove(self) -> None:
        """Take the report away."""
        with suppress(FileNotFoundError), opened(self._root, SPOOL) as root, self._folder(root) as folder:
            os.unlink(self._name, dir_fd=folder)

    def clear(self) -> None:
        """Take the report away, and what older jobs of ours left behind."""
        oldest = time.time() - _OLD
        with (
            suppress(FileNotFoundError),
            opened(self._root, SPOOL) as root,
            self._folder(root) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):  # another job of ours was faster
                    if entry.name == self._name or (_OURS.fullmatch(entry.name) and _is_old(entry, oldest)):
                        os.unlink(entry.name, dir_fd=folder)

    @contextmanager
    def _folder(self, root: int) -> Iterator[int]:
        own = str(os.geteuid())
        try:
            with checked_folder(root, own, {os.geteuid()}) as folder:
                yield folder
        except ForeignFolderError as error:
            raise ForeignFolderError(f"{self._root / own} {error}") from error

    def _make_folder(self, root: int) -> None:
        """Nothing happens where there is one already, whoever made it: it is checked when it is opened."""
        own = str(os.geteuid())
        if is_private(os.fstat(root)):
            # A child has a umask of its own, so that no other thread's files get ours. chmod afterwards would not do:
            # it takes the inherited group's bit away from whoever is not in that group.
            subprocess.run(["mkdir", "--", str(self._root / own)], umask=0o027, stderr=subprocess.DEVNULL, check=False)
            return
        with suppress(FileExistsError):
            os.mkdir(own, mode=0o755, dir_fd=root)
            with self._folder(root) as folder:
                os.fchmod(folder, 0o755)

    def _replace(self, root: int, data: bytes) -> None:
        with self._folder(root) as folder:
            private = is_private(os.fstat(root)) and os.fstat(folder).st_mode & stat.S_ISGID
            replace_in(folder, self._name, data, 0o640 if private else 0o644, durably=False)


def _is_old(entry: os.DirEntry[str], oldest: float) -> bool:
    """Whether it is a plain file that nobody has written since `oldest` (unix seconds)."""
    found = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(found.st_mode) and found.st_mtime < oldest
