"""The documents that people read instead of the database, written anew after each round.

They lie in a folder of their own that only we write to, each replaced whole. What PrivateData hides from ordinary users
is in no file that they can read: there the files hold what is everybody's, and a running daemon tells each user's own
through sockets beside them (see `slurmsched.daemon.serving`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.daemon.serving import Server
from slurmsched.model import Snapshot
from slurmsched.settings.definition import Storage
from slurmsched.store.export import Contents, ExportError, Part, collect
from slurmsched.store.published import FOLDER_FLAGS, export_folder
from slurmsched.store.visibility import HIDEABLE, Visibility

__all__ = ["Exporter"]

_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o755


class Exporter:
    """Writes the documents under one set of settings; with `serves` it also answers users, until it is closed.

    A failure is said once, and rounds go on: nobody depends on the documents but people.
    """

    def __init__(self, storage: Storage, clock: Clock, say: Callable[[str], None], *, serves: bool) -> None:
        self._storage = storage
        self._clock = clock
        self._say = say
        self._serves = serves
        self._server: Server | None = None
        self._private: tuple[frozenset[str], frozenset[str]] | None = None
        self._said = ""

    def publish(self, snapshot: Snapshot | None) -> None:
        """What the database holds now. `snapshot` says what PrivateData hides; None after a round that failed.

        Until the cluster has been seen once nobody knows what is private, and nothing is published.
        """
        if snapshot is not None:
            self._private = snapshot.private_data & HIDEABLE, snapshot.operators
        if self._private is None:
            return
        hidden, operators = self._private
        now = self._clock.now()
        try:
            contents = collect(Path(self._storage.path), now, now - self._storage.export_ended)
            with _folder(export_folder(self._storage)) as folder:
                self._write(folder, contents, hidden)
                self._answer(folder, contents, hidden, operators)
        except (ExportError, OSError) as error:
            self._tell(str(error) if isinstance(error, ExportError) else self._sentence(error))
        else:
            self._said = ""

    def close(self) -> None:
        """Answer nobody any more; the files stay as they are."""
        if self._server is not None:
            self._server.close()
            self._server = None

    @staticmethod
    def _write(folder: int, contents: Contents, hidden: frozenset[str]) -> None:
        everybody = Visibility(contents, hidden)
        for part in Part:
            _replace(folder, f"{part.value}.json", everybody.document(part).encoded())

    def _answer(self, folder: int, contents: Contents, hidden: frozenset[str], operators: frozenset[str]) -> None:
        if not hidden or not self._serves:
            self.close()
            return
        if self._server is None or not self._server.alive:
            self._server = Server(folder)
        self._server.tell(contents, hidden, operators)

    def _sentence(self, error: OSError) -> str:
        where = export_folder(self._storage)
        return f"cannot publish in {where}: {error.strerror or error}; create it for our user, or set storage.export"

    def _tell(self, sentence: str) -> None:
        if sentence != self._said:
            self._say(sentence)
        self._said = sentence


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder, made where it is missing. Raises OSError; ExportError where others may write."""
    with suppress(FileExistsError):
        path.mkdir(mode=_MODE)
    descriptor = os.open(path, FOLDER_FLAGS)
    try:
        seen = os.fstat(descriptor)
        owners = {os.geteuid()} if os.geteuid() else {0, path.parent.stat().st_uid}  # root stands in for the daemon
        if seen.st_uid not in owners:
            raise ExportError(f"{path} belongs to somebody else: remove it, or set storage.export")
        if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ExportError(f"others may write to {path}: 'chmod 755 {path}', or set storage.export")
        if stat.S_IMODE(seen.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)
        yield descriptor
    finally:
        os.close(descriptor)


def _replace(folder: int, name: str, data: bytes) -> None:
    """The file `name` of the folder as a whole, for everybody to read. Raises OSError."""
    fresh = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=folder)  # of a process that was killed
    descriptor = os.open(fresh, _FRESH, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(descriptor, 0o644)
    os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
