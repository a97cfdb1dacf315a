"""Tells each user what PrivateData leaves to that user, through one Unix socket for each document.

An unprivileged daemon cannot make a file that one other user alone may read: it may not give files away, and access
lists are not on every file system. The kernel however says for certain who has connected to a socket (SO_PEERCRED). A
client sends nothing and nothing is read from it: it connects, gets its document and the end of the stream.

All of it happens in a thread of its own that never waits for a client and that no round waits for. Bounded are the
clients at a time, of all users and of one, the seconds each of them has, the connections taken in a second, and the
documents kept ready: of one user there is one of each part for each round, however often it is asked for.

The documents that people read instead of the database, written anew after each round.

They lie in a folder of their own that only we write to, each replaced whole. What PrivateData hides from ordinary users
is in no file that they can read: there the files hold what is everybody's, and a running daemon tells each user's own
through sockets beside them.
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
"""Clients at a time, of all users and of one; who is one too many is closed at once."""
CLIENT_TIMEOUT: Final = 10.0
"""For which a client may take its time."""
MAX_CACHED_BYTES: Final = 64 << 20
"""Bytes of documents that are kept ready for users to come."""
_PAUSE: Final = 0.005
"""Seconds between two connections: a user who does nothing but connect costs next to no time."""
_CHUNK: Final = 1 << 16
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class _Documents:
    """What there is to tell since the last round, and what has been made ready of it."""

    contents: PublishedContents
    hidden: frozenset[str]
    operators: frozenset[str]
    encoded: dict[tuple[str | None, DocumentKind], bytes] = field(default_factory=dict)

    def document(self, uid: int, part: DocumentKind) -> bytes:
        """What this user may see; everything for operators, for root and for ourselves."""
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
    """Somebody who is being told something: `left` is what has not been sent."""

    socket: socket.socket
    uid: int
    unsent: memoryview
    deadline: float


class DocumentServer:
    """Listens in the folder behind a descriptor until it is closed."""

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
        """From now on this; who is being told something still gets the old whole."""
        self._documents = _Documents(contents, hidden, operators)

    def close(self) -> None:
        """End the thread and remove the sockets."""
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(timeout=CLIENT_TIMEOUT)

    def _listening(self, name: str) -> socket.socket:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)  # of a daemon that was killed
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        where = f"/proc/self/fd/{self._folder}/{name}"  # a socket's path may be 107 bytes long
        made.bind(where)
        os.chmod(where, 0o666)  # noqa: PTH101, S103 - below a descriptor; everybody may ask
        made.listen(MAX_CLIENTS)
        return made

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
            time.sleep(_PAUSE)  # gone again, or we have no descriptors left
            return
        try:
            connected.setblocking(False)
            credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            uid: int = _CREDENTIALS.unpack(credentials)[1]
            documents = self._documents
            of_one = Counter(client.uid for client in self._clients.values())[uid]
            if documents is None or of_one >= MAX_CLIENTS_PER_USER or len(self._clients) >= MAX_CLIENTS:
                connected.close()
            else:
                left = memoryview(documents.document(uid, part))
                client = _Client(connected, uid, left, time.monotonic() + CLIENT_TIMEOUT)
                self._clients[connected.fileno()] = client
                self._selector.register(connected, selectors.EVENT_WRITE, client)
        except Exception:  # whoever asks and whatever goes wrong about it: the others are told on
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
    """The user's name; None for a number that has none, who then has no jobs either."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o755


class Exporter:
    """Writes the documents under one set of settings; with `serves` it also answers users, until it is closed.

    A failure is said once, and rounds go on: nobody depends on the documents but people.
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
            contents = collect_contents(Path(self._storage.path), now, now - self._storage.export_ended)
            with _folder(export_folder(self._storage)) as folder:
                self._write(folder, contents, hidden)
                self._serve_users(folder, contents, hidden, operators)
        except (ExportError, OSError) as error:
            self._log_once(str(error) if isinstance(error, ExportError) else self._error_text(error))
        else:
            self._last_logged = ""

    def close(self) -> None:
        """Answer nobody any more; the files stay as they are."""
        if self._server is not None:
            self._server.close()
            self._server = None

    @staticmethod
    def _write(folder: int, contents: PublishedContents, hidden: frozenset[str]) -> None:
        everybody = Visibility(contents, hidden)
        for part in DocumentKind:
            _replace(folder, f"{part.value}.json", everybody.document(part).to_json())

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
        return f"cannot publish in {where}: {error.strerror or error}; create it for our user, or set storage.export"

    def _log_once(self, sentence: str) -> None:
        if sentence != self._last_logged:
            self._log(sentence)
        self._last_logged = sentence


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
