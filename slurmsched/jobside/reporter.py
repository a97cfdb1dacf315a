"""Reports in the background: a file system that hangs keeps no step waiting."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final

from slurmsched.jobside.report import Report
from slurmsched.jobside.spool import Spool, is_job

__all__ = ["Reporter"]

EVERY: Final = 10.0
"""Seconds between two reports."""


class Reporter:
    """Writes what `compose` says now and then. Without a spool that can be written the job trains on all the same."""

    def __init__(self, spool: Spool, compose: Callable[[], Report], every: float = EVERY) -> None:
        self._spool = spool
        self._compose = compose
        self._every = every
        self._over = Event()
        self._told = False
        self._process = os.getpid()
        self._thread = Thread(target=self._run, name="synsched reports", daemon=True)

    @classmethod
    def of(cls, root: str, job: str, compose: Callable[[], Report]) -> Reporter | None:
        """A reporter for this job; None where there is no spool, or no job."""
        return cls(Spool(Path(root), job), compose) if root and is_job(job) else None

    def start(self) -> None:
        """Register with the first report, and go on from there."""
        self._thread.start()

    def now(self) -> None:
        """One report at once, because something has changed that the scheduler waits for."""
        try:
            self._spool.write(self._compose())
        except OSError as error:
            if not self._told:
                print(f"synsched: no reports: {error}", file=sys.stderr)  # noqa: T201 - into the job's own output
            self._told = True

    def stop(self, *, clear: bool) -> None:
        """No more reports; `clear` takes the last one away. Nothing in a process that was forked from the job's."""
        if os.getpid() != self._process or self._over.is_set():
            return
        self._over.set()
        self._thread.join(timeout=1.0)
        if clear:
            try:
                self._spool.clear()
            except OSError:
                return  # it grows old, and a later job of the owner's clears it away

    def _run(self) -> None:
        self.now()
        while not self._over.wait(self._every):
            self.now()
