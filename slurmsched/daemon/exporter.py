"""Publishes the documents that users read instead of the database, after each round.

The files lie in a folder that only the daemon writes to, and are replaced atomically. They hold what every user may
see. If PrivateData hides something, a running daemon also serves each user's own document through Unix sockets beside
the files, one per kind of document: an unprivileged daemon cannot make a file that only one other user may read (it may
not give files away, and not all file systems have access lists), but the kernel tells which user has connected to a
socket (SO_PEERCRED). Nothing is read from a client: it connects and gets its document and the end of the stream.

The sockets are served by a separate thread that never waits for a client and that no round waits for. Limited are the
clients at a time, in total and per user, their time, the rate of connections, and the bytes of cached documents.
"""

from __future__ import annotations

import os
import pwd
import selectors
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.model import Snapshot
from slurmsched.settings.definition import StorageSettings
from slurmsched.store.publication import (
    FOLDER_FLAGS,
    DocumentKind,
    ExportError,
    PublishedContents,
    collect_contents,
    export_folder,
)
from slurmsched.store.visibility import HIDEABLE, Visibility

MAX_CLIENTS: Final = 64
MAX_CLIENTS_PER_USER: Final = 4
"""Clients at a time; a further connection is closed at once."""
CLIENT_TIMEOUT: Final = 10.0
"""Seconds after which a client is disconnected."""
MAX_CACHED_BYTES: Final = 64 << 20
"""Bytes of encoded documents that are cached."""
_PAUSE: Final = 0.005
"""Seconds between two connections, so that a user who connects in a loop costs little CPU time."""
_CHUNK: Final = 1 << 16
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class _Documents:
    """The contents since the last round, and the documents encoded from them so far."""

    contents: PublishedContents
    hidden: frozenset[str]
    operators: frozenset[str]
    encoded: dict[tuple[str | None, DocumentKind], bytes] = field(default_factory=dict)

    def document(self, uid: int, part: DocumentKind) -> bytes:
        """The encoded document with what this user may see: everything for operators, root and the daemon's user."""
        name = _user_name(uid)
        everything = uid in (0, os.geteuid()) or name in self.operators
        key = None if everything else name or f"uid {uid}"
        if (key, part) not in self.encoded:
            hidden = frozenset[str]() if everything else self.hidden
            encoded = Visibility(self.contents, hidden, key).document(part).to_json()
            if sum(map(len, self.encoded.values())) + len(encoded) > MAX_CACHED_BYTES:
                self.encoded.clear()
            self.encoded[key, part] = encoded
        return self.encoded[key, part]


@dataclass(slots=True)
class _Client:
    """A connected client; `unsent` is the rest of its document, `deadline` is in monotonic seconds."""

    socket: socket.socket
    uid: int
    unsent: memoryview
    deadline: float


class DocumentServer:
    """Serves documents on sockets in a folder, given by its descriptor, until it is closed."""

    def __init__(self, folder: int) -> None:
        """Raises OSError."""
        self._folder = os.dup(folder)
        self._documents: _Documents | None = None
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for part in DocumentKind:
            self._selector.register(self._listening(f"{part.value}.sock"), selectors.EVENT_READ, part)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="synsched-export", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def update(self, contents: PublishedContents, hidden: frozenset[str], operators: frozenset[str]) -> None:
        """Serve these contents from now on; connected clients still get the whole old document."""
        self._documents = _Documents(contents, hidden, operators)

    def close(self) -> None:
        """End the thread and remove the sockets."""
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(timeout=CLIENT_TIMEOUT)

    def _listening(self, name: str) -> socket.socket:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)  # left by a daemon that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        where = f"/proc/self/fd/{self._folder}/{name}"  # a socket's path may be 107 bytes long
        listener.bind(where)
        os.chmod(where, 0o666)  # noqa: PTH101, S103 - below a descriptor; every user may connect
        listener.listen(MAX_CLIENTS)
        return listener

    def _serve(self) -> None:
        try:
            while not self._closing:
                for key, _ in self._selector.select(timeout=1.0):
                    if isinstance(key.data, DocumentKind) and isinstance(key.fileobj, socket.socket):
                        self._accept(key.fileobj, key.data)
                    elif isinstance(key.data, _Client):
                        self._send(key.data)
                self._end_overdue()
        finally:
            self._end()

    def _accept(self, listening: socket.socket, part: DocumentKind) -> None:
        try:
            connected, _ = listening.accept()
        except OSError:
            time.sleep(_PAUSE)  # the client has gone, or no descriptors are left
            return
        try:
            connected.setblocking(False)
            credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            uid: int = _CREDENTIALS.unpack(credentials)[1]
            documents = self._documents
            of_user = Counter(client.uid for client in self._clients.values())[uid]
            if documents is None or of_user >= MAX_CLIENTS_PER_USER or len(self._clients) >= MAX_CLIENTS:
                connected.close()
            else:
                unsent = memoryview(documents.document(uid, part))
                client = _Client(connected, uid, unsent, time.monotonic() + CLIENT_TIMEOUT)
                self._clients[connected.fileno()] = client
                self._selector.register(connected, selectors.EVENT_WRITE, client)
        except Exception:  # no client's error may stop the others from being served
            connected.close()
        time.sleep(_PAUSE)

    def _send(self, client: _Client) -> None:
        try:
            sent = client.socket.send(client.unsent[:_CHUNK], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            self._dismiss(client)
            return
        client.unsent = client.unsent[sent:]
        if not client.unsent:
            self._dismiss(client)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for client in [client for client in self._clients.values() if client.deadline < now]:
            self._dismiss(client)

    def _dismiss(self, client: _Client) -> None:
        self._clients.pop(client.socket.fileno(), None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()

    def _end(self) -> None:
        for part in DocumentKind:
            with suppress(OSError):
                os.unlink(f"{part.value}.sock", dir_fd=self._folder)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._wake.close()
        os.close(self._folder)


def _user_name(uid: int) -> str | None:
    """The user's name; None for a user id without one, which has no jobs either."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o755


class Exporter:
    """Writes the documents under one set of settings; with `serves` it also serves users on sockets until closed.

    A failure is logged once and ends no round: only people depend on the documents.
    """

    def __init__(self, storage: StorageSettings, clock: Clock, log: Callable[[str], None], *, serves: bool) -> None:
        self._storage = storage
        self._clock = clock
        self._log = log
        self._serves = serves
        self._server: DocumentServer | None = None
        self._private: tuple[frozenset[str], frozenset[str]] | None = None
        self._last_logged = ""

    def publish(self, snapshot: Snapshot | None) -> None:
        """Publish what the database holds now. `snapshot` tells what PrivateData hides; None after a failed round.

        Nothing is published before the first snapshot, since what is private is not known until then.
        """
        if snapshot is not None:
            self._private = snapshot.private_data & HIDEABLE, snapshot.operators
        if self._private is None:
            return
        hidden, operators = self._private
        now = self._clock.now()
        try:
            contents = collect_contents(Path(self._storage.path), now, now - self._storage.export_ended)
            with _folder(export_folder(self._storage)) as folder:
                self._write(folder, contents, hidden)
                self._serve_users(folder, contents, hidden, operators)
        except (ExportError, OSError) as error:
            self._log_once(str(error) if isinstance(error, ExportError) else self._error_text(error))
        else:
            self._last_logged = ""

    def close(self) -> None:
        """Stop serving users; the files stay as they are."""
        if self._server is not None:
            self._server.close()
            self._server = None

    @staticmethod
    def _write(folder: int, contents: PublishedContents, hidden: frozenset[str]) -> None:
        public = Visibility(contents, hidden)
        for part in DocumentKind:
            _replace(folder, f"{part.value}.json", public.document(part).to_json())

    def _serve_users(
        self, folder: int, contents: PublishedContents, hidden: frozenset[str], operators: frozenset[str]
    ) -> None:
        if not hidden or not self._serves:
            self.close()
            return
        if self._server is None or not self._server.alive:
            self._server = DocumentServer(folder)
        self._server.update(contents, hidden, operators)

    def _error_text(self, error: OSError) -> str:
        where = export_folder(self._storage)
        why = error.strerror or error
        return f"cannot publish in {where}: {why}; create it for the daemon's user, or set storage.export"

    def _log_once(self, sentence: str) -> None:
        if sentence != self._last_logged:
            self._log(sentence)
        self._last_logged = sentence


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open the folder, created if missing, as a descriptor. Raises OSError; ExportError if others may write to it."""
    with suppress(FileExistsError):
        path.mkdir(mode=_MODE)
    descriptor = os.open(path, FOLDER_FLAGS)
    try:
        status = os.fstat(descriptor)
        owners = {os.geteuid()} if os.geteuid() else {0, path.parent.stat().st_uid}  # root stands in for the daemon
        if status.st_uid not in owners:
            raise ExportError(f"{path} belongs to another user: remove it, or set storage.export")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ExportError(f"others may write to {path}: 'chmod 755 {path}', or set storage.export")
        if stat.S_IMODE(status.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)
        yield descriptor
    finally:
        os.close(descriptor)


def _replace(folder: int, name: str, data: bytes) -> None:
    """Replace the file `name` of the folder atomically, readable for all users. Raises OSError."""
    fresh = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=folder)  # left by a process that was killed
    descriptor = os.open(fresh, _FRESH, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(descriptor, 0o644)
    os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
