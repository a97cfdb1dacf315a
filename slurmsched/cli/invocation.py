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
from slurmsched.daemon.heartbeat import Heartbeat
from slurmsched.report.history import UnknownJobError
from slurmsched.report.quantities import duration
from slurmsched.report.status import Status, status
from slurmsched.settings.definition import Settings
from slurmsched.settings.loading import Loaded, load_file, settings_file
from slurmsched.store.export import Part, opened
from slurmsched.store.published import NotPublishedError, export_folder, published
from slurmsched.store.reading import Reading, reading
from slurmsched.store.rows import ComplaintRow

__all__ = ["Invocation"]


@dataclass
class Invocation:
    """Made by the root command; tests bring their own."""

    config: Path | None = None
    clock: Clock = field(default_factory=RealClock)
    _noted: bool = field(default=False, init=False)

    def now(self) -> float:
        """Unix seconds."""
        return self.clock.now()

    @cached_property
    def loaded(self) -> Loaded:
        """The settings with their source. Raises SettingsError."""
        return load_file(self.config or settings_file(os.environ))

    def reload(self) -> Loaded:
        """The settings as the file has them now, from here on. Raises SettingsError; then the old ones stay."""
        self.loaded = load_file(self.config or settings_file(os.environ))
        return self.loaded

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def database(self) -> Path:
        return Path(self.settings.storage.path)

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """The database itself, to look at. Raises StoreError."""
        with reading(self.database) as database:
            yield database

    @contextmanager
    def shown(self, *, history: bool = False) -> Iterator[Reading]:
        """What we may see: the database, or what is published of it, with `history` also what happened to jobs.

        Raises StoreError, ExportError.
        """
        if os.access(self.database, os.R_OK):
            with self.reading() as database:
                yield database
            return
        folder = export_folder(self.settings.storage)
        try:
            found = published(folder, (Part.CURRENT, Part.HISTORY) if history else (Part.CURRENT,))
        except NotPublishedError:
            if not _may_be_there(self.database):
                with self.reading() as database:  # which says that there is none
                    yield database
            raise
        if found.note and not self._noted:
            click.echo(f"synsched: {found.note}", err=True)
        self._noted = True
        with opened(found.documents, folder) as documents:
            try:
                yield documents
            except UnknownJobError as error:
                ended = duration(self.settings.storage.export_ended)
                raise UnknownJobError(
                    f"{error}; if it ended over {ended} ago, or is another user's, an administrator sees it"
                ) from error

    def complaints(self) -> tuple[ComplaintRow, ...]:
        """Whose reports were not believed of late. Raises StoreError."""
        with self.reading() as database:
            return database.complaints()

    def status(self) -> Status:
        """How things stand, from our own files alone. Raises StoreError, ExportError."""
        beat = Heartbeat(Path(self.settings.hook.heartbeat)).last()
        disabled = Path(self.settings.hook.disable_file).exists()
        with self.shown() as found:
            return status(found, self.settings, self.now(), beat, disabled)


def _may_be_there(path: Path) -> bool:
    """Whether a file is there, or may be for all that we are allowed to know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
