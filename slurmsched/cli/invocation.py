"""The context of one call of `synsched`: settings, the clock and the database.

Users who may not read the database read the documents that the daemon publishes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import click

from slurmsched.daemon.clock import Clock, RealClock
from slurmsched.daemon.heartbeat import HeartbeatFile
from slurmsched.report.job_view import JobNotSeenError
from slurmsched.report.quantities import duration
from slurmsched.report.status import ClusterStatus, cluster_status
from slurmsched.settings.definition import Settings
from slurmsched.settings.file import (
    LoadedSettings,
    SettingsError,
    load_settings_file,
    read_settings_file,
    settings_file,
)
from slurmsched.store.publication import (
    OTHERS_RUNS,
    DocumentKind,
    NotPublishedError,
    export_folder,
    open_documents,
    read_published,
    read_runs,
)
from slurmsched.store.read_only import ReadOnlyStore, open_read_only
from slurmsched.store.rows import RejectedReportRow


@dataclass
class Invocation:
    """The context of one call, made by the root command or by a test."""

    config: Path | None = None
    clock: Clock = field(default_factory=RealClock)
    _note_printed: bool = field(default=False, init=False)

    def now(self) -> float:
        """Returns the time in Unix seconds."""
        return self.clock.now()

    @cached_property
    def loaded(self) -> LoadedSettings:
        """The settings and the file they come from. Raises SettingsError."""
        return load_settings_file(self.config or settings_file(os.environ))

    def tolerate_mistakes(self, *, quietly: bool = False) -> None:
        """Goes on with what can be read of the settings where they have mistakes, and prints the first unless
        `quietly`: for commands that only show, or help. Raises SettingsError for a file that cannot be read at all."""
        loaded = read_settings_file(self.config or settings_file(os.environ))
        if loaded.mistakes and loaded.file is not None and not os.access(loaded.file, os.R_OK):
            raise SettingsError(loaded.file, loaded.mistakes)
        if loaded.mistakes and not quietly:
            mistake = SettingsError(loaded.file, loaded.mistakes)
            click.echo(f"synsched: {mistake}; defaults stand in its place", err=True)
        self.loaded = loaded

    def reload(self) -> LoadedSettings:
        """Reads the settings again and returns them. Raises SettingsError and then keeps the old ones."""
        self.loaded = load_settings_file(self.config or settings_file(os.environ))
        return self.loaded

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def database_path(self) -> Path:
        return Path(self.settings.storage.path)

    @property
    def may_write(self) -> bool:
        """Whether the caller may write the database, or make it where there is none."""
        return os.access(self.database_path, os.W_OK) or not _may_exist(self.database_path)

    @contextmanager
    def open_database(self) -> Iterator[ReadOnlyStore]:
        """Yields the database, opened read-only. Raises StoreError."""
        with open_read_only(self.database_path) as database:
            yield database

    @contextmanager
    def open_readable(self, *, history: bool = False) -> Iterator[ReadOnlyStore]:
        """Yields the database if it is readable, otherwise the published documents, with `history` those of jobs too.

        Raises StoreError, ExportError.
        """
        if os.access(self.database_path, os.R_OK):
            with self.open_database() as database:
                yield database
            return
        folder = export_folder(self.settings.storage)
        try:
            publication = read_published(
                folder, (DocumentKind.CURRENT, DocumentKind.HISTORY) if history else (DocumentKind.CURRENT,)
            )
        except NotPublishedError:
            if not _may_exist(self.database_path):
                with self.open_database() as database:  # raises the error that there is no database
                    yield database
            raise
        if publication.note and not self._note_printed:
            click.echo(f"synsched: {publication.note}", err=True)
        self._note_printed = True
        with open_documents(publication.documents, folder) as documents:
            try:
                yield documents
            except JobNotSeenError as error:
                ended = duration(self.settings.storage.export_ended)
                raise JobNotSeenError(
                    f"{error}; ask an administrator if it ended more than {ended} ago or belongs to another user"
                ) from error

    @contextmanager
    def open_runs(self) -> Iterator[tuple[ReadOnlyStore, bool]]:
        """Yields a store with the runs that have ended, as the caller may see them, and whether these are all users'.

        The database if it is readable, otherwise what the daemon tells the caller. Raises StoreError, ExportError.
        """
        if os.access(self.database_path, os.R_OK) or not _may_exist(self.database_path):
            with self.open_database() as database:
                yield database, True
            return
        folder = export_folder(self.settings.storage)
        runs = read_runs(folder)
        history = read_published(folder, (DocumentKind.HISTORY,))
        with open_documents((runs, *history.documents), folder) as documents:
            yield documents, OTHERS_RUNS not in runs.hidden

    def rejected_reports(self) -> tuple[RejectedReportRow, ...]:
        """Returns the recently rejected reports of jobs. Raises StoreError."""
        with self.open_database() as database:
            return database.rejected_reports()

    def status(self) -> ClusterStatus:
        """Returns the cluster's status from our files, without asking Slurm. Raises StoreError, ExportError."""
        beat = HeartbeatFile(Path(self.settings.hook.heartbeat)).read()
        disabled = Path(self.settings.hook.disable_file).exists()
        with self.open_readable() as store:
            return cluster_status(store, self.settings, self.now(), beat, disabled)


def _may_exist(path: Path) -> bool:
    """Whether the file exists, or may exist where we have no permission to look."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
