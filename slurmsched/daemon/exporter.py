"""Publishes the documents that users read instead of the database, after each round.

The files lie in a folder that only the daemon writes to, and are replaced atomically. They hold what every user may
see. A running daemon also serves users through Unix sockets beside the files, one per kind of document and of request:
each user's own document if PrivateData hides something, the runs from which something is learnt of the user's work, and
requests to forget that, which are carried out after the next round. An unprivileged daemon cannot make a file that only
one other user may read (it may not give files away, and not all file systems have access lists), but the kernel tells
which user has connected to a socket (SO_PEERCRED). Nothing is read from a client: it connects and gets its document and
the end of the stream.

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from slurmsched.daemon.clock import Clock
from slurmsched.model import Snapshot
from slurmsched.settings.definition import StorageSettings
from slurmsched.store.publication import (
    FOLDER_FLAGS,
    Document,
    DocumentKind,
    ExportError,
    PrivateRequest,
    PublishedContents,
    collect_contents,
    collect_runs,
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
MAX_TO_FORGET: Final = 1000
"""Users who may wait to be forgotten."""
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
    encoded: dict[tuple[str | None, DocumentKind | PrivateRequest], bytes] = field(default_factory=dict)

    def document(self, uid: int, part: DocumentKind | PrivateRequest) -> bytes:
        """The encoded document with what this user may see: everything for operators, root and the daemon's user."""
        name = _user_name(uid)
        everything = uid in (0, os.geteuid()) or name in self.operators
        key = None if everything else name or f"uid {uid}"
        if (key, part) not in self.encoded:
            encoded = self._encoded(key, part)
            if sum(map(len, self.encoded.values())) + len(encoded) > MAX_CACHED_BYTES:
                self.encoded.clear()
            self.encoded[key, part] = encoded
        return self.encoded[key, part]

    def _encoded(self, viewer: str | None, part: DocumentKind | PrivateRequest) -> bytes:
        """The document for this viewer, None for those who may see everything."""
        if isinstance(part, DocumentKind):
            hidden = frozenset[str]() if viewer is None else self.hidden
            return Visibility(self.contents, hidden, viewer, viewer is None).document(part).to_json()
        if self.contents.path is None:
            raise ExportError("these documents are from no database")
        return collect_runs(self.contents.path, self.contents.at, viewer).to_json()


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
        self._to_forget: set[str] = set()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for part in (*DocumentKind, *PrivateRequest):
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

    def users_to_forget(self) -> tuple[str, ...]:
        """The users who asked to be forgotten, until `forgotten` is called."""
        return tuple(sorted(self._to_forget.copy()))

    def forgotten(self, user: str) -> None:
        """What was learnt of this user has been deleted: it is not told any more."""
        self._to_forget.discard(user)
        if self._documents is not None:
            self._documents = replace(self._documents, encoded={})

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
                    if isinstance(key.data, DocumentKind | PrivateRequest) and isinstance(key.fileobj, socket.socket):
                        self._accept(key.fileobj, key.data)
                    elif isinstance(key.data, _Client):
                        self._send(key.data)
                self._end_overdue()
        finally:
            self._end()

    def _accept(self, listening: socket.socket, part: DocumentKind | PrivateRequest) -> None:
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
                forgets = part is PrivateRequest.FORGET
                unsent = memoryview(self._note_request(uid) if forgets else documents.document(uid, part))
                client = _Client(connected, uid, unsent, time.monotonic() + CLIENT_TIMEOUT)
                self._clients[connected.fileno()] = client
                self._selector.register(connected, selectors.EVENT_WRITE, client)
        except Exception:  # no client's error may stop the others from being served
            connected.close()
        time.sleep(_PAUSE)

    def _note_request(self, uid: int) -> bytes:
        """Note that this user wants to be forgotten, and return the answer: a document without tables, or nothing."""
        name = _user_name(uid)
        if name is None or (len(self._to_forget) >= MAX_TO_FORGET and name not in self._to_forget):
            return b""
        self._to_forget.add(name)
        return Document(time.time(), {}).to_json()

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
        for part in (*DocumentKind, *PrivateRequest):
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

    def forget_who_asked(self, forget: Callable[[str], object]) -> None:
        """Call `forget` for each user who asked for it; who asked stays noted until it succeeds. Raises what it
        raises."""
        server = self._server
        if server is None:
            return
        for user in server.users_to_forget():
            forget(user)
            server.forgotten(user)
            self._log_once(f"what was learnt of {user} was deleted, as {user} asked")

    def close(self) -> None:
        """Stop serving users; the files stay as they are."""
        if self._server is not None:
            self._server.close()
            self._server = None

    @staticmethod
    def _write(folder: int, contents: PublishedContents, hidden: frozenset[str]) -> None:
        public = Visibility(contents, hidden)
        for part in DocumentKind:
            replace_file(folder, f"{part.value}.json", public.document(part).to_json())

    def _serve_users(
        self, folder: int, contents: PublishedContents, hidden: frozenset[str], operators: frozenset[str]
    ) -> None:
        if not self._serves:
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


def replace_file(folder: int, name: str, data: bytes) -> None:
    """Replace the file `name` of the folder, a descriptor, atomically, readable for all users. Raises OSError."""
    fresh = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=folder)  # left by a process that was killed
    descriptor = os.open(fresh, _FRESH, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(descriptor, 0o644)
    os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
