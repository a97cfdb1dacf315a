"""What one call of `synsched` works with: settings, the time, and the database as far as it may be read.

Who may read the database reads it. All others read what the daemon publishes of it.
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
from slurmsched.report.history import JobNotSeenError
from slurmsched.report.quantities import duration
from slurmsched.report.status import ClusterStatus, cluster_status
from slurmsched.settings.definition import Settings
from slurmsched.settings.file import LoadedSettings, load_settings_file, settings_file
from slurmsched.store.publication import DocumentKind, NotPublishedError, export_folder, open_documents, read_published
from slurmsched.store.read_only import ReadOnlyStore, open_read_only
from slurmsched.store.rows import RejectedReportRow


@dataclass
class Invocation:
    """Made by the root command; tests bring their own."""

    config: Path | None = None
    clock: Clock = field(default_factory=RealClock)
    _note_printed: bool = field(default=False, init=False)

    def now(self) -> float:
        """Unix seconds."""
        return self.clock.now()

    @cached_property
    def loaded(self) -> LoadedSettings:
        """The settings with their source. Raises SettingsError."""
        return load_settings_file(self.config or settings_file(os.environ))

    def reload(self) -> LoadedSettings:
        """The settings as the file has them now, from here on. Raises SettingsError; then the old ones stay."""
        self.loaded = load_settings_file(self.config or settings_file(os.environ))
        return self.loaded

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def database_path(self) -> Path:
        return Path(self.settings.storage.path)

    @contextmanager
    def open_database(self) -> Iterator[ReadOnlyStore]:
        """The database itself, to look at. Raises StoreError."""
        with open_read_only(self.database_path) as database:
            yield database

    @contextmanager
    def open_readable(self, *, history: bool = False) -> Iterator[ReadOnlyStore]:
        """What we may see: the database, or what is published of it, with `history` also what happened to jobs.

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
                with self.open_database() as database:  # which says that there is none
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
                    f"{error}; if it ended over {ended} ago, or is another user's, an administrator sees it"
                ) from error

    def rejected_reports(self) -> tuple[RejectedReportRow, ...]:
        """Whose reports were not believed of late. Raises StoreError."""
        with self.open_database() as database:
            return database.rejected_reports()

    def status(self) -> ClusterStatus:
        """How things stand, from our own files alone. Raises StoreError, ExportError."""
        beat = HeartbeatFile(Path(self.settings.hook.heartbeat)).read()
        disabled = Path(self.settings.hook.disable_file).exists()
        with self.open_readable() as found:
            return cluster_status(found, self.settings, self.now(), beat, disabled)


def _may_exist(path: Path) -> bool:
    """Whether a file is there, or may be for all that we are allowed to know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
