"""What one call of `synsched` works with: settings, the time, and the database as far as it may be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from slurmsched.daemon.clock import Clock, RealClock
from slurmsched.daemon.heartbeat import Heartbeat
from slurmsched.report.status import Status, status
from slurmsched.settings.definition import Settings
from slurmsched.settings.loading import Loaded, load_file, settings_file
from slurmsched.store.reading import Reading, reading
from slurmsched.store.rows import ComplaintRow

__all__ = ["Invocation"]


@dataclass
class Invocation:
    """Made by the root command; tests bring their own."""

    config: Path | None = None
    clock: Clock = field(default_factory=RealClock)

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
        """The database, to look at. Raises StoreError."""
        with reading(self.database) as opened:
            yield opened

    def complaints(self) -> tuple[ComplaintRow, ...]:
        """Whose reports were not believed of late. Raises StoreError."""
        with self.reading() as opened:
            return opened.complaints()

    def status(self) -> Status:
        """How things stand, from our own files alone. Raises StoreError."""
        beat = Heartbeat(Path(self.settings.hook.heartbeat)).last()
        disabled = Path(self.settings.hook.disable_file).exists()
        with self.reading() as opened:
            return status(opened, self.settings, self.now(), beat, disabled)
