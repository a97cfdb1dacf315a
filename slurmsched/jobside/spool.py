"""Where jobs report: `SPOOL/UID/JOB.json` on a file system that the daemon sees too.

Each owner has a folder of his own, which the first of his jobs makes; SPOOL itself is open to all, as /tmp is. The
daemon knows of each job whose it is, looks into that owner's folder only, and takes no file that is not his.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from slurmsched.jobside.report import Report, encode

__all__ = ["Spool", "report_name"]

_OLD: Final = 7 * 86400.0
"""Seconds after which what a killed job left is cleared away."""


def report_name(job: str) -> str:
    """The name of a job's file in its owner's folder."""
    return f"{job}.json"


class Spool:
    """The writer's side, for one job of ours. Both methods raise OSError."""

    def __init__(self, root: Path, job: str) -> None:
        self._folder = root / str(os.getuid())
        self._path = self._folder / report_name(job)

    def write(self, report: Report) -> None:
        """Replace the last report: a reader sees the one or the other. Not fsynced: the next one is soon there."""
        fresh = self._folder / f".{self._path.name}.new"
        try:
            data = encode(report)
            fresh.write_bytes(data)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o755)
            fresh.write_bytes(data)
        fresh.chmod(0o644)
        fresh.replace(self._path)

    def clear(self) -> None:
        """Take the report away, and what older jobs of ours left behind."""
        self._path.unlink(missing_ok=True)
        oldest = time.time() - _OLD
        for entry in os.scandir(self._folder) if self._folder.is_dir() else ():
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                Path(entry.path).unlink(missing_ok=True)
